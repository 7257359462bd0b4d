"""Waits for locks from slot to slot: as old as the server says, else as they have been seen."""

from __future__ import annotations

from probes.postgres.locks import LockWaits
from tests.unit.builders import FakeClock

Cell = str | None


def row(pid: int = 11, wait: str = "4/57 transactionid 801", seconds: Cell = None, lock: str = "transactionid", between: str = "f", total: int = 1) -> tuple[Cell, ...]:  # fmt: skip
    return str(pid), seconds, lock, "orders", wait, str(total), "12", between, None, "batch", None


def test_a_wait_whose_beginning_is_hidden_is_as_old_as_it_has_been_seen() -> None:
    clock = FakeClock(1000.0)
    waits = LockWaits(clock)
    ages = []
    for _ in range(3):
        ages.append(waits.take([row()])[0][0].seconds)
        clock.advance(10.0)
    assert ages == [None, 10.0, 20.0]


def test_another_wait_of_the_same_session_begins_anew() -> None:
    clock = FakeClock(1000.0)
    waits = LockWaits(clock)
    waits.take([row()])
    clock.advance(10.0)
    assert waits.take([row(wait="4/58 transactionid 805")])[0][0].seconds is None
    clock.advance(10.0)
    waits.take([])
    assert waits.take([row()])[0][0].seconds is None, "what was over in between is no longer the same"


def test_what_the_server_says_counts() -> None:
    clock = FakeClock(1000.0)
    waits = LockWaits(clock)
    waits.take([row()])
    clock.advance(10.0)
    (wait,), others = waits.take([row(seconds="46.25", total=70)])
    assert (wait.seconds, others) == (46.25, 69)


def test_who_has_kept_its_lock_between_transactions_keeps_it_as_a_session() -> None:
    clock = FakeClock(1000.0)
    waits = LockWaits(clock)
    told = [waits.take([row(lock="advisory", between=between)])[0][0].standing_by for between in "ftff"]
    assert told == [False, True, True, True]
    waits.take([])
    assert waits.take([row(lock="advisory")])[0][0].standing_by is False
