"""The demo's pure parts: the table of stalls, what is told, exit codes, and where a CPU quota can be set."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from agent.commands import exits, parser
from agent.commands.demo.quota import PREFIX, Group, parents, sweep
from agent.commands.demo.stage import Demo, Plan, app_line, conclusion, exit_code
from agent.commands.demo.stalls import STALLS
from agent.commands.embedded_postgres import NotAvailable
from agent.rules import BY_ID
from agent.settings.presets import for_demo, for_doctor, watching
from agent.settings.schema import Config
from tests.unit.fake_kernel import FakeKernel, container_v2, hybrid

EXPECTED = ("one", "other")


# ---- the table and the plan


def test_the_command_line_knows_every_stall() -> None:
    assert tuple(STALLS) == parser.STALLS


@pytest.mark.parametrize(
    "name",
    STALLS,
)
def test_what_is_expected_is_a_rule(name: str) -> None:
    assert set(STALLS[name].expected) <= BY_ID.keys()


def test_the_whole_plan_takes_a_minute_and_a_half_at_most() -> None:
    plan = Plan()
    assert plan.before + plan.stall + plan.after <= 90
    assert plan.least < plan.stall


def test_it_looks_as_often_as_doctor_and_remembers_less() -> None:
    shown = for_demo(Config(), 10.0)
    assert shown.history.seconds == 10.0 < Config().history.seconds
    assert shown.connections.every_seconds < Config().connections.every_seconds
    rest = {"history", "connections"}
    assert shown.model_dump(exclude=rest) == for_doctor(Config()).model_dump(exclude=rest)


def test_one_more_database_is_watched() -> None:
    first = watching(Config(), "main", "env:A")
    assert watching(first, "demo", "env:B").postgres.targets == {"main": "env:A", "demo": "env:B"}
    assert first.postgres.targets == {"main": "env:A"}


# ---- what is told


@pytest.mark.parametrize(
    ("appeared", "code"),
    [
        ({"one", "other"}, exits.HEALTHY),
        ({"one", "other", "more"}, exits.HEALTHY),
        ({"one"}, exits.FINDINGS),
        ({"more"}, exits.FINDINGS),
        (set[str](), exits.CANNOT_TELL),
    ],
)
def test_the_exit_code_says_whether_it_was_found(appeared: set[str], code: int) -> None:
    assert exit_code(EXPECTED, appeared) == code


def test_the_conclusion_names_what_was_found_and_how_to_read_on() -> None:
    said = conclusion(EXPECTED, {"other", "one", "more"}, 12.3)
    assert said.startswith("found within 12 s: one, other;")
    assert "stallscope explain one" in said


def test_the_conclusion_names_what_is_missing() -> None:
    assert conclusion(EXPECTED, {"one", "more"}, 40) == "NOT found within 40 s: other; found: more, one"
    assert conclusion(EXPECTED, set(), 40) == "NOT found within 40 s: one, other; found: nothing"


def test_the_app_is_told_of_by_its_median() -> None:
    assert app_line([0.001, 0.9, 0.003], 5.2) == "the app: 3 transactions in 5 s, half of them within 3.0 ms"
    assert app_line([], 5.2) == "the app: not one transaction in 5 s"


def test_a_change_is_reported_and_remembered(capsys: pytest.CaptureFixture[str]) -> None:
    demo = Demo(STALLS["network"], Plan())
    change = {
        "event": "verdict_changed",
        "rule": "one",
        "severity": "WARNING",
        "finding_severity": "warning",
        "evidence": ["9 of 10 ms"],
    }
    demo._take_agent(json.dumps({**change, "now": "present"}).encode())
    assert (demo._present, demo._appeared) == ({"one"}, {"one"})
    assert capsys.readouterr().out == "t=0 s: warning: one: 9 of 10 ms\n"
    demo._take_agent(json.dumps({**change, "now": "unknown"}).encode())
    assert (demo._present, demo._appeared) == (set(), {"one"})
    assert capsys.readouterr().out == "t=0 s: now unknown: one\n"
    demo._take_agent(b'{"event": "final_report", "report": {}}')
    assert capsys.readouterr().out == ""


# ---- where a quota can be set


def v2(root: Path, *, handing_down: str) -> FakeKernel:
    """A session of a usual system with cgroup v2; ``handing_down`` is the root's cgroup.subtree_control."""
    fake = FakeKernel(root)
    fake.cgroups("0::/user.slice/session-3.scope")
    fake.mount("/sys/fs/cgroup")
    fake.root_v2("/sys/fs/cgroup")
    fake.write("/sys/fs/cgroup/cgroup.subtree_control", handing_down)
    for group in ("user.slice", "user.slice/session-3.scope"):
        fake.write(f"/sys/fs/cgroup/{group}/cgroup.subtree_control", "memory pids\n")
    return fake


