"""A CPU limit of which the app's runtime cannot use a part: it counts whole CPUs, or runs its code on one thread.

What cannot be used is known from the runtime's own number.  Two degrees.  *The cliff*: what can be used is used up, so work waits
while paid cores lie idle; that is a warning.  *Latent*: the app has less to do; then a runtime that rounds its limit down is worth
knowing, and one that is made for one thread is healthy.

Average use misleads: it cannot pass usable / limit, so nobody who goes by it ever sees a need.  Nothing is found where the limit itself
is met, where more is used than the runtime counts (its threads, workers or another program use the rest), or where others use it too.

Over 60 lines: what cannot be used, whether that is missing, and what to set are three questions with answers by runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor

from agent.history import History, Missing
from agent.report import Advice, Evidence
from agent.rules import raising
from agent.rules.confidence import not_measured
from agent.rules.cpu import cpu_quota_throttled
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views.cpu import cores_used, throttling
from agent.views.limits import seconds_at_limit
from agent.views.runtime_fit import AppFit, of_app
from agent.views.stalled import QUOTA, THE_APP, THREADS, stalled
from agent.views.taken import taken_from_app
from probes.app.cpu_count import How
from probes.app.processes import ProcessesReading
from probes.app.runtime import Fit
from probes.averages import fmean
from probes.reading import Code

SPAN = 60.0
UNUSED = Threshold(
    "part of the CPU limit that cannot be used, at least", 0.1, "ratio",
    "4.5 cores for four CPUs; less above a whole number is room for what the runtime does beside the app's code",
)  # fmt: skip
FULL = Threshold(
    "ready threads for each CPU that can be used, less what is taken away, at least",
    0.85,
    "ratio",
    "whatever else there is to do then waits",
)
RUNS = Threshold(
    "use of the CPUs that can be used, at least",
    0.5,
    "ratio",
    "with less, others take the CPU, and they are the finding",
)
MORE = Threshold(
    "use of the CPU limit that contradicts the runtime's number, above it by", 0.15, "ratio",
    "garbage collection and system calls take some percent (docs/evidence/runtime-fit.md)",
)  # fmt: skip
HELPERS = Threshold(
    "or, of a runtime of one thread, use of the rest of the limit, above", 0.5, "ratio",
    "helpers that collect garbage or compress use some of it; workers use all of it",
)  # fmt: skip
LOOKS = Threshold("readings that are judged, at least", 3, "", "fewer are a moment")
#: What the recommender of Kubernetes' vertical autoscaler adds to the use that it sees (recommendation-margin-fraction).
AUTOSCALER_MARGIN = Threshold(
    "what a vertical autoscaler adds to the use that it sees", 0.15, "ratio",
    "kubernetes/autoscaler, vertical-pod-autoscaler, --recommendation-margin-fraction",
)  # fmt: skip
SET = not_measured(
    0.9,
    "docs/evidence/runtime-fit.md has the runs; a call in the code can set another number",
    "by a setting or its build",
)
ONE = not_measured(
    0.85, "docs/evidence/runtime-fit.md has the runs; helper threads are not counted", "of a runtime of one thread"
)


def _judge(history: History) -> Judgement:
    fit = of_app(history)
    if fit is None:
        return Absent("no CPU limit is set for the app")
    if isinstance(fit, Missing):
        return Unknown(*fit)
    if fit.limit.above:
        return Unknown(
            f"the CPU limit of {fit.limit} is shared with other groups",
            "set one on the app's own container",
            Code.PARTIAL,
        )
    name, _ = fit.main
    if fit.usable is None:
        free = f"the threads of {name} are bounded by no number of CPUs: they can use all {fit.cores:.2f} cores"
        return (
            Unknown(*fit.unknown_usable) if fit.unknown_usable else Absent(free, (Evidence(free, fit.cores, "cores"),))
        )
    unused = fit.cores - fit.usable
    if unused < UNUSED.value * fit.cores:
        why = f"{fit.how(name)}, and the limit is {fit.limit}"
        return Absent(why, (Evidence(why, max(0.0, unused), "cores"),))
    if (span := seconds_at_limit(history, SPAN, fit.group)) is None:
        return raising.just_raised("the app's group")
    held, used = throttling(history, span, fit.group), cores_used(history, span, fit.group)
    if held is not None and held.share >= cpu_quota_throttled.SHARE.value:
        why = f"the app meets its limit of {fit.limit}: it is held {held.share:.0%} of the time"
        return Absent(why, (Evidence(why, held.share, "ratio"),))
    one_thread = all(each.belief.how is How.ONE_THREAD for each in fit.fits.values())
    room = HELPERS.value * unused if one_thread else MORE.value * fit.usable
    if used is not None and used > fit.usable + room:
        why = f"the app uses {used:.2f} cores of its limit of {fit.limit}: more than the {fit.usable} that its runtime counts"
        return Absent(why, (Evidence(why, used, "cores"),))
    full = used is not None and _is_full(history, fit, used)
    if not full and one_thread:
        why = f"{fit.how(name)}, and that is not used up" + ("" if used is None else f": the app uses {used:.2f} cores")
        return Absent(why, (Evidence(why, used, "cores"),))
    return _present(history, fit, min(unused, fit.cores - (used or 0.0)) if full else unused, used if full else None)


def _is_full(history: History, fit: AppFit, used: float) -> bool:
    """Whether the CPUs that can be used are used up, in a crowd too; of one thread alone that one must be."""
    usable, harm = fit.usable or 1, stalled(history)
    readings = [each for each in history.window(ProcessesReading, SPAN) if each.cpu_cores and each.busiest_thread_ratio]
    if len(readings) < LOOKS.value or used < RUNS.value * usable or harm.whose != THE_APP:
        return False
    if usable == 1 and fit.main[1].belief.how is How.ONE_THREAD:
        ready = fmean(map(_busiest, readings))
    else:
        ready = sum(number for part, number in harm.groups[THREADS].items() if part != QUOTA)
    # While the host or nobody known takes the CPU a thread is ready for longer than its work lasts.
    return min(1.0, ready / usable) - taken_from_app(history, SPAN, crowd=False) >= FULL.value


def _busiest(reading: ProcessesReading) -> float:
    """The share of the time for which the busiest thread was ready."""
    delays = reading.busiest_thread_delay_ratio or {}
    return max(reading.busiest_ratio(name) + delays.get(name, 0.0) for name in reading.busiest_thread_ratio or {})


def _present(history: History, fit: AppFit, unused: float, used: float | None) -> Present:
    (name, main), usable, limit = fit.main, fit.usable or 1, fit.cores
    most, settles = usable / limit, min(limit, usable * (1 + AUTOSCALER_MARGIN.value))
    lead = f"{unused:.2f} of {limit:.2f} cores cannot be used"
    if used is not None:
        lead = f"the app uses {used:.2f} of the {usable} CPU{'s' * (usable > 1)} that it can use, and {lead}"
    misleads = (
        f"use of the limit never passes {most:.0%}, however much work waits: an autoscaler that goes by it adds nothing, and a vertical one "
        f"(use and {AUTOSCALER_MARGIN.value:.0%}) settles at {settles:.2f} cores"
    )
    evidence = (
        Evidence(lead, unused, "cores"),
        Evidence(fit.how(name), float(usable)),
        Evidence(misleads, most, "ratio"),
    )
    one = main.belief.how is How.ONE_THREAD
    return Present(
        "info" if used is None else "warning", ONE if one else SET, "the app", evidence,
        Advice(
            MORE_WORKERS if one else ADVICE, _changes(history, fit, main), "CPU that is used is CPU that others on the machine do not get",
            "a higher limit with a fraction, more connections or a faster database: the work waits for a CPU that it is not given",
        ),
    )  # fmt: skip


def _changes(history: History, fit: AppFit, main: Fit) -> tuple[str, ...]:
    up, down = ceil(fit.cores), max(1, floor(fit.cores))
    whole = raising.set_cpu(history, up, fit.group) if up > fit.limit.cores else ()
    lower = f"or, where that work may wait: a limit of {fit.usable} does as much for less"
    how = main.belief.how
    if how is How.ONE_THREAD:
        workers = WORKERS.get(main.program.runtime, WORKERS["other"])
        return (*(line.format(n=up if whole else down) for line in workers), *whole, lower)
    if how is How.SET:
        counts = up if whole or fit.cores == up else down
        return (
            f"{main.belief.setting}={counts}   # in the environment of the app's container; or remove it",
            *whole,
            lower,
        )
    if how is How.TOLD:
        counts = up if whole or fit.cores == up else down
        return (f"let the program not set it (runtime.GOMAXPROCS), or set {counts}", *whole, lower)
    again = "restart the app: automaxprocs counts at its start alone"
    either = f"or GOMAXPROCS={up} at the present limit: it then meets the limit for {1 - fit.cores / up:.0%} of the time at full work"
    return (*whole, again, either, lower) if whole else (either, lower)


ADVICE = "Set whole cores: the runtime counts whole CPUs, and what is above them is paid for and not used."
MORE_WORKERS = "Run as many processes as there are cores, or pay for one: this runtime runs its code on one thread."
#: How to run so many processes, by runtime.
WORKERS: Mapping[str, tuple[str, ...]] = {
    "node": ("pm2 start app.js -i {n}, or node:cluster with {n} workers", "or move the computing to worker_threads"),
    "python": (
        "gunicorn --workers {n}, or uvicorn --workers {n}",
        "or compute in other processes (ProcessPoolExecutor)",
    ),
    "ruby": ("puma --workers {n}",),
    "nginx": ("worker_processes {n};",),
    "other": ("{n} processes of the app",),
}

RULE = Rule(
    id="cpu_limit_unusable",
    title="A part of the CPU limit cannot be used",
    meaning=(
        "A runtime counts whole CPUs, once: of a limit of 1.94 cores automaxprocs makes GOMAXPROCS=1, and Node, Python and Ruby run their code on one "
        "thread of each process. What is above that is paid for and idle, while average use is low and no autoscaler adds anything."
    ),
    disproof="the app's container uses more cores than its runtime counts (top, or rate of cpu.stat usage_usec)",
    needs=(ProcessesReading,),
    thresholds=(UNUSED, FULL, RUNS, MORE, HELPERS, LOOKS, AUTOSCALER_MARGIN),
    confidences=(SET, ONE),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    suspect="CPU",
)
