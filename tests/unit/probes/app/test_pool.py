"""The probe of the connection pools: what a reading holds, counters that go backwards, pages that cannot be had."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.app.pool import MOST_POOLS, PoolProbe, PoolReading
from probes.app.pool_names import COUNTERS, LIBRARIES, chosen
from probes.app.pool_page import Vocabulary
from probes.labels import MOST_HELD, OTHER
from probes.reading import NoData, specs
from tests.unit.builders import FakeClock

URL = "http://127.0.0.1:8080/metrics"
HIKARI = {
    "size": "connections_max", "checked_out": "connections_active", "waiting": "connections_pending",
    "acquires": "connections_acquire_seconds_count", "wait_seconds": "connections_acquire_seconds_sum",
    "timeouts": "connections_timeout_total",
}  # fmt: skip


def page(pools: Mapping[str, Mapping[str, float]]) -> str:
    """A page of HikariCP's with these numbers of each pool."""
    return "".join(
        f'hikaricp_{HIKARI[field]}{{pool="{name}"}} {value}\n'
        for name, numbers in pools.items()
        for field, value in numbers.items()
    )


def probe(
    pages: Sequence[str | Exception],
    names: Mapping[str, str] | None = None,
    of_hooks: Sequence[Mapping[str, Mapping[str, float]]] = (),
) -> PoolProbe:
    """A probe that finds one page after the other, ten seconds apart, and what hooks tell meanwhile; no pages: no URL."""
    clock, left, hooked = FakeClock(), list(pages), list(of_hooks)

    async def get(url: str) -> str:
        assert url == URL
        clock.advance(10.0)
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def hooks() -> Mapping[str, Mapping[str, float]]:
        clock.advance(0.0 if pages else 10.0)
        return hooked.pop(0) if hooked else {}

    return PoolProbe(URL if pages else "", Vocabulary(chosen("", names or {})), of_hooks=hooks, get=get, clock=clock)


def samples(*pages: str) -> list[PoolReading]:
    """The readings of these pages, one after the other."""

    async def run() -> list[PoolReading]:
        found = probe(pages)
        return [await found.read() for _ in pages]

    return asyncio.run(run())


def reason(found: PoolProbe) -> NoData:
    with pytest.raises(NoData) as caught:
        asyncio.run(found.read())
    return caught.value


FIRST = {"size": 4, "checked_out": 4, "waiting": 12, "acquires": 100, "wait_seconds": 5.0, "timeouts": 1}
SECOND = {**FIRST, "acquires": 150, "wait_seconds": 14.0, "timeouts": 4}


def test_a_sample_gives_gauges_as_they_stand_and_counters_as_they_grew() -> None:
    first, second = samples(page({"main": FIRST}), page({"main": SECOND}))
    assert (first.seconds, second.seconds) == (0.0, 10.0)
    assert (second.size, second.checked_out, second.waiting) == ({"main": 4}, {"main": 4}, {"main": 12})
    assert (first.acquires, first.wait_seconds, first.timeouts) == ({"main": 0}, {"main": 0}, {"main": 0})
    assert (second.acquires, second.wait_seconds, second.timeouts) == ({"main": 50}, {"main": 9.0}, {"main": 3})
    assert second.libraries == {"main": "hikaricp"}


def test_what_the_page_does_not_say_is_none_with_its_reason_and_never_zero() -> None:
    (reading,) = samples("pg_pool_total_count 3\npg_pool_idle_count 1\n")
    assert reading.checked_out == {"node_postgres": 2}
    blank = {spec.name for spec in specs(PoolReading) if getattr(reading, spec.name) is None}
    assert blank == set(reading.unseen) == {"size", "waiting", "acquires", "waits", "wait_seconds", "timeouts"}
    assert set(reading.unseen.values()) == {"not among the metrics of node_postgres on the page"}


def test_a_number_that_one_pool_has_and_another_does_not_is_told_of_the_first() -> None:
    (reading,) = samples(page({"a": FIRST, "b": {"size": 2, "checked_out": 1}}))
    assert (reading.size, reading.waiting) == ({"a": 4, "b": 2}, {"a": 12})
    assert "waiting" not in reading.unseen


# ---- counters that go backwards


