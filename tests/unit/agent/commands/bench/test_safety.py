"""What may be done to a server, decided before anything is."""

from __future__ import annotations

from typing import Any

import pytest

from agent.commands.bench.options import Faults, Script
from agent.commands.bench.safety import OURS, Place, Server, decide
from tests.unit.agent.commands.bench.made import options

READS = Script("select1", "SELECT 1;", 1)
MINE = Script("mine.sql", "SELECT 1;", 1)
SELECTS = Script("select-only", trips=1, tables=True)


def server(**given: Any) -> Server:
    found: dict[str, Any] = {"version": 150000, "database": "app"}
    return Server(**(found | given))


def test_a_database_of_its_own() -> None:
    assert decide(options(), server(), "made") == Place("own database", "made")


def test_what_needs_no_tables_is_kept_from_writing() -> None:
    found = decide(options(script=MINE), server(), "made")
    assert (found.kind, found.database, found.settings) == ("as it is", "app", {"default_transaction_read_only": "on"})


def test_a_database_that_is_named_gets_a_schema() -> None:
    found = decide(options(allow_write="app"), server(may_make_databases=False), "made")
    assert found == Place("own schema", "app", {"search_path": "made"})


def test_another_name_than_the_dsns_is_refused() -> None:
    with pytest.raises(Faults, match="no other is written to"):
        decide(options(allow_write="other"), server(), "made")


def test_never_on_a_standby() -> None:
    for script in (READS, SELECTS):
        with pytest.raises(Faults, match="standby"):
            decide(options(script=script), server(standby=True), "made")


def test_a_role_that_only_reads() -> None:
    with pytest.raises(Faults, match="read-only"):
        decide(options(), server(read_only=True), "made")
    assert decide(options(script=READS), server(read_only=True), "made").kind == "as it is"
    assert decide(options(script=SELECTS), server(read_only=True, has_tables=True), "made").kind == "as it is"


def test_a_role_that_may_make_nothing() -> None:
    with pytest.raises(Faults, match="CREATEDB"):
        decide(options(), server(may_make_databases=False), "made")
    with pytest.raises(Faults, match="GRANT CREATE"):
        decide(options(allow_write="app"), server(may_make_schemas=False), "made")


@pytest.mark.parametrize(("left", "fine"), [(4 + OURS, True), (3 + OURS, False), (0, False)])
def test_clients_stay_below_the_limit_of_connections(left: int, fine: bool) -> None:
    if fine:
        decide(options(clients=(1, 4)), server(left=left), "made")
    else:
        with pytest.raises(Faults, match="connections left"):
            decide(options(clients=(1, 4)), server(left=left), "made")


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(Faults) as caught:
        decide(options(tls=("on",), clients=(500,)), server(standby=True, read_only=True), "made")
    assert len(caught.value.faults) == 4


def test_tls_that_is_not_offered() -> None:
    with pytest.raises(Faults, match="no TLS"):
        decide(options(tls=("on", "off")), server(tls=False), "made")
    decide(options(tls=("on", "off")), server(tls=True), "made")
