"""Whose processes they are: by their connections, by name, by id; and when that cannot be known."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent.app import Agent
from agent.settings.load import Config
from probes.app import app_cgroup
from probes.app import search as process_search
from probes.app.app_cgroup import OfAppProbe, is_of_the_first
from probes.app.processes import SEARCH_AGAIN_SECONDS, SEARCH_SECONDS, ProcessesProbe, ProcessesReading
from probes.app.search import App, chosen, has_name
from probes.host.cgroup import CgroupProbe
from probes.host.registration import Cgroup, Demand
from probes.reading import NoData
from probes.registration import Context
from probes.sockets.registration import Connections
from tests.unit.fake_kernel import FakeKernel, FakeProcess
from tests.unit.probes.app.processes.conftest import AGENT, BETWEEN, Scene, find


def test_the_owners_of_the_connections_are_the_app(scene: Scene) -> None:
    scene.process(50, "postgres").holds(99)
    scene.process(60, "web").holds(71, 72, others=20)
    scene.process(70, "worker").holds(73)
    scene.inodes = {71, 72, 73}
    assert scene.read().processes == {"web": 1, "worker": 1}


def test_the_agent_and_its_child_are_never_the_app(tmp_path: Path) -> None:
    scene = Scene(tmp_path, child=lambda: AGENT + 1)
    FakeProcess(scene.fake, AGENT, "python3").holds(71)
    scene.process(AGENT + 1, "python3").holds(71)
    assert find(scene, {71}, AGENT + 1).pids == ()
    assert chosen(tmp_path, "python3", None, AGENT + 1).pids == ()
    scene.nothing()
    scene.process(AGENT + 2, "python3").holds(71)
    assert find(scene, {71}, AGENT + 1).pids == (AGENT + 2,)
    assert chosen(tmp_path, "python3", None, AGENT + 1).pids == (AGENT + 2,)
    assert scene.read(SEARCH_SECONDS).processes == {"python3": 1}


def test_processes_of_a_name_are_found_without_looking_into_them(tmp_path: Path) -> None:
    scene = Scene(tmp_path, process="web")
    scene.process(60, "web").holds(71)
    scene.process(61, "web")
    scene.process(62, "webby").holds(71)
    reading = scene.read()
    assert (reading.processes, reading.left_out) == ({"web": 2}, 0)
    assert set(reading.unseen) == set(BETWEEN)


def test_a_long_name_is_compared_as_the_kernel_cut_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path, process="a-name-of-twenty-one")
    scene.process(60, "a-name-of-twenty-one")
    assert scene.read().processes == {"a-name-of-twenty-one": 1}


def test_a_process_id_wins_over_the_name(tmp_path: Path) -> None:
    scene = Scene(tmp_path, process="web", pid=70)
    scene.process(60, "web")
    scene.process(70, "other")
    assert scene.read().processes == {"other": 1}


@pytest.mark.parametrize(
    ("settings", "because"),
    [({"process": "web"}, "no process named 'web' can be seen"), ({"pid": 9}, "no process 9 can be seen")],
)
def test_what_the_settings_name_and_is_not_there_is_said_and_found_once_it_is(
    tmp_path: Path, settings: dict[str, Any], because: str
) -> None:
    scene = Scene(tmp_path, **settings)
    assert scene.nothing().because == because
    assert "shareProcessNamespace: true" in scene.nothing(1.0).remedy
    scene.process(9, "web")
    assert scene.read(SEARCH_AGAIN_SECONDS).processes == {"web": 1}


def test_without_a_connection_nothing_is_searched_and_the_first_one_is_looked_up_at_once(scene: Scene) -> None:
    scene.inodes = ()
    scene.process(60, "web").holds(71)
    told = scene.nothing()
    assert "no connection to a watched port" in told.because
    assert "app.process" in told.remedy
    scene.inodes = {71}
    assert scene.read(0.1).processes == {"web": 1}
    scene.inodes = ()
    reading = scene.read(SEARCH_SECONDS)  # an empty pool is no other app
    assert reading.processes == {"web": 1}
    assert "processes" not in reading.unseen


def test_without_the_apps_process_namespace_the_remedy_is_to_share_it(scene: Scene) -> None:
    scene.process(1, "pause")
    told = scene.nothing()
    assert "none of the 1 other processes that are visible here holds one" in told.because
    assert "shareProcessNamespace: true" in told.remedy


def test_descriptors_that_may_not_be_read_are_counted_and_the_remedy_is_the_apps_user(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What EACCES does; the real refusal is met in the integration tests."""
    held = process_search._held

    async def refuse(directory: str, wanted: Collection[str], most: int) -> tuple[set[str], int]:
        if "/60/" in directory:
            raise PermissionError(13, "Permission denied", directory)
        return await held(directory, wanted, most)

    monkeypatch.setattr(process_search, "_held", refuse)
    scene.process(60, "web").holds(71)
    told = scene.nothing()
    assert told.because.startswith("no owner of the app's connections was found: the descriptors of 1 processes")
    for cure in ("runAsUser", "SYS_PTRACE", "app.process"):
        assert cure in told.remedy
    scene.process(61, "worker").holds(72)
    scene.inodes = {71, 72}
    reading = scene.read(SEARCH_SECONDS)
    assert reading.processes == {"worker": 1}
    assert reading.unseen["processes"].startswith("not every owner")


