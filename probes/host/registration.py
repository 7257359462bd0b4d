"""The settings, cadence and cost of the probes of the host: the own cgroup, what it wants of its limit, and what kind of place this is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from probes.host.cgroup import CgroupProbe, CgroupReading
from probes.host.demand import DemandProbe, DemandReading
from probes.host.platform import PlatformProbe, PlatformReading, find_environment, trust_of
from probes.kernel_files import read_start
from probes.reading import Probe, Reading, Stability
from probes.registration import SLOT_CPU_SECONDS, Context, Planned, Registration
from probes.section import Field, Preset, Section

#: CPU of a slot of the demand probe, one train of 20 periods in thirty of them: measured on 2 cores by ``make bench``.
DEMAND_CPU_SECONDS = 0.3e-3
#: What was wanted in 600 periods.
DEMAND_BYTES = 3_000
#: Environments whose machine has one tenant: the pressure of the whole machine is the app's.
ALONE = frozenset({"fly"})


class Cgroup(Section):
    """Quotas, throttling and memory of the cgroup."""

    stability: ClassVar[Stability] = "stable"
    doctor: ClassVar[Preset] = {"every_seconds": 1.0}

    every_seconds: float = Field(10.0, ge=1, le=60, description="Time between two slots.")


class Demand(Section):
    """What the app wants of its CPU limit, period by period."""

    stability: ClassVar[Stability] = "beta"
    doctor: ClassVar[Preset] = {"every_seconds": 4.0}

    every_seconds: float = Field(
        10.0,
        ge=1,
        le=60,
        description="Time between two slots; few of them look at periods unless something is throttled.",
    )


class Platform(Section):
    """Where the agent runs and which counters can be believed."""

    stability: ClassVar[Stability] = "stable"
    doctor: ClassVar[Preset] = {"every_seconds": 5.0}

    every_seconds: float = Field(60.0, ge=5, le=3600, description="Time between two slots.")


def probes(context: Context) -> Iterator[Planned]:
    """All, always.  Which counters can be believed is known before the measuring child starts: its plan rests on that."""
    root = context.root
    alone = find_environment(context.environ)[0] in ALONE
    yield Planned(
        make=lambda: CgroupProbe(root=root, alone=alone),
        every=context.settings(Cgroup).every_seconds,
        cpu_seconds=SLOT_CPU_SECONDS / 2,
        history_bytes=0,
    )
    yield Planned(
        make=lambda: PlatformProbe(root=root, environ=context.environ),
        every=context.settings(Platform).every_seconds,
        timeout=5,
        cpu_seconds=0.0,
        history_bytes=0,
        first=True,
    )

    own = lambda: (time.process_time(), child_seconds(root, context.child_pid()))  # noqa: E731
    yield replace(demand_plan(context, "", lambda make: make("self"), own), when=lambda: counts(context))


def counts(context: Context) -> bool:
    """Whether throttled periods are counted here."""
    return trust_of(context).get("cgroup_throttled") is True


def demand_plan(
    context: Context, target: str, wrap: Callable[[Callable[[str], Probe[Reading]]], Probe[Reading]],
    own: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
) -> Planned:  # fmt: skip
    """The demand probe of one target; ``wrap`` is given what makes that of a process."""
    every = context.settings(Demand).every_seconds

    def make(pid: str) -> DemandProbe:
        return DemandProbe(
            target, root=context.root, pid=pid, seconds=every, own=own,
            cgroup=lambda: context.latest(CgroupReading, target), cpus=lambda: _cpus(context),
        )  # fmt: skip

    return Planned(
        make=lambda: wrap(make),
        every=every,
        timeout=every * 0.98,
        cpu_seconds=DEMAND_CPU_SECONDS,
        history_bytes=DEMAND_BYTES,
    )


def _cpus(context: Context) -> int | None:
    platform = context.latest(PlatformReading)
    return int(platform.cpus) if platform is not None and platform.cpus else None


def child_seconds(root: Path, pid: int | None) -> float:
    """CPU seconds of the agent's child; 0 where there is none, or it is not told."""
    try:
        return int(read_start(f"{root}/proc/{pid}/schedstat").split()[0]) / 1e9 if pid else 0.0
    except (OSError, ValueError, IndexError):
        return 0.0


REGISTRATION = Registration(probes, readings=(CgroupReading, PlatformReading, DemandReading))
