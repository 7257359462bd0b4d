"""The child's own decisions: when to spin, and how long."""

from __future__ import annotations

import gc
import os
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.cpu import spinner
from probes.cpu.registration import QUIET_TIMES, SPIN_EVERY_SEEN
from probes.cpu.spinner import (
    CONFIRM_TRIES,
    EARLY_EVERY,
    EARLY_SECONDS,
    FIRST_SPIN_SECONDS,
    MOST_TOKENS,
    START_TOKENS,
    STOP_GAP_SECONDS,
    Config,
    Outcome,
    Plan,
)
from tests.unit.probes.cpu.stage import NOTHING_DUE, START


class Driver:
    """A plan on a fake clock."""

    def __init__(self, line: str = NOTHING_DUE) -> None:
        self.now = START
        self.plan = Plan(Config(line), START)
        if not self.plan.climbing:
            self.plan.extra = None  # the spins of the first minute have tests of their own
        self.plan.began -= EARLY_SECONDS

    def next(self, within: float = 30.0) -> int | None:
        """The level of the next spin; None when none comes within these seconds."""
        end = self.now + within
        while self.now < end:
            self.now += 0.05
            if self.now >= self.plan.next_check and (level := self.plan.pick(self.now)) is not None:
                return level
        return None

    def meets(
        self, level: int, gap: float = 0.0, burned: float = 0.0, *, explained: bool = False, throttled: bool = False
    ) -> None:
        """A spin of this level came back with its longest gap."""
        burned = burned or self.plan.config.levels[level]
        self.plan.take_outcome(self.now, level, outcome(gap, burned, explained=explained, throttled=throttled))


def outcome(gap: float, burned: float, *, explained: bool = False, throttled: bool = False) -> Outcome:
    """What the plan asks of a spin."""
    return Outcome(b"", gap, burned, explained=explained or throttled, throttled=throttled, waited=0.0)


def spins_after(driver: Driver, waited: float, within: float = 30.0) -> int:
    """How many more spins follow one that waited so long, and all of which do."""
    driver.plan.note_contention(driver.now, waited)
    count = 0
    while driver.next(within) is not None:
        driver.meets(0)
        driver.plan.note_contention(driver.now, waited)
        count += 1
    return count


def test_contention_is_asked_again_when_it_begins_and_when_it_ends_and_not_in_between() -> None:
    driver = Driver()
    assert spins_after(driver, spinner.WAITED_SHARE / 2) == 0
    assert spins_after(driver, spinner.WAITED_SHARE * 2) == spinner.MORE_SPINS
    assert spins_after(driver, spinner.WAITED_SHARE * 2) == 0
    assert spins_after(driver, 0.0) == spinner.MORE_SPINS


def test_contention_that_changes_three_times_is_asked_again_in_full() -> None:
    driver = Driver("budget=0;every=0,0,0,0")
    for waited in (spinner.WAITED_SHARE, 0.0, spinner.WAITED_SHARE):
        assert spins_after(driver, waited) == spinner.MORE_SPINS


def test_contention_that_flickers_spins_no_more_than_its_share_of_the_budget() -> None:
    driver, spun, hour = Driver("budget=0.001;every=24,0,0,0"), 0, 3600.0
    while driver.now < START + hour and driver.next(60.0) is not None:
        driver.meets(0)
        spun += 1
        driver.plan.note_contention(driver.now, spun % 2)
    planned = driver.plan.config.levels[0] / 24.0 * hour
    share = spinner.CROWD_TOKENS + spinner.CROWD_SHARE * 0.001 * hour
    assert 0.9 * (planned + share) < spun * driver.plan.config.levels[0] <= 1.05 * (planned + share)


def planned_in_ten_minutes(driver: Driver, *, late_each: float = 0.0) -> int:
    count, end, late = 0, driver.now + 600.0, driver.now
    while driver.now < end:
        if driver.next(1.0) is not None:
            driver.meets(0)
            count += 1
        if late_each and driver.now - late >= late_each:
            late = driver.now
            driver.plan.beat(late, 0.006, 0.006)
    return count


