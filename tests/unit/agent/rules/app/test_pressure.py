"""Waits for memory and for storage: seen, cleared, not known, and what only looks like it."""

from __future__ import annotations

from typing import Any

import pytest

from agent.diagnosis import Engine
from agent.report import AgentSelf
from agent.rules import BY_ID
from agent.rules.rule import Absent, Judgement, Present, Unknown
from agent.views.memory import FILES, HEAPS, KERNEL, group_memory
from probes.app.processes import ProcessesReading
from probes.host.cgroup import CgroupReading
from probes.reading import Code, Unseen
from tests.unit.builders import Scene

NO_PSI = dict.fromkeys(
    ("memory_stalled_seconds", "io_stalled_seconds"), Unseen("cgroup v1 has no memory.pressure", Code.CANNOT_COUNT)
)


def slot(scene: Scene, **fields: Any) -> None:
    """Ten seconds of the own group; shares of the time become seconds."""
    given = {"memory": 0.0, "all_memory": 0.0, "io": 0.0, "all_io": 0.0} | fields
    shares = [given.pop(name) for name in ("memory", "all_memory", "io", "all_io")]
    names = ("memory_stalled_seconds", "memory_all_stalled_seconds", "io_stalled_seconds", "io_all_stalled_seconds")
    stalls: dict[str, Any] = {
        name: None if share is None else 10 * share for name, share in zip(names, shares, strict=True)
    }
    kinds: dict[str, Any] = {"refaulted_pages": 0.0, "major_faults": 0.0, "memory_events": {"high": 0.0, "max": 0.0}}
    scene.history.add(CgroupReading(taken=scene.clock.advance(10.0), seconds=10.0, **(stalls | kinds | given)))


def judge(rule: str, **fields: Any) -> Judgement:
    scene = Scene()
    for _ in range(4):
        slot(scene, **fields)
    return BY_ID[rule].judge(scene.history)


@pytest.mark.parametrize(
    ("rule", "fields", "severity"),
    [
        ("memory_reclaim_stall", {"memory": 0.4, "all_memory": 0.2, "refaulted_pages": 9000.0}, "warning"),
        ("memory_reclaim_stall", {"memory": 0.9, "all_memory": 0.8, "major_faults": 500.0}, "critical"),
        ("memory_reclaim_stall", {"memory": 0.9, "all_memory": 0.8, "memory_events": {"high": 40.0}}, "critical"),
        # Single reads of pages that were taken away: measured as a wait for storage alone.
        (
            "memory_reclaim_stall",
            {"memory": 0.02, "io": 0.75, "all_io": 0.75, "refaulted_pages": 450.0, "major_faults": 450.0},
            "critical",
        ),
        ("io_stall", {"io": 0.5, "all_io": 0.3}, "warning"),
        ("io_stall", {"io": 0.95, "all_io": 0.9}, "critical"),
    ],
)
def test_work_that_waits_is_a_finding(rule: str, fields: dict[str, Any], severity: str) -> None:
    found = judge(rule, **fields)
    assert isinstance(found, Present), found
    assert found.severity == severity


@pytest.mark.parametrize(
    ("rule", "fields"),
    [
        ("memory_reclaim_stall", {}),
        (
            "memory_reclaim_stall",
            {"memory": 0.02, "memory_events": {"max": 4000.0}},
        ),  # a copy of large files, at its limit in peace
        ("memory_reclaim_stall", {"memory": 0.02, "refaulted_pages": 500.0}),
        ("memory_reclaim_stall", {"io": 0.9, "all_io": 0.9}),
        ("memory_reclaim_stall", {"io": 0.9, "all_io": 0.9, "refaulted_pages": 20.0}),  # a few, beside writes that wait
        ("io_stall", {}),
        ("io_stall", {"io": 0.95, "all_io": 0.02}),  # one thread writes logs all day, the others go on
    ],
)
def test_what_only_looks_like_it_is_none(rule: str, fields: dict[str, Any]) -> None:
    found = judge(rule, **fields)
    assert isinstance(found, Absent)
    assert "%" in found.because


@pytest.mark.parametrize(("cores", "verdict"), [(0.7, Present), (0.95, Unknown)])
def test_the_mean_of_several_cpus_is_no_proof_that_all_waits_while_a_thread_computes(
    cores: float, verdict: type
) -> None:
    """Two CPUs: a thread that writes and one that computes all the time had full at 18 % (lab, a guest kernel); work that takes turns has more rest."""
    found = judge("io_stall", io=0.23, all_io=0.18, usage_seconds={"own": 10 * cores})
    assert isinstance(found, verdict), found


