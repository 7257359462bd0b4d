"""Timed look-ups: against a real name server where time does not matter, and made-up answers where it does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from probes.names import lookup
from probes.names.lookup import Asked, LookedUp
from probes.names.message import NO_ERROR, NO_NAME, Answer
from probes.names.probe import AGAIN, TIMEOUT, NamesProbe, NamesReading
from probes.names.resolv_conf import ResolvConf
from probes.postgres.dsn import hosts
from probes.reading import Code, NoData
from tests.unit.builders import FakeClock
from tests.unit.fake_kernel import FakeKernel

NAME = "db.example.com"
POD = "search a.local b.local\nnameserver 10.0.0.1\noptions ndots:5 timeout:5 attempts:2\n"
YES, NO = Answer(NO_ERROR, 1), Answer(NO_NAME, 0)


class Servers:
    """Name servers that take ``takes`` seconds, and are silent to every question whose number is in ``silent``."""

    def __init__(
        self, takes: float = 0.002, silent: tuple[int, ...] = (), known: str = NAME, clock: FakeClock | None = None
    ) -> None:
        self.takes, self.silent, self.known, self.clock = takes, silent, known, clock or FakeClock()
        self.asked: list[str] = []

    async def __call__(self, server: str, packet: bytes, within: float) -> Asked:
        self.asked.append(server)
        self.clock.advance(within if len(self.asked) in self.silent else self.takes)
        if len(self.asked) in self.silent:
            return Asked(within, None, True)
        full = b"".join(bytes((len(part),)) + part.encode() for part in self.known.split("."))
        return Asked(self.takes, YES if packet[12:].startswith(full + b"\0") else NO, True)


def look_up(servers: Servers, conf: ResolvConf, name: str = NAME) -> LookedUp:
    return asyncio.run(lookup.look_up(name, conf, servers))


def test_ndots_and_the_search_list_multiply_questions_and_a_final_dot_does_not() -> None:
    conf = ResolvConf(("10.0.0.1",), ("a.local", "b.local", "c.local"), 5)
    cost = look_up(Servers(), conf)
    assert (cost.questions, cost.found, cost.unanswered) == (8, True, 0)
    assert cost.seconds == pytest.approx(4 * 0.002)
    assert look_up(Servers(), conf, f"{NAME}.").questions == 2


def test_a_lost_answer_costs_the_time_out_and_the_next_server_is_asked() -> None:
    servers = Servers(silent=(1,))
    found = look_up(servers, ResolvConf(("10.0.0.1", "10.0.0.2")))
    assert servers.asked == ["10.0.0.1", "10.0.0.2"]
    assert (found.unanswered, found.found) == (1, True)
    assert found.seconds == pytest.approx(5.002)


def test_a_name_server_that_is_silent_is_given_up() -> None:
    found = look_up(Servers(silent=tuple(range(99))), ResolvConf(("10.0.0.1",), ("a.local",), 5))
    assert found.seconds == pytest.approx(lookup.MOST_SECONDS)
    assert not found.found


def test_nobody_there_at_all_is_an_error_and_not_a_time() -> None:
    async def refused(_server: str, _packet: bytes, _within: float) -> Asked:
        raise ConnectionRefusedError(111, "Connection refused")

    with pytest.raises(ConnectionRefusedError):
        asyncio.run(lookup.look_up(NAME, ResolvConf(), refused))


class Stage:
    def __init__(self, root: Path) -> None:
        self.kernel, self.clock = FakeKernel(root), FakeClock()
        self.servers = Servers(clock=self.clock)
        self.kernel.write("/etc/resolv.conf", POD)
        self.kernel.write("/etc/hosts", "127.0.0.1 localhost local-db\n")

    def read(self, *names: str, within: float = TIMEOUT) -> NamesReading:
        async def sleep(_: float) -> None:
            pass

        probe = NamesProbe(
            lambda: names, ask=self.servers, within=within, root=self.kernel.root, clock=self.clock, sleep=sleep
        )
        return asyncio.run(probe.read())


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_a_quick_look_up_is_made_once(stage: Stage) -> None:
    found = stage.read(NAME)
    assert found.lookups == {NAME: 1}
    assert found.slow_lookups == found.unanswered == {NAME: 0}
    assert found.questions == {NAME: 6}
    assert found.lookup_seconds is not None
    assert found.lookup_seconds[NAME] == pytest.approx(0.006)
    assert (found.ndots, found.search_domains) == (5, 2)


def test_a_slow_one_is_made_again_at_once(stage: Stage) -> None:
    stage.servers.takes = 0.05
    found = stage.read(NAME)
    assert found.lookups == found.slow_lookups == {NAME: 1 + AGAIN}


@pytest.mark.parametrize(("within", "lookups"), [(TIMEOUT, 3), (15.0, 2), (10.0, 1)])
def test_one_that_is_given_up_is_made_again_only_where_the_slot_has_the_time(
    stage: Stage, within: float, lookups: int
) -> None:
    """A slot of 10 s, which the settings allow, was cut off while the second look-up waited, each time: nothing was ever read."""
    stage.servers.silent = tuple(range(99))
    began = stage.clock()
    found = stage.read(NAME, within=within)
    assert found.lookups == found.slow_lookups == {NAME: lookups}
    assert stage.clock() - began < within


def test_a_name_server_that_had_to_ask_others_is_slow_once(stage: Stage) -> None:
    class Cold(Servers):
        async def __call__(self, server: str, packet: bytes, within: float) -> Asked:
            self.takes = 0.3 if len(self.asked) < 3 else 0.001
            return await super().__call__(server, packet, within)

    stage.servers = Cold()
    found = stage.read(NAME)
    assert found.slow_lookups == {NAME: 1}
    assert found.lookups == {NAME: 3}
    assert found.lookup_seconds is not None
    assert found.lookup_seconds[NAME] < 0.01


@pytest.mark.parametrize("names", [(), ("127.0.0.1",), ("::1", "/var/run/postgresql"), ("localhost", "LOCAL-DB")])
def test_where_no_name_server_is_asked_there_is_nothing_to_time(stage: Stage, names: tuple[str, ...]) -> None:
    with pytest.raises(NoData) as caught:
        stage.read(*names)
    assert caught.value.code is Code.ABSENT
    assert not stage.servers.asked


def test_without_a_resolv_conf_there_is_no_data(stage: Stage) -> None:
    stage.kernel.break_file("/etc/resolv.conf")
    with pytest.raises(NoData):
        stage.read(NAME)


@pytest.mark.parametrize(
    ("dsn", "found"),
    [
        ("postgresql://u:secret@db.example.com:5432/x", ["db.example.com"]),
        ("host=a.example,b.example user=u", ["a.example", "b.example"]),
        ("host=a.example hostaddr=10.0.0.1", []),
        ("postgresql://u:sec@ret@db.example.com/x", []),
        ("postgresql:///x", []),
        ("nonsense", []),
    ],
)
def test_the_hosts_of_a_dsn_and_never_a_part_of_its_password(dsn: str, found: list[str]) -> None:
    assert hosts(lambda: dsn) == found


def test_a_dsn_that_cannot_be_read_names_nobody() -> None:
    def broken() -> str:
        raise ValueError("env:X is empty or not set")

    assert hosts(broken) == []
