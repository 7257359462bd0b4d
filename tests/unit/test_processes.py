"""The processes probe against made-up trees: whose they are, what they did, and what cannot be known."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.app import Agent
from agent.config import Config
from probes import process_search
from probes.app_cgroup import AppCgroupProbe
from probes.platform_trust import Trust
from probes.process_files import Look, Stat, Thread, guess_runtime, read_stat
from probes.process_search import MOST_LIGHT_ROUNDS, YOUNG, Found, Search, chosen, has_name
from probes.process_sums import Growth, growth
from probes.processes import (
    MOST_PROCESSES,
    MOST_THREADS,
    NEWS_SECONDS,
    SEARCH_AGAIN_SECONDS,
    SEARCH_SECONDS,
    ProcessesProbe,
    ProcessesReading,
)
from probes.reading import NoData, specs
from tests.unit.builders import FakeClock
from tests.unit.fake_kernel import FakeKernel, FakeProcess

AGENT = 4000
BETWEEN = (
    "cpu_cores", "busiest_process_cores", "busiest_thread_ratio", "busiest_thread_delay_ratio", "stuck_threads"
)  # fmt: skip


class Scene:
    """A fake /proc, a clock, and a probe that asks for the owners of these sockets."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.fake, self.clock = FakeKernel(root), FakeClock()
        (root / "proc/self").rename(root / "proc" / str(AGENT))
        (root / "proc/self").symlink_to(str(AGENT))
        FakeProcess(self.fake, AGENT, "stallscope")
        self.inodes: Collection[int] = {71}
        self.probe = ProcessesProbe(inodes=lambda: self.inodes, root=root, clock=self.clock, **settings)

    def process(self, pid: int, name: str = "app", **known: Any) -> FakeProcess:
        return FakeProcess(self.fake, pid, name, **known)

    def read(self, after: float = 10.0) -> ProcessesReading:
        self.clock.advance(after)
        return asyncio.run(self.probe.read())

    def nothing(self, after: float = 10.0) -> NoData:
        with pytest.raises(NoData) as caught:
            self.read(after)
        return caught.value


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def parts(search: Search, inodes: Collection[int]) -> list[Found]:
    """What a round tells, part by part."""
    told = [asyncio.run(search.look(inodes))]
    while told[-1].goes_on:
        told.append(asyncio.run(search.look(inodes)))
    return told


def find(scene: Scene, inodes: Collection[int], child: int | None = None) -> Found:
    """What a first round ends with."""
    return parts(Search(scene.fake.root, lambda: child), inodes)[-1]


# ---- whose they are


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


@pytest.mark.parametrize("count", [process_search.MOST_LINKS_EACH, 1500])
def test_huge_numbers_of_descriptors_are_bounded_and_said(scene: Scene, count: int) -> None:
    scene.process(60, "proxy").holds(others=count)
    told = scene.nothing()
    assert f"no more than {process_search.MOST_LINKS_EACH} descriptors of 1 processes were looked at" in told.because
    assert "app.process" in told.remedy
    scene.process(61, "web").holds(71)  # the proxy does not hide it
    assert scene.read(SEARCH_SECONDS).processes == {"web": 1}


def test_a_part_is_bounded_begins_with_the_newest_and_the_next_one_goes_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_search, "MOST_STEPS", 100)
    for pid in range(60, 64):
        scene.process(pid, "proxy").holds(others=40)
    web = scene.process(50, "web").holds(71)
    search = Search(scene.fake.root)
    first, second = parts(search, {71})  # 44 steps for each proxy; the one that the bound cut short is looked at again
    assert (first.pids, second) == ((), Found((50,)))
    assert "no more than 92 descriptors of 2 processes" in first.because
    assert parts(search, {71}) == [Found((50,))]  # who was the owner comes first
    scene.nothing()
    assert scene.read().processes == {"web": 1}
    web.end()
    scene.process(90, "web").holds(71)
    assert parts(search, {71})[0] == Found((90,))


