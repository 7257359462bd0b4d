"""A runtime that counts more CPUs than its limit has, whose bursts end in throttling.

n threads that compute at once use up the quota Q of a period P after Q/n and are all stopped until it ends, the short requests among
them too: each is held for 1 - q/n of a busy period, with q = Q/P.  As many threads as the limit has whole cores are held for 1 - q/whole, which is
nothing for a whole limit.  What is between the two is the runtime's doing.

*Its fault*: where fitting it would take away most of the holding, and the app does not use up its limit, this is the cause and the limit
is large enough.  *The limit's*: where one thread alone would be held nearly as much (0.25 cores), or all of the limit is used, the runtime makes
it worse and a higher limit is the cure: that is information, and the limit's own finding is the headline.  How many threads ran at once is
measured (``Throttling.threads``), so that a runtime which could and does not is not blamed.

Over 60 lines: the cases above have numbers and texts of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from agent.history import History, Missing
from agent.report import Advice, Evidence, Severity
from agent.rules import raising
from agent.rules.confidence import not_measured
from agent.rules.cpu import cpu_quota_throttled
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import place
from agent.views.cpu import Throttling, cores_used, throttling
from agent.views.limits import seconds_at_limit
from agent.views.runtime_fit import AppFit, of_app
from agent.views.stalled import QUOTA
from probes.app.cpu_count import ONE_THREADED, POOL_THREADS
from probes.app.processes import ProcessesReading
from probes.reading import Code

SPAN = cpu_quota_throttled.SPAN
BESIDE = Threshold(
    "threads that computed at once in throttled periods, above the limit's whole cores by", 0.5, "",
    "half of a thread is the error of the kernel's counters over some periods (docs/evidence/runtime-fit.md)",
)  # fmt: skip
MOST_OF_IT = Threshold(
    "part of the holding that fitting the runtime takes away, to be its cause",
    0.5,
    "ratio",
    "else more of it is the limit's",
)
WORTH = Threshold(
    "part of the holding that fitting the runtime takes away, to be said", 0.2, "ratio", "less is not felt"
)
USED_UP = Threshold(
    "use of the CPU limit from which the limit is the cause",
    0.9,
    "ratio",
    "then there is no time between bursts to spread them over",
)
MANY = Threshold(
    "CPUs counted for each whole core of the limit, to be worth knowing where nothing is held, or the limit is too low", 4, "",
    "three quarters of each busy period would be spent stopped",
)  # fmt: skip
SURE = not_measured(0.9, "docs/evidence/runtime-fit.md has the runs; what a call in the code set cannot be seen")


def _judge(history: History) -> Judgement:
    fit = of_app(history)
    if fit is None:
        return Absent("no CPU limit is set for the app")
    if isinstance(fit, Missing):
        return Unknown(*fit)
    if fit.unknown_at_once is not None:
        return Unknown(*fit.unknown_at_once)
    (name, main), whole = fit.main, _whole(fit)
    at_once = fit.at_once or 0
    counted = Evidence(f"{fit.how(name)}, and the limit is {fit.limit}", float(at_once))
    if at_once <= whole:
        return Absent(f"{counted.text}: no more than a whole number must be", (counted,))
    groups = place.throttled_groups(history)
    if isinstance(groups, Missing):
        return Unknown(*groups)
    if (span := seconds_at_limit(history, SPAN, fit.group)) is None:
        return raising.just_raised("the app's group")
    held = throttling(history, span, fit.group)
    if held is None:
        why = "the throttled time of the app's group could not be read"
        return Unknown(why, "run where its cpu.stat can be read", Code.UNREACHABLE)
    saved = _saved(fit.limit.cores, whole, held.threads)
    if _is_held(held) and held.threads >= whole + BESIDE.value and saved >= WORTH.value:
        return _judge_held(history, fit, held, span, saved, counted)
    if at_once >= MANY.value * whole and main.program.runtime not in ONE_THREADED and not _is_held(held):
        return _present(history, fit, "info", (counted, _share(held)))
    why = f"{counted.text}, but the limit holds ready work {held.share:.1%} of the time, with {held.threads:.1f} threads at once"
    return Absent(why, (Evidence(why, held.share, "ratio"),))


def _judge_held(
    history: History, fit: AppFit, held: Throttling, span: float, saved: float, counted: Evidence
) -> Judgement:
    """Threads beside one another are held: by the runtime's doing, or by a limit that is too low for the work."""
    whole, used = _whole(fit), cores_used(history, span, fit.group)
    burst = Evidence(
        f"{held.threads:.1f} threads at once use up a period's {fit.limit.cores:.2f} cores and are stopped until it ends; "
        f"{whole} would be held {saved:.0%} less", held.threads,
    )  # fmt: skip
    evidence = (_share(held), counted, burst)
    if saved < MOST_OF_IT.value or used is None or used >= USED_UP.value * fit.limit.cores:
        too_low = "even so few would be held" if saved < MOST_OF_IT.value else "all of the limit is used"
        why = Evidence(f"{too_low}: the limit is too low", used, "cores")
        if (fit.at_once or 0) < MANY.value * whole:
            return Absent(f"{counted.text}; {why.text}", (why, *evidence))
        return _present(history, fit, "info", (*evidence, why))
    severity: Severity = "critical" if held.share >= cpu_quota_throttled.SEVERE.value else "warning"
    return _present(history, fit, severity, evidence, held.share * saved)


