"""cpu_throttled_between_requests: the flagship, and everything that looks like it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.rules import BY_ID
from agent.rules.rule import Absent, Judgement, Present, Unknown
from probes.hooks.work import HooksReading
from probes.host.platform import Environment
from tests.unit.builders import ALL_COUNT, CLEAN, NONE_COUNTS, Burst, Cause, Scene, beat, requests, spin, suspension

NOT_HELP = "changing the billing mode will not help"
GONE = Burst((0.095,), burn=0.005, every=5.0)


def judge(scene: Scene) -> Judgement:
    return BY_ID["cpu_throttled_between_requests"].judge(scene.history)


def cloud_run(environment: Environment = "cloud_run_service") -> Scene:
    return Scene(trust=NONE_COUNTS, environment=environment, sandbox="gvisor", service="shop")


def billed_by_request(scene: Scene, *, told: bool, rounds: int = 4) -> Scene:
    """A minute without a request and almost no CPU, then 20 s with one and all the CPU, and again."""
    for _ in range(rounds):
        scene.run(40, spins=GONE, cause="hidden limit", in_flight=0 if told else None)
        scene.run(20, spins=CLEAN, cause="hidden limit", in_flight=2 if told else None)
    return scene


@pytest.mark.parametrize(("told", "severity"), [(True, "critical"), (False, "warning")], ids=["told", "inferred"])
def test_the_cpu_that_goes_when_requests_end_is_found_and_inference_is_less_sure(told: bool, severity: str) -> None:
    judgement = judge(billed_by_request(cloud_run(), told=told))
    assert isinstance(judgement, Present), judgement
    assert judgement.severity == severity
    assert judgement.confidence.when == ("with a signal of requests" if told else "without a signal, on Cloud Run")
    assert any("inferred" in e.text for e in judgement.evidence) is not told


def test_a_burst_that_was_stopped_late_in_a_period_does_not_clear_the_time_between_requests() -> None:
    """Spins of 12 ms that begin late in a period are stopped for 20 ms only: 37 % held, and yet the CPU is gone."""
    scene = cloud_run()
    for late in (True, False, True, False):
        scene.run(40, spins=Burst((0.02,), burn=0.034) if late else GONE, cause="hidden limit", in_flight=0)
        scene.run(20, spins=CLEAN, cause="hidden limit", in_flight=2)
    assert isinstance(judge(scene), Present)


@pytest.mark.parametrize(("gap", "found"), [(0.03, True), (0.09, False)], ids=["a neighbour's", "a limit's"])
def test_short_gaps_during_requests_do_not_clear_the_time_between_them(gap: float, found: bool) -> None:
    """gVisor on a crowded machine: a limit between requests, and neighbours all the time."""
    scene = cloud_run()
    for _ in range(4):
        scene.run(40, gap=0.095, cause="hidden limit", in_flight=0)
        scene.run(20, gap=gap, cause="hidden limit", in_flight=2)
    judgement = judge(scene)
    assert isinstance(judgement, Present if found else Absent), judgement
    if isinstance(judgement, Present):
        assert judgement.confidence.when in {"with neighbours during requests", "with a signal of requests"}


@pytest.mark.parametrize("told", [True, False], ids=["told", "inferred"])
def test_gaps_as_short_as_a_neighbours_turn_convict_nobody(told: bool) -> None:
    """gVisor beside heavy neighbours: every burst is stopped for 40 ms, and nothing there counts contention."""
    scene = cloud_run()
    for _ in range(4):
        scene.run(40, spins=Burst((0.04,), burn=0.012), cause="hidden", in_flight=0 if told else None)
        scene.run(20, spins=CLEAN, cause="hidden", in_flight=2 if told else None)
    assert isinstance(judge(scene), Unknown)


def test_some_stopped_bursts_between_requests_neither_convict_nor_clear() -> None:
    scene = cloud_run()
    for stopped in (True, False, False, False):
        scene.run(40, spins=Burst((0.02,), burn=0.034) if stopped else CLEAN, cause="hidden limit", in_flight=0)
        scene.run(20, spins=CLEAN, cause="hidden limit", in_flight=2)
    assert isinstance(judge(scene), Unknown)


@pytest.mark.parametrize(("hits", "verdict"), [(1, Unknown), (5, Unknown), (6, Present)])
def test_a_few_stopped_bursts_may_be_a_neighbours(hits: int, verdict: type) -> None:
    """gVisor cannot count contention: it takes six gaps to see the clock of a limit."""
    scene = cloud_run()
    for number in range(8):
        scene.run(
            5,
            spins=Burst((0.09,), burn=0.005, every=5.0) if number < hits else CLEAN,
            cause="hidden limit",
            in_flight=0,
        )
    assert isinstance(judge(scene), verdict)


@pytest.mark.parametrize(
    ("stopped", "through", "verdict"),
    [(1, 3, Unknown), (1, 4, Absent), (2, 4, Unknown), (2, 5, Absent), (5, 5, Unknown), (4, 12, Absent)],
)
def test_so_many_bursts_do_not_come_through_a_platform_that_takes_the_cpu(
    stopped: int, through: int, verdict: type
) -> None:
    """gVisor beside neighbours: with 0.08 of a CPU one burst in eight would come through, so that few of these are."""
    judgement = judge(_some_stopped(stopped, through))
    assert isinstance(judgement, verdict), judgement


def test_bursts_that_a_limits_clock_stopped_are_not_ruled_out_by_how_many_came_through() -> None:
    """Requests that are not told of, or a platform that waits before it takes the CPU, let bursts through, too."""
    judgement = judge(_some_stopped(6, 18))
    assert isinstance(judgement, Unknown), judgement


def test_short_gaps_in_every_burst_are_no_billing_mode() -> None:
    """Neighbours in a sandbox that cannot count them: a burst of 12 ms loses 8, where a platform that takes the CPU takes 100 and more."""
    scene = cloud_run().run(100, spins=Burst((0.008,), every=5.0), cause="hidden limit", in_flight=0)
    judgement = judge(scene)
    assert isinstance(judgement, Absent)
    assert "mostly in short gaps" in judgement.because


def _some_stopped(stopped: int, through: int) -> Scene:
    """Bursts between requests, one each five seconds, of which these are stopped at one phase of a period, evenly spread."""
    scene = cloud_run().run(5, spins=None, cause="hidden limit", in_flight=0)
    for number in range(stopped + through):
        hit = number * stopped % (stopped + through) < stopped
        burst = Burst((0.02,), burn=0.011, every=5.0) if hit else Burst(every=5.0)
        scene.run(5, spins=burst, cause="hidden limit", in_flight=0)
    return scene


def test_on_cloud_run_the_advice_is_the_flag_and_the_annotation_of_this_service() -> None:
    judgement = judge(billed_by_request(cloud_run(), told=True))
    assert isinstance(judgement, Present)
    assert judgement.advice.changes[0].startswith("gcloud run services update shop --no-cpu-throttling")
    assert any('run.googleapis.com/cpu-throttling: "false"' in change for change in judgement.advice.changes)
    assert judgement.scope == "whole instance"


def test_elsewhere_the_advice_names_no_setting_of_cloud_run() -> None:
    judgement = judge(billed_by_request(Scene(), told=True))
    assert isinstance(judgement, Present)
    assert not any("gcloud" in change for change in judgement.advice.changes)


def test_the_first_request_in_a_long_time_does_not_make_the_time_before_it_unknown() -> None:
    judgement = judge(cloud_run().run(360, spins=GONE, cause="hidden limit", in_flight=0).run(20, in_flight=2))
    assert isinstance(judgement, Present), judgement


def test_busy_work_between_requests_is_found_by_late_heartbeats_without_any_spin() -> None:
    scene = cloud_run()
    for _ in range(3):
        scene.run(40, gap=0.095, spins=None, cause="hidden limit", in_flight=0)
        scene.run(20, spins=None, cause="hidden limit", in_flight=1)
    assert isinstance(judge(scene), Present)


@pytest.mark.parametrize("told", [True, False], ids=["told", "inferred"])
def test_cpu_that_is_always_there_says_that_the_billing_mode_will_not_help(told: bool) -> None:
    scene = cloud_run().run(120, cause="hidden limit", in_flight=0 if told else None)
    judgement = judge(scene)
    assert isinstance(judgement, Absent)
    assert NOT_HELP in judgement.because


@pytest.mark.parametrize("in_flight", [0, None], ids=["told", "inferred"])
def test_heartbeats_on_time_in_an_idle_container_clear_nobody(in_flight: int | None) -> None:
    judgement = judge(cloud_run().run(300, spins=None, cause="hidden limit", in_flight=in_flight))
    assert isinstance(judgement, Unknown)
    assert NOT_HELP not in judgement.because


def test_one_spin_may_be_chance_and_clears_nobody() -> None:
    judgement = judge(cloud_run().run(60, spins=Burst(every=300.0), cause="hidden limit"))
    assert isinstance(judgement, Unknown)


@pytest.mark.parametrize("in_flight", [1, None], ids=["told", "inferred"])
def test_a_cpu_that_is_gone_during_requests_too_is_not_the_billing_mode(in_flight: int | None) -> None:
    """A limit outside a sandbox that is not Cloud Run."""
    scene = Scene(trust=NONE_COUNTS, sandbox="gvisor")
    for _ in range(3):
        scene.run(40, gap=0.095, cause="hidden limit", in_flight=None if in_flight is None else 0)
        scene.run(20, gap=0.095, cause="hidden limit", in_flight=in_flight)
    assert not isinstance(judge(scene), Present)


def test_without_any_request_to_compare_with_it_is_unknown_unless_cloud_run_explains_it() -> None:
    elsewhere = Scene().run(120, spins=GONE, cause="limit of the machine", in_flight=0)
    assert isinstance(judge(elsewhere), Unknown)
    on_cloud_run = cloud_run().run(120, spins=GONE, cause="hidden limit", in_flight=0)
    found = judge(on_cloud_run)
    assert isinstance(found, Present)
    assert found.confidence.when == "with a signal and no request yet"


def constant_quota(*, told: bool, spins_in_requests: bool) -> Scene:
    """Kubernetes, limits.cpu 50m, never changed: requests wait for a database and hardly want the CPU."""
    scene = Scene(trust=ALL_COUNT, environment="kubernetes")
    for _ in range(4):
        scene.run(40, spins=GONE, cause="quota", limit=0.05, in_flight=0 if told else None)
        spins = GONE if spins_in_requests else None
        scene.run(20, spins=spins, cause="quota", limit=0.05, in_flight=2 if told else None)
    return scene


@pytest.mark.parametrize(
    ("told", "spins_in_requests"),
    [
        pytest.param(False, True, id="inferred"),
        pytest.param(True, True, id="told, spins in both"),
        pytest.param(True, False, id="told, spins between only"),
    ],
)
def test_a_constant_declared_quota_under_bursty_demand_is_not_the_billing_mode(
    told: bool, spins_in_requests: bool
) -> None:
    assert not isinstance(judge(constant_quota(told=told, spins_in_requests=spins_in_requests)), Present)


@pytest.mark.parametrize(
    ("usage", "verdict"), [(0.05, Absent), (0.16, Present)], ids=["at the limit", "more by request"]
)
def test_a_limit_that_came_later_and_holds_during_requests_too_is_known_by_what_was_used(
    usage: float, verdict: type
) -> None:
    """Heartbeats beside a quota often run from what an idle CPU keeps back, and make requests look free of it."""
    scene = Scene()
    scene.run(10, in_flight=0)
    for _ in range(4):
        scene.run(40, spins=GONE, cause="quota", limit=0.05, usage=usage, in_flight=0)
        scene.run(20, limit=0.05, usage=usage, in_flight=2)
    assert isinstance(judge(scene), verdict), judge(scene)


@pytest.mark.parametrize("told", [True, False], ids=["told", "inferred"])
@pytest.mark.parametrize("limit", [1.0, 4.0])
def test_a_declared_limit_that_throttled_nobody_explains_nothing(limit: float, told: bool) -> None:
    """Cloud Run's second generation: a real kernel with cpu.max, throttled from outside of it."""
    scene = Scene(trust=ALL_COUNT, environment="cloud_run_service")
    for _ in range(4):
        scene.run(40, gap=0.095, cause="limit of the machine", limit=limit, in_flight=0 if told else None)
        scene.run(20, spins=CLEAN, limit=limit, in_flight=2 if told else None)
    assert isinstance(judge(scene), Present)