@pytest.mark.parametrize(
    ("line", "late_each", "apart"),
    [
        (f"quiet={QUIET_TIMES}", 0.0, 24.0 * QUIET_TIMES),
        (f"quiet={QUIET_TIMES}", spinner.UNDISTURBED_SECONDS / 2, 24.0),
        ("", 0.0, 24.0),
    ],
    ids=["quiet", "a late wake-up each minute", "as the settings ask"],
)
def test_planned_spins_are_rarer_in_quiet_times(line: str, late_each: float, apart: float) -> None:
    driver = Driver(f"budget=0.001;every=24,0,0,0;{line}")
    assert SPIN_EVERY_SEEN[0] * QUIET_TIMES * 1.25 < 60.0, "one a minute is judged at the least"
    planned_in_ten_minutes(driver, late_each=late_each)
    assert planned_in_ten_minutes(driver, late_each=late_each) == pytest.approx(600.0 / apart, abs=2)


LONG, SHORT = spinner.CROWDED_SECONDS, spinner.CROWDED_SECONDS / 2


@pytest.mark.parametrize(
    ("contended", "wait", "asked"),
    [
        (False, LONG, True),
        (False, SHORT, False),
        (True, SHORT, True),
        (True, LONG, False),
        (False, float("nan"), False),
    ],
)
def test_wake_ups_that_begin_or_cease_to_wait_bring_a_spin_forward(contended: bool, wait: float, asked: bool) -> None:
    driver = Driver()
    driver.plan.contended = contended
    driver.now += spinner.ODD_SECONDS + 1
    driver.plan.note_wait(driver.now, wait)
    assert driver.next(1.0) is None, "one may be chance"
    driver.plan.note_wait(driver.now, wait)
    assert (driver.next(1.0) == 0) is asked


def test_long_waits_of_single_wake_ups_bring_no_spin_forward() -> None:
    driver = Driver()
    for look in range(30):
        driver.plan.note_wait(driver.now, LONG if look % 2 else SHORT)
        assert driver.next(2.0) is None


def test_wake_ups_that_wait_where_no_spin_does_are_asked_about_no_more_than_three_times_in_two_minutes() -> None:
    driver, spun, seconds = Driver("budget=0.1;every=0,0,0,0"), 0, 600.0
    while driver.now < START + seconds:
        driver.plan.note_wait(driver.now, LONG)
        if driver.next(2.0) is not None:
            driver.meets(0)
            driver.plan.note_contention(driver.now, 0.0)
            spun += 1
    assert spinner.MOST_ASKED < spun <= spinner.MOST_ASKED * seconds / spinner.ASKED_SECONDS


def test_a_spin_that_was_just_made_is_not_asked_for_again() -> None:
    driver = Driver()
    driver.plan.last_spin = driver.now
    for _ in range(3):
        driver.plan.note_wait(driver.now + spinner.ODD_SECONDS - 0.1, LONG)
    assert driver.next() is None


def test_noise_leaves_the_reserve_to_gaps_that_were_found() -> None:
    driver, spun = Driver("budget=0;every=0,0,0,0"), 0
    for _ in range(100):
        driver.now += spinner.ODD_SECONDS
        for _ in range(4):
            driver.plan.beat(driver.now, 0.006, 0.0)
        if (level := driver.next(5.0)) is not None:
            driver.meets(level)
            spun += 1
    assert 0 < spun < 100
    assert driver.plan.tokens >= spinner.RESERVED_TOKENS
    driver.plan.plan_spin(driver.now + 1.0, 2)
    assert driver.next(5.0) == 2, "what a found gap asks for has the reserve"


def test_a_plan_with_nothing_due_never_spins() -> None:
    assert Driver().next(3600.0) is None