@pytest.mark.parametrize(
    ("own", "watched"), [(False, True), (True, False), (None, False)], ids=["other", "own", "not known"]
)
def test_the_group_of_those_who_hold_the_connections_is_watched_when_it_is_another(
    own: bool | None, watched: bool
) -> None:
    agent = Agent(Config())
    for _ in range(2):
        reading = ProcessesReading(taken=0.0, own_group=own)
        agent.history.add(reading)
        agent._after([reading])
    groups = [entry.probe.target for entry in agent.schedule.entries if entry.probe.name == "cgroup"]
    assert groups == (["", "app"] if watched else [""])


def test_a_process_that_is_gone_is_searched_for_again(scene: Scene) -> None:
    scene.process(60, "web").holds(71)
    scene.read()
    (scene.fake.root / "proc/60").rename(scene.fake.root / "proc/gone")
    scene.process(61, "web").holds(71)
    reading = scene.read()
    assert (reading.processes, reading.cpu_cores) == ({"web": 1}, None)


def test_a_zombie_has_ended_and_a_process_whose_first_thread_did_has_not(scene: Scene) -> None:
    web = scene.process(60, "web").holds(71).thread(60, state="Z")
    assert chosen(scene.fake.root, "web", None).pids == ()
    scene.nothing()
    web.thread(61).thread(60, state="Z")
    assert chosen(scene.fake.root, "web", None).pids == (60,)
    assert scene.read(SEARCH_SECONDS).threads == {"web": 2}
    web.end_thread(61)
    web.thread(60, state="Z")
    assert scene.nothing(1.0).because == "the app's processes have ended"


def test_after_owners_that_ended_while_they_were_sought_it_is_searched_again_soon(scene: Scene) -> None:
    scene.process(60, "web").thread(60, state="Z").holds(71)
    new = scene.process(61, "web")
    scene.inodes = {71, 72}
    assert "have ended" in scene.nothing().because
    new.holds(72)
    assert scene.read(SEARCH_AGAIN_SECONDS).processes == {"web": 1}


def test_when_all_are_gone_it_says_so(scene: Scene) -> None:
    scene.process(60, "web").holds(71)
    scene.read()
    (scene.fake.root / "proc/60").rename(scene.fake.root / "proc/gone")
    assert scene.nothing(1.0).because == "the app's processes have ended"


def test_without_a_proc_it_says_what_is_missing(tmp_path: Path) -> None:
    probe = ProcessesProbe(inodes=lambda: {71}, root=tmp_path)
    with pytest.raises(NoData, match="No such file") as caught:
        asyncio.run(probe.read())
    assert caught.value.remedy == "mount /proc"


