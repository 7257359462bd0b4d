"""The clock of a CPU limit, from the ends of gaps: what lies on a comb, what does not, and what only looks like it."""

from __future__ import annotations

import random
from itertools import accumulate
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.rules.cpu.billing import proved
from agent.views import comb
from agent.views.comb import held_beside_bursts, limit_cores, releases, uncounted_limit
from agent.views.comb_clock import LONGEST_TICK_SECONDS, MOST_CHANCE, TICK_SECONDS, End
from agent.views.comb_fit import LEAST_ENDS, PERIODS, find
from agent.views.cpu import cpu_breakdown
from probes.cpu.suspension import SuspensionReading
from probes.host.trust import Sandbox
from tests.unit.builders import Burst, Cause, Scene, beat, beats, platform, spin

TICK = TICK_SECONDS


def on_comb(
    number: int,
    period: float,
    *,
    jitter: float = 0.001,
    phase: float = 0.037,
    length: float | None = None,
    seed: int = 1,
) -> list[End]:
    """Ends at one phase of the period, after bursts at irregular times."""
    chance = random.Random(seed)
    steps = accumulate(chance.randrange(3, 40) for _ in range(number))
    gap = 0.8 * period if length is None else length
    return [End(1000 + phase + n * period + chance.uniform(-jitter, jitter), gap) for n in steps]


def on_ticks(number: int, *, tick: float = TICK, length: float = 0.02, seed: int = 1) -> list[End]:
    """Ends wherever the scheduler lets a thread in: on its ticks, anywhere in a period."""
    chance = random.Random(seed)
    steps = accumulate(chance.randrange(int(0.5 / tick), int(3 / tick)) for _ in range(number))
    return [End(1000 + n * tick + chance.uniform(0, 0.0003), length) for n in steps]


def alike(number: int, seed: int) -> list[End]:
    """Neighbours of a higher priority that work half of each 100 ms: the measured look-alike had 8 of 18 ends in one cell."""
    chance = random.Random(seed)
    held, others = on_comb(number, 0.1, seed=seed, length=0.05), on_ticks(number, seed=seed, length=0.05)
    return sorted(a if chance.random() < 8 / 18 else b for a, b in zip(held, others, strict=True))


@pytest.mark.parametrize("period", [0.1, 0.08, 0.25])
@pytest.mark.parametrize("number", [LEAST_ENDS, 20, 200])
def test_a_limit_is_known_by_its_clock_and_its_period(period: float, number: int) -> None:
    found = find(on_comb(number, period), sorted(PERIODS, reverse=True)).comb
    assert found is not None
    assert found.period == period
    assert found.phase == pytest.approx((1000.037) % period, abs=0.001)
    assert found.chance <= MOST_CHANCE


def test_a_period_of_ten_milliseconds_takes_more_gaps_because_a_tick_is_nearly_half_of_it() -> None:
    few, many = (find(on_comb(n, 0.01, jitter=0.0004)) for n in (LEAST_ENDS, 40))
    assert few.comb is None
    assert many.comb is not None
    assert many.comb.period == 0.01


@pytest.mark.parametrize("number", [LEAST_ENDS, 20, 64])
def test_on_a_kernel_of_a_hundred_hertz_each_gap_ends_at_one_phase_of_ten_milliseconds_and_no_limit_is_named(
    number: int,
) -> None:
    """Neighbours were a limit with a period of 10 ms, in six histories of ten, and one of 20 ms in one of a hundred."""
    ticks = [on_ticks(number, tick=LONGEST_TICK_SECONDS, seed=seed) for seed in range(200)]
    assert not [found for found in (find(ends, tick=LONGEST_TICK_SECONDS).comb for ends in ticks) if found is not None]


@pytest.mark.parametrize("tick", [TICK, LONGEST_TICK_SECONDS])
@pytest.mark.parametrize("period", [0.25, 0.1, 0.08])
def test_six_gaps_name_a_usual_limit_whatever_the_tick(period: float, tick: float) -> None:
    found = find(on_comb(LEAST_ENDS, period), tick=tick).comb
    assert found is not None
    assert found.period == period


