"""How often the sessions of a server are sampled, and which of them are connections."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from probes.postgres import sql
from probes.postgres.link import Row
from probes.postgres.probe import PostgresProbe
from probes.postgres.server import SAMPLES_PER_SLOT, PostgresServerProbe, PostgresServerReading

IDLE: Row = ("idle", "Client", "ClientRead", "4", "0")
ACTIVE: Row = ("active", "", "", "1", "0.3")
HELD: Row = ("idle in transaction", "Client", "ClientRead", "1", "0")
HIDDEN: Row = ("hidden", "", "", "4", "0")
STARTING: Row = ("starting", "", "", "1", "0")


class Server:
    """What a PostgresProbe is to the view; ``sessions`` are those that it has now, and nothing else is told."""

    target = "main"
    server_version = 150000

    def __init__(self) -> None:
        self.connection = object()
        self.sessions: list[Row] = []
        self.sampled = 0

    async def rows(self, *queries: str) -> list[list[Row]]:
        """No rows but those of the sessions."""
        self.sampled += queries.count(sql.SESSIONS)
        return [self.sessions if query == sql.SESSIONS else [] for query in queries]


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