def test_version_1_takes_a_child_of_the_own_group_and_its_twin(tmp_path: Path) -> None:
    hybrid(tmp_path)
    points = tmp_path / "sys/fs/cgroup"
    assert parents(tmp_path) == (1, (points / "cpu", points / "cpuacct"))


def test_version_1_with_both_controllers_in_one_place_takes_one_child(tmp_path: Path) -> None:
    fake = FakeKernel(tmp_path)
    fake.cgroups("3:cpu,cpuacct:/job", "0::/")
    fake.mount("/sys/fs/cgroup/cpu,cpuacct", controllers="cpu,cpuacct")
    fake.cpu_v1("/sys/fs/cgroup/cpu,cpuacct/job")
    assert parents(tmp_path) == (1, (tmp_path / "sys/fs/cgroup/cpu,cpuacct/job",))


def test_version_2_takes_the_nearest_group_that_hands_cpu_down(tmp_path: Path) -> None:
    fake = v2(tmp_path, handing_down="cpuset cpu memory\n")
    assert parents(tmp_path) == (2, (tmp_path / "sys/fs/cgroup",))
    fake.write("/sys/fs/cgroup/user.slice/cgroup.subtree_control", "cpu\n")
    assert parents(tmp_path) == (2, (tmp_path / "sys/fs/cgroup/user.slice",))


@pytest.mark.parametrize("handing_down", ["", "cpuset memory\n"])
def test_version_2_without_a_group_that_hands_cpu_down_is_reported(tmp_path: Path, handing_down: str) -> None:
    v2(tmp_path, handing_down=handing_down)
    with pytest.raises(NotAvailable, match=r"from /user.slice/session-3.scope upwards has cpu in its cgroup.subtree"):
        parents(tmp_path)


def test_a_container_whose_group_holds_it_is_reported(tmp_path: Path) -> None:
    container_v2(tmp_path)
    with pytest.raises(NotAvailable, match=r"run the demo as root .*docker run --rm --cpus 0.05"):
        parents(tmp_path)


def test_without_a_cpu_controller_the_reason_is_reported(tmp_path: Path) -> None:
    FakeKernel(tmp_path)
    with pytest.raises(NotAvailable, match="no cgroup cpu controller is mounted here"):
        parents(tmp_path)


def test_without_proc_the_reason_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotAvailable, match="No such file"):
        parents(tmp_path)


# ---- the group


@pytest.mark.parametrize(
    ("version", "limited", "free"), [(1, "5000", "-1"), (2, "5000 100000", "max 100000")], ids=["v1", "v2"]
)
def test_a_limit_is_written_as_its_version_has_it(tmp_path: Path, version: int, limited: str, free: str) -> None:
    hybrid(tmp_path) if version == 1 else v2(tmp_path, handing_down="cpu")
    group = Group(tmp_path)
    assert group.file.read_text() == free
    group.limit(0.05)
    assert group.file.read_text() == limited
    group.limit(None)
    assert group.file.read_text() == free
    made = list(tmp_path.rglob(f"{PREFIX}{os.getpid()}"))
    assert len(made) == {1: 2, 2: 1}[version]
    group.add(9_999_999)  # more than any kernel gives
    assert {(directory / "cgroup.procs").read_text() for directory in made} == {"9999999"}
    for file in [file for directory in made for file in directory.iterdir()]:
        file.unlink()  # the kernel's are no obstacle to removing a group
    group.close()
    group.close()
    assert not any(directory.exists() for directory in made)


def test_a_group_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    fake = hybrid(tmp_path)
    fake.write(f"/sys/fs/cgroup/cpu/{PREFIX}{os.getpid()}", "in the way")
    with pytest.raises(NotAvailable, match=r"no CPU quota can be set here \(.*File exists\): run the demo as root"):
        Group(tmp_path)


def test_what_a_killed_demo_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    gone, ours, full, other = (tmp_path / name for name in (f"{PREFIX}0", f"{PREFIX}{os.getpid()}", f"{PREFIX}00", "x"))
    for directory in (gone, ours, full / "inner", other):
        directory.mkdir(parents=True)
    sweep(tmp_path)
    assert not gone.exists()
    assert all(directory.exists() for directory in (ours, full, other))