@pytest.mark.parametrize(("tick", "enough"), [(TICK, 11), (LONGEST_TICK_SECONDS, 25)])
def test_where_others_end_at_two_phases_of_twenty_milliseconds_a_limit_of_that_takes_more_gaps(
    tick: float, enough: int
) -> None:
    few, many = (find(on_comb(n, 0.02, length=0.012), tick=tick).comb for n in (enough - 1, enough))
    assert few is None
    assert many is not None
    assert many.period == 0.02


@pytest.mark.parametrize(
    ("tick", "cause", "sandbox", "named"),
    [(0.001, "contention", "none", True), (0.004, "contention", "none", True), (0.01, "contention", "none", False),
     (0.004, "nobody", "none", False), (0.004, "hypervisor", "none", False), (0.004, "hidden", "gvisor", False)],
    ids=["1000 Hz", "250 Hz", "100 Hz", "held outside of this kernel", "ticks were lost", "a sandbox"],
)  # fmt: skip
def test_a_period_as_short_as_a_tick_is_a_limits_only_where_this_kernels_tick_is_known_to_be_shorter(
    tick: float, cause: Cause, sandbox: Sandbox, named: bool
) -> None:
    scene = Scene(sandbox=sandbox)
    scene.history.add(platform(scene.clock(), sandbox=sandbox, tick=tick))
    gaps = on_comb(60, 0.01, length=0.016, jitter=0.0004)
    for _ in range(24):
        _slot(scene, gaps, cause)
    assert len(ends_within(scene, 120.0)) == len(gaps)
    assert (releases(scene.history).comb is not None) == named


@pytest.mark.parametrize("tick", [0.001, 0.002, 0.004])
def test_what_neighbours_make_lies_on_no_comb(tick: float) -> None:
    found = [find(on_ticks(25, tick=tick, seed=seed)) for seed in range(200)]
    assert not [f.comb for f in found if f.comb is not None]
    assert sum(f.on_no_comb for f in found) >= 190


def test_the_gaps_that_say_so_are_counted_the_short_ones_with_the_large() -> None:
    found = find(sorted(on_ticks(30, length=0.013) + on_ticks(2, length=0.05, seed=1)))
    assert (found.ends, found.off_the_clock) == (2, 32)


def test_a_few_gaps_decide_nothing() -> None:
    found = find(on_comb(LEAST_ENDS - 1, 0.1))
    assert found.comb is None
    assert not found.on_no_comb


def test_a_few_gaps_of_which_most_are_at_one_phase_are_suspected_of_a_limit_until_they_are_many() -> None:
    """An idle sandbox at 20 % beside a busy host: other work's gaps were there before the limit's."""
    few = sorted(on_comb(5, 0.1) + on_ticks(3))
    assert find(few).suspected
    assert not find(on_comb(20, 0.1)).suspected, "it is decided"
    assert not find(sorted(on_comb(12, 0.1) + on_ticks(30))).suspected, "no more will tell"


@pytest.mark.parametrize("number", [LEAST_ENDS, 12, 20])
def test_few_gaps_that_neighbours_make_are_seldom_suspected(number: int) -> None:
    suspected = sum(find(on_ticks(number, seed=seed)).suspected for seed in range(300))
    assert suspected <= 30, "a tenth, by MERE_CHANCE"


def test_some_strays_leave_a_limit_what_it_is() -> None:
    """13 of 17 were measured in gVisor: what neighbours make between two releases."""
    ends = sorted(on_comb(13, 0.1) + on_ticks(4))
    assert find(ends).comb is not None


def test_beside_busy_neighbours_the_long_gaps_tell() -> None:
    ends = sorted(on_comb(8, 0.1, length=0.08) + on_ticks(12, length=0.02))
    found = find(ends).comb
    assert found is not None
    assert (found.hits, found.ends) == (8, 8)


def test_neighbours_that_work_in_steps_of_the_same_period_are_no_limit() -> None:
    convicted = sum(find(alike(18, seed)).comb is not None for seed in range(300))
    assert convicted <= 6


def test_gaps_that_neighbours_make_later_do_not_keep_a_limit_that_is_gone() -> None:
    held = on_comb(30, 0.1)
    over = held[-1].at
    found = find([*held, *(End(over + 1 + 0.0133 * n, 0.02) for n in range(1, 7))]).comb
    assert found is not None
    assert found.last == over


