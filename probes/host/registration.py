"""The settings, cadence and cost of the probes of the host: the own cgroup, and what kind of place this is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from probes.host.cgroup import CgroupProbe, CgroupReading
from probes.host.platform import PlatformProbe, PlatformReading, find_environment
from probes.registration import SLOT_CPU_SECONDS, Context, Planned, Registration
from probes.section import Preset, Section

#: Environments whose machine has one tenant: the pressure of the whole machine is the app's.
ALONE = frozenset({"fly"})


class Cgroup(Section):
    """Quotas, throttling and memory of the cgroup."""

    doctor: ClassVar[Preset] = {"every_seconds": 1.0}

    every_seconds: float = Field(10.0, ge=1, le=60, description="Time between two slots.")


class Platform(Section):
    """Where the agent runs and which counters can be believed."""

    doctor: ClassVar[Preset] = {"every_seconds": 5.0}

    every_seconds: float = Field(60.0, ge=5, le=3600, description="Time between two slots.")


def probes(context: Context) -> Iterator[Planned]:
    """Both, always.  Which counters can be believed is known before the measuring child starts: its plan rests on that."""
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


REGISTRATION = Registration(probes, readings=(CgroupReading, PlatformReading))
