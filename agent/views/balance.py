"""Whether the CPU was fast while a balance lasted and has been held at a baseline since: the shape of a burst balance.

Burstable machines (AWS T, Azure B, shared-core of Google Cloud, Fly.io's shared CPUs) run at full speed until what they saved
up is spent, and at a fixed share from then on, for as long as anybody wants more; rest fills the balance again.  So the steps
of a history are *fast* (used much more than the baseline, and hardly held), *held* (at a level that hardly changes), or at
*rest* (nobody asked).  A limit that was there all the time has no fast step, and neighbours on the host come back after a rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from agent.history import History, once
from agent.views import backlog
from agent.views.attribution import Beats, digest
from probes.averages import median
from probes.cpu.suspension import SuspensionReading
from probes.host.cgroup import CgroupReading
from probes.record import dataclass

#: A step is held from the first share of its time on, and up to the second it is not.  A step has few heartbeats: between them it is held where
#: just the baseline is used, and fast where much more is; all that are held together must reach the first.
HELD, FREE = 0.3, 0.1
#: Heartbeats that worked, at least, for what is said of them; a step of five seconds has two or three, so the one before it counts with it.
LEAST_WORKED = 2
#: Of the baseline: what is used in a fast step at least, at rest at most, and how far held steps may lie apart.
FAST, REST, EVEN = 2.0, 0.5, 0.5

State = Literal["fast", "held", "rest", "other"]


class _Step(NamedTuple):
    seconds: float
    cores: float
    held: float
    """As work meets it, or the agent's light thread."""
    light: float
    """As that alone meets it, which is told by more samples."""


class _Run(NamedTuple):
    state: State
    seconds: float


@dataclass(frozen=True, slots=True)
class Shape:
    """What the history shows: cores and seconds."""

    baseline: float
    """Used since it is held."""
    held_seconds: float
    fast_cores: float
    """Used right before, when it was not."""
    fast_seconds: float
    recovered: bool
    """Whether a rest before that had ended an earlier time of being held."""


@once
def shape(history: History, seconds: float) -> Shape | None:
    """Of the last ``seconds``; ``None`` where it is not held now, was not fast before, or what is used cannot be read."""
    steps = _steps(history, seconds)
    tail = len(steps)
    while tail and steps[tail - 1].held > FREE:
        tail -= 1
    held = steps[tail:]
    if not held or sum(step.held for step in held) < HELD * len(held):
        return None
    baseline = median(step.cores for step in held)
    inner = [step.cores for step in held[1:-1]] or [baseline]
    if not baseline or max(inner) - min(inner) > EVEN * baseline:
        return None
    before = steps[:tail]
    if before and _state(before[-1], baseline) == "other":  # it changed within this step
        before = before[:-1]
    runs = [_Run(state, sum(step.seconds for step in run)) for state, run in _runs(before, baseline)]
    if not runs or runs[-1].state != "fast":
        return None
    fast = next(list(run) for state, run in reversed([(s, list(r)) for s, r in _runs(before, baseline)]))
    earlier = [run.state for run in runs[:-1] if run.state != "other"]
    return Shape(
        baseline,
        sum(step.seconds for step in held),
        median(step.cores for step in fast),
        runs[-1].seconds,
        earlier[-2:] == ["held", "rest"],
    )


def _runs(steps: Sequence[_Step], baseline: float) -> list[tuple[State, list[_Step]]]:
    return [(state, list(run)) for state, run in groupby(steps, key=lambda step: _state(step, baseline))]


def _state(step: _Step, baseline: float) -> State:
    if step.light < HELD and step.cores >= FAST * baseline:
        return "fast"
    if step.held >= HELD or (step.held > FREE and abs(step.cores - baseline) <= EVEN * baseline):
        return "held"
    return "rest" if step.cores <= REST * baseline else "other"


def _steps(history: History, seconds: float) -> list[_Step]:
    """What was used, and what was held, in each slot of the measuring child."""
    usage = [
        (r.taken, sum((r.usage_seconds or {}).values()) / r.seconds)
        for r in history.window(CgroupReading, seconds, backlog.app_group(history) or "")
        if r.seconds and r.usage_seconds and len(r.usage_seconds) == 1
    ]
    found, last = [], Beats()
    for reading in history.window(SuspensionReading, seconds) if usage else ():
        beats = digest(reading).beats
        both, last = Beats.sum((last, beats)), beats
        taken, cores = min(usage, key=lambda each: abs(each[0] - reading.taken))
        if beats.seconds and abs(taken - reading.taken) <= max(reading.seconds, 1.0):
            worked = both.stopped / both.worked if both.worked >= LEAST_WORKED else 0.0
            found.append(_Step(reading.seconds, cores, min(1.0, max(beats.share, worked)), min(1.0, beats.share)))
    return found