def test_a_limit_inside_a_limit_has_two_phases() -> None:
    ends = sorted(on_comb(15, 0.1) + on_comb(13, 0.1, phase=0.071, seed=2))
    found = find(ends).comb
    assert found is not None
    assert found.second_phase is not None
    assert {round(found.phase, 2), round(found.second_phase, 2)} == {0.04, 0.07}
    assert limit_cores(found, [spin(1000.0, burn=0.02, gaps=[0.08])]) is None, "whose size it would be is not known"


def test_slow_drift_between_two_clocks_is_followed_by_the_newest_ends() -> None:
    drifting = [End(end.at * (1 + 30e-6), end.length) for end in on_comb(2000, 0.1, jitter=0.0003)]
    assert find(drifting).comb is not None


@pytest.mark.parametrize(("period", "cores"), [(0.1, 0.05), (0.1, 0.2), (0.1, 0.5), (0.08, 0.25)])
def test_the_size_of_the_limit_is_what_a_burst_got_from_a_release_to_the_next_stop(period: float, cores: float) -> None:
    quota = cores * period
    released = 1000.0 + 0.037
    spins = []
    for begin in (0.0, period * 0.3, period - quota / 2):  # the last one runs through a release into the next quota
        start = released + begin
        stop = released + period + quota if begin + quota > period else start + quota
        end = released + (int((stop - released) / period) + 1) * period
        window = spin(start, burn=stop - start, gaps=[end - stop])
        spins.append(window._replace(ends=((end, end - stop),)))
    neighbours = spin(released - 0.9 * period, burn=0.9 * period - 0.005, gaps=[0.005])
    spins += [
        neighbours._replace(ends=((released, 0.005),))
    ] * 4  # a short gap that ends there by chance stopped nothing
    found = find(on_comb(20, period)).comb
    assert found is not None
    assert limit_cores(found, spins) == pytest.approx(cores, rel=0.1)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1000)), max_size=40))
def test_nothing_breaks_it(ends: list[tuple[float, float]]) -> None:
    found = find(sorted(End(*end) for end in ends))
    assert found.comb is None or not found.on_no_comb


@pytest.mark.parametrize("limited", [True, False])
def test_a_limit_that_bursts_alone_meet_is_not_denied_by_what_a_host_takes_from_heartbeats(limited: bool) -> None:
    """An idle sandbox at 5 % on a host that took 17 % of the CPUs was once told that no limit is there."""
    draw, scene = random.Random(7), Scene()
    for number in range(24):
        start, windows = scene.clock(), []
        for second in range(1, 5):  # what the host takes ends anywhere
            late = beat(start + second, late=[0.02])
            windows.append(late._replace(ends=((start + second + draw.random(), 0.02),)))
        if number % 3 == 0:
            released = 1000 + 0.1 * (10 * 5 * number + 6) + (0.0 if limited and number % 12 else 0.1 * draw.random())
            windows.append(spin(start + 0.5, gaps=(0.08,))._replace(ends=((released, 0.08),)))
        scene.slot(windows)
    found = releases(scene.history)
    assert found.comb is None
    assert found.on_no_comb != limited


def test_what_stops_the_bursts_of_an_idle_container_tells_beside_what_neighbours_do_to_its_heartbeats() -> None:
    """A sandbox held to 5 % beside busy neighbours: 18 of 25 gaps on the clock, then fewer, and the limit was dropped."""
    bursts, others = on_comb(10, 0.1, length=0.09), on_ticks(14, length=0.05, seed=3)
    ends = sorted([*bursts, *others])
    assert find(ends).comb is None
    found = find(ends, bursts=bursts).comb
    assert found is not None
    assert (found.period, found.hits, found.ends) == (0.1, 10, 10)
    assert find(ends, bursts=others[:9]).comb is None


@pytest.mark.parametrize(("others", "there"), [((0.03,), True), ((), False)], ids=["stopped by others", "not stopped"])
def test_only_bursts_that_nothing_stopped_say_that_a_limit_is_gone(others: tuple[float, ...], there: bool) -> None:
    """Under a limit on a crowded host two bursts met something else first, and the limit was called gone."""
    scene = Scene().run(60, spins=Burst((0.08,), burn=0.02, every=5.0), cause="hidden limit")
    assert uncounted_limit(scene.history) is not None
    for _ in range(2):
        windows = [spin(scene.clock() + 1.0, burn=0.05, gaps=others)]
        scene.slot([w._replace(ends=tuple((w.start + 0.0137 + gap, gap) for gap in others)) for w in windows])
    assert (uncounted_limit(scene.history) is not None) == there


