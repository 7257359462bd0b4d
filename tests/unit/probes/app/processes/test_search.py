"""The search for the owners of connections: bounded in each slot, and made again as seldom as can be."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from probes.app import search as process_search
from probes.app.processes import (
    MOST_PROCESSES,
    NEW_SOCKETS_SECONDS,
    SEARCH_AGAIN_SECONDS,
    SEARCH_SECONDS,
)
from probes.app.search import MOST_LIGHT_ROUNDS, YOUNG, Found, Search
from probes.reading import NoData
from tests.unit.fake_kernel import FakeProcess
from tests.unit.probes.app.processes.conftest import AGENT, Scene, find, parts


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


@pytest.mark.parametrize(
    "line",
    [
        b"/venv/bin/stallscope\0run\0",
        b"/venv/bin/python\0-I\0-m\0stallscope\0run\0",
        b"/usr/bin/python3\0/venv/bin/stallscope\0run\0",
    ],
    ids=["program", "module", "script"],
)
def test_another_agent_is_not_the_app_however_many_connections_it_holds(scene: Scene, line: bytes) -> None:
    """Four agents that watched one app met each other first, and one took the next one's group for the app's."""
    search = Search(scene.fake.root)
    (scene.process(60, "python").holds(71, 72, 73).directory / "cmdline").write_bytes(line)
    alone = parts(search, {71, 72, 73})[-1]
    assert (alone.pids, alone.goes_on) == ((), False)
    assert "other agents hold all" in alone.because
    (scene.process(70, "web").holds(74).directory / "cmdline").write_bytes(b"python\0/srv/stallscope/web.py\0")
    assert parts(search, {71, 72, 73, 74}) == [Found((70,))]
    assert parts(search, {71, 72, 73}) == [Found((), alone.because, alone.remedy)]


def test_who_holds_most_comes_first_and_stays_it_while_it_holds_more_than_half_as_many(scene: Scene) -> None:
    """Beside the app's pool a proxy or a job holds a connection to the same database."""
    scene.process(60, "web").holds(71, 72, 73, 74)
    job = scene.process(61, "job").holds(75)
    search = Search(scene.fake.root)
    assert parts(search, range(71, 76))[-1].pids == (60, 61)
    job.holds(*range(76, 82))  # seven, and the other four
    assert parts(search, range(71, 82))[-1].pids == (60, 61)
    job.holds(82)
    assert parts(search, range(71, 83))[-1].pids == (61, 60)


def test_an_exporter_that_was_alone_while_the_app_was_started_anew_does_not_stay_first(scene: Scene) -> None:
    scene.process(60, "exporter").holds(71)
    search = Search(scene.fake.root)
    assert parts(search, {71}) == [Found((60,))]
    scene.process(70, "web").holds(72, 73)
    assert parts(search, {71, 72, 73}) == [Found((70, 60))]


def test_many_workers_with_a_connection_each_come_before_who_holds_some(scene: Scene) -> None:
    """PHP, or any server that forks its workers, beside an exporter with a small pool: their containers are compared."""
    for pid in range(60, 65):
        scene.process(pid, "php-fpm").holds(pid)
        scene.fake.cgroups("0::/pod/app", pid=str(pid))
    exporter = scene.process(70, "exporter").holds(71, 72, 73)
    scene.fake.cgroups("0::/pod/exporter", pid="70")
    search = Search(scene.fake.root)
    assert parts(search, {*range(60, 65), 71, 72, 73})[-1].pids == (64, 63, 62, 61, 60, 70)
    exporter.holds(*range(74, 80))
    assert parts(search, {*range(60, 65), *range(71, 80)})[-1].pids[0] == 64
    exporter.holds(80)
    assert parts(search, {*range(60, 65), *range(71, 81)})[-1].pids[0] == 70


def test_what_an_owner_opens_while_a_round_goes_on_comes_to_what_it_held(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_search, "MOST_STEPS", 100)
    web = scene.process(60, "web").holds(71, 72, 73, 74)
    scene.process(61, "job").holds(75, 76)
    for pid in range(30, 40):
        scene.process(pid, "shell").holds(others=90)
    search = Search(scene.fake.root)
    assert asyncio.run(search.search_on({*range(71, 77), 99})).goes_on
    web.holds(77)
    assert parts(search, {*range(71, 78), 99})[-1].pids == (60, 61)
    assert search._holds == {60: 5, 61: 2}, "of those that hold none nothing is kept"


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
    assert told == [(60, 61)] * (len(told) - 1) + [(60,)]
    old.end()
    assert parts(search, {99})[0].pids == ()


def test_one_that_connects_after_a_round_looked_at_it_is_looked_at_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An app that is started anew while a large host is searched."""
    monkeypatch.setattr(process_search, "MOST_STEPS", 100)
    scene.process(60, "web").holds(71)
    new = scene.process(61, "web")
    for pid in range(30, 40):
        scene.process(pid, "shell").holds(others=90)
    search = Search(scene.fake.root)
    assert asyncio.run(search.search_on({71, 99})).goes_on
    new.holds(72)
    assert set(parts(search, {72, 99})[-1].pids) == {60, 61}


def test_processes_that_come_all_the_time_do_not_keep_a_round_from_the_older_ones(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where shells, jobs or builds run beside the app."""
    monkeypatch.setattr(process_search, "MOST_STEPS", 100)
    (scene.fake.root / "proc/loadavg").write_text("0.20 0.18 0.12 1/80 9000\n")
    scene.process(20, "web").holds(71)
    jobs = [scene.process(pid, "job").holds(others=40) for pid in range(60, 66)]
    search, told, ids = Search(scene.fake.root), list[Found](), count(100)
    while not told or told[-1].goes_on:
        told.append(asyncio.run(search.search_on({71})))
        for _ in range(3):
            jobs.append(scene.process(next(ids), "job").holds(others=40))
            jobs.pop(0).end()
        assert len(told) < 5, "a round over seven processes, two of them in a part"
    assert told[-1] == Found((20,))


