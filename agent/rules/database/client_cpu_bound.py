"""The app itself computes while the replies of its database wait: nobody takes its CPU, and nobody else is slow.

Three things must come together.  The database's side feels it: replies lie unread, the pool is used up
(``pool_saturated``), sessions stand idle in a transaction, or the thread that computes has no time for its own page of
metrics.  A thread of the app is ready to run nearly all the time, or the app uses up its CPU limit.  And the CPU is not
taken away: the quota hardly holds it, and no gap is the hypervisor's or unexplained, because in a guest without a steal
clock CPU time runs through those (docs/evidence/measured-facts.md).  A busy worker that keeps nobody waiting is healthy.  libpq drains its
socket in one burst, so there the pool or the server's view has to tell.

On a crowded machine a thread that computes waits for its turns and runs for less than all the time: what counts is that
it is ready, and that it waits no longer than the agent's own bursts do, which share the CPUs with it and no quota.  The
crowd is named beside it, and is a finding of its own (``cpu_contended``).  Where the agent feels no crowd, a thread that
waits is held by a quota that cannot be seen from here.

Half of the samples' share by which unread replies are a finding is enough here: other connections, such as an idle pool,
thin it out (a node that computed all the time: 21 to 33 % of the samples of its connections), and the thread speaks too.

In Python and Ruby one thread of an interpreter runs at a time, so there the whole process counts as one thread.

Over 60 lines: each of the three has ways of its own to look alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import targets
from agent.rules.confidence import measured, not_measured
from agent.rules.cpu import cpu_contended
from agent.rules.database import client_not_reading, pool_saturated
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import connections, place, server_sessions
from agent.views.cpu import cpu_breakdown, spin_view, throttling
from agent.views.stalled import COMPUTES
from probes.app.pool import PoolReading
from probes.app.processes import ProcessesReading
from probes.app.procfs import INTERPRETER_LOCK, Runtime
from probes.averages import fmean
from probes.host.cgroup import CgroupReading
from probes.postgres.server import PostgresServerReading
from probes.reading import Code, Unseen
from probes.sockets.connections import ConnectionsReading

SPAN = 60.0
BUSY = Threshold(
    "time in which the busiest thread runs or waits for a CPU, at least",
    0.85,
    "ratio",
    "whatever else it has to do then waits",
)
RUNS = Threshold(
    "time in which the busiest thread runs, on average, at least",
    0.5,
    "ratio",
    "with less, crowded CPUs are the finding and not the app",
)
WAITS = Threshold(
    "run delay of the busiest thread above that of the agent's own bursts, at most",
    0.1,
    "ratio of run and run delay",
    "a CPU limit makes 0.85 and more, busy neighbours up to 0.7 (docs/evidence/measured-facts.md)",
)
MOST = Threshold(
    "readings in which it is that busy, at least", 0.75, "ratio", "most of a minute: one batch is not a state"
)
HELD = Threshold(
    "sessions idle in a transaction at any moment, at least", 0.5, "", "the app holds them while it computes"
)
UNREAD = Threshold(
    "or instead: samples in which a reply lies unread, at least",
    0.15,
    "ratio",
    "half of what is a finding without a busy thread",
)
LATE = Threshold(
    "or instead: samples in which the app's page of metrics came too late, at least",
    0.3,
    "ratio",
    "a thread that computes serves no page",
)
LOOKS = Threshold("readings that are judged, at least", 3, "", "fewer are a moment")
WHOLE = Threshold(
    "instead of a busy thread: use of the CPU limit, at least", 0.9, "ratio", "many threads, of which none is that busy"
)
TAKEN = Threshold(
    "time in which the CPU is taken away, at most",
    0.05,
    "ratio",
    "with more the app is stopped, and the CPU findings say by what",
)


class _Work(NamedTuple):
    """What the processes of one name did: means over the span, and the share of readings in which they were busy."""

    name: str
    runtime: Runtime
    ran: float
    waited: float | None
    busy: float

    def __str__(self) -> str:
        who = (
            f"the interpreter of {self.name}"
            if self.runtime in INTERPRETER_LOCK
            else f"the busiest thread of {self.name}"
        )
        waited = "" if self.waited is None else f" and waited {self.waited:.0%} for a CPU"
        return f"{who} ran {self.ran:.0%} of the time{waited}"


SURE = measured(3, 3, when="where run delay is counted and nobody else wants the CPUs")
CROWDED = not_measured(0.7, "a crowd, or a delay that cannot be counted, may be why it is always ready", "otherwise")


def _judge(history: History) -> Judgement:
    matters = _why_it_matters(history)
    if not isinstance(matters, Present):
        return matters
    readings = history.window(ProcessesReading, SPAN)
    crowd, cpu = _crowd(history), cpu_breakdown(history, SPAN)
    work = max(_work(readings, crowd), key=lambda w: (w.busy, w.ran), default=None)
    if work is None or cpu is None:
        blind = Unseen(f"fewer than {LOOKS.value} samples of the app could be compared", Code.NOT_YET)
        blind = readings[-1].unseen.get("busiest_thread_ratio", blind) if readings else blind
        return Unknown(*history.why_missing(ProcessesReading, SPAN).otherwise(blind, "", blind.code))
    use, held = _quota(history, readings)
    computes = work.busy >= MOST.value and work.ran >= RUNS.value
    evidence = [Evidence(str(work), work.ran, "ratio"), *matters.evidence[:1]]
    if use is not None:  # the headline, where no single thread is
        told = Evidence(f"the app used {use:.0%} of its CPU limit", use, "of the limit")
        evidence.insert(int(computes), told)
    if crowded := crowd > WAITS.value:
        text = f"others want the same CPUs: bursts of the agent waited {crowd:.0%} of the time for one"
        evidence.append(Evidence(text, crowd, "ratio"))
    if not computes and (use is None or use < WHOLE.value):
        part = readings[-1].unseen.get("busiest_thread_ratio")  # beside a value: some threads were not looked at
        if part and max((readings[-1].busiest_process_cores or {}).values(), default=0.0) >= BUSY.value:
            return Unknown(part, code=part.code)
        return Absent(str(work), tuple(evidence))
    taken = max(held, cpu.shares["suspended_hypervisor"] + cpu.shares["suspended_unknown"])
    if taken > TAKEN.value:
        why = f"the app's CPU was taken away {taken:.0%} of the time: it is stopped rather than busy"
        return Absent(why, (Evidence(why, taken, "ratio"), *evidence))
    return Present("warning", CROWDED if work.waited is None or crowded else SURE, "the app", tuple(evidence), Advice(
        ADVICE, (*BY_RUNTIME.get(work.runtime, BY_RUNTIME["other"]), *ALWAYS), "work on the app; more processes and threads use more memory",
        "a faster database, an index, a larger pool or another billing mode: the replies are here, and the CPU too",
    ))  # fmt: skip


def _why_it_matters(history: History) -> Judgement:
    """What the database's side feels of it; a busy worker that keeps nobody waiting is healthy."""
    unread, pool = client_not_reading.RULE.judge(history), pool_saturated.RULE.judge(history)
    for judgement in (unread, pool):
        if isinstance(judgement, Present):
            return judgement
    found = (_held_transactions(history), _unread(history), _late_page(history))
    evidence = next(filter(None, found), None)
    return unread if evidence is None else Present("info", SURE, "the app", (evidence,), Advice(ADVICE))