@pytest.mark.parametrize("told", [True, False], ids=["told", "inferred"])
@pytest.mark.parametrize(("share", "explained"), [(0.4, False), (0.6, True)])
def test_a_constant_limit_explains_the_gaps_only_when_throttled_time_covers_most_of_them(
    share: float, explained: bool, told: bool
) -> None:
    scene = Scene(trust=ALL_COUNT, environment="cloud_run_service")
    for _ in range(4):
        for second in range(12):
            start, asleep = scene.clock(), second < 8
            gaps = [0.095] if asleep else []
            burst = spin(start + 0.5, burn=0.005 if asleep else 0.012, gaps=gaps, cause="limit of the machine")
            burst = burst._replace(lost=0.0, throttled=share * sum(gaps))
            scene.slot([beat(start), burst], limit=0.05, in_flight=(0 if asleep else 2) if told else None)
    assert isinstance(judge(scene), Absent if explained else Present)


@pytest.mark.parametrize(("spells", "found"), [(2, False), (3, True)])
def test_inference_asks_for_three_spells_that_ended(spells: int, found: bool) -> None:
    scene = Scene()
    for _ in range(spells):
        scene.run(40, spins=GONE, cause="quota", limit=0.05).run(40, spins=CLEAN, limit=2.0)
    assert isinstance(judge(scene), Present if found else Unknown)