def test_ids_that_began_anew_are_those_of_the_newest_processes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_search, "MOST_STEPS", 50)
    for pid in (70, 30_000, 30_001):
        scene.process(pid, "daemon").holds(others=40)
    scene.process(60, "web").holds(71)
    (scene.fake.root / "proc/loadavg").write_text("0.20 0.18 0.12 1/80 65\n")  # 65 was given last: 70 is older
    assert parts(Search(scene.fake.root), {71}) == [Found((60,))]
    (scene.fake.root / "proc/loadavg").write_text("0.20 0.18 0.12 1/80 31000\n")
    assert len(parts(Search(scene.fake.root), {71})) > 1


def test_an_owner_that_held_no_connection_for_a_while_still_comes_first(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_search, "MOST_STEPS", 100)
    scene.process(60, "web").holds(71)
    search = Search(scene.fake.root)
    parts(search, {71})
    for pid in range(900, 910):
        scene.process(pid, "shell").holds(others=40)
    assert parts(search, {99})[-1].pids == ()
    assert parts(search, {71}) == [Found((60,))]


def test_those_made_beside_an_owner_come_before_newer_ones(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_search, "MOST_STEPS", 100)
    scene.process(60, "web").holds(71)
    search = Search(scene.fake.root)
    parts(search, {71})
    scene.process(61, "worker").holds(72)
    for pid in range(900, 910):
        scene.process(pid, "shell").holds(others=40)
    assert parts(search, {71, 72}) == [Found((60, 61))]


def test_until_a_round_ends_the_owners_of_the_one_before_count(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_search, "MOST_STEPS", 100)
    old = scene.process(60, "web").holds(71)
    other = scene.process(61, "cron").holds(72)
    search = Search(scene.fake.root)
    assert parts(search, {71, 72})[-1].pids == (61, 60)
    (other.directory / "fd/0").unlink()  # it has closed its connection and lives on
    for pid in range(30, 36):
        scene.process(pid, "shell").holds(others=90)
    told = [found.pids for found in parts(search, {71, 99})]
    assert len(told) > 2
    assert told == [(61, 60)] * (len(told) - 1) + [(60,)]
    old.end()
    assert parts(search, {99})[0].pids == ()