def _held_transactions(history: History) -> Evidence | None:
    for target in history.targets(PostgresServerReading):
        seen = server_sessions.sessions(history, SPAN, target)
        if seen is not None and seen.idle_in_transaction >= HELD.value:
            text = f"{seen.idle_in_transaction:.1f} sessions of {targets.name(target)} are idle in a transaction at any moment"
            return Evidence(text, seen.idle_in_transaction)
    return None


def _unread(history: History) -> Evidence | None:
    for remote, seen in connections.connections(history, SPAN).items():
        if seen.unread >= UNREAD.value and seen.readings >= LOOKS.value:
            text = (
                f"in {seen.unread:.0%} of the samples of {seen.count:.0f} connections to {remote} the reply lay unread"
            )
            return Evidence(text, seen.unread, "ratio")
    return None


def _late_page(history: History) -> Evidence | None:
    slots = history.slots(PoolReading, SPAN)
    late = sum(slot.code is Code.TIMED_OUT for slot in slots) / len(slots) if len(slots) >= LOOKS.value else 0.0
    text = f"in {late:.0%} of the samples the app did not serve its page of metrics in time"
    return Evidence(text, late, "ratio") if late >= LATE.value else None


def _crowd(history: History) -> float:
    """The share of the time for which the agent's own work, when ready, waited for a CPU; no quota is in it."""
    if place.cannot_count(history, "run_delay") is not None:
        return 0.0
    cpu, view = cpu_breakdown(history, SPAN), spin_view(history, SPAN, int(cpu_contended.RECENT.value))
    waited = len(view.with_cause("contention", cpu_contended.WAITED.value)) > 1  # one may be chance
    spun = view.causes.contention / view.wall if waited else 0.0
    return max(spun, cpu.shares["suspended_contention"] if cpu else 0.0)