@pytest.mark.parametrize("cause", ["hidden", "hypervisor"])
def test_where_no_platform_bills_by_request_the_shape_alone_convicts_nobody(cause: Cause) -> None:
    """A crowded host gives a guest its CPU in spells, too."""
    scene = Scene(trust=NONE_COUNTS, sandbox="gvisor") if cause == "hidden" else Scene()
    for _ in range(4):
        scene.run(40, spins=GONE, cause=cause).run(40, spins=CLEAN, cause=cause)
    assert isinstance(judge(scene), Unknown)


@pytest.mark.parametrize("in_flight", [0, None], ids=["told", "inferred"])
def test_contention_between_requests_is_not_the_billing_mode(in_flight: int | None) -> None:
    scene = Scene(environment="cloud_run_service")
    scene.run(120, spins=Burst((0.014,) * 3), cause="contention", in_flight=in_flight)
    assert isinstance(judge(scene), Absent)


@pytest.mark.parametrize(("gap", "verdict"), [(0.013, Absent), (0.03, Unknown)])
def test_gaps_that_stop_no_burst_are_not_the_billing_mode(gap: float, verdict: type) -> None:
    """An emulated machine held every other burst for 10 to 15 ms, and a limit to 5 % would hold most of them for longer: it stayed unknown."""
    scene = Scene(trust=NONE_COUNTS).run(60, spins=Burst((gap,), every=5.0), cause="hypervisor")
    assert isinstance(judge(scene), verdict)


