"""The app's connections to its databases, as the kernel sees them: who waits for whom.

Seen from the shared network namespace, without a credential and without touching a connection.  Each read
takes some dumps a moment apart (:mod:`probes.sockets.netlink`) and puts every socket into one of three groups:

* *unread*: the reply lies in the client's own kernel and nobody takes it.  Measured under a quota: 69-98 %
  of the samples with pgx, 0 when the server, a lock or the network was slow.  It proves a client that does not
  read, not why: CPU-bound clients showed 48-62 %, a sleepy streaming reader 68 %, libpq 2 %, as it drains
  the socket in one burst;
* *waiting*: a request is out and nothing has come since: the server or the network takes its time;
* *idle*: neither.

``data_segs_out`` tells round trips apart from waits: round trips per second x ``min_rtt_seconds`` is about the
share of time in flight when requests are tiny (N+1 queries; measured: 0.82 against a true 0.89).  A request
larger than a segment, a pipeline and a retransmission count several times.  A TCP proxy hides the network
from ``min_rtt_seconds``, which stays true under a quota; the smoothed ``rtt`` does not.

A sample at a random moment of a wait finds it half over on average: ``waiting_seconds`` is half of the length
of the waits, the long ones counting more.

A connection that came and went between two reads leaves a socket in TIME_WAIT for a minute on the side
that closed first, which is the client's with every common driver; ``closed_per_second`` counts these, and not those that the
agent notes as its own, about one a minute for each PostgreSQL that it watches.  Where the server closed first (asyncpg
lets it) nothing is left: a connection that stood at one sample and at neither the one before nor the one after it was begun and ended
in between, so there are at least ``fleeting_per_second`` of them, and no more than the namespace has begun (``begun_per_second``).  The sample before the
first of a slot is the last of the slot before.

A wait of over 10 s, or a result that is read for as long, may be meant so (BLPOP, replication, a reader with a pace of its own):
these are told apart as far as the wire knows (:mod:`probes.sockets.exchange`), within the shares of the waiting and the unread.  Unseen is what a connection
did after the last read before its end, and TLS or text of any kind; connections over Unix sockets are counted, no more (:mod:`probes.sockets.unix`).

Of more than 64 connections to one remote end up to 64 are followed, the others counted, and one sample is taken in a slot instead
of three (each sixth slot takes three all the same, for those that come and go): many connections tell a share in one sample.
Of fewer, where the namespace has begun hardly any since the last slot, the second and the third sample ask for the connections of the first one by one,
which takes no walk through the kernel's table: on a machine with 24 GB a slot takes 3 ms instead of 11. Where it has begun none nothing can have come and gone, and the first sample asks so too; of
many, where the namespace has accepted none and as many stand as before: of 2,000 connections that takes 0.5 ms instead of 5.5. Each sixth slot begins with a dump all the same. Where many were
begun, and some came and went, there are six samples.

Where netlink is refused, :mod:`probes.sockets.proc_net` gives connections and queues, at a higher price; in gVisor nothing.

Cost, measured on the loopback interface: with 10 connections a dump takes a thirtieth of reading /proc/net/tcp and tcp6,
most of it one walk through the kernel's hash table; a thousand connections to other ports beside them add two fifths
to the dump and two thirds to the tables.  docs/evidence/lightness.md has the cost over the number of connections.

Over 300 lines, of which a hundred say what is measured; grouping, exchanges and sums are modules beside it.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import field
from typing import ClassVar

from probes.kernel_files import why
from probes.own_connections import OwnConnections
from probes.reading import Code, NoData, Reading, Stability, Unseen, gauge, increment
from probes.record import dataclass
from probes.sockets import netlink, proc_net
from probes.sockets.classify import Key, Seen, settle
from probes.sockets.endpoints import Endpoints, weigh
from probes.sockets.proc_net import Opened
from probes.sockets.services import DEFAULT_PORTS
from probes.sockets.sums import FIRST, Sample, Sums, fleeting, key_of
from probes.sockets.tcp_info import Dump, Remote, Socket

#: After a refusal netlink is not asked for so long: each question may make the kernel look for a module.
REFUSED_SECONDS = 60.0
#: Between two samples of one read: more than a scheduler's period of 100 ms apart on average, and never in step with it.
BETWEEN_SECONDS = (0.03, 0.17)
#: With more followed connections than this a slot takes one sample; each so many slots it takes all.
MANY, ALL_EVERY = netlink.MOST_FOLLOWED, 6
#: Where no more connections than this are begun a second nobody opens one for each query (half of what is a finding).
FEW_PER_SECOND = 0.5
#: Where twice as many are begun, and a watched one came and went within the last minute, so many times the samples are taken: of connections that live
#: for 10 ms, 30 a second, a sample meets one in three.
MORE_SAMPLES = 2

_REMEDY = "let the agent see the network namespace of the application, with its /proc and NETLINK_SOCK_DIAG allowed"
_NOT_COUNTED = Unseen("/proc/net/snmp does not tell ActiveOpens", Code.CANNOT_COUNT)
_CHANGED = "other addresses are watched than at the previous reading"
_GVISOR = Unseen(
    "gVisor has no NETLINK_SOCK_DIAG, and the queues in its /proc/net/tcp always read 0", Code.CANNOT_COUNT
)
_GVISOR_REMEDY = (
    "measure in the application: the acquire and query times of its pool; or run on a Linux kernel (GKE: a node pool "
    "without the sandbox)"
)

#: How a dump is taken; :func:`probes.sockets.netlink.dump` and :func:`probes.sockets.proc_net.dump` are such.
Asked = Callable[[Collection[Remote]], Dump]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConnectionsReading(Reading):
    """One slot's samples of the watched connections, per remote endpoint: its configured name, or ``ip:port``.

    A field with a reason in ``unseen`` beside a value lacks what the reason names.
    """

    probe: ClassVar[str] = "connections"
    stability: ClassVar[Stability] = "stable"

    connections: Mapping[str, float] | None = gauge("Connections established or being established", by="remote")
    followed: Mapping[str, float] | None = gauge(
        "Where there are many: those that are looked at one by one; the others are counted, and what is said of all is these, scaled",
        by="remote",
    )
    unread_ratio: Mapping[str, float] | None = gauge(
        "Share of the connections whose reply has lain unread in the client's kernel for over 20 ms", by="remote"
    )
    waiting_ratio: Mapping[str, float] | None = gauge(
        "Share of the connections that sent a request, or a part of one, and have received nothing since", by="remote"
    )
    idle_ratio: Mapping[str, float] | None = gauge("Share of the connections that are neither", by="remote")
    waiting_seconds: Mapping[str, float] | None = gauge(
        "How long the waiting ones have waited at a random moment, on average: half of a wait's length; without the long ones",
        by="remote",
    )
    pipelined_ratio: Mapping[str, float] | None = gauge(
        "Share of the connections that wait and have sent, or written, more before what went before was acknowledged: a pipeline, one that many share, or more than a segment",
        by="remote",
    )
    waiting_long_ratio: Mapping[str, float] | None = gauge(
        "Share of the connections that wait for over 10 s and did not ask often before: it may be meant so", by="remote"
    )
    unread_long_ratio: Mapping[str, float] | None = gauge(
        "Share of the connections with an unread reply that read for over 10 s, or ask less than once a second: it may be their pace",
        by="remote",
    )
    untaken_ratio: Mapping[str, float] | None = gauge(
        "Share of the connections of whose unread reply nothing has been taken for a minute: left, as a result that is never closed is",
        by="remote",
    )
    idle_long_ratio: Mapping[str, float] | None = gauge(
        "Share of the connections on which nothing has moved for over a second, and nothing is due: idle, or held by the app",
        by="remote",
    )
    waiters: Mapping[str, float] | None = gauge("Connections in waits, not long, within the last minute", by="remote")
    busy_waiters: Mapping[str, float] | None = gauge(
        "Of them those that asked at least once a second within the last two minutes", by="remote"
    )
    unread_bytes: Mapping[str, float] | None = gauge(
        "Received by the client's kernel and not yet read by the client", by="remote"
    )
    min_rtt_seconds: Mapping[str, float] | None = gauge(
        "Shortest round trip of any connection, measured by the kernel; stays true while the client is suspended",
        by="remote",
    )
    round_trips_per_second: Mapping[str, float] | None = gauge(
        "Segments with data that the client sent per second: about one per small request", by="remote"
    )
    busiest_round_trips_per_second: Mapping[str, float] | None = gauge(
        "The same of the one connection that has the most", by="remote"
    )
    replies_per_second: Mapping[str, float] | None = gauge(
        "Segments with data that came back per second: none while the other side is silent", by="remote"
    )
    request_bytes: Mapping[str, float] | None = gauge("Mean bytes sent per segment with data", by="remote")
    reply_bytes: Mapping[str, float] | None = gauge("Mean bytes received per segment with data", by="remote")
    new_connections_per_second: Mapping[str, float] | None = gauge(
        "Connections that the previous reading did not have, per second; shorter ones go unseen", by="remote"
    )
    begun_per_second: float | None = gauge(
        "Connections begun in this network namespace per second, to anywhere, without the agent's own to PostgreSQL: no more can have come and gone"
    )
    closed_per_second: Mapping[str, float] | None = gauge(
        "Connections that the client closed in the last minute, per second (sockets in TIME_WAIT), without the agent's own to PostgreSQL",
        by="remote",
    )
    fleeting_per_second: Mapping[str, float] | None = gauge(
        "Connections that came and went between three samples, per second: a lower bound", by="remote"
    )
    retransmits: Mapping[str, float] | None = increment("Segments that the client sent again", by="remote")
    services: Mapping[int, str] = field(default_factory=dict)
    """Port to key in :data:`probes.sockets.services.SERVICES`, where the settings name one."""
    samples: int = 3
    """How many the shares are of, for each connection."""
    unheard: Mapping[str, float] = field(default_factory=dict)
    """Of each endpoint that has some the share of the connections whose request has not even been acknowledged for over a second."""
    shared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name of an endpoint to the other names by which connections to its addresses go."""


