"""Readable builders of readings and of whole scenes: what the agent would have measured, without measuring.

A :class:`Scene` is a history with a clock of its own.  :meth:`Scene.run` lets time pass slot by slot and
fills every slot with what the child, the cgroup and the request sources would say while *somebody* holds
the work back: the heartbeats follow the spinner's real golden-ratio schedule through periodic gaps, and
the kernel counters move as they were measured to move for that cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType
from typing import Any, Literal

from agent.history import History
from probes.app.in_flight import Transition
from probes.app.requests import RequestsReading
from probes.cpu.spinner import BUCKETS, GOLDEN, LATE_SECONDS, MOST_ENDS, Config, bucket_of
from probes.cpu.suspension import SuspensionReading, Window
from probes.host.cgroup import CgroupReading
from probes.host.platform import Environment, PlatformReading
from probes.host.trust import Sandbox, Trust
from probes.reading import Code, Counts, NoData, Unseen

#: Who holds the work back.  ``nobody``: counters that can count stand still beside the gaps.
#: ``hidden``: counters that cannot count, as in gVisor.  With ``limit`` it is a CPU limit that does it, whose gaps end on its
#: clock: one that no counter shows, and one that the host sets on the whole virtual machine.
Cause = Literal["quota", "contention", "hypervisor", "nobody", "hidden", "hidden limit", "limit of the machine"]
ON_A_CLOCK = ("quota", "hidden limit", "limit of the machine")

PERIOD = 0.1
SLOT = 5.0
#: The heartbeat's interval, as the real child has it when it is told nothing.  The scenes' jitter is as wide as
#: that, so that every phase of the period is sampled alike: see test_the_heartbeat_recovers_... for the child's own.
INTERVAL = JITTER = Config("").interval
COUNTERS = ("thread_cpu_time", "run_delay", "cgroup_throttled", "steal", "lost_ticks", "pressure", "cgroup_memory")
ALL_COUNT: Mapping[str, bool | None] = MappingProxyType(dict.fromkeys(COUNTERS, True))
NONE_COUNTS: Mapping[str, bool | None] = MappingProxyType(dict.fromkeys(COUNTERS, False))


class FakeClock:
    """Monotonic seconds that move only when told to."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> float:
        """Let time pass; returns the new time."""
        self.now += seconds
        return self.now


def beat(
    start: float = 0.0, *, late: Sequence[float] = (), samples: int = 5, seconds: float = 1.0, cause: Cause = "nobody"
) -> Window:
    """A second of heartbeats, of which those in ``late`` came that many seconds late."""
    gap = sum(late)
    throttled, run_delay, _ = counters(cause, gap)
    return Window(
        False, 0, max(samples, len(late)), len(late), start, start + seconds, gap, max(late, default=0.0),
        run_delay, throttled, None, None, ends(start, late, cause), asked=max(samples, len(late)),
    )  # fmt: skip


def spin(
    start: float = 0.0, *, burn: float = 0.012, gaps: Sequence[float] = (), level: int = 0, cause: Cause = "nobody"
) -> Window:
    """A spin that burned ``burn`` seconds of CPU and met these gaps."""
    gap = sum(gaps)
    throttled, run_delay, lost = counters(cause, gap)
    wall = burn + gap
    steal = None if lost is None else 0.0
    return Window(
        True, level, 200, len(gaps), start, start + wall, gap, max(gaps, default=0.0),
        run_delay, throttled, steal, lost, ends(start, gaps, cause),
    )  # fmt: skip


def ends(start: float, gaps: Sequence[float], cause: Cause) -> tuple[tuple[float, float], ...]:
    """When gaps are over: a limit's all at one phase of the period, those that other work makes anywhere in it."""
    after = (start + INTERVAL * n for n in range(1, len(gaps) + 1))
    told = [
        ceil(at / PERIOD) * PERIOD if cause in ON_A_CLOCK else at + PERIOD * (at * 7 * GOLDEN % 1.0) for at in after
    ]
    return tuple(zip(told, gaps, strict=True))[:MOST_ENDS]


def counters(cause: Cause, gap: float) -> tuple[float | None, float | None, float | None]:
    """(throttled, run delay, lost) around gaps of this length in all, as measured."""
    moved: dict[Cause, tuple[float | None, float | None, float | None]] = {
        "quota": (gap, gap, 0.0),
        "contention": (0.0, gap, 0.0),
        "hypervisor": (0.0, 0.0, gap),
        "nobody": (0.0, 0.0, 0.0),
        "hidden": (None, None, None),
        "hidden limit": (None, None, None),
        "limit of the machine": (0.0, 0.0, gap),
    }
    return moved[cause]


