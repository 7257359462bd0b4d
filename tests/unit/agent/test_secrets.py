"""No part of a password comes out: not in a reading, not in a report, not in a log, whatever stands in the DSN and however."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from functools import partial
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.commands.embedded_postgres import free_port
from agent.diagnosis import Engine
from agent.history import History
from agent.report import AgentSelf, to_json
from agent.rules import BY_ID
from agent.schedule import Schedule
from probes.postgres.probe import PostgresProbe, PostgresReading
from probes.postgres.server import PostgresServerProbe
from tests.unit.builders import FakeClock

PART = 4
LETTERS = "QXJK"
#: Words with what cuts a URL, a keyword form, a percent code, a list or a placeholder in two between them.
PASSWORDS = st.lists(
    st.tuples(st.text(LETTERS, min_size=2, max_size=6), st.sampled_from("0@@@:/#?%&= '\\[],;$(){}|+\"")),
    min_size=2, max_size=4,
).map(lambda words: "".join(part for word in words for part in word)[:-1])  # fmt: skip
FORMS = {
    "a URL, as it is": "postgresql://app:{raw}@db.example.com:{port}/orders",
    "a URL, escaped": "postgresql://app:{quoted}@db.example.com:{port}/orders",
    "a URL, half escaped": "postgres://app:{half}@db.example.com:{port}/orders?sslmode=disable",
    "of SQLAlchemy": "postgresql+asyncpg://app:{raw}@db.example.com:{port}/orders?ssl=disable",
    "without a database": "postgresql://app:{raw}@db.example.com:{port}",
    "of Java": "jdbc:postgresql://db.example.com:{port}/orders?user=app&password={raw}",
    "in the query": "postgresql://db.example.com:{port}/orders?user=app&sslpassword={raw}&password={raw}&schema=a",
    "pairs": "host=db.example.com port={port} user=app password={raw} dbname=orders",
    "pairs, the other way round": "password={raw} host=db.example.com port={port} user=app",
    "pairs, in quotes": "host=db.example.com port={port} user=app password='{raw}'",
    "of .NET": "Host=db.example.com;Port={port};Username=app;Password={raw}",
    "without a scheme": "app:{raw}@db.example.com:{port}/orders",
    "in a key's path": "host=db.example.com port={port} sslmode=require sslkey=/run/{raw} sslcert=/run/{raw} sslrootcert={raw}",
    "a service": "service={raw} port={port}",
    "two hosts": "postgresql://app:{raw}@db.example.com:{port},db2:{port}/orders?target_session_attrs={raw}",
}


def everything_said(dsn: str, *, has_address: bool, caplog: pytest.LogCaptureFixture) -> str:
    """Two slots of a probe and its view of the server, judged and told; nobody listens at the address."""
    clock = FakeClock(1000.0)
    history = History(600.0, clock=clock)
    engine = Engine(history, rules=[r for r in BY_ID.values() if r.can_run({PostgresReading})], clock=clock)

    async def find(host: str, _port: int) -> Sequence[str]:
        if not has_address:
            raise OSError(f"{host} is not known")
        return ["127.0.0.1"]

    async def run() -> None:
        schedule = Schedule(history, lambda _: None, clock=clock)
        database = PostgresProbe("main", lambda: dsn, find=find, clock=clock, timeout=5.0)
        schedule.add(database, 10.0)
        schedule.add(PostgresServerProbe(database, clock=clock), 10.0)
        for _ in range(3):
            await schedule.turn()
            clock.advance(40.0)
        await schedule.aclose()
        assert schedule.entries[0].outcomes["failed"] == 0, "a DSN is no defect of the probe"

    caplog.clear()
    with caplog.at_level(logging.DEBUG):
        asyncio.run(run())
        report, changes = engine.evaluate(AgentSelf("1", 1.0, 1.0, 1))
    logged = [caplog.handler.format(record) for record in caplog.records]
    slots = [history.slots(kind, 600.0, "main") for kind in history.kinds()]
    assert slots
    return "\n".join([repr(slots), json.dumps(to_json(report), ensure_ascii=False), repr(changes), *logged])


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_no_part_of_a_password_is_ever_said(form: str, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    fill = partial(form.format, port=port)
    plain = dict.fromkeys(("raw", "quoted", "half"), "w")
    said = {known: everything_said(fill(**plain), has_address=known, caplog=caplog) for known in (True, False)}

    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(password=PASSWORDS, has_address=st.booleans())
    def check(password: str, has_address: bool) -> None:
        dsn = fill(raw=password, quoted=quote(password, safe=""), half=quote(password, safe="@/:"))
        # A representation escapes quotes and backslashes: looked for without these.
        found = everything_said(dsn, has_address=has_address, caplog=caplog).translate(BARE)
        bare = password.translate(BARE)
        parts = {bare[at : at + PART] for at in range(len(bare) - PART + 1)}
        usual = said[has_address].translate(BARE)
        out = {part for part in parts if set(part) & set(LETTERS) and part in found and part not in usual}
        assert not out, out

    check()


BARE = str.maketrans("", "", "'\"\\")
