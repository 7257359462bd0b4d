"""What another limit would do: work is conserved, a higher limit never throttles more, and one above the demand never throttles."""

from __future__ import annotations

import dataclasses
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.views.what_if import BURST_SECONDS, OTHERS, burst_delay, look, simulate
from probes.host.demand import DemandReading

PERIOD = 0.1
DEMANDS = st.lists(st.floats(0.0, 0.4), min_size=1, max_size=60)
LIMITS = st.floats(0.05, 4.0)
CHOICES = (*(tenths / 10 for tenths in range(1, 10)), 1.0, 2.0)


def demand(wanted: list[float], limit: float = 0.3, throttled: int | None = None, **more: object) -> DemandReading:
    hits = simulate(wanted, limit * PERIOD, PERIOD, 2.0).throttled if throttled is None else throttled
    mean = sum(wanted) / len(wanted) / PERIOD
    plain = DemandReading(
        taken=1000.0, path="/", limit_cores=limit, period_seconds=PERIOD, wanted=array("f", wanted), throttled=hits,
        wanted_cores=mean, peak_cores=max(wanted) / PERIOD, width_cores=2,
    )  # fmt: skip
    return dataclasses.replace(plain, **more)  # type: ignore[arg-type]


@given(DEMANDS, LIMITS, st.floats(0.0, 1.0), st.floats(0.0, 0.005))
def test_work_is_neither_made_nor_lost(wanted: list[float], limit: float, saved: float, slack: float) -> None:
    outcome = simulate(wanted, limit * PERIOD, PERIOD, 2.0, burst=saved * limit * PERIOD, slack=slack)
    assert outcome.used + outcome.left == pytest.approx(sum(wanted))
    assert outcome.throttled <= outcome.ran + 1
    assert outcome.used <= len(wanted) * PERIOD * 2 + 1e-9
    assert 0 <= outcome.held_share <= 1


@given(DEMANDS, LIMITS, LIMITS)
def test_a_higher_limit_never_throttles_more(wanted: list[float], one: float, other: float) -> None:
    low, high = (simulate(wanted, limit * PERIOD, PERIOD, 4.0) for limit in sorted((one, other)))
    assert high.throttled <= low.throttled
    assert high.left <= low.left + 1e-9


@given(DEMANDS, LIMITS)
def test_a_limit_above_the_demand_throttles_nothing(wanted: list[float], more: float) -> None:
    outcome = simulate(wanted, max(wanted) + more * PERIOD, PERIOD, 4.0)
    assert outcome.throttled == 0
    assert outcome.held == 0


@given(DEMANDS, LIMITS)
def test_what_is_saved_for_a_burst_never_hurts(wanted: list[float], limit: float) -> None:
    quota = limit * PERIOD
    assert simulate(wanted, quota, PERIOD, 4.0, burst=quota).throttled <= simulate(wanted, quota, PERIOD, 4.0).throttled


@given(DEMANDS, LIMITS)
def test_no_limit_of_all_cpus_or_more_throttles(wanted: list[float], more: float) -> None:
    assert simulate(wanted, (2.0 + more) * PERIOD, PERIOD, 2.0).throttled == 0


@pytest.mark.parametrize(
    ("wanted", "limit", "throttled", "ran"),
    [
        ([0.1, 0, 0, 0, 0, 0], 0.3, 3, 5),  # 30, 30, 30, 10, and the period in which the timer finds nothing to do
        ([0.03] * 10, 0.3, 0, 10),
        ([0.031] * 10, 0.3, 10, 10),
        ([0.0] * 10, 0.3, 0, 0),
    ],
)
def test_periods_are_counted_as_the_kernel_counts_them(
    wanted: list[float], limit: float, throttled: int, ran: int
) -> None:
    outcome = simulate(wanted, limit * PERIOD, PERIOD, 2.0)
    assert (outcome.throttled, outcome.ran) == (throttled, ran)


def test_a_lone_burst_waits_for_the_quotas_that_it_needs() -> None:
    idle = [0.0] * 40
    assert burst_delay(idle, 2.0 * PERIOD, PERIOD, 2.0) == 0.0
    assert burst_delay(idle, PERIOD, PERIOD, 2.0) == pytest.approx(0.0, abs=1e-9)
    delays = [burst_delay(idle, limit * PERIOD, PERIOD, 2.0) for limit in (0.05, 0.1, 0.3, 0.6, 0.9)]
    assert delays == sorted(delays, reverse=True)
    assert 0.15 <= delays[2] <= 0.25  # 30 ms in each period: it ends in the fourth
    assert delays[2] < burst_delay([0.02] * 40, 0.03, PERIOD, 2.0)  # beside others it takes longer


def test_a_burst_that_never_ends_is_not_followed_for_ever() -> None:
    assert burst_delay([0.2] * 600, 0.001, PERIOD, 2.0) > 50 * BURST_SECONDS


def test_the_least_limit_that_is_enough_is_found_and_stands_in_the_table() -> None:
    found = look(demand(([0.055] + [0.0] * 9) * 30), CHOICES, burst=None)
    assert found is not None
    assert found.enough == 0.6
    assert found.present.cores == 0.3
    assert found.enough in [row.cores for row in found.rows]
    assert [row.throttled for row in found.rows if row.cores >= 0.6] == [0.0] * sum(r.cores >= 0.6 for r in found.rows)
    assert all(row.saving is None for row in found.rows)


def test_saving_for_a_burst_is_told_where_the_kernel_can() -> None:
    found = look(demand(([0.055] + [0.0] * 9) * 30), CHOICES, burst=0.0)
    assert found is not None
    assert found.present.saving is not None
    assert found.present.saving < found.present.throttled / 10


@given(st.lists(st.floats(0.0, 0.4), min_size=20, max_size=60), st.floats(0.05, 1.9))
def test_the_table_has_the_present_limit_and_up_to_eight_others_that_can_be_had(
    wanted: list[float], limit: float
) -> None:
    found = look(demand(wanted, limit), CHOICES, burst=0.0)
    assert found is None or (
        len(found.rows) <= OTHERS + 1
        and found.rows[0].cores == limit
        and all(0 < row.cores <= 2.0 and 0 <= row.throttled <= 1 for row in found.rows)
    )


def test_where_nothing_that_can_be_had_is_enough_none_is_named() -> None:
    found = look(demand([0.3] * 40, width_cores=4), (0.5, 1.0), burst=None)
    assert found is not None
    assert found.enough is None


@pytest.mark.parametrize("more", [{"endless": True}, {"wanted": None}, {"limit_cores": None}])
def test_without_a_demand_there_is_no_table(more: dict[str, object]) -> None:
    assert look(dataclasses.replace(demand([0.3] * 40), **more), CHOICES, burst=None) is None  # type: ignore[arg-type]


def test_what_the_kernels_slices_cost_is_taken_from_the_present_limit() -> None:
    wanted = [0.028] * 40
    plain, counted = (look(demand(wanted, throttled=hits), CHOICES, burst=None) for hits in (0, 40))
    assert plain is not None
    assert counted is not None
    assert plain.present.throttled == 0
    assert counted.present.throttled == 1
