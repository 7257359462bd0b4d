"""Who explains whom: the one table of causes and effects among findings.

When both are present, the effect is only the mechanism of its cause: the report marks it ``explained_by`` the cause and
says what to do about the cause.  Of several causes that are present the first in this table counts; a link that holds in
certain *cases* only, counts where the effect's rule saw that case (``Present.cases``), and then before those that always hold.

Standard library only: rules, engine and documentation all read it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import Enum

from probes.record import dataclass

#: Whoever takes the app's CPU.
CPU_TAKERS = (
    "cpu_throttled_between_requests", "burst_balance_spent", "platform_quota_uncounted", "cpu_quota_throttled", "cpu_limit_too_low", "cpu_stolen",
    "cpu_suspended", "cpu_contended", "instance_frozen",
)  # fmt: skip


class Case(Enum):
    """What a rule saw that makes a link hold; the value ends a sentence that begins with "when"."""

    WRITE_WAITS = "the app's write() to standard output waits in most samples"
    LEAVES_BY_STDOUT = "the queue empties into standard output"
    REFUSED = "deliveries of the queue were refused for want of quota (429)"
    ON_A_CLOCK = "the gaps end on the clock of a CPU limit"
    LOGS_MEANWHILE = "slow log calls take at least half of the time in which the event loop is late"
    CPU_TAKEN = "the app's CPU is taken away at least as much as it runs"
    LOGS_FILL = "the app's queue is at least half of what its group's memory uses or grows by, or reports no bytes"
    FILES_FILL = "the app's files in memory are at least half of what its group's memory uses or grows by"
    CPU_WITHHELD = "the app's CPU is taken away most of the time and what waits still moves"


@dataclass(frozen=True, slots=True)
class Link:
    """Each of ``causes`` explains each of ``effects``: always, or where ``case`` was seen."""

    causes: tuple[str, ...]
    effects: tuple[str, ...]
    why: str
    case: Case | None = None
    same: bool = False
    """The effect is the cause's loss, measured as a share of something else than time: which share is larger says nothing."""


@dataclass(frozen=True, slots=True)
class CausalGraph:
    """The links, in the order in which causes are preferred."""

    links: tuple[Link, ...]

    def causes(self, effect: str, cases: Collection[Case] = ()) -> Iterator[str]:
        """What may explain this finding, first choice first: what these cases show, then what always holds."""
        here = [link for link in self.links if effect in link.effects]
        for link in (*(link for link in here if link.case in cases), *(link for link in here if link.case is None)):
            yield from link.causes

    def same(self, cause: str, effect: str) -> bool:
        """Whether the two measure one loss, each as a share of something else."""
        return any(link.same and cause in link.causes and effect in link.effects for link in self.links)

    def effects(self, cause: str, case: Case | None = None) -> tuple[str, ...]:
        """What this finding explains always, or in this case."""
        links = (link for link in self.links if cause in link.causes and link.case is case)
        return tuple(effect for link in links for effect in link.effects)