@pytest.mark.parametrize("every", ["24,0,0,0", "12,40,0,0", "300,0,0,0", "2,0,0,0"])
def test_spins_come_at_short_intervals_in_the_first_minute_and_then_as_they_are_set(every: str) -> None:
    config = Config(f"every={every}")
    plan, now, seen = Plan(config, START), START, []
    while now < START + 10 * config.every[0]:
        now += 0.01
        if now >= plan.next_check and (level := plan.pick(now)) is not None:
            plan.take_outcome(now, level, outcome(0.0, config.levels[level], explained=True))
            seen.append((now - START, level))
    first, second = (at for at, _ in seen[:2])
    assert FIRST_SPIN_SECONDS <= first <= 1.5 * FIRST_SPIN_SECONDS + 0.02
    assert FIRST_SPIN_SECONDS <= second - first <= 2 * FIRST_SPIN_SECONDS + 0.02
    assert [level for _, level in seen[:2]] == [0, 0]
    regular = [at for at, level in seen if not level]
    early = [after - at for at, after in pairwise(regular) if after < EARLY_SECONDS]
    later = [after - at for at, after in pairwise(regular) if at > EARLY_SECONDS]
    assert all(each <= 1.25 * EARLY_EVERY + 0.02 for each in early)
    assert all(each >= 0.75 * config.every[0] - 0.02 for each in later)
    assert plan.skipped == 0, "the budget has them"


def test_agents_that_are_started_together_do_not_spin_together() -> None:
    config, length = Config("every=24,0,0,0"), 0.02
    plans = [Plan(config, START, turn) for turn in (7, 1_900, 33_333, 61_007)]
    seen: list[list[float]] = [[] for _ in plans]
    for step in range(12_000):
        for plan, times in zip(plans, seen, strict=True):
            now = START + 0.01 * step
            if now >= plan.next_check and (level := plan.pick(now)) is not None:
                plan.take_outcome(now, level, outcome(0.0, config.levels[level], explained=True))
                times.append(now)
    together = sum(
        any(abs(at - other) < length for others in seen if others is not mine for other in others)
        for mine in seen
        for at in mine
    )
    assert sum(map(len, seen)) >= 4 * 10
    assert together <= 0.2 * sum(map(len, seen)), "from one turn all of them are"


def test_each_child_begins_at_a_number_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "disable", lambda: None)
    monkeypatch.setattr(os, "set_blocking", lambda *_: None)
    monkeypatch.setattr(spinner.Child, "run", lambda child: child.plan.due[0] - child.plan.began)
    assert len({spinner.main("every=24,0,0,0;root=/nonexistent") for _ in range(8)}) > 1


def test_with_every_cadence_at_never_there_is_no_first_spin_either() -> None:
    plan = Plan(Config(NOTHING_DUE), START)
    assert {plan.pick(START + 0.1 * step) for step in range(100)} == {None}


def test_between_two_samples_the_plan_need_not_be_asked() -> None:
    driver = Driver("every=20,100,0,0")
    assert driver.next() == 0
    driver.meets(0)
    assert driver.plan.next_check == min(due for due in driver.plan.due if due)
    assert driver.plan.next_check > driver.now + 10.0


@pytest.mark.parametrize(("at", "checked"), [(2.0, 2.0), (50.0, 20.0)])
def test_a_spin_out_of_turn_brings_the_next_check_forward_and_never_back(at: float, checked: float) -> None:
    driver = Driver()
    driver.plan.next_check = driver.now + 20.0
    driver.plan.plan_spin(driver.now + at, 1)
    assert driver.plan.next_check == driver.now + checked
    assert driver.plan.due_level(driver.now + at - 0.1) is None
    assert driver.plan.due_level(driver.now + at) == 1
    assert driver.plan.due_level(driver.now + at) is None


def test_each_level_is_spun_on_its_own_cadence() -> None:
    driver, seen = Driver("every=20,100,0,0;budget=0.05"), []
    while driver.now < START + 1000.0:
        if (level := driver.next()) is not None:
            driver.meets(level)
            seen.append(level)
    assert seen.count(0) == pytest.approx(50, abs=12)
    assert seen.count(1) == pytest.approx(10, abs=3)
    assert set(seen) == {0, 1}


def test_a_gap_is_confirmed_within_a_second_and_only_once() -> None:
    driver = Driver("every=20,0,0,0")
    level = driver.next()
    assert level == 0
    driver.meets(level, gap=0.095, burned=0.005)
    assert driver.next(1.2) == 0
    driver.meets(0, gap=0.095, burned=0.005)
    assert driver.next(1.2) is None