@pytest.mark.parametrize("field", ["acquires", "wait_seconds", "timeouts"])
def test_after_a_restart_of_the_app_nothing_was_added_and_then_what_was_added_since(field: str) -> None:
    started = {**FIRST, "acquires": 9, "wait_seconds": 9.0, "timeouts": 9, field: 0.5}
    again = {**started, field: 0.75}
    *_, third, fourth = samples(*(page({"main": each}) for each in (FIRST, SECOND, started, again)))
    assert all(set((getattr(third, name) or {}).values()) <= {0} for name in COUNTERS)
    assert getattr(fourth, field) == {"main": 0.25}


def test_a_pool_that_comes_back_begins_anew() -> None:
    *_, last = samples(page({"main": FIRST}), page({"other one": FIRST}), page({"main": {**FIRST, "acquires": 10**9}}))
    assert last.acquires == {"main": 0}


def test_a_counter_that_is_unreadable_for_a_while_is_not_counted_twice() -> None:
    blank = {field: value for field, value in FIRST.items() if field != "acquires"}
    *_, third, fourth = samples(*(page({"main": each}) for each in (FIRST, blank, blank, SECOND)))
    assert third.acquires is None
    assert fourth.acquires == {"main": 50}


def test_a_counter_that_appears_adds_nothing_at_first() -> None:
    _, second = samples(page({"main": {"checked_out": 1}}), page({"main": {"checked_out": 1, "acquires": 10**9}}))
    assert second.acquires == {"main": 0}


def test_the_time_since_the_sample_before_is_that_of_the_last_page_that_was_had() -> None:
    async def run() -> PoolReading:
        found = probe([page({"main": FIRST}), OSError("gone"), OSError("gone"), page({"main": SECOND})])
        await found.read()
        for _ in range(2):
            with pytest.raises(NoData):
                await found.read()
        return await found.read()

    reading = asyncio.run(run())
    assert (reading.seconds, reading.acquires) == (30.0, {"main": 50})


@given(counts=st.lists(st.lists(st.floats(0, 1e12), min_size=3, max_size=3), min_size=2, max_size=12))
@settings(max_examples=60)
def test_growth_is_never_negative_and_never_more_than_the_counter_shows(counts: list[list[float]]) -> None:
    fields = ("acquires", "wait_seconds", "timeouts")
    pages = [page({"main": {"checked_out": 1, **dict(zip(fields, each, strict=True))}}) for each in counts]
    for reading, each in zip(samples(*pages), counts, strict=True):
        for field, most in zip(fields, each, strict=True):
            assert 0 <= getattr(reading, field)["main"] <= most * (1 + 1e-9)


# ---- many pools


def test_the_number_of_pools_is_bounded_and_the_rest_is_summed_up() -> None:
    names = [f"p{number:02}" for number in range(MOST_POOLS + 3)]
    first, second = samples(*(page(dict.fromkeys(names, numbers)) for numbers in (FIRST, SECOND)))
    assert second.size == {**dict.fromkeys(names[:MOST_POOLS], 4), OTHER: 12}
    assert second.acquires == {**dict.fromkeys(names[:MOST_POOLS], 50), OTHER: 150}
    assert (second.libraries[OTHER], list(first.libraries)) == ("", list(second.libraries))


def test_of_the_rest_only_what_every_pool_has_is_summed_up() -> None:
    names = [f"p{number:02}" for number in range(MOST_POOLS + 2)]
    pools: dict[str, Mapping[str, float]] = dict.fromkeys(names, FIRST)
    (reading,) = samples(page({**pools, names[-1]: {"checked_out": 40}}))
    assert OTHER not in (reading.size or {})
    assert (reading.checked_out or {})[OTHER] == 44


def test_pools_that_have_a_label_keep_it_and_a_new_one_counts_with_the_rest() -> None:
    names = [f"p{number:02}" for number in range(MOST_POOLS)]
    _, second = samples(page(dict.fromkeys(names, FIRST)), page(dict.fromkeys(["a new one", *names], SECOND)))
    assert second.acquires == {**dict.fromkeys(names, 50), OTHER: 0}


