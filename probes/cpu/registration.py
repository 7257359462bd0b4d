"""The measuring child's settings, its plan and its cost.

The plan hangs on the platform: where the kernel's own counters can be believed, spins are rare; where they cannot, the ladder
is climbed from time to time, because nothing else would show a mild quota.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from probes.cpu.spinner import escape
from probes.cpu.suspension import SuspensionProbe, SuspensionReading
from probes.host.cgroup import CgroupReading, throttle_files
from probes.host.cgroup_mounts import locate
from probes.host.platform import PlatformReading, trust_of
from probes.reading import Stability
from probes.registration import SLOT_CPU_SECONDS, Context, Planned, Registration
from probes.section import Field, Preset, Section

#: Time between two spins of each length where the kernel's own counters can be believed, and where not.
SPIN_EVERY_SEEN = (24.0, 0.0, 0.0, 0.0)
SPIN_EVERY_BLIND = (15.0, 60.0, 1800.0, 3600.0)
#: So many times as far apart do they come in quiet times where the counters can be believed: contention that begins brings the next one forward,
#: and a quota is met by spins of its own.  One is left in each minute at the least, which is what is judged.
QUIET_TIMES = 1.5
#: The same in the short time that ``doctor`` has.
SPIN_EVERY_DOCTOR = (2.5, 6.0, 12.0, 25.0)
#: What suspicion adds to what is planned: as much again, within this share of one core (7.2 s an hour).  Where counters are blind 0.0016 are planned,
#: and with no more than that the gaps of a limit that appears later came one by one: simulated for 0.2 and 0.3 cores, known after 108 and 315 s
#: instead of 58 and 191 (median).
SUSPICION, MOST_BUDGET = 2.0, 0.002
#: CPU of one wake-up of the heartbeat: 126 us on a virtual machine of two cores (schedstat of a child that never spins).
HEARTBEAT_CPU_SECONDS = 126e-6
#: Upper bound of one slot's readings (48 windows of 14 numbers and their containers), those of cgroup, requests and platform included.
SLOT_BYTES = 24_000


class Suspension(Section):
    """The heartbeat and spin child."""

    stability: ClassVar[Stability] = "stable"
    otherwise: ClassVar[Mapping[str, Stability]] = {"spin_seconds": "internal", "spin_every_seconds": "internal"}

    every_seconds: float = Field(10.0, ge=1, le=60, description="Time between two slots; a change brings them forward.")
    heartbeat_seconds: float = Field(0.2, ge=0.02, le=1, description="Mean time between two heartbeats.")
    budget_ratio: float | None = Field(
        None,
        ge=0.0001,
        le=0.05,
        description="Most CPU that spins may use, as a share of one core.  Unset: twice what is planned by the cadence, 0.001 to 0.002.",
    )
    spin_seconds: tuple[float, float, float, float] = Field(
        (0.012, 0.04, 0.13, 0.32),
        description="The ladder: lengths of a spin, short to long; a quota of q cores shows after q x 0.1 s.",
    )
    spin_every_seconds: tuple[float, float, float, float] | None = Field(
        None,
        description="Time between two spins of each length, 0 for never.  Unset: chosen for the platform, "
        "rare where the kernel's own counters can be believed.",
    )

    def for_doctor(self) -> Preset:
        """Spins up to the longest in seconds, unless the user says how often."""
        every = self.spin_every_seconds or SPIN_EVERY_DOCTOR
        return {"every_seconds": 1.0, "budget_ratio": 0.05, "spin_every_seconds": every}


def probes(context: Context) -> Iterator[Planned]:
    """One child: heartbeats and spins run all the time, whatever the slots do."""
    settings = context.settings(Suspension)
    # Five targets a second for as long as something is late; the plan is the dearer one until the platform is known.
    ratio = HEARTBEAT_CPU_SECONDS / settings.heartbeat_seconds + _budget(settings, SPIN_EVERY_BLIND)
    yield Planned(
        make=lambda: _make(context),
        every=settings.every_seconds,
        cpu_seconds=SLOT_CPU_SECONDS + ratio * settings.every_seconds,
        history_bytes=SLOT_BYTES,
    )


REGISTRATION = Registration(probes, readings=(SuspensionReading,))


def _budget(settings: Suspension, every: Sequence[float]) -> float:
    """The share of one core for all spins: what is planned, and what suspicion may add to it."""
    if settings.budget_ratio is not None:
        return settings.budget_ratio
    planned = sum(length / pause for length, pause in zip(settings.spin_seconds, every, strict=True) if pause)
    return min(MOST_BUDGET, SUSPICION * planned) if planned else MOST_BUDGET


def _make(context: Context) -> SuspensionProbe:
    probe = SuspensionProbe(
        lambda: _child_settings(context),
        told_by=lambda: _told_by(context),
        trust=lambda: trust_of(context),
        witness=context.loop_ran_between,
        root=context.root,
        on_early_flush=context.ask_for_slot,
    )
    context.child_pid.let(lambda: probe.child_pid)
    return probe


def _counters_may_miss(context: Context) -> bool:
    """Whether the kernel's counters could miss a suspension here, so that spins must look for it."""
    trust, platform = trust_of(context), context.latest(PlatformReading)
    seen = all(trust.get(name) for name in ("cgroup_throttled", "run_delay", "steal"))
    return not seen or (platform is not None and platform.environment.startswith("cloud_run"))


def _told_by(context: Context) -> tuple[object, ...]:
    """What decides of which counters the child is told: a group may get the cpu controller, and a limit, while it runs."""
    cgroup = context.latest(CgroupReading)
    return trust_of(context), set(cgroup.limit_cores or ()) if cgroup is not None else set()


def _child_settings(context: Context) -> str:
    """The child's configuration line (:class:`probes.cpu.spinner.Config`)."""
    settings, blind, trust = context.settings(Suspension), _counters_may_miss(context), trust_of(context)
    every = settings.spin_every_seconds or (SPIN_EVERY_BLIND if blind else SPIN_EVERY_SEEN)
    parts = [
        f"interval={settings.heartbeat_seconds}",
        f"jitter={settings.heartbeat_seconds}",
        f"budget={_budget(settings, every):.6f}",
        f"send={min(4.0, settings.every_seconds * 0.8):.1f}",
        f"levels={','.join(map(str, settings.spin_seconds))}",
        f"every={','.join(map(str, every))}",
        f"climb={int(blind)}",
        f"quiet={QUIET_TIMES if every is SPIN_EVERY_SEEN else 1.0}",
        f"root={escape(str(context.root))}",
        f"ticks={int(trust.get('lost_ticks') is not False)}",
        # A kernel that does not count it prints three zeros, and a delay of zero would say that no other work held the CPU.
        f"delay={int(trust.get('run_delay') is True)}",
    ]
    if trust.get("cgroup_throttled"):
        with contextlib.suppress(OSError):
            files = throttle_files(locate(context.root))
            rows = ("|".join((str(f.version), *map(escape, (f.stat, f.quota, f.period)))) for f in files)
            parts.append("cgroups=" + ",".join(rows))
    return ";".join(parts)