def test_who_is_started_while_a_round_goes_on_is_found_at_its_end(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_search, "MOST_STEPS", 100)
    for pid in range(30, 40):
        scene.process(pid, "shell").holds(others=90)
    search = Search(scene.fake.root)
    assert asyncio.run(search.search_on({99})).goes_on
    scene.process(61, "web").holds(72)
    assert parts(search, {72})[-1] == Found((61,))


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


def test_an_app_that_connects_ten_seconds_after_its_start_is_found_where_processes_come_all_the_time(
    scene: Scene,
) -> None:
    """In a limit of 5 %, beside jobs or health checks: no whole round had been due for a minute."""
    scene.process(60, "web").holds(71)
    jobs = [scene.process(pid, "job") for pid in range(1000, 1040)]
    assert scene.read().processes == {"web": 1}
    (scene.fake.root / "proc/60/fd/0").unlink()
    scene.process(60, "web").end()
    web = scene.process(1100, "web")
    for pid in range(1101, 1101 + 2 * YOUNG):
        jobs.append(scene.process(pid, "job"))
        jobs.pop(0).end()
    scene.nothing(SEARCH_SECONDS)  # a whole round, in vain: its connections are not there yet
    scene.inodes = {72}
    web.holds(72)
    assert scene.read().processes == {"web": 1}


def test_while_a_round_goes_on_nobody_is_said_to_have_ended(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_search, "MOST_STEPS", 100)
    web = scene.process(60, "web").holds(71)
    assert scene.read().processes == {"web": 1}
    for pid in range(100, 110):
        scene.process(pid, "shell").holds(others=90)
    (web.directory / "fd/0").unlink()
    (web.directory / "stat").unlink()  # as of one that nobody has waited for yet
    assert "descriptors" in scene.nothing(SEARCH_SECONDS).because


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
    first, second = (asyncio.run(search.search_on({71})) for _ in range(2))
    assert "of 3 processes" in first.because
    assert "none of the 6 other processes" in second.because


def test_a_scan_lets_the_event_loop_go_on(scene: Scene) -> None:
    scene.process(60, "proxy").holds(others=500)

    async def count() -> int:
        turns = 0
        scan = asyncio.create_task(Search(scene.fake.root).search_on({71}))
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
    assert (
        set(scene.probe.pids()) < set(scene.probe.all_pids()) == set(range(60, 75))
    )  # of whom the output is looked at


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


def test_for_a_new_socket_new_processes_are_looked_at_soon_and_old_ones_when_none_of_them_has_it(scene: Scene) -> None:
    scene.process(60, "web").holds(71)
    idle = scene.process(30, "idle")
    for pid in range(100, 100 + YOUNG):
        young = scene.process(pid, "shell")
    scene.inodes = {71, 99}
    assert scene.read().processes == {"web": 1}
    scene.process(61, "late").holds(72)
    scene.inodes = {71, 72}
    assert scene.read(NEW_SOCKETS_SECONDS).processes == {"web": 1, "late": 1}
    scene.inodes = {71, 72, 73}
    assert scene.read(NEW_SOCKETS_SECONDS).processes == {"web": 1, "late": 1}
    idle.holds(74)
    scene.inodes = {71, 72, 74}
    assert scene.read(NEW_SOCKETS_SECONDS).processes == {"web": 1, "late": 1}  # it is old and held none
    young.holds(75)
    scene.inodes = {71, 72, 74, 75}
    assert scene.read(NEW_SOCKETS_SECONDS).processes == {
        "web": 1,
        "late": 1,
        "shell": 1,
        "idle": 1,
    }  # the young one had not come to connecting yet, and the old one is found by a whole round


def test_an_app_that_connects_long_after_its_start_is_found_by_a_whole_round_soon(scene: Scene) -> None:
    """At a limit of 5 % its imports take a minute, in which a busy machine starts a hundred processes; another agent's connection was the app's meanwhile."""
    scene.process(60, "agent").holds(71)
    app = scene.process(61, "web")
    for pid in range(100, 100 + 2 * YOUNG):
        scene.process(pid, "shell")
    (scene.fake.root / "proc/loadavg").write_text("0.20 0.18 0.12 1/80 9000\n")
    assert scene.read().processes == {"agent": 1}
    app.holds(72, 73, 74)
    scene.inodes = {71, 72, 73, 74}
    assert scene.read().processes == {"agent": 1}
    assert scene.read(SEARCH_AGAIN_SECONDS).processes == {"agent": 1, "web": 1}
    assert scene.probe.pids()[0] == 61


def test_sockets_that_come_and_go_cost_a_search_of_the_owners_and_not_at_all_processes(
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