GRAPH = CausalGraph((
    Link(("log_pipe_blocked",), ("client_not_reading", "pool_saturated"),
         "a thread that sleeps in write() reads no reply and gives no connection back", Case.WRITE_WAITS),
    Link(("log_pipe_blocked",), ("accept_queue_full",), "a thread that sleeps in write() accepts nobody"),
    Link(("log_pipe_blocked",), ("log_queue_in_memory",), "what the pipe does not take stays in the queue before it", Case.LEAVES_BY_STDOUT),
    Link(("log_quota_exceeded",), ("log_queue_in_memory",), "refused entries are sent again, more slowly than new ones come", Case.REFUSED),
    Link(("log_pipe_blocked",), ("log_call_slow", "event_loop_blocked"), "a log call that writes to standard output waits for its reader", Case.WRITE_WAITS),
    Link(("log_call_slow",), ("event_loop_blocked",), "a log call that waits holds the loop up that it is made on", Case.LOGS_MEANWHILE),
    Link(CPU_TAKERS, ("log_call_slow", "event_loop_blocked"), "what runs while the CPU is taken away takes longer", Case.CPU_TAKEN),
    Link(("log_queue_in_memory",), ("log_delivery_late",), "late entries wait in the app's own queue", Case.CPU_WITHHELD),
    Link(CPU_TAKERS, ("log_queue_in_memory", "log_delivery_late"), "a log client without CPU delivers less than the app logs", Case.CPU_WITHHELD),
    Link(("cpu_throttled_between_requests",), ("platform_quota_uncounted", "cpu_quota_throttled", "cpu_limit_too_low", "cpu_suspended", "cpu_stolen"),
         "the same gaps; that they come between requests says who makes them"),
    Link(("runtime_oversubscribed",), ("cpu_quota_throttled",),
         "threads beyond the limit's cores use up a period's quota early, and all are stopped until the next period"),
    Link(("cpu_limit_unusable",), ("client_cpu_bound",), "the computing waits for one CPU while others that are paid for are idle"),
    Link(("cpu_quota_throttled",), ("cpu_limit_too_low",), "the same limit; what was wanted of it says how much is missing"),
    Link(("burst_balance_spent",), ("platform_quota_uncounted", "cpu_quota_throttled", "cpu_stolen"),
         "the same gaps; that the work was fast before says what was spent"),
    Link(("cpu_stolen",), ("cpu_suspended",), "the same host: of some gaps the counters name it, of others they do not"),
    Link(("platform_quota_uncounted", "cpu_quota_throttled"), ("cpu_stolen",), "a limit on the virtual machine loses its ticks too", Case.ON_A_CLOCK),
    Link(CPU_TAKERS, ("client_suspended_holding_connection",), "a client without CPU reads no reply", same=True),
    Link(CPU_TAKERS, ("client_not_reading", "connections_held_by_app", "pool_saturated"),
         "a client without CPU reads no reply and gives no connection back"),
    Link(CPU_TAKERS, ("background_refresh_starved",), "a timer that is due without CPU comes when the CPU does"),
    Link(CPU_TAKERS, ("accept_queue_full",), "a server without CPU accepts nobody"),
    Link(("memory_near_limit",), ("memory_reclaim_stall",), "what fills the memory leaves no room for the pages that are needed"),
    Link(("memory_reclaim_stall",), ("io_stall",), "pages that were taken away are read from storage again"),
    Link(("memory_reclaim_stall", "io_stall"), ("client_not_reading", "pool_saturated", "accept_queue_full"),
         "a thread that waits for memory or storage reads no reply, gives no connection back and accepts nobody"),
    Link(("client_cpu_bound",), ("connections_held_by_app",), "a thread that computes within a transaction keeps its connection"),
    Link(("connections_held_by_app",), ("pool_saturated", "connections_exhausted"), "what the app keeps nobody else can have"),
    Link(("connections_held_by_app",), ("client_not_reading",), "a result that is never closed lies unread"),
    Link(("connections_exhausted",), ("database_unreachable",), "a server without a free slot answers nobody new"),
    Link(("database_unreachable", "redis_unreachable"), ("pool_saturated",), "connections to a server that does not answer are not given back"),
    Link(("proxy_or_server_starved",), ("database_slow",), "a server without CPU works long on every statement"),
    Link(("database_slow", "database_locked", "redis_slow", "network_slow", "proxy_or_server_starved"), ("waiting_for_database", "pool_saturated"),
         "it is what the client waits for, and a connection is in use while it waits"),
    Link(("waiting_for_database",), ("pool_saturated",), "a connection is in use while it waits"),
    Link(("client_suspended_holding_connection",), ("client_not_reading", "pool_saturated"), "a stopped client reads nothing and gives nothing back"),
    Link(("client_not_reading",), ("pool_saturated",), "a connection is in use until its reply is read"),
    Link(("waiting_for_database", "client_cpu_bound"), ("accept_queue_full",),
         "workers that wait for the database, or compute, accept nobody"),
    Link(("client_cpu_bound",), ("client_not_reading", "pool_saturated"), "a thread that computes reads no reply and gives no connection back"),
    Link(("event_loop_blocked",), ("client_not_reading", "pool_saturated", "accept_queue_full"),
         "a loop that is held reads no reply, gives no connection back and accepts nobody"),
    Link(("log_queue_in_memory",), ("memory_near_limit",), "what waits is memory", Case.LOGS_FILL),
    Link(("log_queue_in_memory",), ("log_delivery_late",), "what waits arrives late"),
    Link(("log_files_in_memory",), ("memory_near_limit",), "files on a file system in memory count against the limit", Case.FILES_FILL),
    Link(("log_quota_exceeded",), ("log_delivery_late", "log_entries_dropped"), "refused entries are sent again later, or lost"),
))  # fmt: skip