def beats(start: float, seconds: float, gap: float = 0.0, cause: Cause = "nobody") -> list[Window]:
    """Heartbeats on the spinner's schedule while the last ``gap`` seconds of every 100 ms are taken away."""
    lateness: dict[int, list[float]] = {second: [] for second in range(int(seconds))}
    number = 0
    while (target := number * INTERVAL + JITTER * (number * GOLDEN % 1.0)) < int(seconds):
        left = PERIOD - (start + target) % PERIOD
        lateness[int(target)].append(left if left <= gap else 0.0)
        number += 1
    return [
        beat(start + second, samples=len(found), late=[x for x in found if x > LATE_SECONDS], cause=cause)
        for second, found in lateness.items()
    ]


def suspension(
    taken: float, windows: Sequence[Window] = (), *, seconds: float = SLOT, **fields: Any
) -> SuspensionReading:
    """What the suspension probe makes of these windows."""
    calm = [w for w in windows if not w.spin]
    spins = [w for w in windows if w.spin]
    buckets = [0] * (len(BUCKETS) + 1)
    for window in windows:
        buckets[bucket_of(window.longest)] += window.gaps
    given: dict[str, Any] = {
        "heartbeats": sum(w.samples for w in calm),
        "heartbeats_late": sum(w.gaps for w in calm),
        "gap_seconds": Counts(tuple(buckets), sum(w.gap_seconds for w in windows)),
        "spins": len(spins),
        "spins_skipped": 0,
        "spin_wall_seconds": sum(w.end - w.start for w in spins),
        "spin_gap_seconds": sum(w.gap_seconds for w in spins),
        "steal_seconds": 0.0,
        "lost_seconds": 0.0,
        "stat_cpus": 2,
        "idle_seconds": 0.0,
        "child_restarts": 0,
        "child_stops": 0,
        "windows": tuple(windows),
    }
    return SuspensionReading(taken=taken, seconds=seconds, **(given | fields))


def cgroup(
    taken: float, *, target: str = "", limit: float | None = None, throttled: float | None = 0.0,
    hits: float = 0.0, periods: float = 50.0, usage: float | None = 0.5, seconds: float = SLOT,
) -> CgroupReading:  # fmt: skip
    """One cgroup level; ``throttled=None``: its cpu.stat could not be read."""
    readable = throttled is not None
    return CgroupReading(
        taken=taken, seconds=seconds, target=target, version=2, cpu_limit_cores=limit,
        period_seconds={"/": PERIOD} if limit else {},
        limit_cores={"/": limit} if limit else {},
        periods={"/": periods} if readable else None,
        throttled_periods={"/": hits} if readable else None,
        throttled_seconds={"/": throttled} if throttled is not None else None,
        usage_seconds={} if usage is None else {"/": usage},
        unseen={} if readable else {"throttled_seconds": Unseen("/: permission denied", Code.NOT_PERMITTED)},
    )  # fmt: skip


def platform(
    taken: float, *, trust: Mapping[str, bool | None] = ALL_COUNT, environment: Environment = "none",
    sandbox: Sandbox = "none", service: str | None = None, limit: float | None = None, cpus: int | None = 2,
    virtualised: bool | None = None, tick: float = 0.004,
) -> PlatformReading:  # fmt: skip
    """A place in which these counters count."""
    reasons = {True: "it counts here", False: "it cannot count here", None: "a zero may mean anything"}
    return PlatformReading(
        taken=taken, sandbox=sandbox, kernel_release="6.1.0", virtualised=virtualised, environment=environment,
        service=service, revision=None, own_uid=1000, cpus=cpus, cpu_limit_cores=limit, memory_limit_bytes=None,
        counters={name: Trust(trust[name], f"{name}: {reasons[trust[name]]}", "look from outside") for name in COUNTERS},
        tick_seconds=None if sandbox == "gvisor" else tick,
        believable={name: float(counts) for name, counts in trust.items() if counts is not None},
    )  # fmt: skip


