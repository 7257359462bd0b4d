"""One callback holds the event loop of Node or asyncio up, and with it every request that the loop serves.

From outside such a process computes or sleeps as any other, but for a main thread of Node that never sleeps
(agent/rules/app/loop_outside.py).  So the hooks look how late the loop is for what they give it:
Node's own histogram of that delay, in asyncio a callback each second from another thread.  What a look waits for is what
a request that comes then would wait for.  *Which* callback it is nobody says: that takes a profile.

What looks alike: the CPU is taken away (only what is left of the lateness without that counts); in Python other threads
hold the interpreter (then who only waits is woken as late, and the loop's own thread hardly runs); the collector of garbage
stops the loop (it is named).  An idle loop is on time, however busy its process's other threads are.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import targets
from agent.rules.app import loop_outside
from agent.rules.causal_graph import Case
from agent.rules.confidence import not_measured
from agent.rules.logs import queues
from agent.rules.logs.untold import NEWER_HOOK
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import in_app, place
from agent.views.in_app import Timed
from probes.app.processes import ProcessesReading
from probes.hooks.in_app import InAppReading
from probes.reading import Code
from probes.sockets.listening import ListeningReading

SPAN = 60.0
MEAN = Threshold(
    "lateness on average, at least", 0.01, "seconds", "each await of each request waits as long: three make 30 ms"
)
MOST = Threshold(
    "and at most, at least",
    0.05,
    "seconds",
    "Node's guide \"Don't block the event loop\" and asyncio's debug mode (0.1 s) speak of single callbacks",
)
LATE = Threshold(
    "checks for which it is 50 ms late, at least", 3, "", "one or two are the imports of a start, or chance"
)
LOOKS = Threshold("checks that are judged, at least", 10, "", "fewer are a moment")
TAKEN = Threshold(
    "time in which the CPU is taken away, at most, for a loop whose process wakes nobody in time to be blamed",
    0.05,
    "ratio",
    "with more the crowd may be why both are late",
)
CONTROL = Threshold(
    "times as late as who only waits is woken, at least, for a loop whose own thread does not compute meanwhile",
    5.0,
    "",
    "beside threads that compute in Python a loop was 1.8 to 2.2 times as late, and once about three times: it takes the interpreter again and again",
)
ALL = Threshold("checks for which it is late, critical from", 0.5, "ratio", "most requests wait")
HALF = Threshold(
    "of that time the garbage collector, the loop's thread or slow log calls are named from", 0.5, "ratio", "more of it than of all else"
)  # fmt: skip
SURE = not_measured(
    0.8, "the lab's few runs were all right; docs/evidence/loggers-seen.md has real loops and look-alikes"
)

FROM_OUTSIDE = not_measured(
    0.7, "the lab's few runs were all right; that somebody waits for the loop is not seen", "without a hook"
)


def _judge(history: History) -> Judgement:
    loops = in_app.loops(history, SPAN)
    if not loops:
        seen = loop_outside.busy(history, SPAN, TAKEN.value)
        if isinstance(seen, Unknown):
            return seen
        if seen:
            ran, others = seen[0].value or 0.0, Evidence("how late its callbacks are only the hook can know")
            advice = Advice(
                ADVICE, (*BY_KIND["node"], "stallscope hooks   # the hook reports how late"), COST, WILL_NOT_HELP
            )
            return Present("warning", FROM_OUTSIDE, "the app", (*seen, others), advice, share=ran)
        if timed := in_app.processes(history, SPAN):
            return Unknown(f"no event loop that a hook knows runs in {', '.join(sorted(timed))}", "", Code.ABSENT)
        missing = history.why_missing(InAppReading, SPAN)
        return Unknown(*missing.otherwise("no hook reports an event loop", NEWER_HOOK, Code.NOT_CONFIGURED))
    found = [_loop(history, each) for each in loops]
    return targets.worst_of(found) or Unknown("no event loop has been checked", code=Code.NOT_YET)


def _loop(history: History, loop: Timed) -> Judgement:
    looks, late = loop["loop_looks"], loop["late_loop_looks"]
    mean, share = loop.mean("loop_late_seconds", "loop_looks"), loop.mean("late_loop_looks", "loop_looks")
    who = f"the {loop.kind or 'event'} loop of process {loop.process!r}"
    if looks < LOOKS.value:
        return Unknown(f"{who} was checked only {looks:.0f} times", "wait", Code.NOT_YET)
    told = Evidence(
        f"{who} was {mean * 1e3:.0f} ms late on average and {loop.slowest * 1e3:.0f} ms at most", mean, "seconds"
    )
    if not _blocked(mean, loop.slowest) or late < LATE.value:
        return Absent(told.text, (told,))
    withheld, woken = (
        in_app.cpu_withheld(history, SPAN, loop), in_app.woken_late(history, SPAN, loop.process),
    )  # fmt: skip
    if withheld is None:
        return Unknown(f"{told.text}; whether its CPU was taken away is not known", "wait", Code.NOT_YET)
    left = 1 - withheld
    if not _blocked(mean * left, loop.slowest * left):
        why = f"{told.text}, while its CPU was taken away {withheld:.0%} of the time: that is why"
        return Absent(why, (Evidence(why, mean, "seconds"),))
    if left <= queues.WITHHELD.value and (
        place.cannot_count(history, "run_delay") or "loop_run_delay_seconds" not in loop.sums
    ):
        # A short callback lasts for as long as its CPU is gone, which is longer than on average.
        why = f"{told.text}, while the CPU was taken away {withheld:.0%} of the time, and for how much of a callback cannot be counted here"
        return Unknown(why, "first what takes the CPU away, then look again", Code.CANNOT_COUNT)
    runs = loop.share("loop_cpu_seconds") if "loop_cpu_seconds" in loop.sums else None
    computes = runs is not None and runs >= HALF.value * share
    alone = computes and withheld < TAKEN.value  # a library in C may keep the interpreter from who waits, too
    others = (
        (woken or 0.0, "in this process", "a CPU or the interpreter", "py-spy dump --pid PID: which thread computes"),
        (in_app.everybody_late(history, SPAN), "on this machine", "a CPU", "first what takes the CPU away, then look again"),
    )  # fmt: skip
    for seconds, where, what, remedy in others:
        if (mean * left - seconds < MEAN.value or mean < CONTROL.value * seconds) and not alone:
            why = f"{told.text}, and who only waits {where} is woken {seconds * 1e3:.0f} ms late: it waits for {what}"
            return Unknown(why, remedy, Code.CANNOT_COUNT)
    logs = sum(h["slow_log_call_seconds"] for h in in_app.handlers(history, SPAN) if h.process == loop.process)
    cases = {
        Case.LOGS_MEANWHILE: logs >= HALF.value * share * loop.wall,
        Case.CPU_TAKEN: left <= queues.WITHHELD.value,
    }
    evidence = (
        told,
        Evidence(f"{share:.0%} of {looks:.0f} checks found it 50 ms late and more", share, "ratio"),
        *_what(loop, runs, share),
    )
    return Present(
        "critical" if share >= ALL.value else "warning", SURE, "the app", evidence,
        Advice(ADVICE, BY_KIND.get(loop.kind, ()), COST, WILL_NOT_HELP),
        cases=(*queues.stuck_in_write(history, SPAN), *(case for case, seen in cases.items() if seen)), share=min(1.0, share),
    )  # fmt: skip


def _blocked(mean: float, most: float) -> bool:
    return mean >= MEAN.value and most >= MOST.value


def _what(loop: Timed, runs: float | None, share: float) -> list[Evidence]:
    """What its thread does meanwhile, as far as that can be told."""
    found = []
    collects = loop.share("loop_collecting_seconds")
    if collects >= HALF.value * share:
        found.append(
            Evidence(f"{collects:.0%} of the time it collected garbage: the heap is large or full", collects, "ratio")
        )
    if runs is not None:
        text = f"its thread ran {runs:.0%} of the time"
        asleep = (
            ""
            if runs >= HALF.value * share
            else ": what holds the loop mostly sleeps, in a call that should be awaited"
        )
        found.append(Evidence(text + asleep, runs, "ratio"))
    found.append(Evidence("which callback it is cannot be seen from here: a profile shows it"))
    return found


BY_KIND = {
    "node": (
        "node --cpu-prof app.js, or 0x -- node app.js   # which function holds the loop",
        "compute in worker_threads, or in pieces with setImmediate() between; readFileSync, execSync, pbkdf2Sync have asynchronous twins",
    ),
    "asyncio": (
        "PYTHONASYNCIODEBUG=1 names callbacks of 0.1 s and more; py-spy record --pid PID -o profile.svg shows what runs",
        "await asyncio.to_thread(...) for what waits (requests, time.sleep, a driver without async), ProcessPoolExecutor for what computes",
    ),
}
ADVICE = (
    "Find what holds the event loop with a profile, and move it to a worker: while it runs no other request goes on."
)
COST = "a worker has memory of its own, and what it is given is copied"
WILL_NOT_HELP = (
    "a faster database or a larger pool; more CPU only as far as the callback computes: a loop has one thread"
)

RULE = Rule(
    id="event_loop_blocked",
    title="The app's event loop is held up by its own work",
    meaning="A callback computes or waits without giving the loop back, and all other requests of the process wait for it.",
    disproof="perf_hooks.monitorEventLoopDelay() in Node, or asyncio's debug mode, shows no callback of 50 ms",
    needs=(),  # a server without a hook is seen, too
    uses=(InAppReading, ProcessesReading, ListeningReading),
    thresholds=(MEAN, MOST, LATE, LOOKS, TAKEN, CONTROL, ALL, HALF, loop_outside.BUSY, queues.WITHHELD),
    confidences=(SURE, FROM_OUTSIDE),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    judges_coverage=True,
)
