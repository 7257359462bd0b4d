"""Rules about queues of logs: each queue is judged alone, the worst one speaks, and a silent source is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agent.history import History
from agent.report import Evidence
from agent.rules import targets
from agent.rules.causal_graph import Case
from agent.rules.logs.untold import untold
from agent.rules.rule import Absent, Judgement, Threshold, Unknown
from agent.rules.words import duration, megabytes
from agent.views import backlog
from agent.views.backlog import FILES, NOWHERE, PIPES, STDOUT, Backlog
from agent.views.memory import Memory
from agent.views.taken import taken_from_app
from probes.hooks.probe import HooksProbe
from probes.logs.reading import BacklogReading
from probes.reading import Code

#: As long as the CPU's own findings look back: they must agree on when it began.
WITHHELD_SPAN = 15.0
WITHHELD = Threshold(
    "time in which the app's CPU is taken away, from which that explains the queue",
    0.5,
    "ratio",
    "more time stopped than running",
)
FILLS = Threshold(
    "bytes of a queue in the app or of its files in memory, of what its group's memory uses or of what that grows by, from which they fill it",
    0.5,
    "ratio",
    "who explains is as large as half of the effect; fewer are anybody's",
)
#: Sources whose kinds of queues are known before they have spoken.
_PIPES_ONLY, _QUEUES_ONLY = {STDOUT}, {HooksProbe.target}


def of_queues(history: History, seconds: float, judge: Callable[[Backlog], Judgement]) -> Judgement:
    """Judge the queues of apps and collectors."""
    found = [judge(q) for q in backlog.queues(history, seconds) if q.kind not in PIPES | FILES | NOWHERE]
    found += [*untold(history, seconds), *_empty(history, seconds)]
    return _worst(history, seconds, found, _PIPES_ONLY) or Unknown(
        "no queue of an app or a log collector is reported to this agent", "load the hook in the app, or set logs.metrics_urls", Code.NOT_CONFIGURED
    )  # fmt: skip


def _empty(history: History, seconds: float) -> Iterator[Absent]:
    """Processes whose hooks know all their loggers: where none of them queues, nothing can wait."""
    for reading in history.window(BacklogReading, seconds, HooksProbe.target)[-1:]:
        for process, loggers in reading.loggers.items():
            if loggers.complete:
                by = ", ".join(loggers.known) or "nothing that is sent anywhere"
                yield Absent(f"no log queue in process {process!r}: it logs by {by}")


def of_files(history: History, seconds: float, judge: Callable[[Backlog], Judgement]) -> Judgement | None:
    """Judge directories and files; ``None`` when none is watched."""
    found = [judge(q) for q in backlog.queues(history, seconds) if q.kind in FILES]
    return _worst(history, seconds, found, _PIPES_ONLY | _QUEUES_ONLY)


def _worst(history: History, seconds: float, found: list[Judgement], others: set[str]) -> Judgement | None:
    """Of these and of the sources that are silent; not of ``others``, which tell nothing of the kind."""
    for source in history.targets(BacklogReading):
        if source not in others and backlog.silent(history, seconds, source):
            missing = history.why_missing(BacklogReading, seconds, source)
            found.append(Unknown(*missing.otherwise(f"{source!r} has reported nothing yet")))
    return targets.worst_of(found)


def stuck_in_write(history: History, seconds: float) -> tuple[Case, ...]:
    """Whether the app hangs in its write() to stdout, and so neither reads nor gives back."""
    pipes = (q for q in backlog.queues(history, seconds) if q.kind in PIPES and q.blocked)
    stuck = any(sum(pipe.blocked) > len(pipe.blocked) / 2 for pipe in pipes)
    return (Case.WRITE_WAITS,) if stuck else ()


def withheld(history: History) -> Evidence | None:
    """That the app's CPU, and its log client's with it, is taken away most of the time; ``None`` otherwise or where unseen."""
    share = taken_from_app(history, WITHHELD_SPAN)
    if share < WITHHELD.value:
        return None
    text = f"the app's CPU is taken away {share:.0%} of the time, and its log client's with it: give that back first"
    return Evidence(text, share, "ratio")


def in_app(queue: Backlog) -> bool:
    """Whether what waits there is memory of the app's: a collector has a group of its own, and nobody has told which."""
    return queue.source == HooksProbe.target


def fills(queue: Backlog, memory: Memory) -> bool:
    """Whether what waits there is a large part of this memory or of its growth; it may be where its bytes are not told.

    The memory's growth is the faster of its two: each is cautious, and against too slow a one a small queue looks large.
    """
    if queue.waiting_bytes is None:
        return True
    held = queue.waiting_bytes + (queue.deleted_bytes or 0.0)
    growth = max(memory.growth or 0.0, memory.mark_growth or 0.0)
    grown = growth > 0 and (queue.growth_bytes or 0.0) >= FILLS.value * growth
    return grown or held >= FILLS.value * memory.used


def until_limit(memory: Memory | None, whose: str) -> list[Evidence]:
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