def _whole(fit: AppFit) -> int:
    return max(1, ceil(fit.limit.cores))


def _is_held(held: Throttling) -> bool:
    periods = held.hit / max(1.0, held.ran)
    return held.share >= cpu_quota_throttled.SHARE.value and periods >= cpu_quota_throttled.PERIODS.value


def _share(held: Throttling) -> Evidence:
    return Evidence(f"the limit holds ready work {held.share:.0%} of the time", held.share, "ratio")


def _saved(cores: float, whole: int, threads: float) -> float:
    """The part of the holding that is gone when ``whole`` threads compute at once instead of ``threads``."""
    now, fitted = max(0.0, 1 - cores / threads), max(0.0, 1 - cores / whole)
    return max(0.0, 1 - fitted / now) if now else 0.0


def _present(
    history: History, fit: AppFit, severity: Severity, evidence: tuple[Evidence, ...], share: float | None = None
) -> Present:
    main, whole = fit.main[1], _whole(fit)
    runtime, together = main.program.runtime, (main.belief.at_once or 1) * main.workers
    numbers = {
        "n": whole, "threads": max(1, ceil(together / whole)), "helpers": max(1, whole - 1), "pool": max(POOL_THREADS, whole - 1),
    }  # fmt: skip
    fitting = [line.format(**numbers) for line in SETTINGS.get(runtime, SETTINGS["other"])]
    changes = (*fitting, *raising.raise_cpu(history, fit.group))
    return Present(severity, SURE, "the app", evidence, Advice(
        ADVICE if severity != "info" else BOTH, tuple(changes), "a burst of work on fewer threads takes longer where it is alone",
        "a slow database or network; nor, where the whole limit is used, a smaller number alone: then the limit must be raised",
    ), share=share)  # fmt: skip


ADVICE = "Let the runtime count as many CPUs as the limit has whole cores: its bursts then are not stopped."
BOTH = "Raise the limit if its work is held up; and let the runtime count no more CPUs than the limit has whole cores."
#: What makes a runtime count ``n``.  Threads of libuv's pool, and workers that serve one request each, mostly wait for others (docs.libuv.org, threadpool;
#: docs.gunicorn.org, design): fewer of them would compute less at once, and hold up whatever waits behind them.  So of these as many are kept.
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "go": ("GOMAXPROCS={n}   # in the environment of the app's container",),
    "java": ("-XX:ActiveProcessorCount={n}   # in JAVA_TOOL_OPTIONS of the app's container",),
    "dotnet": ("DOTNET_PROCESSOR_COUNT={n}   # in the environment of the app's container",),
    "node": (
        "--v8-pool-size={helpers}   # in NODE_OPTIONS of the app's container: threads that collect garbage beside the loop, 4 where it is not set",
        "UV_THREADPOOL_SIZE={pool}, where it is set higher   # with fewer, files and look-ups of names wait for each other",
        "no more than {n} workers (pm2 -i {n}, node:cluster)",
    ),
    "python": (
        "gunicorn --workers {n} --threads {threads}   # {threads} times as many as a worker has now: of its threads one computes at a time",
        "or uvicorn --workers {n}",
    ),
    "ruby": (
        "puma --workers {n} --threads {threads}:{threads}   # {threads} times as many as a worker has now: of its threads one computes at a time",
    ),
    "nginx": ("worker_processes {n};   # auto counts the CPUs of the machine",),
    "other": ("{n} processes or threads that compute",),
}

RULE = Rule(
    id="runtime_oversubscribed",
    title="The runtime counts more CPUs than its limit has",
    meaning=(
        "The app's runtime starts as many threads as it counts CPUs, more than the limit pays for: together they use up a period's quota in a part of the "
        "period, and all of them are stopped for the rest, those that answer short requests too."
    ),
    disproof="nr_throttled in cpu.stat of the app's group grows as fast after the runtime was made to count fewer CPUs",
    needs=(ProcessesReading,),
    thresholds=(BESIDE, MOST_OF_IT, WORTH, USED_UP, MANY),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    stalls=(QUOTA,),
    suspect="CPU",
)