def requests(taken: float, in_flight: int = 0, *changes: tuple[float, int], seconds: float = SLOT) -> RequestsReading:
    """Requests in flight, with (when, how many) changes."""
    transitions = tuple(Transition(at, count) for at, count in changes)
    return RequestsReading(
        taken=taken, seconds=seconds, in_flight=in_flight, transitions=transitions, sources=("push",)
    )


@dataclass(frozen=True, slots=True)
class Burst:
    """The spins of a scene: one each ``every`` seconds that burns ``burn`` and then meets ``gaps``."""

    gaps: tuple[float, ...] = ()
    burn: float = 0.012
    every: float = 20.0


CLEAN = Burst()


class Scene:
    """A history, a fake clock, and time that passes in slots of five seconds."""

    def __init__(
        self, *, trust: Mapping[str, bool | None] = ALL_COUNT, environment: Environment = "none",
        sandbox: Sandbox = "none", service: str | None = None, horizon: float = 600.0, cpus: int = 2, machine: int | None = None,
    ) -> None:  # fmt: skip
        """``cpus``: those that the agent may run on, of so many of the ``machine``: as many, if nothing is said."""
        self.clock = FakeClock()
        self.history = History(horizon, clock=self.clock)
        here = platform(self.clock(), trust=trust, environment=environment, sandbox=sandbox, service=service, cpus=cpus)
        self.history.add(here)
        self._cpus, self._machine = cpus, machine or cpus
        self._slot = 0

    def run(
        self, seconds: float, *, gap: float = 0.0, cause: Cause = "nobody", spins: Burst | None = CLEAN,
        limit: float | None = None, in_flight: int | None = None, usage: float = 0.004,
    ) -> Scene:  # fmt: skip
        """Let time pass while the last ``gap`` seconds of every 100 ms are taken from work that is ready.

        The heartbeats show it (``gap=0``: nothing in here wants the CPU).  Spins meet the same gap unless
        they are given their own.
        """
        if gap and spins is CLEAN:
            spins = Burst((gap,), burn=max(0.004, PERIOD - gap))
        for _ in range(round(seconds / SLOT)):
            start = self.clock()
            windows = beats(start, SLOT, gap, cause)
            if spins is not None and self._slot % max(1, round(spins.every / SLOT)) == 0:
                windows.append(spin(start + 0.5, burn=spins.burn, gaps=spins.gaps, cause=cause))
            met = [w for w in windows if w.spin and w.gaps]
            felt = gap / PERIOD * SLOT + sum(w.gap_seconds for w in met)
            own = cause == "quota"
            self.slot(
                windows, in_flight=in_flight, lost=felt if cause in ("hypervisor", "limit of the machine") and gap else 0.0,
                limit=limit, throttled=felt if own else 0.0, usage=usage * SLOT,
                hits=SLOT / PERIOD if own and gap else float(len(met)) if own else 0.0,
                periods=SLOT / PERIOD if gap else 2.0 + len(met),
            )  # fmt: skip
        return self

    def slot(
        self,
        windows: Sequence[Window] = (),
        *,
        in_flight: int | None = None,
        lost: float = 0.0,
        idle: float = 0.0,
        **of_cgroup: Any,
    ) -> Scene:
        """One slot with exactly these windows."""
        start, self._slot = self.clock(), self._slot + 1
        now = self.clock.advance(SLOT)
        known = idle if self._cpus == self._machine else None  # as the probe has it
        self.history.add(suspension(now, windows, lost_seconds=lost, idle_seconds=known, stat_cpus=self._machine))
        self.history.add(cgroup(now, **of_cgroup))
        if in_flight is None:
            self.history.miss(RequestsReading, "", NoData("nothing tells when a request is in flight", "tell me"))
        else:
            before = self.history.latest(RequestsReading)
            changed = before is None or before.in_flight != in_flight
            self.history.add(requests(now, in_flight, *([(start, in_flight)] if changed else [])))
        return self

    def freeze(self, seconds: float, **fields: Any) -> Scene:
        """A slot in whose middle everything stood still once."""
        late = [seconds - INTERVAL * n for n in range(int(seconds / INTERVAL) + 1)]
        start = self.clock() + 1.0
        frozen = beat(start, late=[x for x in late if x > LATE_SECONDS], seconds=1.0 + seconds)
        self.clock.advance(max(0.0, seconds + 2.0 - SLOT))
        return self.slot([beat(start - 1.0), frozen, beat(start + 1.0 + seconds)], **fields)