def gathered(driver: Driver, gaps: int, *, explained: bool = False) -> int:
    """How many spins follow within four seconds of each other, of which the first so many meet a gap."""
    spins = 0
    while (level := driver.next(4.0)) is not None:
        driver.meets(level, gap=0.095 if spins < gaps else 0.0, burned=0.005, explained=explained and spins < gaps)
        spins += 1
    return spins


def test_gaps_that_nothing_explains_are_gathered_until_there_are_enough_to_show_a_clock() -> None:
    driver = Driver("every=500,0,0,0;climb=1")
    began = driver.now
    assert gathered(driver, 100) == spinner.GATHER_GAPS
    assert driver.now - began < 30.0
    driver.meets(0, gap=0.095, burned=0.005)  # the next one that is due by itself begins no new round
    assert gathered(driver, 100) == 0
    driver.now += spinner.CONFIRM_SECONDS
    driver.meets(0, gap=0.095, burned=0.005)
    assert gathered(driver, 100) == spinner.GATHER_GAPS - 1


@pytest.mark.parametrize(("enough", "again"), [(True, True), (False, False)])
def test_gaps_are_gathered_again_after_a_minute_where_there_were_enough(enough: bool, again: bool) -> None:
    driver = Driver("every=500,0,0,0;" + NOTHING_DUE)
    driver.plan.gather(driver.now, 0, found=True)
    gathered(driver, 100 if enough else 2)
    driver.now += spinner.GATHER_AGAIN_SECONDS
    driver.plan.extra = None
    driver.plan.gather(driver.now, 0, found=True)
    assert (driver.plan.extra is not None) == again


def test_gathering_gives_up_where_further_spins_meet_nothing() -> None:
    driver = Driver("every=500,0,0,0;climb=1")
    assert gathered(driver, 2) <= spinner.GATHER_TRIES + 4  # and the climb that the first clean one began


def test_a_gap_that_the_counters_explain_needs_no_confirmation() -> None:
    driver = Driver("every=20,0,0,0;climb=1")
    assert driver.next() == 0
    driver.meets(0, gap=0.095, burned=0.005, throttled=True)
    driver.plan.extra = None
    assert driver.next(10.0) is None
    assert not driver.plan.climbing


def test_gaps_that_run_delay_alone_explains_are_gathered_too_because_a_limit_that_nobody_counts_makes_it() -> None:
    driver = Driver()
    driver.meets(0, gap=0.06, burned=0.005, explained=True)
    assert gathered(driver, 100, explained=True) == spinner.GATHER_GAPS - 1
    driver.meets(0, gap=0.06, burned=0.005, explained=True)
    assert gathered(driver, 100, explained=True) == 0, "and beside neighbours no more of them than in a while"


def test_gaps_beside_neighbours_leave_the_reserve_to_those_that_nothing_explains() -> None:
    driver = Driver("budget=0;" + NOTHING_DUE)
    driver.plan.tokens = spinner.RESERVED_TOKENS + 0.02
    driver.meets(0, gap=0.06, burned=0.005, explained=True)
    assert gathered(driver, 100, explained=True) <= 1
    driver = Driver("budget=0;" + NOTHING_DUE)
    driver.plan.tokens = spinner.RESERVED_TOKENS + 0.02
    driver.meets(0, gap=0.06, burned=0.005)
    assert gathered(driver, 100) >= spinner.GATHER_GAPS - 1


def test_noise_below_the_stopping_gap_is_no_find() -> None:
    driver = Driver("every=20,0,0,0")
    assert driver.next() == 0
    driver.meets(0, gap=STOP_GAP_SECONDS)
    assert driver.next(10.0) is None


def test_a_climb_goes_up_step_by_step_and_ends_at_the_top() -> None:
    driver, seen = Driver(NOTHING_DUE + ";climb=1"), []
    while (level := driver.next()) is not None:
        driver.meets(level)
        seen.append(level)
    assert seen == [0, 1, 2, 3]
    assert not driver.plan.climbing
    assert driver.plan.cooled > driver.now