def _busy(ran: float, waited: float, crowd: float) -> bool:
    ready = ran + waited
    return ready >= BUSY.value and waited <= (WAITS.value + crowd) * ready


def _work(readings: Sequence[ProcessesReading], crowd: float) -> list[_Work]:
    """The work of those that are still there and were looked at often enough."""
    told: dict[str, list[tuple[float, float | None]]] = {}
    for r in readings:
        for name in r.busiest_thread_ratio or {}:
            told.setdefault(name, []).append((r.busiest_ratio(name), (r.busiest_thread_delay_ratio or {}).get(name)))
    return [
        _Work(
            name, readings[-1].runtimes[name], fmean(ran for ran, _ in found),
            fmean(known) if (known := [waited for _, waited in found if waited is not None]) else None,
            fmean(_busy(ran, waited or 0.0, crowd) for ran, waited in found),
        )
        for name, found in told.items() if len(found) >= LOOKS.value and name in readings[-1].runtimes
    ]  # fmt: skip


def _quota(history: History, readings: Sequence[ProcessesReading]) -> tuple[float | None, float]:
    """Use of the app's CPU limit, None where it has or shows none, and the share of the time for which that holds it."""
    target = "app" if "app" in history.targets(CgroupReading) else ""
    held = throttling(history, SPAN, target)
    if held is None or not (target or readings[-1].own_group):
        return None, 0.0  # then the run delay must do
    limit = history.window(CgroupReading, SPAN, target)[-1].cpu_limit_cores
    used = [sum(r.cpu_cores.values()) for r in readings if r.cpu_cores]
    return (fmean(used) / limit if used and limit else None), held.share


#: How to see what computes, and where else to do it.  For Go: automaxprocs rounds a limit down, Go 1.25 up (docs/evidence/measured-facts.md).
BY_RUNTIME: Mapping[Runtime, tuple[str, ...]] = {
    "python": (
        "py-spy record --duration 30 --pid PID -o profile.svg   # what computes",
        "compute in other processes (ProcessPoolExecutor, more workers): in one, a single thread runs at a time",
    ),
    "ruby": (
        "rbspy record --duration 30 --pid PID   # what computes",
        "compute in other processes (puma --workers, a job queue): in one, a single thread runs at a time",
    ),
    "node": (
        "0x -- node app.js, or node --cpu-prof app.js   # what blocks the event loop",
        "move the computing to worker_threads: while the loop computes it takes no reply",
    ),
    "go": (
        "go tool pprof -top 'http://127.0.0.1:PORT/debug/pprof/profile?seconds=30'   # what computes",
        "GOMAXPROCS is a whole number: of a limit of 1.9 cores automaxprocs makes 1. Set whole cores, or GOMAXPROCS",
    ),
    "java": (
        "jcmd PID JFR.start duration=30s filename=/tmp/profile.jfr   # what computes; or async-profiler",
        "compute in a thread pool apart from the threads that hold connections",
    ),
    "other": (
        "perf record -g --pid PID -- sleep 30 && perf report   # what computes",
        "compute in threads or processes apart from those that hold connections",
    ),
}
ALWAYS = ("give the connection back to its pool before computing on its rows",)
ADVICE = "Compute less, or elsewhere, while the database's replies wait: the app itself is busy."

RULE = Rule(
    id="client_cpu_bound",
    title="The app computes while the replies of its database wait",
    meaning=(
        "A thread of the app is ready to run nearly all the time, or the app uses up its CPU limit, without being held up, "
        "and meanwhile replies lie unread, the pool is used up, transactions stay open, or its own page comes too late."
    ),
    disproof="top -H shows no thread of the app near 100 % while replies lie unread (ss -tn, Recv-Q)",
    needs=(ConnectionsReading,),
    thresholds=(BUSY, RUNS, WAITS, MOST, HELD, UNREAD, LATE, LOOKS, WHOLE, TAKEN),
    confidences=(SURE, CROWDED),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    stalls=(COMPUTES,),
)
