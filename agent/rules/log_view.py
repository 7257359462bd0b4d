"""Rules about queues of logs: each queue is judged alone, the worst one speaks, and a silent source is told."""

from __future__ import annotations

from collections.abc import Callable

from agent import backlog, breakdown
from agent.backlog import FILES, NOWHERE, PIPES, STDOUT, Backlog
from agent.history import History
from agent.report import Evidence
from agent.rules import targets
from agent.rules.rule import Judgement, Threshold, Unknown
from probes.backlog import BacklogReading
from probes.log_queues import HooksProbe

#: As long as the CPU's own findings look back: they must agree on when it began.
WITHHELD_SPAN = 15.0
WITHHELD = Threshold(
    "of the app's work held back, from which its log client is too", 0.5, "ratio", "more time stopped than running"
)
#: Sources whose kinds of queues are known before they have spoken.
_PIPES_ONLY, _QUEUES_ONLY = {STDOUT}, {HooksProbe.target}


def of_queues(history: History, seconds: float, judge: Callable[[Backlog], Judgement]) -> Judgement:
    """Judge the queues of apps and collectors."""
    found = [judge(q) for q in backlog.queues(history, seconds) if q.kind not in PIPES | FILES | NOWHERE]
    return _worst(history, seconds, found, _PIPES_ONLY) or Unknown(
        "no queue of an app or a log collector is told to this agent", "load the hook in the app, or set logs.metrics_urls"
    )  # fmt: skip


def of_files(history: History, seconds: float, judge: Callable[[Backlog], Judgement]) -> Judgement | None:
    """Judge directories and files; ``None`` when none is watched."""
    found = [judge(q) for q in backlog.queues(history, seconds) if q.kind in FILES]
    return _worst(history, seconds, found, _PIPES_ONLY | _QUEUES_ONLY)


def _worst(history: History, seconds: float, found: list[Judgement], others: set[str]) -> Judgement | None:
    """Of these and of the sources that are silent; not of ``others``, which tell nothing of the kind."""
    for source in history.targets(BacklogReading):
        if source not in others and backlog.silent(history, seconds, source):
            because, remedy = history.why_missing(BacklogReading, seconds, source)
            found.append(Unknown(because or f"{source!r} has told nothing yet", remedy))
    return targets.worst_of(found)


def stuck_in_write(history: History, seconds: float) -> tuple[str, ...]:
    """The finding that explains an app which neither reads nor gives back: its write() to stdout waits at most looks."""
    pipes = (q for q in backlog.queues(history, seconds) if q.kind in PIPES and q.blocked)
    stuck = any(sum(pipe.blocked) > len(pipe.blocked) / 2 for pipe in pipes)
    return ("log_pipe_blocked",) if stuck else ()


def withheld(history: History) -> Evidence | None:
    """That the app's CPU, and its log client's with it, is taken away most of the time; ``None`` otherwise or where unseen.

    What takes the whole machine away the agent meets itself; a quota of its own group says nothing of another's.
    """
    group = backlog.app_group(history)
    own = breakdown.cpu(history, WITHHELD_SPAN)
    held = breakdown.throttling(history, WITHHELD_SPAN, group) if group is not None else None
    shared = own.suspended - (0.0 if group == "" else own.shares["suspended_quota"]) if own else 0.0
    share = max(held.share if held else 0.0, shared)
    if share < WITHHELD.value:
        return None
    text = f"the app's CPU is taken away {share:.0%} of the time, and its log client's with it: give that back first"
    return Evidence(text, share, "ratio")


def megabytes(number: float) -> str:
    """Bytes in a sentence."""
    return f"{number / 1e6:.{0 if number >= 1e7 else 1}f} MB"


def duration(seconds: float) -> str:
    """Seconds in a sentence."""
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.0f} h"
    )


def until_limit(memory: backlog.Memory | None, whose: str) -> list[Evidence]:
    """How far the limit is; empty where there is none or it is not known whose."""
    if memory is None:
        return []
    left = memory.seconds_to_limit
    text = f"{whose} uses {megabytes(memory.used)} of {megabytes(memory.limit)}"
    if memory.growth is None:
        return [Evidence(text, memory.share, "ratio")]
    if left is None or left > 86400:
        return [Evidence(f"{text} and does not grow", memory.share, "ratio")]
    return [
        Evidence(
            f"{text}, grows by {megabytes(memory.growth * 60)} a minute and is at its limit in {duration(left)}",
            left,
            "seconds",
        )
    ]