@pytest.mark.parametrize("freezes", [1, 3])
def test_freezes_are_not_the_billing_mode(freezes: int) -> None:
    scene = Scene(environment="cloud_run_service").run(60)
    for _ in range(freezes):
        scene.freeze(30.0).run(20)
    assert isinstance(judge(scene), Absent)


def stopped_between_requests(*, freeze_in_flight: int = 0) -> Scene:
    """Requests that get all of the CPU; between two of them the whole instance stands still once, for seconds."""
    scene = cloud_run()
    for _ in range(4):
        scene.run(20, spins=CLEAN, in_flight=2)
        scene.run(5, spins=None, in_flight=freeze_in_flight).freeze(3.0, in_flight=freeze_in_flight)
        scene.run(5, spins=None, in_flight=freeze_in_flight)
    return scene


def test_an_instance_that_stands_still_between_requests_has_not_come_through_there() -> None:
    """Cloud Run disables or limits the CPU there: no burst was tried in between, and four freezes were four that came through."""
    judgement = judge(stopped_between_requests())
    assert isinstance(judgement, Unknown), judgement


@pytest.mark.parametrize(("in_flight", "maybe"), [(0, True), (2, False)], ids=["between two", "during a request"])
def test_a_freeze_where_no_request_is_in_flight_does_not_rule_the_billing_mode_out(in_flight: int, maybe: bool) -> None:
    judgement = BY_ID["instance_frozen"].judge(stopped_between_requests(freeze_in_flight=in_flight).history)
    assert isinstance(judgement, Present), judgement
    assert any("--no-cpu-throttling" in line for line in judgement.advice.changes) is maybe
    assert ("another billing mode" in judgement.advice.will_not_help) is not maybe
    assert any("docker pause" in line for line in judgement.advice.changes) is not maybe


def test_a_window_around_a_transition_belongs_to_neither_kind() -> None:
    """The only gaps fall within the margin after a request ended."""
    scene = cloud_run().run(20, spins=None, cause="hidden limit", in_flight=1)
    for _ in range(3):
        start = scene.clock()
        scene.slot([spin(start + 0.1, burn=0.005, gaps=[0.095], cause="hidden limit")], in_flight=0)
        scene.slot([beat(scene.clock(), cause="hidden limit")], in_flight=1)
    assert isinstance(judge(scene), Unknown)


def test_a_quota_that_someone_moves_is_found_without_a_signal_and_said_to_be_inferred() -> None:
    scene = Scene()
    for _ in range(3):
        scene.run(40, spins=GONE, cause="quota", limit=0.05).run(40, spins=CLEAN, limit=2.0)
    judgement = judge(scene)
    assert isinstance(judgement, Present)
    assert judgement.confidence.when == "without a signal, elsewhere"


