"""How long a server stands at a time for want of a CPU, and for how much of the time: what a statement of no work would last.

Two witnesses.  The short questions, which have no work in them, meet such moments wherever the server is.  And one on this machine stands
when this machine does: then the gaps of the agent's own measurements are the server's too, but for those of a limit on the agent.
Lengths are weighted by themselves (sum of squares over sum): at a random moment one is met as often as it is long, and so is a statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from agent.history import History, once
from agent.views.attribution import attribute
from agent.views.comb import ends_of
from agent.views.cpu import cpu_breakdown
from agent.views.round_trips import LEAST_TRIPS, asked, round_trips
from agent.views.stalled import QUOTA
from probes.cpu.spinner import LATE_SECONDS
from probes.cpu.suspension import SuspensionReading, Window

SAME_MACHINE_SECONDS: Final = 50e-6
"""The kernel's smallest round trip to a server on the same machine is below this: a loopback takes 10 to 30 us, a virtual network 100 and more."""


class Standstill(NamedTuple):
    """Share of the time, and the length of one at a random moment, in seconds; zeros where nothing shows any."""

    share: float = 0.0
    seconds: float = 0.0


@once
def standstills(history: History, seconds: float, target: str) -> tuple[Standstill, Standstill]:
    """Of one server that is asked, by each of the two witnesses."""
    return _of_questions(history, seconds, target), _of_this_machine(history, seconds, target)


def _of_questions(history: History, seconds: float, target: str) -> Standstill:
    short = round_trips(history, seconds, target).get("short")
    if short is None or short.count < LEAST_TRIPS:
        return Standstill()
    waits = short.held(short.least_away)
    return Standstill(len(waits) / short.count, _length(waits))


def _of_this_machine(history: History, seconds: float, target: str) -> Standstill:
    kind, cpu = asked(history).get(target), cpu_breakdown(history, seconds)
    latest = history.latest(kind, target) if kind is not None else None
    rtt = latest.least_round_trip_seconds if latest is not None else None
    if rtt is None or rtt >= SAME_MACHINE_SECONDS or cpu is None:
        return Standstill()
    share = sum(part for cause, part in cpu.taken.items() if cause != QUOTA)
    windows = [w for r in history.window(SuspensionReading, seconds) for w in r.windows if w.gap_seconds]
    others = [w for w in windows if 2 * attribute(w).quota < w.gap_seconds]
    return Standstill(share, _length([gap for w in others for gap in _gaps(w)]))


def _gaps(window: Window) -> Sequence[float]:
    """Those that the window tells one by one, else all as long as the mean."""
    told = [end.length for end in ends_of(window, LATE_SECONDS)]
    return told or [window.gap_seconds / window.gaps] * window.gaps


def _length(waits: Sequence[float]) -> float:
    return sum(wait * wait for wait in waits) / sum(waits) if waits else 0.0