def test_who_waits_for_a_turn_after_the_release_is_under_one_limit() -> None:
    """As measured in gVisor at 0.2 cores: of 64 gaps 32 ended at the release, 17 a tick later, and it was called two limits."""
    released, later = on_comb(34, 0.1), on_comb(26, 0.1, phase=0.0412, seed=2)
    for ends in (sorted([*released, *later]), sorted([*released[:26], *on_comb(34, 0.1, phase=0.0412, seed=2)])):
        found = find(ends).comb
        assert found is not None
        assert found.limits == 1
        assert found.phase == pytest.approx(1000.037 % 0.1, abs=0.001), "the release"
        assert found.second_phase == pytest.approx(1000.0412 % 0.1, abs=0.001)
    apart = find(sorted([*released, *on_comb(30, 0.1, phase=0.067, seed=2)])).comb
    assert apart is not None
    assert apart.limits == 2


# ---- a clock that is known


def mixed(number: int, share: float, seed: int, phase: float = 0.037) -> list[End]:
    """A limit's gaps, and so many of a host that takes the CPU as well, which end anywhere."""
    chance = random.Random(seed)
    held, others = on_comb(number, 0.1, seed=seed, phase=phase), on_ticks(number, seed=seed + 1, length=0.08)
    return sorted(a if chance.random() < share else b for a, b in zip(held, others, strict=True))


def test_a_known_clock_is_seen_among_gaps_in_which_none_would_be_found() -> None:
    """As measured in gVisor at 0.2 cores, while the host began to take a sixth of the CPUs: 36 of 64 ends were left on the clock."""
    known = find(on_comb(40, 0.1)).comb
    assert known is not None
    assert known.clear
    found = [find(mixed(64, 0.5, seed)) for seed in range(50)]
    assert sum(each.neither for each in found) >= 45
    again = [known.again(mixed(64, 0.5, seed)) for seed in range(50)]
    assert all(again)
    assert all(each and each.phase == pytest.approx(known.phase, abs=0.001) for each in again)


def test_a_known_clock_is_not_seen_where_it_is_no_more() -> None:
    known = find(on_comb(40, 0.1)).comb
    assert known is not None
    assert not [seed for seed in range(300) if known.again(on_ticks(64, seed=seed, length=0.08))]
    assert known.again(mixed(64, 0.9, 1, phase=0.077)) is None, "another limit's"
    assert known.again([]) is None


def let_some_through(burn: float = 0.004) -> Scene:
    """Ten bursts that a limit above all groups stops, after 4 ms by default, and after each one that comes through; no wake-up is late."""
    scene = Scene()
    for n in range(10):  # not at one phase of longer periods as well
        scene.slot([spin(scene.clock() + 1.0 + 0.3 * n, burn=burn, gaps=(0.05,), cause="hidden limit")])
        scene.slot([*beats(scene.clock(), 5.0), spin(scene.clock() + 1.0, burn=0.012)])
    return scene


def test_a_limit_that_lets_bursts_through_and_stops_others_sooner_is_used_up_by_somebody_else() -> None:
    """Half of a core above the container beside one busy thread: no wake-up was late, and the limit was called a remark."""
    history = let_some_through().history
    limit, cpu = uncounted_limit(history), cpu_breakdown(history, 15.0)
    assert limit is not None
    assert cpu is not None
    assert held_beside_bursts(history, limit) == pytest.approx(0.5 - 0.012 / 0.1, abs=0.001)
    assert cpu.late == 0
    assert cpu.shares["suspended_quota"] == held_beside_bursts(history, limit)


@pytest.mark.parametrize("scene", [
    pytest.param(let_some_through(burn=0.006), id="two quotas, one after the other"),
    pytest.param(Scene().run(60, spins=Burst((0.08,), burn=0.005, every=5.0), cause="hidden limit"), id="each is stopped"),
    pytest.param(
        Scene().run(60, spins=Burst(burn=0.02, every=5.0)).run(60, spins=Burst((0.08,), burn=0.005, every=5.0), cause="hidden limit"),
        id="those before the limit came through",
    ),
])  # fmt: skip
def test_bursts_that_may_have_used_the_quota_up_themselves_tell_nothing_of_others(scene: Scene) -> None:
    limit = uncounted_limit(scene.history)
    assert limit is not None
    assert held_beside_bursts(scene.history, limit) == 0.0