def test_the_apps_cgroup_is_that_of_the_first_process_of_its_name(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    probe = OfAppProbe(
        CgroupProbe,
        lambda: chosen(tmp_path, "web", None, 59),
        lambda pid: has_name(tmp_path, pid, "web"),
        lambda pid: CgroupProbe("app", root=tmp_path, pid=pid),
    )
    with pytest.raises(NoData, match="no process named 'web' can be seen"):
        asyncio.run(probe.read())
    for pid, limit in ((59, 1), (60, 3), (61, 5)):
        scene.process(pid, "web")
        scene.fake.cgroups("0::/../app", pid=str(pid))
        (tmp_path / f"proc/{pid}/root/proc").mkdir(parents=True)
        FakeKernel(tmp_path / f"proc/{pid}/root").cpu_v2("/sys/fs/cgroup", f"{limit}0000 100000")
    for pid in (59, 60, 61):
        mount = "31 23 0:28 /../app /sys/fs/cgroup rw - cgroup2 cgroup rw\n"
        (tmp_path / f"proc/{pid}/mountinfo").write_text(mount)
    limits = []
    for ended in (60, 61):
        limits.append(getattr(asyncio.run(probe.read()), "cpu_limit_cores", None))
        (tmp_path / f"proc/{ended}").rename(tmp_path / f"ended-{ended}")
    assert limits == [0.3, 0.5]
    with pytest.raises(NoData):
        asyncio.run(probe.read())


def test_the_apps_cgroup_is_followed_to_who_has_become_the_first_and_kept_while_that_is_in_the_same(
    scene: Scene,
) -> None:
    """Seen in the lab: an app was started anew, and another owner of a connection was followed for good."""
    pids: list[tuple[int, ...]] = [(60,)]
    context = cast("Context", SimpleNamespace(root=scene.fake.root, app_pids=lambda: pids[0]))
    for pid, group in ((60, "job"), (61, "web"), (62, "web")):
        scene.process(pid, group)
        scene.fake.cgroups(f"0::/{group}", pid=str(pid))
    assert is_of_the_first(context, 60)
    pids[0] = (61, 60)
    assert not is_of_the_first(context, 60)
    pids[0] = (62, 61)
    assert is_of_the_first(context, 61), "a worker of the same container"
    pids[0] = (62,)
    assert not is_of_the_first(context, 61)


def test_why_no_group_of_the_apps_is_read_is_what_the_search_for_its_processes_says(scene: Scene) -> None:
    """Beside a search that had not found the new owners yet it said that the app had ended, while it ran."""
    context = Context(
        {App: App(), Connections: Connections(ports=(5432,)), Cgroup: Cgroup(), Demand: Demand()}, root=scene.fake.root
    )
    context.app_pids.let(scene.probe.pids)
    context.app_missing.let(scene.probe.missing)
    probe = next(iter(app_cgroup.probes(context))).make()
    for _ in range(2):
        said = scene.nothing(SEARCH_SECONDS)
        with pytest.raises(NoData) as caught:
            asyncio.run(probe.read())
        assert (caught.value.because, caught.value.remedy, caught.value.code) == (said.because, said.remedy, said.code)
        assert "have ended" not in said.because


def test_a_process_in_the_agents_own_group_shares_its_limit(scene: Scene) -> None:
    scene.fake.cgroups("0::/pod/app", pid=str(AGENT))
    scene.fake.cgroups("0::/pod/app", pid="60")
    scene.process(60, "web").holds(71)
    assert scene.read().own_group is True
    scene.fake.cgroups("0::/pod/other", pid="60")
    assert scene.read(SEARCH_SECONDS).own_group is False
    (scene.fake.root / "proc/60/cgroup").unlink()
    assert scene.read(SEARCH_SECONDS).own_group is None


@pytest.mark.parametrize(
    ("own", "theirs", "within"),
    [
        ("0-3", "0-3", True),
        ("0-3", "1,3", True),
        ("0-3", "4-11", False),
        ("0", "0-7", False),
        ("0-3", None, None),
        (None, "0-3", None),
    ],
)
def test_whether_the_app_may_run_on_the_agents_cpus_alone(
    scene: Scene, own: str | None, theirs: str | None, within: bool | None
) -> None:
    for pid, mask in ((AGENT, own), (60, theirs)):
        shown = "" if mask is None else f"Cpus_allowed_list:\t{mask}\n"
        scene.fake.write(f"/proc/{pid}/status", f"Name:\tx\n{shown}Mems_allowed:\t1\n")
    scene.process(60, "web").holds(71)
    assert scene.read().own_cpus is within


def test_a_short_command_of_the_apps_that_has_ended_takes_nothing_from_what_is_known(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An app that runs them all the time was in nobody's group and on nobody's CPUs whenever one ended while it was looked at."""
    for pid in (AGENT, 60, 61):
        scene.fake.cgroups("0::/pod/app", pid=str(pid))
    scene.inodes = {60, 61}
    for pid in scene.inodes:
        scene.process(pid, "web").holds(pid)

    def guess(directory: str) -> str:
        if directory.endswith("/61"):
            shutil.rmtree(directory)
        return "other"

    monkeypatch.setattr("probes.app.processes.guess_runtime", guess)
    assert scene.read().own_group is True
    assert not (scene.fake.root / "proc/61").exists()


def test_all_below_the_parent_are_the_app_but_the_agent_and_its_children(tmp_path: Path) -> None:
    scene = Scene(tmp_path, parent=40, child=lambda: AGENT + 1)
    scene.process(40, "supervisor")
    for pid, name, parent in ((60, "web", 40), (61, "worker", 60), (62, "worker", 61), (63, "orphan", 40)):
        scene.process(pid, name, parent=parent)
    scene.process(70, "stranger", parent=1)
    FakeProcess(scene.fake, AGENT, "stallscope", parent=40)
    scene.process(AGENT + 1, "python3", parent=AGENT)
    scene.process(AGENT + 2, "helper", parent=AGENT)
    assert chosen(tmp_path, "", None, AGENT + 1, 40).pids == (60, 63, 61, 62)
    assert scene.read().processes == {"web": 1, "worker": 2, "orphan": 1}
    assert chosen(tmp_path, "stranger", None, AGENT + 1, 40).pids == (70,), "what is named comes first"


def test_an_app_that_is_starting_is_looked_for_again_soon_and_then_rarely(tmp_path: Path) -> None:
    scene = Scene(tmp_path, parent=40)
    scene.process(60, "web", parent=40)
    assert scene.read().processes == {"web": 1}
    scene.process(61, "worker", parent=60)
    assert scene.read(SEARCH_AGAIN_SECONDS).processes == {"web": 1, "worker": 1}
    assert scene.read(SEARCH_AGAIN_SECONDS).processes == {"web": 1, "worker": 1}
    scene.process(62, "late", parent=60)
    assert scene.read(SEARCH_AGAIN_SECONDS).processes == {"web": 1, "worker": 1}
    assert scene.read(SEARCH_SECONDS).processes == {"web": 1, "worker": 1, "late": 1}


def test_nothing_below_the_parent_says_so(tmp_path: Path) -> None:
    scene = Scene(tmp_path, parent=40)
    assert "no process below 40" in str(scene.nothing().because)