def test_names_that_change_with_every_slot_do_not_add_up_for_ever() -> None:
    found = samples(*(page({f"p{number}-{n}": FIRST for n in range(3)}) for number in range(MOST_HELD // 2)))
    names = {name for reading in found for name in reading.libraries}
    assert len(names) == MOST_HELD + 1
    assert set(found[-1].libraries) == {OTHER}
    assert found[-1].checked_out == {OTHER: 12}


def test_a_pool_that_is_named_like_the_rest_stays_alone_while_there_is_room() -> None:
    (reading,) = samples(page({OTHER: FIRST, "main": FIRST}))
    assert reading.libraries == {"main": "hikaricp", OTHER: "hikaricp"}


# ---- nothing to read


def test_a_page_without_a_pool_names_what_was_looked_for() -> None:
    because = reason(probe(["go_goroutines 7\n"]))
    for library, rows in LIBRARIES.items():
        assert any(text.split("|")[0].split("{")[0] in because.because for text in rows.values()), library
    assert "pool.names" in because.remedy


def test_a_page_without_the_settings_own_names_names_those() -> None:
    because = reason(probe(["hikaricp_connections_active 7\n"], {"checked_out": "my_in_use", "size": "my_max"})).because
    assert because.endswith("looked for my_in_use")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("answered 404, not 200"), "404"),
        (ConnectionRefusedError(111, "Connect call failed"), "Connect call"),
    ],
)
def test_a_page_that_cannot_be_had_is_no_data_with_its_reason(error: Exception, said: str) -> None:
    because = reason(probe([error]))
    assert because.because.startswith("pool.metrics_url: ")
    assert said in because.because
    assert because.remedy


def test_a_page_that_does_not_come_is_no_data() -> None:
    async def never(url: str) -> str:
        await asyncio.Event().wait()
        return url

    because = reason(PoolProbe(URL, Vocabulary(chosen("", {})), timeout=0.01, get=never))
    assert because.because == "pool.metrics_url: no whole page in time"


# ---- what hooks tell

HOOKED = {"size": 2.0, "checked_out": 2.0, "waiting": 2.0, "wait_seconds": 12.5, "acquires": 900.0}


def test_a_pool_that_only_a_hook_reports_needs_no_page() -> None:
    grown = {**HOOKED, "wait_seconds": 21.5, "acquires": 950.0}
    found = probe([], of_hooks=[{"orders/main": HOOKED}, {"orders/main": grown}])
    first, second = (asyncio.run(found.read()) for _ in range(2))
    assert (first.acquires, first.wait_seconds) == ({"orders/main": 0}, {"orders/main": 0})
    assert second.seconds == 10.0
    assert (second.size, second.checked_out, second.waiting) == ({"orders/main": 2},) * 3
    assert (second.acquires, second.wait_seconds) == ({"orders/main": 50}, {"orders/main": 9.0})
    assert second.libraries == {"orders/main": ""}
    assert (second.timeouts, second.unseen["timeouts"]) == (None, "no hook reports it")


def test_pools_of_hooks_and_of_the_page_stand_side_by_side() -> None:
    reading = asyncio.run(probe([page({"main": FIRST})], of_hooks=[{"orders/main": HOOKED}]).read())
    assert reading.checked_out == {"orders/main": 2, "main": 4}
    assert reading.libraries == {"orders/main": "", "main": "hikaricp"}
    assert "checked_out" not in reading.unseen


def test_a_page_that_cannot_be_had_is_said_beside_what_hooks_tell() -> None:
    reading = asyncio.run(probe([OSError("refused")], of_hooks=[{"orders/main": HOOKED}]).read())
    assert reading.checked_out == {"orders/main": 2}
    assert reading.unseen["checked_out"] == "pool.metrics_url: refused"


@pytest.mark.parametrize("told", [{}, {"orders/main": {"size": 2.0}}])
def test_hooks_that_report_no_pool_any_more_are_no_data(told: Mapping[str, Mapping[str, float]]) -> None:
    because = reason(probe([], of_hooks=[told]))
    assert (because.because, bool(because.remedy)) == ("no hook reports a connection pool any more", True)


def test_how_long_the_app_takes_for_its_page_is_told_where_there_is_one() -> None:
    (told,) = samples(page({"main": FIRST}))
    assert told.page_seconds == 10.0

    hooked = {"main": {"size": 4.0, "checked_out": 4.0}}
    alone = asyncio.run(probe([], of_hooks=[hooked]).read())
    missing = asyncio.run(probe([OSError("refused")], of_hooks=[hooked]).read())
    assert alone.page_seconds is missing.page_seconds is None
    assert str(alone.unseen["page_seconds"]) == "no metrics page is named"
    assert "refused" in str(missing.unseen["page_seconds"])