class ConnectionsProbe:
    """Watches the connections of one network namespace.

    ``own``: what is counted as begun or closed and is the agent's.  ``ports``: every connection to such a port is watched, and to those of ``services``, which says what answers there.  ``targets``: name of an endpoint to the addresses
    (IP, port) that the caller resolved; :meth:`watch` replaces them.  ``own_inodes`` gives the sockets to leave
    out, by inode.  ``gvisor`` says whether this is one, as the platform probe found it.  Each read takes ``samples``
    dumps, a random moment apart: a steady rhythm can fall in step with what it measures.  It takes none where the read before saw
    no connection and ``opened`` (see :func:`probes.sockets.proc_net.opened`) says that none was begun since.
    """

    name = "connections"
    target = ""
    reading_type = ConnectionsReading

    def __init__(
        self,
        ports: Collection[int] = DEFAULT_PORTS,
        targets: Mapping[str, Collection[Remote]] | None = None,
        *,
        services: Mapping[int, str] | None = None,
        own_inodes: Callable[[], Collection[int]] | None = None,
        own: OwnConnections | None = None,
        gvisor: Callable[[], bool] = lambda: False,
        netlink: Asked = netlink.dump_followed,
        once_more: Callable[[Collection[Socket]], Sequence[Socket]] = netlink.look_up,
        table: Asked = proc_net.dump,
        opened: Callable[[], Opened | None] = proc_net.opened,
        samples: int = 1,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._services = dict(services or {})
        self._ports = frozenset(ports) | self._services.keys()
        self._own_inodes = own_inodes or proc_net.sockets_of_this_process
        self._own = own or OwnConnections()
        self._gvisor = gvisor
        self._netlink, self._once_more, self._table, self._clock = netlink, once_more, table, clock
        self._samples, self._sleep, self._opened = samples, sleep, opened
        self._opens: Opened | None = None
        self._slot = 0
        #: The last slot in which a connection came and went between samples.
        self._came_and_went = -ALL_EVERY
        self._scale: Mapping[Remote, float] = {}
        self._last_refused: Unseen | None = None
        self._closed: Mapping[Socket, int] = {}
        self._refused, self._refused_until = Unseen("", Code.NOT_PERMITTED), -math.inf
        self._last: Sample | None = None
        self._seen: dict[Key, Seen] = {}
        self._endpoints = Endpoints((), {})
        self.watch(targets or {})

    def watch(self, targets: Mapping[str, Collection[Remote]]) -> None:
        """Replace the named targets, as after a new look-up of their names.

        Raises ValueError for an address that is none, for more than ``MOST_ENDPOINTS`` names, or for more addresses
        than the kernel's filter takes.
        """
        endpoints = Endpoints(self._ports, targets)
        netlink.bytecode(endpoints.wanted)
        if self._last and endpoints.wanted != self._endpoints.wanted:
            self._last = self._last._replace(missing=_CHANGED)
        self._endpoints = endpoints

    async def read(self) -> ConnectionsReading:
        """Take the samples of one slot.  Raises NoData in gVisor and where neither netlink nor the tables can be read."""
        if self._gvisor():
            raise NoData(_GVISOR, _GVISOR_REMEDY)
        self._slot += 1
        before, opens, self._opens = self._last, self._opens, self._opened_by_others()
        begun = _begun(opens, self._opens)
        none_begun = begun == 0
        known = None
        if none_begun and self._slot % ALL_EVERY:
            known = self._all_that_are_left(before, same_number=_same_number(opens, self._opens))
        if known == {}:
            sample = self._last = Sample(self._clock(), "", {})
            looks, refused, seen = [sample], self._last_refused, list[Seen]()
        else:
            expected = FEW_PER_SECOND * (self._clock() - before.taken) if before else math.inf
            few = none_begun or (begun is not None and begun <= expected < math.inf and bool(self._slot % ALL_EVERY))
            many = begun is not None and begun >= 2 * expected and self._slot - self._came_and_went <= ALL_EVERY
            samples = self._samples * (MORE_SAMPLES if many else 1)
            looks, refused, seen = await self._look(samples, known, none_begun=none_begun, few_begun=few)
            sample = self._last = looks[-1]
            self._last_refused = refused
        sockets = list(sample.sockets.values())
        by_end = self._endpoints.sort(sockets)
        scale = {end: weigh(found, self._scale) / len(found) for end, found in by_end.items()}
        sums = Sums(by_end, refused, self._endpoints.sort(seen, lambda each: each.socket), scale)
        sums.fill_states(self._endpoints.named)
        gone = self._endpoints.sort(self._closed)
        ended = {end: float(sum(self._closed[each] for each in found)) for end, found in gone.items()}
        sums.fill_closed(ended, refused)
        if sample.missing:
            sums.unseen["connections"] = Unseen(sample.missing, Code.PARTIAL)
        sums.fill_growth(before, sample)
        earlier = [before] if before and not before.missing else []
        came_and_went, span = fleeting([(look.taken, look.sockets) for look in (*earlier, *looks)])
        self._came_and_went = self._slot if came_and_went else self._came_and_went
        ends = self._endpoints.sort(came_and_went)
        seconds = max(0.0, sample.taken - before.taken) if before else 0.0
        if begun is None and self._opens is not None:
            span = 0.0  # how many there can be is not known yet
        per_second = begun / seconds if begun is not None and seconds else None
        if per_second is None:
            sums.unseen["begun_per_second"] = FIRST if self._opens is not None else _NOT_COUNTED
        sums.fill_fleeting({end: len(found) for end, found in ends.items()}, 1.0 if none_begun else span, per_second)
        return ConnectionsReading(
            taken=sample.taken,
            seconds=seconds,
            unseen=sums.unseen,
            services=self._services,
            samples=len(looks),
            shared=self._endpoints.shared,
            begun_per_second=per_second,
            **sums.fields,
        )

    def _all_that_are_left(self, before: Sample | None, *, same_number: bool) -> Mapping[Key, Socket] | None:
        """All that there can be where none was begun since; None where a dump has more to tell: how many are closed, or how many those stand for that are followed."""
        if before is None or before.missing or self._closed or (before.sockets and self._last_refused):
            return None
        return before.sockets if same_number or not self._scale else None

    async def _look(
        self, most: int, known: Mapping[Key, Socket] | None, *, none_begun: bool, few_begun: bool
    ) -> tuple[list[Sample], Unseen | None, list[Seen]]:
        """The samples of one slot, why they are only the tables', and every connection at each of them.

        ``known``: all that there can be.
        """
        looks: list[Sample] = []
        refused: Unseen | None = None
        seen: list[Seen] = []
        missing = ""
        for turn in range(most):
            if turn:
                await self._sleep(random.uniform(*BETWEEN_SECONDS))  # noqa: S311 - no secret
                known = looks[-1].sockets if few_begun and refused is None else None
            same = None if known is None else self._ask_again(known)
            if same is None:
                own = self._own_inodes()  # first: a socket that another thread closes meanwhile stays ours
                dump, refused = self._ask()
                self._scale, self._closed, missing = dump.scale, self._closed_by_others(dump), dump.missing
                same = {key_of(s): s for s in dump.sockets if s.inode not in own}
            sockets, at = same, self._clock()
            self._seen = {key: settle(s, self._seen.get(key), at) for key, s in sockets.items()}
            seen += self._seen.values()
            looks.append(Sample(at, missing, sockets))
            many = self._scale or len(sockets) > MANY
            if (many and (none_begun or self._slot % ALL_EVERY)) or (none_begun and not sockets):
                break
        return looks, refused, seen

    def _ask_again(self, known: Mapping[Key, Socket]) -> Mapping[Key, Socket] | None:
        """These connections as they are now; None where not each of them is found so: a dump has those that are left."""
        try:
            found = {key_of(s): s for s in self._once_more(known.values())}
        except OSError:
            return None
        return found if found.keys() == known.keys() else None

    def _opened_by_others(self) -> Opened | None:
        now = self._opened()
        return now and now._replace(begun=now.begun - self._own.begun)

    def _closed_by_others(self, dump: Dump) -> Mapping[Socket, int]:
        own = self._own.in_time_wait()
        left = {
            each: number - own.get((each.destination, each.destination_port), 0) for each, number in dump.closed.items()
        }
        return {each: number for each, number in left.items() if number > 0}

    def inodes(self) -> frozenset[int]:
        """The sockets that the latest sample saw: who holds them is the app."""
        return frozenset(s.inode for s in self._last.sockets.values()) if self._last else frozenset()

    async def aclose(self) -> None:
        """Nothing is held open."""

    def _ask(self) -> tuple[Dump, Unseen | None]:
        """A dump, and why it is only the tables'."""
        now = self._clock()
        if now >= self._refused_until:
            try:
                return self._netlink(self._endpoints.wanted), None
            except OSError as error:
                self._refused, self._refused_until = _refusal(error), now + REFUSED_SECONDS
        lacks = f"{self._refused}; /proc/net/tcp, read instead at a higher cost, lacks it"
        try:
            return self._table(self._endpoints.wanted), self._refused.reworded(lacks)
        except OSError as error:
            raise NoData(f"{self._refused}; {why(error)}", _REMEDY, code=self._refused.code) from error


def _begun(before: Opened | None, now: Opened | None) -> int | None:
    """How many connections this namespace has begun in between; None where that is not known."""
    return None if before is None or now is None or now.begun < before.begun else now.begun - before.begun


def _same_number(before: Opened | None, now: Opened | None) -> bool:
    """Whether as many stand as before, and none was accepted: where none was begun either, the same ones do."""
    if before is None or now is None or now.standing is None or now.accepted is None:
        return False
    return now[1:] == before[1:]


def _refusal(error: OSError) -> Unseen:
    reason = why(error)
    return reason.reworded(f"NETLINK_SOCK_DIAG: {reason}")