@pytest.mark.parametrize("rule", ["memory_reclaim_stall", "io_stall"])
def test_without_pressure_files_it_is_unknown(rule: str) -> None:
    kind = rule.partition("_")[0]
    found = judge(rule, unseen=NO_PSI, **{kind: None, f"all_{kind}": None}, refaulted_pages=9000.0)
    assert isinstance(found, Unknown)
    assert found.code is Code.CANNOT_COUNT
    assert isinstance(BY_ID[rule].judge(Scene().history), Unknown)


def test_waits_for_memory_without_anything_reclaimed_here_are_the_machines() -> None:
    assert isinstance(judge("memory_reclaim_stall", memory=0.5, all_memory=0.4), Unknown)


def test_who_loses_its_cpu_while_it_reclaims_does_not_wait_for_memory() -> None:
    scene = Scene()
    for _ in range(4):
        scene.run(10, gap=0.095, cause="quota", limit=0.05)
        scene.clock.now -= 10.0
        slot(scene, memory=0.6, all_memory=0.6, refaulted_pages=40.0, limit_cores={"/": 0.05}, period_seconds={"/": 0.1},
             throttled_seconds={"/": 9.5}, throttled_periods={"/": 100.0}, periods={"/": 100.0}, usage_seconds={"/": 0.5})  # fmt: skip
    assert isinstance(BY_ID["memory_reclaim_stall"].judge(scene.history), Absent)


def test_what_was_taken_away_and_is_read_again_explains_the_storage() -> None:
    scene = Scene().run(30)
    for _ in range(4):
        slot(scene, memory=0.8, all_memory=0.7, io=0.8, all_io=0.7, refaulted_pages=9000.0)
    report, _ = Engine(scene.history, clock=scene.clock).evaluate(AgentSelf("0", 1.0, 0.1, 50_000_000))
    found = {finding.rule: finding.explained_by for finding in report.findings}
    assert found["io_stall"] == "memory_reclaim_stall"
    assert found["memory_reclaim_stall"] is None


def test_threads_in_an_uninterruptible_sleep_are_named_and_convict_nobody_alone() -> None:
    scene = Scene()
    for number in range(4):
        slot(scene, io=0.6, all_io=0.6)
        scene.history.add(ProcessesReading(taken=scene.clock(), uninterruptible_threads={"app": float(number % 2)}))
    found = BY_ID["io_stall"].judge(scene.history)
    assert isinstance(found, Present)
    assert any("state D) in 2 of 4 samples" in each.text for each in found.evidence)
    blind = Scene()
    for _ in range(4):
        slot(blind, io=None, all_io=None, unseen=NO_PSI)
        blind.history.add(ProcessesReading(taken=blind.clock(), uninterruptible_threads={"app": 1.0}))
    unknown = BY_ID["io_stall"].judge(blind.history)
    assert isinstance(unknown, Unknown)
    assert "state D" in unknown.because


@pytest.mark.parametrize(
    ("grows", "expected"),
    [("anon", HEAPS), ("shmem", FILES), ("kernel", KERNEL), ("slab", None), ("file", None)],
)
def test_who_grows_is_named_and_what_can_be_taken_back_is_not_used(grows: str, expected: str | None) -> None:
    scene = Scene()
    base = {"anon": 100e6, "shmem": 20e6, "kernel": 10e6, "slab": 5e6, "file": 200e6}
    for number in range(12):
        now = base | {grows: base[grows] + number * 5e6}
        slot(
            scene, memory_limit_bytes={"/": 400e6}, memory_current_bytes={"/": sum(now.values())},
            memory_anon_bytes={"/": now["anon"]}, memory_shmem_bytes={"/": now["shmem"]},
            memory_file_bytes={"/": now["file"]}, memory_slab_bytes={"/": now["slab"]},
        )  # fmt: skip
    memory = group_memory(scene.history, 120.0, "")
    assert memory is not None
    assert (memory.grows[0] if memory.grows else None) == expected
    assert memory.used == pytest.approx(130e6 + (55e6 if expected else 0))
    found = BY_ID["memory_near_limit"].judge(scene.history)
    text = " ".join(each.text for each in found.evidence) if isinstance(found, Present) else ""
    assert (expected is not None and expected in text) == (isinstance(found, Present))
