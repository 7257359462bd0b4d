"""Fixed reports and readings, and the comparison with a golden file.

Readings are made from their own field specs, so that a new field shows up without a change here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from agent.report import (
    Advice,
    AgentSelf,
    Breakdown,
    CannotSee,
    Check,
    Evidence,
    Finding,
    Report,
    RuledOut,
    Severity,
    Status,
    Suspect,
    UnknownRule,
)
from agent.rules import RULES
from agent.snapshot import SlotCount, Snapshot, State
from probes.host.platform import PlatformReading
from probes.host.trust import Trust
from probes.reading import Code, Counts, Reading, specs

HERE = Path(__file__).parent
NOW = "2026-11-20T12:00:00Z"

R = TypeVar("R", bound=Reading)

#: What a reading type needs beside its measured fields.
_REQUIRED: Mapping[type[Reading], Mapping[str, Any]] = {
    PlatformReading: {
        "sandbox": "none",
        "kernel_release": "6.18.0",
        "virtualised": False,
        "environment": "none",
        "service": None,
        "revision": None,
        "own_uid": 1000,
        "counters": {"steal": Trust(True, "no hypervisor")},
    }
}


def same_as_golden(name: str, text: str, shape: Callable[[str], object] = str) -> None:
    """Compare with the golden file what ``shape`` makes of both; with UPDATE_GOLDEN=1 in the environment write it instead."""
    path = HERE / name
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(text, "utf-8")
    wanted = path.read_text("utf-8") if path.exists() else "(no such golden file)"
    assert shape(text) == shape(wanted), f"{path} differs: make docs writes it anew (see golden/README.md)"


def reading(kind: type[R], **fields: Any) -> R:
    """A reading with 1 in every field, or what ``fields`` says."""
    values: dict[str, Any] = {"taken": 100.0, "seconds": 5.0, **_REQUIRED.get(kind, {})}
    for spec in specs(kind):
        plain: Any = {
            "gauge": 1.0,
            "increment": 1.0,
            "histogram": Counts((1,) * (len(spec.buckets) + 1), 1.0),
            "flag": True,
        }[spec.kind]
        values[spec.name] = {f"some_{spec.by}": plain} if spec.by else plain
    return kind(**{**values, **fields})


def finding(
    rule: str = "cpu_quota_throttled", severity: Severity = "critical", explained_by: str | None = None
) -> Finding:
    return Finding(
        rule=rule,
        title="A CPU limit holds the work back",
        severity=severity,
        confidence=0.97,
        since="2026-11-20T11:59:00Z",
        scope="own container",
        evidence=(
            Evidence("ready work was held by the quota 95% of the time", 0.95, "ratio"),
            Evidence("the CPU limit is 0.05 cores", 0.05, "cores"),
            Evidence("a sentence without a number, long enough to be wrapped over more than a single line of text"),
        ),
        advice=Advice(
            "Raise or remove the CPU limit of this container.",
            (
                "kubectl set resources deployment a-name-that-is-long-but-must-not-be-wrapped-here --limits=cpu=1",
                'resources.limits.cpu: "1"',
            ),
            "more CPU reserved or billed",
            "a slow database or network",
        ),
        disproof="nr_throttled in cpu.stat of the group stands still while the app is slow",
        explained_by=explained_by,
        share=0.95,
        stalled=1.9,
        stalled_share=0.95,
    )


def report(
    status: Status = "fail", verdict: str = "A CPU limit holds the work back.", *found: Finding, **changes: Any
) -> Report:
    """One fixed report with something in every part; without findings it is what ``found`` says."""
    values: dict[str, Any] = {
        "status": status,
        "verdict": verdict,
        "conclusive": True,
        "generated": NOW,
        "findings": found,
        "ruled_out": (
            RuledOut("cpu_stolen", "the hypervisor took 0.0% of the time", (Evidence("0 of 3 spins", 0.0, "ratio"),)),
            RuledOut("instance_frozen", "the longest gap of two minutes is 0.095 s"),
        ),
        "unknown": (
            UnknownRule("cpu_throttled_between_requests", "nothing tells this agent when a request is in flight",
                        'POST {"in_flight": n} to /requests-in-flight', Code.NOT_CONFIGURED),
        ),
        "cannot_see": (
            CannotSee("pressure", "cgroup v1 has no cpu.pressure", "cgroup v2, and a kernel booted with psi=1"),
            CannotSee("a pause that stops the guest's clock too", "no clock in here moves while it lasts", ""),
        ),
        "breakdown": Breakdown(
            {
                "running": 0.05,
                "suspended_quota": 0.94,
                "suspended_hypervisor": 0.0,
                "suspended_contention": 0.01,
                "suspended_freeze": 0.0,
                "suspended_unknown": 0.0,
            },
            stalled={
                "threads": {"running": 0.05, "quota": 0.94, "contention": 0.01},
                "connections to main": {"quota": 3.0, "idle": 1.0},
            },
            cpu_error=0.0253,
        ),
        "suspects": (
            Suspect("CPU", "convicted" if found else "cleared", "95%" if found else "available 99%"),
            Suspect("database", "cleared", "2.1 ms"),
            Suspect("network", "unknown", ""),
            Suspect("logs", "not looked at", "load a hook into the app, or set logs.files or logs.metrics_urls"),
        ),
        "platform": reading(PlatformReading, cpus=2, cpu_limit_cores=0.05).summary,
        "agent": AgentSelf("1.2.3", 61.5, 0.25, 60 * 2**20, 3, cpu_most_ratio=0.0038),
        "checks": {
            "cpu:suspended": (Check("system", "fail", NOW, 0.95, "ratio"),),
            "suspension:coverage": (Check("component", "pass", NOW, 1.0, "ratio"),),
            "requests:coverage": (Check("component", "warn", NOW, 0.0, "ratio", "nobody tells"),),
        },
    }  # fmt: skip
    return Report(**{**values, **changes})


def failing() -> Report:
    return report(
        "fail",
        "A CPU limit holds the work back: ready work was held by the quota 95% of the time.",
        finding(),
        finding("cpu_suspended", "warning", explained_by="cpu_quota_throttled"),
    )


def healthy() -> Report:
    return report("pass", "Nothing takes the CPU away: it was available 99.2% of the time whenever it was wanted.")


def blind() -> Report:
    return report(
        "warn", "Cannot tell yet: no suspension reading yet.", conclusive=False, breakdown=Breakdown(), platform={},
        ruled_out=(),
    )  # fmt: skip


def snapshot(shown: Report | None = None, version: int = 1) -> Snapshot:
    return Snapshot(
        version=version,
        report=shown or failing(),
        verdicts={rule.id: "absent" for rule in RULES} | {RULES[0].id: "present"},
        slots=(
            SlotCount("suspension", "", {"ok": 3, "skipped": 0}, 1795000000.5),
            SlotCount("cgroup", "app", {}, None),
        ),
        loop_lateness_seconds=0.002,
        platform_labels=reading(PlatformReading).labels,
        lines_dropped=3 + version,
        cloud_entries={"written": 5, "dropped": 1},
        pushed={"otlp metrics": {"delivered": 7, "dropped": 2, "refused": 0, "waiting": 3}},
    )


def state(shown: Report | None = None, version: int = 1) -> State:
    return State(snapshot(shown, version), child_alive=True)
