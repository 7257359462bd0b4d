"""Log calls that hold up their callers: seen, cleared, not known, and what only looks like it."""

from __future__ import annotations

import pytest

from agent.history import History
from agent.rules import BY_ID
from agent.rules.causal_graph import Case
from agent.rules.rule import Absent, Judgement, Present, Unknown
from probes.logs.reading import Loggers
from tests.unit.agent.rules.in_app_scenes import KNOWN, minute

#: Of each 5 s: calls, seconds in them, slow calls, seconds in these, the slowest.
HTTP = (6.0, 4.8, 6.0, 4.8, 0.9)
STREAM = (500.0, 0.01, 0.0, 0.0, 0.0)
RARE = (1.0, 0.2, 1.0, 0.2, 0.2)


def judge(history: History) -> Judgement:
    return BY_ID["log_call_slow"].judge(history)


def test_a_handler_that_posts_each_entry_is_named_with_the_way_out() -> None:
    found = judge(minute(calls=HTTP))
    assert isinstance(found, Present)
    assert "HTTPHandler in process 'orders' took 800 ms on average" in found.evidence[0].text
    assert found.severity == "critical"
    assert any("QueueHandler" in change for change in found.advice.changes)


def test_a_few_long_calls_are_enough() -> None:
    assert isinstance(judge(minute(calls=RARE)), Present)


@pytest.mark.parametrize(
    ("calls", "length"),
    [
        (STREAM, "20 us on average and none 10.0 ms or longer"),
        ((1000.0, 2.0, 1.0, 0.011, 0.011), "2.0 ms on average and 11.0 ms at most"),
        ((1.0, 0.02, 1.0, 0.02, 0.02), "20.0 ms on average and 20.0 ms at most"),
    ],
)
def test_short_calls_are_cleared_with_their_length(
    calls: tuple[float, float, float, float, float], length: str
) -> None:
    found = judge(minute(calls=calls))
    assert isinstance(found, Absent)
    assert length in found.because


@pytest.mark.parametrize(("gap", "wake"), [(0.08, 0.001), (0.0, 0.032), (0.08, 0.032)])
def test_look_alike_a_cpu_that_is_taken_away_makes_some_calls_long(gap: float, wake: float) -> None:
    """A tenth of the time in gaps of 80 ms: seen by the agent's own gaps, or by who only waits in the app."""
    found = judge(minute(calls=(500.0, 0.5, 6.0, 0.48, 0.085), gap=gap, wake=wake))
    assert isinstance(found, Unknown)
    assert "taken away" in found.because


def test_look_alike_a_few_calls_that_last_for_less_of_the_time_than_the_cpu_is_gone() -> None:
    """By the share that is gone a call would lose little of its length, but each may be one long stop."""
    calls = (1000.0, 0.5, 1.0, 0.4, 0.6)
    assert isinstance(judge(minute(calls=calls)), Present)
    found = judge(minute(calls=calls, gap=0.01))
    assert isinstance(found, Unknown)
    assert "the CPU was taken away" in found.because


def test_look_alike_long_calls_of_a_limit_that_is_no_more() -> None:
    """Of the last minute it took less than a twentieth, and yet more than passed in slow calls."""
    few = (500.0, 0.1, 0.25, 0.07, 0.6)
    assert isinstance(judge(minute(calls=few)), Present)
    assert isinstance(judge(minute(calls=few, gap=0.05, freed=1)), Unknown)
    assert isinstance(judge(minute(calls=(500.0, 0.4, 1.0, 0.35, 0.6), gap=0.05, freed=1)), Present), (
        "more than it took"
    )


def test_look_alike_long_calls_that_last_hardly_longer_than_the_cpu_was_gone() -> None:
    """A client with 0.05 cores that hardly used them: stopped 1.2 % of the minute, and 1.3 % of it passed in three calls."""
    calls = (500.0, 0.28, 0.9, 0.25, 0.6)
    assert isinstance(judge(minute(calls=calls)), Present)
    assert isinstance(judge(minute(calls=calls, gap=0.05, freed=1)), Unknown)


def test_look_alike_an_app_under_a_limit_that_does_little_but_log() -> None:
    """A guest of the lab: all that is taken away may have fallen into calls that need the CPU themselves."""
    calls = (55.0, 3.15, 55.0, 3.15, 0.3)
    assert isinstance(judge(minute(calls=calls, wake=0.008)), Present)
    assert isinstance(judge(minute(calls=calls, gap=0.045, wake=0.008)), Unknown)


def test_without_a_cpu_a_handler_that_waits_far_longer_is_seen_and_what_takes_the_cpu_goes_first() -> None:
    found = judge(minute(calls=HTTP, gap=0.08))
    assert isinstance(found, Present)
    assert found.cases == (Case.CPU_TAKEN,)


def test_look_alike_threads_that_compute_hold_the_interpreter() -> None:
    assert isinstance(judge(minute(calls=(100.0, 2.0, 90.0, 1.8, 0.04), wake=0.015)), Unknown)
    assert isinstance(judge(minute(calls=(100.0, 2.0, 90.0, 1.8, 0.04), wake=0.001)), Present)


@pytest.mark.parametrize(
    "loggers",
    [Loggers(7, "python", unread=("ShippingHandler",)), Loggers(7, "python", elsewhere=("grpc",))],
    ids=["unread", "elsewhere"],
)
def test_a_source_that_cannot_know_clears_nobody(loggers: Loggers) -> None:
    assert isinstance(judge(minute(calls=STREAM, loggers=loggers)), Unknown)


def test_a_hook_that_does_not_time_clears_nobody() -> None:
    assert isinstance(judge(minute(wake=None)), Unknown)
    assert isinstance(judge(minute(wake=None, calls=STREAM, handler="billing/StreamHandler")), Unknown)
    assert isinstance(judge(minute(wake=None, loggers=None)), Unknown)


def test_where_nobody_sees_the_cpu_nor_a_waiter_it_is_not_known() -> None:
    assert isinstance(judge(minute(calls=HTTP, wake=None, watched=False)), Unknown)


def test_who_logs_nothing_that_is_timed_is_not_cleared() -> None:
    assert isinstance(judge(minute(loggers=KNOWN)), Unknown)
    assert isinstance(judge(minute(loggers=KNOWN, calls=(0.0, 0.0, 0.0, 0.0, 0.0))), Unknown)