def test_a_mild_limit_that_was_set_and_lifted_once_is_nobody_who_moves_it() -> None:
    """Under a limit of 80 % one burst of five is clean by luck, so the CPU looks gone and there in turns."""
    scene = Scene().run(20)
    for _ in range(3):
        scene.run(40, spins=GONE, cause="quota", limit=0.8).run(40, spins=CLEAN, limit=0.8)
    scene.run(40, spins=CLEAN)
    assert isinstance(judge(scene), Unknown)


def in_seconds(scene: Scene, pattern: list[tuple[float, float]], rounds: int) -> Scene:
    """Slots whose seconds hold a request for the first part, and whose rest, or less, is taken away.

    ``pattern``: (seconds in flight, seconds held) for each second of a slot.
    """
    for _ in range(rounds):
        start = scene.clock()
        changes, windows = [], []
        for second, (flight, held) in enumerate(pattern):
            changes += [(start + second, 1), (start + second + flight, 0)]
            late = [0.09 - 0.02 * n for n in range(round(5 * held))]
            windows.append(beat(start + second, late=late, cause="hidden limit"))
        now = scene.clock.advance(float(len(pattern)))
        scene.history.add(suspension(now, windows, seconds=float(len(pattern))))
        scene.history.add(requests(now, 0, *changes, seconds=float(len(pattern))))
    return scene


@pytest.mark.parametrize(("held", "found"), [(0.2, True), (0.8, False)], ids=["after it only", "during it too"])
def test_what_a_window_lost_after_the_request_is_not_held_against_the_request(held: float, found: bool) -> None:
    """A request of 1.7 s does not end with a window: 0.3 s of the second one belong to the time after it."""
    between, during, mixed = (0.0, 1.0), (1.0, 0.0 if found else 0.8), (0.7, held)
    scene = in_seconds(cloud_run(), [during, mixed, between, between, between, between], 8)
    judgement = judge(scene)
    assert isinstance(judgement, Present if found else Absent), judgement


@pytest.mark.parametrize(
    ("flight", "held", "verdict"),
    [(0.3, 0.6, Present), (0.3, 0.0, Unknown), (0.95, 0.6, Unknown)],
    ids=["gone in between", "never gone, and no spin", "hardly a pause"],
)
def test_requests_too_fast_for_a_window_are_judged_by_the_shape(flight: float, held: float, verdict: type) -> None:
    scene = in_seconds(cloud_run(), [(flight, held)] * 5, 12)
    assert isinstance(judge(scene), verdict)


@pytest.mark.parametrize("in_flight", [0, 2])
def test_sampled_requests_convict_neither_side(in_flight: int) -> None:
    """A scraped gauge that meets every request, or none of them, says nothing of the time between two samples."""
    scene = cloud_run()
    for _ in range(12):
        scene.run(5, spins=GONE, cause="hidden limit", in_flight=in_flight)
        scene.history.add(replace(requests(scene.clock(), in_flight), sources=("gauge",)))
    judgement = judge(scene)
    assert not isinstance(judgement, Absent)
    if isinstance(judgement, Present):
        assert judgement.severity == "warning"
        assert any("sampled" in e.text for e in judgement.evidence)


@pytest.mark.parametrize("told", [True, False], ids=["told", "inferred"])
@pytest.mark.parametrize("pieces", [None, 0.0, 1.0, 3.0])
def test_work_that_goes_on_after_its_response_is_named_where_hooks_see_it(told: bool, pieces: float | None) -> None:
    scene = billed_by_request(cloud_run(), told=told)
    taken = scene.clock()
    scene.history.add(
        HooksReading(taken=taken, seconds=5.0, after_response=pieces, after_response_seconds=pieces and 40.0)
    )
    judgement = judge(scene)
    assert isinstance(judgement, Present)
    said = [e for e in judgement.evidence if "after the response was sent" in e.text]
    assert [e.value for e in said] == ([pieces] if pieces else [])
    assert any("Cloud Tasks" in change for change in judgement.advice.changes) is bool(pieces)


def test_work_after_the_response_convicts_nobody_where_the_cpu_stays() -> None:
    scene = cloud_run().run(120, in_flight=0)
    scene.history.add(HooksReading(taken=scene.clock(), seconds=5.0, after_response=3.0))
    judgement = judge(scene)
    assert isinstance(judgement, Absent)