def climb(driver: Driver, gap: float = 0.0) -> float:
    """The host takes 20 ms now and then: when the next climb begins, and it meets nothing, or this gap at its top."""
    for _ in range(1000):
        if driver.plan.climbing:
            break
        driver.now += 4.0
        driver.plan.beat(driver.now, 0.02, 0.0)
    began = driver.now
    while (level := driver.next(2.0)) is not None:
        driver.meets(level, gap=gap if level == 3 else 0.0)
    return began


def test_a_climb_that_meets_nothing_is_made_again_ever_more_rarely_until_one_finds_something() -> None:
    driver = Driver(NOTHING_DUE + ";budget=0.05")
    begun = [climb(driver) for _ in range(7)]
    apart = [later - earlier for earlier, later in pairwise(begun)]
    assert apart == pytest.approx([60.0, 120.0, 240.0, 480.0, 480.0, 480.0], abs=8.0)
    climb(driver, gap=0.05)
    driver.plan.climbing, driver.plan.gathers, driver.plan.extra = False, 0, None
    driver.plan.outcome = [None] * 4
    begun = [climb(driver) for _ in range(2)]
    assert begun[1] - begun[0] == pytest.approx(60.0, abs=8.0)


def test_a_climb_after_a_long_time_without_a_reason_is_followed_by_the_next_as_at_first() -> None:
    driver = Driver(NOTHING_DUE + ";budget=0.05")
    for _ in range(4):
        climb(driver)
    driver.now += 2 * spinner.MOST_TIMES * spinner.CLIMB_AGAIN_SECONDS
    begun = [climb(driver) for _ in range(2)]
    assert begun[1] - begun[0] == pytest.approx(60.0, abs=8.0)


def test_a_climb_stops_at_the_level_that_finds_something() -> None:
    driver = Driver(NOTHING_DUE + ";climb=1")
    for level in (0, 1):
        assert driver.next() == level
        driver.meets(level)
    assert driver.next() == 2
    driver.meets(2, gap=0.05, burned=0.05)
    assert driver.next(1.2) == 2  # the confirmation
    driver.meets(2, gap=0.05, burned=0.05)
    assert gathered(driver, 100) == spinner.GATHER_GAPS - 2
    assert driver.next(30.0) is None


def found_at_level_2() -> Driver:
    driver = Driver("every=20,0,0,0;climb=1;budget=0.05")
    for level in (0, 1):
        assert driver.next() == level
        driver.meets(level)
    for _ in range(2):
        assert driver.next() == 2
        driver.meets(2, gap=0.05, burned=0.05)
    driver.plan.gathers, driver.plan.extra = 0, None  # that more gaps are gathered has tests of its own
    return driver


def test_the_level_that_found_something_is_kept_for_the_regular_spins() -> None:
    driver = found_at_level_2()
    for _ in range(3):
        assert driver.next() == 2
        driver.meets(2, gap=0.05, burned=0.05)


def test_the_kept_level_is_given_up_only_after_two_clean_spins() -> None:
    driver = found_at_level_2()
    assert driver.next() == 2
    driver.meets(2)
    assert driver.plan.level == 2
    assert driver.next(1.2) == 2  # the change is confirmed at once
    driver.meets(2)
    assert driver.next() == 0


def test_a_clean_spin_below_the_kept_level_gives_up_nothing() -> None:
    driver = found_at_level_2()
    driver.meets(0)
    driver.meets(0)
    assert driver.plan.level == 2


def test_a_level_is_lowered_to_what_the_burn_needs() -> None:
    driver = Driver("every=0,0,0,1")
    assert driver.next() == 3
    driver.meets(3, gap=0.095, burned=0.005)
    assert driver.plan.level == 0


@pytest.mark.parametrize(
    ("burn", "level"),
    [(0.001, 0), (0.005, 0), (0.01, 1), (0.018, 1), (0.02, 2), (0.05, 2), (0.08, 3), (0.2, 3), (9, 3)],
)
def test_the_lowest_level_is_chosen_that_is_sure_to_burn_two_quotas(burn: float, level: int) -> None:
    assert Driver().plan.enough_for(burn) == level


