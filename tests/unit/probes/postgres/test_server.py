"""How often the sessions of a server are sampled, which of them are connections, and whose totals are compared."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from probes.postgres import sql
from probes.postgres.link import Row
from probes.postgres.probe import PostgresProbe
from probes.postgres.server import SAMPLES_PER_SLOT, PostgresServerProbe, PostgresServerReading
from probes.reading import Code
from tests.unit.builders import FakeClock

IDLE: Row = ("idle", "Client", "ClientRead", "4", "0")
ACTIVE: Row = ("active", "", "", "1", "0.3")
HELD: Row = ("idle in transaction", "Client", "ClientRead", "1", "0")
HIDDEN: Row = ("hidden", "", "", "4", "0")
STARTING: Row = ("starting", "", "", "1", "0")


class Server:
    """What a PostgresProbe is to the view; ``sessions`` are those that it has now, and of the rest ``told`` alone is."""

    target = "main"
    server_version = 150000

    def __init__(self) -> None:
        self.connection = object()
        self.sessions: list[Row] = []
        self.sampled = 0
        self.told: dict[str, Row] = {}

    async def rows(self, *queries: str) -> list[list[Row]]:
        """No rows but those."""
        self.sampled += queries.count(sql.SESSIONS)
        return [self.sessions if q == sql.SESSIONS else [self.told[q]] if q in self.told else [] for q in queries]


async def _no_sleep(_seconds: float) -> None:
    return


def _slots(*sessions: list[Row]) -> tuple[list[int], list[PostgresServerReading]]:
    """How often each slot sampled while the server had these sessions, and its reading."""
    server = Server()
    probe = PostgresServerProbe(cast("PostgresProbe", server), sleep=_no_sleep)

    async def run() -> tuple[list[int], list[PostgresServerReading]]:
        times, readings = [], []
        for these in sessions:
            server.sessions, before = these, server.sampled
            readings.append(await probe.read())
            times.append(server.sampled - before)
        return times, readings

    return asyncio.run(run())


@pytest.mark.parametrize("busy", [[ACTIVE], [IDLE, ACTIVE], [IDLE, HELD], [IDLE, STARTING], [HIDDEN, ACTIVE]])
def test_sessions_are_sampled_once_after_a_slot_in_which_all_rested(busy: list[Row]) -> None:
    resting = [IDLE] if HIDDEN not in busy else [HIDDEN, IDLE]
    times, readings = _slots(resting, resting, busy, busy, resting, resting)
    assert times == [SAMPLES_PER_SLOT, 1, 1, SAMPLES_PER_SLOT, SAMPLES_PER_SLOT, 1]
    assert readings[2].sessions == pytest.approx(readings[3].sessions), (
        "a mean of one sample is of the same size as one of three"
    )
    assert readings[2].active == pytest.approx(readings[3].active)
    assert readings[2].executing_seconds == readings[3].executing_seconds


@pytest.mark.parametrize("sessions", [[], [HIDDEN]])
def test_of_nobody_or_of_those_that_are_hidden_one_sample_says_the_same(sessions: list[Row]) -> None:
    times, _ = _slots(sessions, sessions, sessions)
    assert times == [SAMPLES_PER_SLOT, 1, 1]


@pytest.mark.parametrize("version", [120000, 150000, 180000])
def test_connections_in_use_are_those_of_clients(version: int) -> None:
    """Parallel and autovacuum workers, which numbackends counts, take none of max_connections."""
    asked = sql.totals(version)
    assert "numbackends" not in asked
    assert "coalesce(backend_type, 'client backend') = 'client backend'" in asked


def _told(server: str, transactions: int) -> dict[str, Row]:
    """What this server says when it has had so many transactions, each of one session and one statement of a millisecond."""
    number = str(transactions)
    totals = (server, number, "0", "0", "0", "0", number, "0", "20", "97", None, None, "9", "9")
    facts = ("f", "t", "public", None)
    return {sql.FACTS: facts, sql.totals(150000): totals, sql.statements(150000, "public"): (number, number)}


def test_what_another_server_behind_the_name_has_counted_is_no_gain() -> None:
    """The reader endpoint of a cluster leads each new connection to another replica, and a failover to another primary."""
    server, clock = Server(), FakeClock()
    probe = PostgresServerProbe(cast("PostgresProbe", server), clock=clock, sleep=_no_sleep)
    told = [("a.1", 1_000), ("a.1", 1_010), ("b.2", 500_000), ("b.2", 500_020), ("a.1", 1_050), ("a.1", 1_060)]
    readings = []
    for each in told:
        server.told = _told(*each)
        clock.advance(10.0)
        readings.append(asyncio.run(probe.read()))
    gained = [None, 10.0, None, 20.0, None, 10.0]
    assert [r.transactions for r in readings] == gained
    assert [r.statements for r in readings] == gained
    assert [r.new_sessions_per_second for r in readings] == [each and each / 10.0 for each in gained]
    assert readings[2].unseen["new_sessions_per_second"].code is Code.NOT_YET
    assert readings[2].used_connections == 20.0, "what is so now is told all the same"


def test_the_totals_say_whose_they_are() -> None:
    assert sql.totals(150000).startswith("SELECT extract(epoch FROM pg_postmaster_start_time()), xact_commit")
