"""Pools of connections; the libraries' own, without a server."""

from __future__ import annotations

import gc
import threading
import weakref

import psycopg_pool
import pytest
import sqlalchemy
import sqlalchemy.pool

from tests.unit.hooks.python.conftest import Stage, Thing


def test_a_psycopg_pool(stage: Stage) -> None:
    pool = psycopg_pool.ConnectionPool(open=False, min_size=2, max_size=5)
    pool._stats.update(requests_num=7, requests_wait_ms=1500)
    stage.module.watch_pool("main", pool)
    assert stage.message()["pool"] == {
        "main": {"size": 5, "checked_out": 2, "waiting": 0, "wait_seconds": 1.5, "acquires": 7}
    }


@pytest.mark.parametrize("missing", ["_stats", "_pool", "_waiting"])
def test_a_psycopg_pool_whose_numbers_cannot_be_had_is_left_out(stage: Stage, missing: str) -> None:
    pool = psycopg_pool.ConnectionPool(open=False)
    stage.module.watch_pool("main", pool)
    delattr(pool, missing)
    assert "pool" not in stage.message()


def test_a_sqlalchemy_pool_through_its_engine(stage: Stage) -> None:
    engine = sqlalchemy.create_engine(
        "sqlite://", poolclass=sqlalchemy.pool.QueuePool, pool_size=1, max_overflow=1,
        connect_args={"check_same_thread": False},
    )  # fmt: skip
    stage.module.watch_pool("main", engine)
    unused = stage.message()["pool"]["main"]
    assert unused == {"size": 2, "checked_out": 0, "waiting": 0, "wait_seconds": 0, "acquires": 0}
    with engine.connect(), engine.connect():
        waiter = threading.Thread(target=lambda: engine.connect().close())
        waiter.start()
        while not (busy := stage.message()["pool"]["main"])["waiting"]:
            pass
        assert (busy["checked_out"], busy["acquires"]) == (2, 2)
        stage.clock.now += 4
    waiter.join()
    after = stage.message()["pool"]["main"]
    assert (after["checked_out"], after["waiting"], after["acquires"], after["wait_seconds"]) == (0, 0, 3, 4)
    engine.dispose()  # the engine has another pool from here on
    engine.connect().close()
    assert stage.message()["pool"]["main"]["acquires"] == 4
    engine.dispose()


@pytest.mark.parametrize("missing", ["_pool", "_max_overflow", "_overflow", "_timeout"])
def test_a_sqlalchemy_pool_with_something_missing(stage: Stage, missing: str) -> None:
    pool = sqlalchemy.pool.QueuePool(lambda: None, pool_size=3, max_overflow=2)  # type: ignore[arg-type]
    stage.module.watch_pool("main", pool)
    whole = stage.message()["pool"]["main"]
    delattr(pool, missing)
    stage.clock.now += 10
    found = stage.message().get("pool", {}).get("main", {})
    assert found.items() <= whole.items()
    assert ("size" in found) == (missing == "_timeout")


def test_an_unbounded_sqlalchemy_pool_has_no_size(stage: Stage) -> None:
    pool = sqlalchemy.pool.QueuePool(lambda: None, pool_size=3, max_overflow=-1)  # type: ignore[arg-type]
    stage.module.watch_pool("main", pool)
    assert stage.message()["pool"]["main"].keys() == {"checked_out", "waiting", "wait_seconds", "acquires"}


@pytest.mark.parametrize("pool", [None, 5, "text", [], Thing(), sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.pool.NullPool)],
                         ids=["None", "number", "text", "list", "something", "no pool's engine"])  # fmt: skip
def test_what_is_no_pool_of_these_is_left_out(stage: Stage, pool: object) -> None:
    stage.module.watch_pool("main", pool)
    assert "pool" not in stage.message()


def test_a_pool_has_one_name_and_is_not_kept_alive(stage: Stage) -> None:
    pool = psycopg_pool.ConnectionPool(open=False)
    for name in ("pool-1", "main"):
        stage.module.watch_pool(name, pool)
    assert stage.message()["pool"].keys() == {"main"}
    gone = weakref.ref(pool)
    del pool
    gc.collect()
    assert gone() is None
    assert "pool" not in stage.message()