@pytest.mark.parametrize(("bursts", "there"), [(3, True), (7, False)])
def test_a_limit_that_let_bursts_through_is_gone_after_more_of_them(bursts: int, there: bool) -> None:
    scene = let_some_through()
    scene.slot([spin(scene.clock() + 0.3 * n, burn=0.012) for n in range(1, bursts)])
    assert (uncounted_limit(scene.history) is not None) == there


def test_gaps_that_throttled_time_explains_need_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a limit of 5 % looking for one was an eighth of what the agent computed, and the kernel had counted it all."""
    monkeypatch.setattr(comb, "releases", lambda *_: pytest.fail("looked for"))
    scene = Scene().run(60, gap=0.05, spins=Burst((0.08,), burn=0.02, every=5.0), cause="quota")
    assert uncounted_limit(scene.history) is None
    assert proved(scene.history, [w for r in scene.history.window(SuspensionReading, 60) for w in r.windows if w.spin])


def test_one_gap_that_throttled_time_does_not_explain_may_be_another_limits() -> None:
    scene = Scene().run(60, spins=Burst((0.08,), burn=0.02, every=5.0), cause="hidden limit")
    scene.slot([spin(scene.clock() + 1.0, burn=0.02, gaps=(0.08,), cause="quota")])
    assert uncounted_limit(scene.history) is not None


def test_a_limit_is_gone_when_the_newest_gaps_end_at_its_phase_by_chance_alone() -> None:
    """On an emulated machine others went on making gaps, some of them at the phase of a limit that had been lifted a minute before."""
    limit, others = on_comb(44, 0.1), on_ticks(20, length=0.08, seed=5)
    ends = sorted([*limit, *(End(end.at - others[0].at + limit[-1].at + 1, end.length) for end in others)])
    found = find(ends).comb
    assert found is not None
    assert found.gone(ends, [])
    assert not found.gone(ends[:48], []), "four others' gaps"
    assert not found.gone([*ends, *(End(end.at + 300, end.length) for end in limit)], []), "it has come back"
    crowded = [found.gone(mixed(64, 0.6, seed), []) for seed in range(200)]
    assert sum(crowded) <= 2, "beside a host that takes the CPU as well"


def test_a_limit_that_is_met_no_more_is_gone_the_sooner_the_more_often_it_was_met() -> None:
    """A minute after it was lifted it was still named on an emulated machine: one of some gaps that others make is at its phase by chance."""
    often = through(Scene(), on_comb(100, 0.1, jitter=0.0005), 2)
    assert uncounted_limit(often.history) is not None
    through(often, [End(1000.037, 0.08)], 35 / 60)
    assert uncounted_limit(often.history) is None
    rarely = through(Scene(), [end for n, end in enumerate(on_comb(100, 0.1, jitter=0.0005)) if n % 8 == 0], 2)
    assert uncounted_limit(rarely.history) is not None
    through(rarely, [End(1000.037, 0.08)], 35 / 60)
    assert uncounted_limit(rarely.history) is not None, "it may just not have been met"


def test_a_limit_that_was_raised_and_still_holds_is_not_gone() -> None:
    """From 0.05 to 0.8 cores: a fifth of the gaps are left."""
    close = [End(1000.037 + 0.1 * n, 0.08) for n in range(0, 1200, 3)]
    scene = through(Scene(), close, 2)
    for _ in range(6):
        through(scene, close[::5], 10 / 60)
        assert uncounted_limit(scene.history) is not None


def test_what_only_looks_like_a_limit_is_hardly_ever_known() -> None:
    found = [find(alike(64, seed)).comb for seed in range(400)]
    assert sum(comb is not None and comb.clear for comb in found) <= 4


def test_two_limits_of_which_one_is_inside_the_other_are_known_as_well() -> None:
    both = sorted([*on_comb(20, 0.1), *on_comb(20, 0.1, phase=0.067, seed=2)])
    known = find(both).comb
    assert known is not None
    assert known.second_phase is not None
    later = [End(end.at + 60.0005, end.length) for end in both]
    again = known.again(sorted([*later, *(End(end.at + 60, end.length) for end in on_ticks(20, length=0.08))]))
    assert again is not None
    assert again.phase == pytest.approx(known.phase + 0.0005, abs=3e-4)
    assert again.second_phase == pytest.approx(known.second_phase + 0.0005, abs=3e-4)


def through(scene: Scene, ends: list[End], minutes: float) -> Scene:
    """Let minutes pass in which gaps end so from now on, at the same phases."""
    later = ceil((scene.clock() + 1 - ends[0].at) / 0.1) * 0.1
    for _ in range(round(minutes * 12)):
        _slot(scene, [end._replace(at=end.at + later) for end in ends])
    return scene


def test_a_limit_goes_on_being_named_when_a_host_begins_to_take_the_cpu_as_well_and_not_when_it_is_gone() -> None:
    clear, crowded, others = on_comb(100, 0.1, jitter=0.0005), mixed(500, 0.5, 3), on_ticks(500, length=0.08)
    scene = through(Scene(), clear, 2)
    assert releases(scene.history).comb is not None
    for _ in range(3):
        through(scene, crowded, 2)
        assert find(ends_within(scene, 120.0)).neither
        assert releases(scene.history).comb is not None
    through(scene, others, 3)
    assert releases(scene.history).comb is None


def test_a_clock_that_showed_once_is_kept_for_a_minute_while_others_make_some_of_the_gaps() -> None:
    """An idle sandbox at 5 % beside others: 9 of 11 gaps on the clock, then fewer, and the limit was dropped for ten seconds."""
    times = [2.0, 9.0, 13.0, 21.0, 24.0, 31.0, 37.0, 43.0, 52.0]
    held = [End(1000.037 + at, 0.09) for at in times]
    others = [End(1000.0 + at, 0.09) for at in (11.016, 39.071)]
    more = [End(1055.0 + 3.2 * n + 0.0131 * n * n, 0.09) for n in range(8)]
    scene = Scene()
    for _ in range(11):
        _slot(scene, [*held, *others])
    found = releases(scene.history).comb
    assert found is not None
    assert not found.clear
    for _ in range(4):
        _slot(scene, more)
    assert find(ends_within(scene, 120.0)).neither
    assert releases(scene.history).comb is not None
    for _ in range(11):
        _slot(scene, [End(end.at + 20, end.length) for end in more])
    assert releases(scene.history).comb is None, "it is not seen any more"


def _slot(scene: Scene, ends: list[End], cause: Cause = "nobody") -> None:
    """Five seconds, with those of the gaps that end in them."""
    start = scene.clock()
    due = [end for end in ends if start <= end.at < start + 5]
    scene.slot([beat(at - 0.5, late=[length], cause=cause)._replace(ends=((at, length),)) for at, length, _ in due])


def test_a_clock_that_has_never_shown_clearly_is_not_known() -> None:
    scene = through(Scene(), mixed(500, 0.5, 3), 6)
    assert releases(scene.history).comb is None


def ends_within(scene: Scene, seconds: float) -> list[End]:
    readings = scene.history.window(SuspensionReading, seconds)
    return sorted(End(*end) for r in readings for w in r.windows for end in w.ends)


def test_a_limit_of_most_of_a_core_is_found_by_its_short_gaps() -> None:
    # Heartbeats at 5 Hz against a thread that is held for the last 20 ms of each 100 ms: what comes then waits for the next release.
    beats = [0.2 * n + 0.2 * (n * 0.618034 % 1.0) for n in range(70)]
    waits = [(at, 0.1 - at % 0.1) for at in beats]
    ends = [End(at + wait, wait, woke=True) for at, wait in waits if 0.004 < wait <= 0.02]
    # Bursts met others' turns meanwhile, which end on the scheduler's ticks.
    ends += on_ticks(30, length=0.01)
    assert sum(end.length >= 0.015 for end in ends) < LEAST_ENDS
    found = find(ends).comb
    assert found is not None
    assert (found.period, found.of_wakes) == (0.1, True)
    assert found.counted(ends, ()) == [end for end in ends if end.woke]


def test_short_turns_of_others_are_no_clock() -> None:
    draw = random.Random(7)
    named = sum(
        find([End(t + draw.random() * 0.1, 0.004 + 0.01 * draw.random(), woke=True) for t in range(60)]).comb
        is not None
        for _ in range(200)
    )
    assert named == 0
