"""What somebody would have without this agent, on the same stall: four usual ways to look.

Each looks only at what it would see from where a user stands: the app's own container. Pure: lines of the
app's meter in (`loads.counters`), an opinion out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Meter = Mapping[str, float]

#: CPUThrottlingHigh of kubernetes-mixin: increase(throttled[5m]) / increase(periods[5m]) above this ...
THROTTLED_RATIO: Final = 0.25
RANGE_SECONDS: Final = 300.0
#: ... for so long.
FOR_SECONDS: Final = 900.0
#: A thread that is busy and gets less than this of a CPU is held by something.
WALL_LESS_CPU: Final = 0.2
#: Usual alert thresholds: tasks waited 10 % of the time; 5 % of all CPUs stolen.
PRESSURE: Final = 0.1
STEAL: Final = 0.05


@dataclass(frozen=True)
class Opinion:
    """What one of them says: fires, is silent, or has nothing to look at."""

    fires: bool | None
    value: float | None = None
    why: str = ""


def minutes_to_fire(ratio: float) -> float | None:
    """Minutes from the onset until CPUThrottlingHigh fires, when this ratio of periods is throttled from then on.

    None: never. Periods ran before the onset and none was throttled, so the ratio over the range crosses the
    threshold after threshold / ratio of the range, and then has to last. Source of the rule: kubernetes-mixin,
    alerts/resource_alerts.libsonnet; promtool's rule tests give the same minutes.
    """
    if ratio <= THROTTLED_RATIO:
        return None
    return (FOR_SECONDS + RANGE_SECONDS * THROTTLED_RATIO / ratio) / 60


def mixin(first: Meter, last: Meter) -> Opinion:
    """kubernetes-mixin's CPUThrottlingHigh over the group's counters; value: minutes until it fires."""
    if "periods" not in last:
        return Opinion(None, why="no cpu.stat with periods here")
    periods = last["periods"] - first["periods"]
    if not last["periods"]:
        return Opinion(False, why="no quota that it could see")
    ratio = (last["throttled"] - first["throttled"]) / periods if periods else 0.0
    minutes = minutes_to_fire(ratio)
    return Opinion(minutes is not None, minutes, f"{ratio:.0%} of periods throttled")


def wall_less_cpu(first: Meter, last: Meter) -> Opinion:
    """Wall minus CPU time of the app's own busy stretches; value: the share that is missing."""
    wall = last["timed_wall"] - first["timed_wall"]
    if wall < 0.05:
        return Opinion(None, why="the app does nothing that could be timed")
    missing = max(0.0, 1 - (last["timed_cpu"] - first["timed_cpu"]) / wall)
    return Opinion(missing > WALL_LESS_CPU, missing)


def pressure(first: Meter, last: Meter) -> Opinion:
    """PSI "some" for CPU, of the own cgroup where there is one, else of the machine; value: share of time."""
    key = "group_psi" if "group_psi" in last else "psi"
    if key not in last:
        return Opinion(None, why="no PSI here")
    share = (last[key] - first[key]) / (last["at"] - first["at"])
    return Opinion(share > PRESSURE, share, "of the own cgroup" if key == "group_psi" else "of the whole machine")


def steal(first: Meter, last: Meter) -> Opinion:
    """The steal column of /proc/stat; value: CPUs' worth of time per second."""
    if "steal" not in last:
        return Opinion(None, why="no /proc/stat here")
    share = (last["steal"] - first["steal"]) / (last["at"] - first["at"])
    return Opinion(share > STEAL, share)


RIVALS: Final = {
    "CPUThrottlingHigh": mixin,
    "wall minus CPU": wall_less_cpu,
    "PSI": pressure,
    "steal": steal,
}


def opinions(meters: Mapping[str, Sequence[Meter]], onset: float, lift: float) -> dict[str, Opinion]:
    """Rival -> opinion on the time between the two, from the busiest app; empty when the app said too little."""
    inside = [[line for line in lines if onset <= line["second"] <= lift + 1] for lines in meters.values()]
    pairs = [(lines[0], lines[-1]) for lines in inside if len(lines) > 1]
    if not pairs:
        return {}
    first, last = max(pairs, key=lambda pair: pair[1]["timed_wall"])
    return {name: look(first, last) for name, look in RIVALS.items()}