def test_a_round_in_vain_is_made_again_less_often_and_new_processes_are_looked_at_meanwhile(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in range(100, 100 + 10 * YOUNG):
        scene.process(pid, "shell").holds(others=2)
    search = Search(scene.fake.root)
    count, links = counted(monkeypatch), []
    for _ in range(10):
        told = parts(search, {71})[-1]
        assert f"none of the {10 * YOUNG} other processes" in told.because
        links.append(count())
    whole = links[0]
    assert [taken == whole for taken in links] == [True, True, False, True, False, False, False, True, False, False]
    assert max(taken for taken in links if taken != whole) < whole / 5
    scene.process(9000, "web").holds(71)
    assert parts(search, {71}) == [Found((9000,))]
    for _ in range(MOST_LIGHT_ROUNDS + 1):
        assert parts(search, {71, 72})[-1].pids == (9000,)
    assert parts(search, {71}) == [Found((9000,))]


def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many links were read and directories opened since it was asked the last time."""
    calls: list[str] = []

    def counting(work: Callable[..., Any]) -> Callable[..., Any]:
        def done(path: Any, *more: Any) -> Any:
            calls.append(path)
            return work(path, *more)

        return done

    for name in ("readlink", "scandir"):
        monkeypatch.setattr(os, name, counting(getattr(os, name)))

    def take() -> int:
        number = len(calls)
        calls.clear()
        return number

    return take


@pytest.mark.parametrize(("owner", "most"), [(1000, 4), (1599, 1)], ids=["oldest", "newest"])
def test_among_600_processes_the_owner_is_found_and_each_slot_does_a_bounded_part(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, owner: int, most: int
) -> None:
    """A third are kernel threads, which have no descriptors, a third have 20, a third are in another network namespace."""
    for pid in (AGENT, *range(1000, 1600)):
        process = FakeProcess(scene.fake, pid, "daemon")
        (process.directory / "ns").mkdir()
        (process.directory / "ns/net").symlink_to("net:[2]" if pid % 3 == 2 and pid != AGENT else "net:[1]")
        if pid % 3 == 0:
            process.holds(others=20)
    FakeProcess(scene.fake, owner, "app").holds(71, others=20)
    count, taken = counted(monkeypatch), []
    found: Mapping[str, float] = {}
    while not found:
        with suppress(NoData):
            found = scene.read().processes or {}
        taken.append(count())
        assert len(taken) <= most
    assert found == {"app": 1}
    # The bound, a process that begins within it, and the few links of the look at those who were found.
    assert max(taken) <= process_search.MOST_STEPS + process_search.MOST_LINKS_EACH


def test_other_network_namespaces_are_passed_over(scene: Scene) -> None:
    for pid, network in ((AGENT, "net:[1]"), (60, "net:[1]"), (61, "net:[2]"), (62, "net:[2]")):
        process = FakeProcess(scene.fake, pid, "web")
        (process.directory / "ns").mkdir()
        (process.directory / "ns/net").symlink_to(network)
    FakeProcess(scene.fake, 60, "web").holds(71)
    FakeProcess(scene.fake, 61, "web").holds(71)
    FakeProcess(scene.fake, 62, "web").holds(others=600)
    assert find(scene, {71}) == Found((60,))
    assert "descriptors" not in find(scene, {72}).because


def test_a_part_is_bounded_in_processes_too(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_search, "MOST_STEPS", 3 * (1 + process_search.OPENING_STEPS))
    for pid in range(60, 66):
        scene.process(pid, "shell")
    search = Search(scene.fake.root)
    first, second = (asyncio.run(search.look({71})) for _ in range(2))
    assert "of 3 processes" in first.because
    assert "none of the 6 other processes" in second.because


def test_a_scan_lets_the_event_loop_go_on(scene: Scene) -> None:
    scene.process(60, "proxy").holds(others=500)

    async def count() -> int:
        turns = 0
        scan = asyncio.create_task(Search(scene.fake.root).look({71}))
        while not scan.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(count()) >= 500 // process_search.STEPS_AT_ONCE


def test_of_many_processes_eight_are_watched_and_the_rest_is_counted(tmp_path: Path) -> None:
    scene = Scene(tmp_path, process="web")
    for pid in range(60, 75):
        scene.process(pid, "web")
    reading = scene.read()
    assert (reading.processes, reading.left_out) == ({"web": MOST_PROCESSES}, 15 - MOST_PROCESSES)


def test_the_search_is_rare_and_sooner_when_one_is_gone(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    old = scene.process(60, "web").holds(71)
    idle = scene.process(59, "idle")
    count = counted(monkeypatch)
    scene.read()
    searched = count()
    idle.holds(71)
    assert scene.read(SEARCH_SECONDS / 2).processes == {"web": 1}
    assert count() < searched
    assert scene.read(SEARCH_SECONDS / 2).processes == {"web": 1}  # it is looked at first, and holds all
    old.end()
    scene.nothing(1.0)
    assert scene.read(SEARCH_AGAIN_SECONDS).processes == {"idle": 1}


def test_for_a_new_socket_new_processes_are_looked_at_soon_and_old_ones_at_the_next_search(scene: Scene) -> None:
    scene.process(60, "web").holds(71)
    idle = scene.process(30, "idle")
    for pid in range(100, 100 + YOUNG):
        young = scene.process(pid, "shell")
    scene.inodes = {71, 99}
    assert scene.read().processes == {"web": 1}
    scene.process(61, "late").holds(72)
    scene.inodes = {71, 72}
    assert scene.read(NEWS_SECONDS).processes == {"web": 1, "late": 1}
    scene.inodes = {71, 72, 73}
    assert scene.read(NEWS_SECONDS).processes == {"web": 1, "late": 1}
    idle.holds(74)
    scene.inodes = {71, 72, 74}
    assert scene.read(NEWS_SECONDS).processes == {"web": 1, "late": 1}  # it is old and held none
    young.holds(75)
    scene.inodes = {71, 72, 74, 75}
    assert scene.read(NEWS_SECONDS).processes == {"web": 1, "late": 1, "shell": 1}  # it had not come to connecting yet
    assert scene.read(SEARCH_SECONDS).processes == {"web": 1, "late": 1, "shell": 1, "idle": 1}


def test_sockets_that_come_and_go_cost_a_look_at_the_owners_and_not_at_all_processes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.process(60, "web").holds(71, others=5)
    for pid in range(100, 200):
        scene.process(pid, "shell").holds(others=10)
    scene.inodes = {71, 1000}  # the second one is closed before anybody can be found
    count, taken = counted(monkeypatch), []
    for number in range(1001, 1041):
        assert scene.read().processes == {"web": 1}
        taken.append(count())
        scene.inodes = {71, number}
    whole = max(taken)
    assert whole > 1000
    assert sum(links > whole / 2 for links in taken) <= 2 + 40 * 10.0 / SEARCH_SECONDS / (MOST_LIGHT_ROUNDS + 1) + 1


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
    probe = AppCgroupProbe(
        lambda: chosen(tmp_path, "web", None, 59), lambda pid: has_name(tmp_path, pid, "web"), tmp_path
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


def test_a_process_in_the_agents_own_group_shares_its_limit(scene: Scene) -> None:
    scene.fake.cgroups("0::/pod/app", pid=str(AGENT))
    scene.fake.cgroups("0::/pod/app", pid="60")
    scene.process(60, "web").holds(71)
    assert scene.read().own_group is True
    scene.fake.cgroups("0::/pod/other", pid="60")
    assert scene.read(SEARCH_SECONDS).own_group is False
    (scene.fake.root / "proc/60/cgroup").unlink()
    assert scene.read(SEARCH_SECONDS).own_group is None


# ---- what they did


def test_shares_are_of_the_time_since_the_previous_reading(scene: Scene) -> None:
    web = scene.process(60, "web").holds(71).thread(61, run=100.0, delay=5.0).thread(62, run=7.0)
    first = scene.read()
    assert (first.seconds, first.threads, first.resident_bytes) == (0.0, {"web": 3}, {"web": 1000 * 4096})
    for name in BETWEEN:
        assert getattr(first, name) is None
        assert "first look" in first.unseen[name]
    web.thread(61, run=109.0, delay=5.5).thread(62, run=8.0)
    second = scene.read(10.0)
    assert second.unseen == {}
    assert second.seconds == 10.0
    assert second.cpu_cores == pytest.approx({"web": 1.0})
    assert second.busiest_thread_ratio == pytest.approx({"web": 0.9})
    assert second.busiest_thread_delay_ratio == pytest.approx({"web": 0.05})
    assert second.stuck_threads == {"web": 0}


def test_processes_of_one_name_are_added_up_and_the_busiest_thread_of_any_is_told(tmp_path: Path) -> None:
    scene = Scene(tmp_path, process="web")
    one, two = scene.process(60, "web"), scene.process(61, "web")
    scene.read()
    one.thread(60, run=2.0, delay=8.0)
    two.thread(61, run=6.0, delay=1.0).thread(65, run=3.0)
    reading = scene.read(10.0)
    assert reading.cpu_cores == pytest.approx({"web": 1.1})
    assert reading.busiest_process_cores == pytest.approx({"web": 0.9})
    assert reading.busiest_thread_ratio == pytest.approx({"web": 0.6})
    assert reading.busiest_thread_delay_ratio == pytest.approx({"web": 0.1})
    assert (reading.processes, reading.threads) == ({"web": 2}, {"web": 3})


@pytest.mark.parametrize(
    ("before", "after", "ran", "stuck"),
    [("R", "R", 0.5, 1), ("R", "R", 2.5, 0), ("S", "R", 0.5, 0), ("R", "S", 0.5, 0), ("D", "D", 0.0, 0)],
)
def test_a_thread_is_stuck_when_it_is_ready_twice_and_hardly_ran(
    scene: Scene, before: str, after: str, ran: float, stuck: int
) -> None:
    web = scene.process(60, "web").holds(71).thread(61, run=50.0, state=before)
    scene.read()
    web.thread(61, run=50.0 + ran, delay=9.0, state=after)
    assert scene.read(10.0).stuck_threads == {"web": stuck}


def test_a_new_thread_ran_since_its_start_and_one_that_ended_stays_in_the_process(scene: Scene) -> None:
    web = scene.process(60, "web").holds(71).thread(61, run=500.0)
    scene.read()
    web.end_thread(61)
    web.thread(62, run=4.0, delay=1.0)
    reading = scene.read(10.0)
    assert reading.busiest_thread_ratio == pytest.approx({"web": 0.4})
    assert reading.cpu_cores == pytest.approx({"web": 0.4})


def test_a_thread_id_that_is_used_again_starts_at_zero(scene: Scene) -> None:
    web = scene.process(60, "web").holds(71).thread(61, run=500.0, delay=50.0)
    scene.read()
    web.thread(61, run=3.0, delay=1.0)
    reading = scene.read(10.0)
    assert reading.busiest_thread_ratio == pytest.approx({"web": 0.3})
    assert reading.busiest_thread_delay_ratio == pytest.approx({"web": 0.1})
    assert reading.cpu_cores == {"web": 0.0}


def test_a_process_id_that_is_used_again_is_another_process(scene: Scene) -> None:
    scene.process(60, "web").holds(71).thread(60, run=5.0)
    scene.read()
    scene.process(60, "shell", started=900).thread(60, run=9.0)
    scene.process(61, "web").holds(71)
    (scene.fake.root / "proc/60/fd/0").unlink()
    reading = scene.read(10.0)
    assert reading.processes == {"web": 1}
    assert reading.cpu_cores is None


def test_the_same_id_as_the_settings_name_it_starts_anew(tmp_path: Path) -> None:
    scene = Scene(tmp_path, pid=60)
    scene.process(60, "web").thread(60, run=5.0).runs("/bin/node")
    assert scene.read().runtimes == {"web": "node"}
    (tmp_path / "proc/60/exe").unlink()
    scene.process(60, "web", started=900).thread(60, run=9.0).runs("/bin/java")
    reading = scene.read(10.0)
    assert (reading.cpu_cores, reading.runtimes) == (None, {"web": "java"})
    scene.process(60, "web", started=900).thread(60, run=10.0)
    assert scene.read(10.0).cpu_cores == pytest.approx({"web": 0.1})


def test_without_schedstat_run_time_comes_from_ticks_and_the_delay_is_not_known(scene: Scene) -> None:
    web = scene.process(60, "web").thread(60, delay=None).holds(71)
    scene.read()
    web.thread(60, run=4.0, delay=None)
    reading = scene.read(10.0)
    assert reading.busiest_thread_ratio == pytest.approx({"web": 0.4})
    assert reading.busiest_thread_delay_ratio is None
    assert "schedstat" in reading.unseen["busiest_thread_delay_ratio"]


def test_a_schedstat_that_appears_is_not_compared_with_ticks(scene: Scene) -> None:
    web = scene.process(60, "web").thread(60, run=3.0, delay=None).holds(71)
    scene.read()
    web.thread(60, run=900.0, delay=3.0)
    assert scene.read(10.0).busiest_thread_ratio is None


def test_more_threads_than_the_bound_are_said_and_those_not_seen_before_are_not_new(scene: Scene) -> None:
    web = scene.process(60, "java").holds(71)
    for tid in range(1000, 1000 + MOST_THREADS):
        web.thread(tid, run=100.0)
    scene.read()
    shown = sorted(os.listdir(web.directory / "task"))
    reading = scene.read(10.0)
    for name in ("busiest_thread_ratio", "busiest_thread_delay_ratio", "stuck_threads"):
        assert f"only {MOST_THREADS} of the {len(shown)} threads of java" in reading.unseen[name]
    assert reading.busiest_thread_ratio == {"java": 0.0}
    assert reading.threads == {"java": MOST_THREADS + 1}


def test_a_thread_that_an_earlier_look_may_have_left_out_is_not_new() -> None:
    stat = Stat("app", "S", 5.0, 900, 100, 4096)
    before = Look(100.0, stat, {1: Thread("S", 5.0, 0.0)}, cut=True)
    now = Look(110.0, stat, {1: Thread("S", 6.0, 1.0), 2: Thread("R", 500.0, 0.0)}, cut=True)
    assert growth(before, now) == Growth(0.0, 0.1, 0.1, 0)
    assert growth(before._replace(cut=False), now) == Growth(0.0, 1.0, 0.0, 0)


BELIEVED = Trust(True, "it counts")
LIES = Trust(False, "gVisor counts in 10 ms ticks")
UNKNOWN = Trust(None, "this may be a guest")


@pytest.mark.parametrize(
    ("counters", "blind"),
    [
        ({"thread_cpu_time": LIES, "run_delay": LIES}, set(BETWEEN)),
        ({"thread_cpu_time": BELIEVED, "run_delay": LIES}, {"busiest_thread_delay_ratio"}),
        ({"thread_cpu_time": LIES, "run_delay": BELIEVED}, set(BETWEEN) - {"busiest_thread_delay_ratio"}),
        ({"thread_cpu_time": UNKNOWN, "run_delay": UNKNOWN}, set()),
    ],
)
def test_a_counter_that_lies_here_is_none_with_the_platforms_reason(
    tmp_path: Path, counters: Mapping[str, Trust], blind: set[str]
) -> None:
    scene = Scene(tmp_path, counters=lambda: counters)
    web = scene.process(60, "web").holds(71)
    scene.read()
    web.thread(60, run=9.0, delay=1.0)
    reading = scene.read()
    assert {spec.name for spec in specs(ProcessesReading) if getattr(reading, spec.name) is None} == blind
    assert {name for name in blind if reading.unseen[name] == LIES.because} == blind
    assert reading.threads == {"web": 1}


# ---- what the files say


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("web) R 1 1 1 (", "web) R 1 1 1 ("),
        (":-) S 7", ":-) S 7"),
        ("a\nb) Z 0 0", "a?b) Z 0 0"),
        ("\x1b[31mred", "?[31mred"),
        ("\udcff\udcfe", "\ufffd\ufffd"),
        ("", "?"),
        ("(", "("),
    ],
)
def test_hostile_names_change_no_number_and_steer_no_terminal(scene: Scene, name: str, shown: str) -> None:
    web = scene.process(60, name).holds(71).thread(61, run=3.0, state="R")
    assert scene.read().processes == {shown: 1}
    stat = read_stat(str(web.directory / "task/61"))
    assert (stat.state, stat.cpu_seconds, stat.started) == ("R", 3.0, 100)


@pytest.mark.parametrize("name", ["web) R 1 (", "two words", "naïve"])
def test_a_name_is_found_beside_one_that_is_no_text(scene: Scene, name: str) -> None:
    scene.process(59, "\udcff\udcfe")
    scene.process(60, name)
    assert chosen(scene.fake.root, name, None).pids == (60,)


@pytest.mark.parametrize("text", ["", "60 (web", "60 (web) R 1", "60 web R " + "1 " * 40, "60 (web) R " + "x " * 40])
def test_a_malformed_stat_is_said_and_is_no_zero(scene: Scene, text: str) -> None:
    web = scene.process(60, "web").holds(71)
    (web.directory / "stat").write_text(text)
    assert "stat is malformed" in scene.nothing().because


@pytest.mark.parametrize("text", ["", "1 2", "1 x 3", "-1 2 3"])
def test_a_malformed_schedstat_is_said_and_is_no_zero(scene: Scene, text: str) -> None:
    web = scene.process(60, "web").holds(71)
    (web.directory / "task/60/schedstat").write_text(text)
    assert "schedstat is malformed" in scene.nothing().because


GO = b"\x7fELF" + bytes(0xF98) + b"\x04\0\0\0\x53\0\0\0\x04\0\0\0Go\0\0"


@pytest.mark.parametrize(
    ("program", "head", "runtime"),
    [
        ("/usr/bin/python3.11", b"", "python"),
        ("/usr/bin/uwsgi", b"", "python"),
        ("/usr/local/bin/node", b"", "node"),
        ("/opt/jdk/bin/java", b"", "java"),
        ("/app/server", GO, "go"),
        ("/app/server", b"\x7fELF Go", "other"),
        ("/app/nodemon-like", b"", "other"),
        ("/app/javascript", b"", "other"),
    ],
)
def test_the_runtime_is_guessed_by_the_program(scene: Scene, program: str, head: bytes, runtime: str) -> None:
    scene.process(60, "web").holds(71).runs(program, head)
    assert scene.read().runtimes == {"web": runtime}


def test_without_permission_to_see_the_program_its_name_must_do(scene: Scene) -> None:
    assert guess_runtime(str(scene.process(60, "node").directory)) == "node"
    assert guess_runtime(str(scene.process(61, "server").directory)) == "other"
    assert guess_runtime("/nowhere") == "other"


# ---- arithmetic

SECONDS = st.floats(0, 1e6)
THREADS = st.dictionaries(
    st.integers(1, 9), st.builds(Thread, st.sampled_from("RSD"), SECONDS, st.none() | SECONDS), max_size=6
)
LOOKS = st.builds(
    Look, SECONDS, st.builds(Stat, st.just("app"), st.just("S"), SECONDS, st.just(1), st.just(1), st.just(1)),
    THREADS, st.booleans(),
)  # fmt: skip


@given(LOOKS, LOOKS)
def test_growth_is_never_negative_and_a_thread_never_more_than_one_core(before: Look, now: Look) -> None:
    grown = growth(before, now)
    assert (grown is None) == (now.at <= before.at)
    if grown is not None:
        assert grown.cores >= 0
        assert grown.busiest is None or 0 <= grown.busiest <= 1
        assert grown.delay is None or 0 <= grown.delay <= 1
        assert 0 <= grown.stuck <= len(now.threads)


def test_this_machine() -> None:
    probe = ProcessesProbe(pid=os.getpid())
    for _ in range(2):
        reading = asyncio.run(probe.read())
    for spec in specs(ProcessesReading):
        assert getattr(reading, spec.name) is not None or reading.unseen[spec.name]
    assert list(reading.runtimes.values()) == ["python"]
    asyncio.run(probe.aclose())


@pytest.mark.parametrize(
    ("own", "watched"), [(False, True), (True, False), (None, False)], ids=["other", "own", "not known"]
)
def test_the_group_of_those_who_hold_the_connections_is_watched_when_it_is_another(
    own: bool | None, watched: bool
) -> None:
    agent = Agent(Config())
    for _ in range(2):
        agent._after([ProcessesReading(taken=0.0, own_group=own)])
    groups = [entry.probe.target for entry in agent.schedule.entries if entry.probe.name == "cgroup"]
    assert groups == (["", "app"] if watched else [""])