def test_a_spin_that_met_the_end_of_a_period_is_repeated_soon_and_a_few_times_at_most() -> None:
    """At 5 % a spin that begins late in a period is frozen for a few milliseconds only: that proves nothing."""
    driver = Driver()
    driver.plan.expect(driver.now, 0.005)
    for _ in range(CONFIRM_TRIES):
        assert driver.next(within=1.1) == 0
        driver.meets(0, gap=0.006, explained=True)
    assert driver.next(within=30.0) is None


def test_a_quota_that_appears_is_met_once_by_a_spin_that_is_long_enough() -> None:
    driver = Driver()
    driver.plan.expect(driver.now, burn=0.02)
    assert driver.next(1.0) == 2
    driver.meets(2, gap=0.08, burned=0.02, throttled=True)
    assert driver.next(60.0) is None


def test_without_budget_a_spin_is_skipped_and_counted_and_comes_back_with_it() -> None:
    driver = Driver("every=1,0,0,0;levels=0.3;budget=0.01")
    picked = 0
    while driver.now < START + 20.0:
        if (level := driver.next(1.0)) is not None:
            driver.meets(level)
            picked += 1
    assert picked == int(START_TOKENS / 0.3) + 0  # what is there at the start, and what came in 20 s is no whole spin
    assert driver.plan.skipped >= 10
    driver.now += 60.0
    assert driver.next() == 0


@given(
    budget=st.floats(0.0005, 0.05),
    steps=st.lists(st.tuples(st.floats(0.0, 40.0), st.booleans(), st.floats(0.0, 0.2)), max_size=80),
)
@settings(max_examples=60)
def test_whatever_happens_spins_stay_within_the_budget(budget: float, steps: list[tuple[float, bool, float]]) -> None:
    config = Config(f"every=1,5,20,60;climb=1;budget={budget}")
    plan, now, burned = Plan(config, START), START, 0.0
    for step, found, late in steps:
        now += step
        plan.beat(now, late, 0.0)
        level = plan.pick(now)
        if level is not None:
            assert 0 <= level < len(config.levels)
            length = config.levels[level]
            burned += length
            plan.take_outcome(now, level, outcome(0.09 if found else 0.0, length))
    assert burned <= MOST_TOKENS + budget * (now - START) + 1e-9


def test_three_large_gaps_of_the_heartbeat_prove_it_and_save_the_spin() -> None:
    driver = Driver("every=1,0,0,0")
    for _ in range(3):
        driver.plan.beat(driver.now, 0.09, 0.0)
    assert driver.next(9.0) is None
    driver.now += 10.0
    assert driver.next() is not None


def test_two_large_gaps_prove_nothing_yet() -> None:
    driver = Driver("every=1,0,0,0")
    for _ in range(2):
        driver.plan.beat(driver.now, 0.09, 0.09)
    assert driver.next(2.0) == 0


@pytest.mark.parametrize(
    ("lateness", "explained", "asked"),
    [
        ([0.02, 0.02], 0.0, True),
        ([0.02, 0.02], 0.015, False),
        ([0.02], 0.0, False),
        ([0.006] * 4, 0.0, True),
        ([0.006] * 3, 0.0, False),
        ([0.006] * 4, 0.006, True),
    ],
    ids=["two unexplained", "two explained", "one alone", "four small", "three small", "four small and explained"],
)
def test_suspicion_asks_for_a_spin(lateness: list[float], explained: float, asked: bool) -> None:
    driver = Driver()
    driver.now += spinner.ODD_SECONDS + 1.0
    for late in lateness:
        driver.now += 0.2
        driver.plan.beat(driver.now, late, explained)
    assert (driver.next(2.0) is not None) is asked


def test_suspicion_does_not_climb_again_right_after_a_climb_that_found_nothing() -> None:
    driver = Driver(NOTHING_DUE + ";climb=1;budget=0.05")
    while (level := driver.next(5.0)) is not None:
        driver.meets(level)
    for _ in range(2):
        driver.plan.beat(driver.now, 0.02, 0.0)
    assert not driver.plan.climbing
