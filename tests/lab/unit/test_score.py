"""The proving ground's own judgement: a score that cannot be wrong about a run would prove nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.rules.cpu import RULES as CPU_RULES
from agent.rules.logs import RULES as LOG_RULES
from tests.lab import rivals, table
from tests.lab.episode import Record
from tests.lab.scenario import DUE, LOG_CORES, NAMES, Scenario, Selection, load
from tests.lab.score import CANNOT_TELL, NOBODY, score, usable

RULE = "cpu_quota_throttled"


def scenario(rule: str = RULE, expected: str = "present", **changes: Any) -> Scenario:
    known: dict[str, Any] = {
        "name": "scene",
        "title": "a scene",
        "environment": "plain",
        "culprit": "quota",
        "timeline": (
            {"at": 10, "mark": "onset", "quota": 0.2, "app": "busy"},
            {"at": 80, "mark": "lift"},
            {"at": 140, "mark": "end"},
        ),
        "expect": {rule: expected},
        "because": "a test",
    }
    return Scenario.model_validate({**known, **changes})


def record(*said: tuple[float, str], lift: str = "absent", rule: str = RULE, **changes: Any) -> Record:
    """A run in which the rule was said `present`, `absent` ... at these seconds, and stood so at lift."""
    report: dict[str, Any] = {"status": "pass", "findings": [], "ruled_out": [], "unknown": []}
    report["breakdown"] = {"cpu": {"running": 0.25, "suspended_quota": 0.75}}
    places = {"present": "findings", "absent": "ruled_out", "unknown": "unknown"}
    if lift in places:
        report[places[lift]].append({"rule": rule, "because": "so it was"})
    known: dict[str, Any] = {
        "marks": {"onset": 10.0, "lift": 80.0, "end": 140.0},
        "said": [(at, rule, now, ["evidence"]) for at, now in said],
        "reports": {"lift": report},
        "truth": {"usage": 0.2},
    }
    return Record("scene", 1, **{**known, **changes})


FOUND = ((12.0, "present"), (115.0, "absent"))


@pytest.mark.parametrize(
    ("expected", "said", "lift", "outcome"),
    [
        ("present", FOUND, "present", "hit"),
        ("present", (), "absent", "miss"),
        ("present", (), "present", "hit"),  # its line was dropped, and the report has it
        ("present", (), "unknown", "unknown"),
        ("present", (), "", "miss"),
        ("present", ((5.0, "present"),), "present", "false alarm"),  # before there was anything
        ("present", ((12.0, "present"), (40.0, "absent")), "absent", "miss"),  # dropped while it was true
        ("present", ((12.0, "present"),), "present", "false alarm"),  # never taken back
        ("present", ((90.0, "present"),), "absent", "miss"),  # when it was over
        ("lasting", ((12.0, "present"),), "present", "hit"),
        ("absent", (), "absent", "right"),
        ("absent", (), "unknown", "unknown"),
        ("absent", ((30.0, "present"), (60.0, "absent")), "absent", "false alarm"),
        ("absent", (), "", "miss"),
        ("unknown", (), "unknown", "right"),
        ("unknown", (), "absent", "miss"),  # cleared by a counter that cannot count
        ("unknown", ((30.0, "present"),), "present", "false alarm"),
        ("silent", (), "absent", "right"),
        ("silent", (), "unknown", "right"),
        ("silent", ((100.0, "present"),), "absent", "false alarm"),  # after the stall is wrong too
        ("either", ((30.0, "present"),), "present", "either"),
        ("either", (), "unknown", "either"),
    ],
)
def test_every_expectation_has_its_outcomes(
    expected: str, said: tuple[tuple[float, str], ...], lift: str, outcome: str
) -> None:
    judged = score(scenario(expected=expected), record(*said, lift=lift))
    assert judged.outcomes[RULE] == outcome
    assert judged.right == (outcome in {"hit", "right", "either"})
    assert judged.wrong == (outcome in {"miss", "false alarm"})
    assert set(judged.outcomes) == set(NAMES)


@pytest.mark.parametrize(("severity", "outcome"), [("info", "hit"), ("warning", "false alarm")])
def test_a_limit_that_stays_may_remain_as_a_remark_only(severity: str, outcome: str) -> None:
    run = record((12.0, "present"), lift="present")
    run.reports["end"] = {"findings": [{"rule": RULE, "severity": severity}]}
    assert score(scenario(expected="eases"), run).outcomes[RULE] == outcome


@pytest.mark.parametrize(
    ("place", "outcome"), [("ruled_out", "hit"), ("unknown", "hit"), ("findings", "false alarm"), ("", "false alarm")]
)
def test_what_the_report_at_the_end_says_is_so_where_its_line_was_not_heard(place: str, outcome: str) -> None:
    run = record((12.0, "present"), lift="present")
    run.reports["end"] = {place: [{"rule": RULE, "because": "so it was", "severity": "warning"}]}
    assert score(scenario(), run).outcomes[RULE] == outcome


@pytest.mark.parametrize(("severity", "outcome"), [("info", "right"), ("warning", "false alarm"), ("", "false alarm")])
def test_a_limit_that_nobody_is_slow_for_may_be_a_remark(severity: str, outcome: str) -> None:
    run = record((12.0, "present"), lift="present")
    run.reports["lift"] = {"findings": [{"rule": RULE, "severity": severity}] if severity else []}
    run.reports["lift"]["status"] = "pass"
    found = score(scenario(expected="remark"), run)
    assert (found.outcomes[RULE], found.culprit == NOBODY) == (outcome, severity != "warning")
    assert score(scenario(expected="remark"), record(lift="absent")).outcomes[RULE] == "right"


@pytest.mark.parametrize(
    ("environment", "crowded", "outcome"),
    [("guest", 0.06, "either"), ("guest", 0.04, "false alarm"), ("plain", 0.2, "false alarm")],
)
def test_what_the_other_runs_take_of_a_guest_its_host_takes(environment: str, crowded: float, outcome: str) -> None:
    run = record((12.0, "present"), (40.0, "absent"), rule="cpu_stolen", crowded=crowded)
    judged = score(scenario("cpu_stolen", "absent", environment=environment), run)
    assert judged.outcomes["cpu_stolen"] == outcome


def test_an_end_that_was_noted_a_moment_after_the_lift_is_the_lift() -> None:
    marks = {"onset": 10.0, "lift": 60.0, "end": 60.01}
    found = score(scenario(), record((12.0, "present"), lift="present", marks=marks))
    assert found.outcomes[RULE] == "hit"


def test_times_are_counted_from_onset_and_from_lift() -> None:
    judged = score(scenario(), record(*FOUND, lift="present"))
    assert judged.found_seconds == {RULE: 2.0}
    assert judged.cleared_seconds == {RULE: 35.0}


def test_a_finding_that_nobody_expected_is_a_false_alarm() -> None:
    judged = score(scenario(), record((20.0, "present"), rule="cpu_contended"))
    assert judged.outcomes["cpu_contended"] == "false alarm"
    assert "evidence" in judged.why["cpu_contended"]


def test_what_the_host_really_took_is_no_false_alarm() -> None:
    run = record((20.0, "present"), rule="cpu_stolen", stolen=0.03)
    assert score(scenario(expected="absent"), run).outcomes["cpu_stolen"] == "either"
    run.stolen = 0.0
    assert score(scenario(expected="absent"), run).outcomes["cpu_stolen"] == "false alarm"


@pytest.mark.parametrize(("environment", "rule"), [("plain", "cpu_contended"), ("guest", "cpu_stolen")])
def test_what_other_runs_really_took_is_no_false_alarm_either(environment: str, rule: str) -> None:
    scene = scenario(rule, "absent", environment=environment)
    run = record((20.0, "present"), rule=rule, crowded=0.3)
    assert score(scene, run).outcomes[rule] == "either"
    run.crowded = 0.02
    assert score(scene, run).outcomes[rule] == "false alarm"


def test_what_other_runs_still_take_may_be_said_on() -> None:
    run = record((12.0, "present"), lift="present", rule="cpu_stolen", crowded=0.3)
    assert score(scenario("cpu_stolen", environment="guest"), run).outcomes["cpu_stolen"] == "hit"
    run.crowded = 0.0
    assert score(scenario("cpu_stolen", environment="guest"), run).outcomes["cpu_stolen"] == "false alarm"


QUEUE = "log_queue_in_memory"


@pytest.mark.parametrize(("oldest", "outcome"), [(8.0, "either"), (0.4, "false alarm")])
def test_entries_that_really_waited_are_no_false_alarm(oldest: float, outcome: str) -> None:
    run = record((20.0, "present"), rule=QUEUE, truth={"usage": 0.2, "oldest_lift": oldest, "oldest_end": 0.0})
    assert score(scenario(QUEUE, "absent"), run).outcomes[QUEUE] == outcome


@pytest.mark.parametrize(("oldest", "outcome"), [(60.0, "hit"), (0.4, "false alarm")])
def test_a_queue_that_has_not_drained_by_the_end_may_still_be_told(oldest: float, outcome: str) -> None:
    truth = {"usage": 0.2, "oldest_lift": 48.0, "oldest_end": oldest}
    run = record((22.0, "present"), lift="present", rule=QUEUE, truth=truth)
    assert score(scenario(QUEUE), run).outcomes[QUEUE] == outcome
    early = record((8.0, "present"), lift="present", rule=QUEUE, truth={**truth, "oldest_end": 0.4})
    assert score(scenario(QUEUE), early).outcomes[QUEUE] == "false alarm"
    early.truth["oldest_onset"] = 6.0
    assert score(scenario(QUEUE), early).outcomes[QUEUE] == "either"


@pytest.mark.parametrize(
    ("stolen", "skipped", "good"), [(0.0, "", True), (0.2, "", True), (0.4, "", False), (0.0, "no QEMU", False)]
)
def test_a_run_on_a_machine_without_its_cpus_is_left_out(stolen: float, skipped: str, good: bool) -> None:
    assert usable(scenario(), record(stolen=stolen, skipped=skipped)) is good


def test_beside_a_host_that_takes_the_cpus_what_it_does_is_true_too_and_the_run_has_a_row_of_its_own() -> None:
    run = record((20.0, "present"), rule="cpu_contended", stolen=0.2)
    assert score(scenario(expected="absent"), run).outcomes["cpu_contended"] == "either"
    quiet = record((20.0, "present"), rule="cpu_contended", stolen=0.02)
    assert score(scenario(expected="absent"), quiet).outcomes["cpu_contended"] == "false alarm"
    rows = table.by_environment(table.cells([scenario()], [run, quiet])).splitlines()[2:]
    assert [row.split("|")[1:3] for row in rows] == [
        [" plain ", " 1 "], [" plain, the host took more than 5% of the CPUs ", " 1 "],
    ]  # fmt: skip


@pytest.mark.parametrize(("seconds", "outcome"), [(0.3, "false alarm"), (2.1, "either")])
def test_a_machine_that_stood_still_was_frozen(seconds: float, outcome: str) -> None:
    run = record((20.0, "present"), rule="instance_frozen", stood_still=seconds)
    assert score(scenario(expected="absent"), run).outcomes["instance_frozen"] == outcome


@pytest.mark.parametrize(("throttled", "good"), [(0.2, True), (0.01, False)])
def test_a_quota_that_was_never_met_was_no_stall(throttled: float, good: bool) -> None:
    run = record(truth={"usage": 0.6, "throttled": throttled})
    assert usable(scenario(), run) is good
    assert usable(scenario(culprit="nobody"), run), "nobody said that it would be met"


def test_the_error_of_the_estimate_is_what_was_reported_less_what_was_measured() -> None:
    assert score(scenario(), record(*FOUND, lift="present")).estimate_error == pytest.approx(-0.05)
    short = record(*FOUND, lift="present", marks={"onset": 10.0, "lift": 50.0, "end": 140.0})
    assert score(scenario(), short).estimate_error is None, "the breakdown looks back over more than the stall"
    asleep = scenario(timeline=({"at": 10, "mark": "onset", "quota": 0.2, "app": "idle"}, {"at": 80, "mark": "end"}))
    assert score(asleep, record(lift="present")).estimate_error is None, "nothing wanted a CPU"


def test_the_one_who_is_blamed_is_the_first_finding_that_no_other_explains() -> None:
    run = record()
    finding = {"rule": "cpu_quota_throttled", "explained_by": "cpu_throttled_between_requests"}
    run.reports["lift"]["findings"] = [finding, {"rule": "cpu_stolen", "explained_by": None}]
    assert score(scenario(), run).culprit == "hypervisor"
    run.reports["lift"]["findings"] = []
    assert score(scenario(), run).culprit == NOBODY
    run.reports["lift"]["status"] = "warn"
    assert score(scenario(), run).culprit == CANNOT_TELL


def test_the_tables_count_every_run_once() -> None:
    good = record(*FOUND, lift="present")
    bad = record(lift="absent")
    spoilt = record(stolen=0.5)
    cells = table.cells([scenario()], [good, bad, spoilt])
    text = table.whole(cells)
    assert "2 runs of 1 cells: 1 right, 1 wrong, 0 with an unknown" in text
    assert "Left out: 1" in text
    row = next(line for line in table.by_scenario(cells).splitlines() if " scene " in line)
    assert f"| quota | 2 | 1 | `{RULE}` 1 | `{RULE}` 1 |" in row
    assert "| **quota** | 1 | 1 |" in table.confusion(cells)
    assert "run 1: `cpu_quota_throttled` miss: was absent at the end of the stall" in text


@pytest.mark.parametrize(
    ("count", "of", "most"), [(0, 0, 1.0), (0, 100, 0.037), (1, 100, 0.054), (10, 100, 0.175), (5, 5, 1.0)]
)
def test_the_bound_is_wilsons(count: int, of: int, most: float) -> None:
    """Brown, Cai and DasGupta (2001), Interval estimation for a binomial proportion."""
    assert table.most_likely_at_most(count, of) == pytest.approx(most, abs=0.001)


def test_a_wrong_culprit_is_a_cause_that_is_not_true_there() -> None:
    def blaming(rule: str) -> Record:
        run = record(*FOUND, lift="present")
        run.reports["lift"]["findings"] = [{"rule": rule, "explained_by": None}]
        return run

    healthy = scenario(expected="silent", culprit=NOBODY)
    for scene, run, wrong in (
        (scenario(), blaming(RULE), 0),
        (scenario(), blaming("cpu_stolen"), 1),
        (healthy, record(), 0),
    ):
        text = table.by_environment(table.cells([scene], [run]))
        assert f"| {wrong} | " in text.splitlines()[-1]
    assert "1 of 1 |" in text.splitlines()[-1], "the healthy one was left alone"


@pytest.mark.parametrize(("told", "grounded"), [(0.79, "1 of 1"), (0.6, "0 of 1")])
def test_a_share_is_grounded_when_what_was_measured_from_outside_says_nearly_the_same(
    told: float, grounded: str
) -> None:
    """A busy thread that got 0.2 of a CPU was held 80 % of the time."""
    run = record(*FOUND, lift="present")
    run.reports["lift"]["breakdown"] = {"cpu": {"running": 1 - told, "suspended_quota": told}}
    assert table.by_environment(table.cells([scenario()], [run])).rstrip().endswith(f"| {grounded} |")


def test_a_run_without_an_answer_counts_also_when_the_next_try_had_one() -> None:
    lost, again = record(failed="no report at lift"), record(*FOUND, lift="present")
    lost.reports = {}
    (cell,) = table.cells([scenario()], [lost, again])
    assert (cell.outcomes("hit")[RULE], cell.outcomes("miss")[RULE]) == (1, 1)
    assert "no report at lift" in table.mistakes([cell])


def test_a_page_keeps_its_text_and_gets_new_tables() -> None:
    cells = table.cells([scenario()], [record(*FOUND, lift="present", began="2026-11-20T10:00:00Z", commit="abc1234")])
    once = table.page(f"# Title\n\nIn plain words.\n\n{table.MARK}\nof before", cells)
    assert once.startswith("# Title\n\nIn plain words.\n")
    assert "of before" not in once
    assert "agent of commit `abc1234` (1 runs)" in once
    assert table.page(once, cells) == once
    with pytest.raises(ValueError, match="no line"):
        table.page("no mark", cells)


def test_a_skipped_cell_says_why() -> None:
    cells = table.cells([scenario()], [record(skipped="no QEMU here")])
    assert "no QEMU here" in table.by_scenario(cells)


# The others.


@pytest.mark.parametrize(("ratio", "minutes"), [(1.0, 16.25), (0.5, 17.5), (0.26, 19.8), (0.25, None), (0.0, None)])
def test_the_mixins_rule_takes_as_long_as_promtool_says(ratio: float, minutes: float | None) -> None:
    told = rivals.minutes_to_fire(ratio)
    assert told == (None if minutes is None else pytest.approx(minutes, abs=0.05))


METER = {
    "second": 5.0,
    "at": 0.0,
    "timed_wall": 0.0,
    "timed_cpu": 0.0,
    "steal": 5.0,
    "psi": 1.0,
    "periods": 10.0,
    "throttled": 0.0,
}


def opinions(**later: float) -> dict[str, rivals.Opinion]:
    before = {**METER, "second": 1.0, "throttled": -1e6, "steal": -1e6, "psi": -1e6}
    last = {**METER, "second": 15.0, "at": 10.0, **later}
    after = {**last, "second": 40.0, "throttled": 1e6, "steal": 1e6, "psi": 1e6}
    return rivals.opinions({"busy": [before, METER, last, after]}, 4.0, 20.0)


def test_each_of_the_others_fires_on_its_own_number_only() -> None:
    quiet = opinions(timed_wall=10.0, timed_cpu=9.9, periods=110.0)
    assert not any(each.fires for each in quiet.values())
    assert opinions(timed_wall=10.0, timed_cpu=5.0)["wall minus CPU"].fires
    assert opinions(periods=110.0, throttled=90.0)["CPUThrottlingHigh"].fires
    assert opinions(psi=9.0)["PSI"].fires
    assert opinions(steal=8.0)["steal"].fires


def test_who_has_nothing_to_look_at_is_blind_and_not_silent() -> None:
    first = {"second": 5.0, "at": 0.0, "timed_wall": 0.0, "timed_cpu": 0.0}
    told = rivals.opinions({"idle": [first, {**first, "at": 9.0}]}, 4.0, 20.0)
    assert {name: opinion.fires for name, opinion in told.items()} == dict.fromkeys(rivals.RIVALS)


def test_the_own_groups_pressure_goes_before_the_machines() -> None:
    first = {**METER, "group_psi": 0.0}
    last = {**first, "at": 10.0, "psi": 9.0, "group_psi": 0.1}
    assert rivals.opinions({"busy": [first, last]}, 4.0, 20.0)["PSI"].fires is False


def test_an_app_that_said_one_line_gives_no_opinion() -> None:
    assert rivals.opinions({"busy": [METER]}, 4.0, 20.0) == {}


# Scenarios as data.


def test_every_scenario_of_this_repository_is_sound() -> None:
    cells = load()
    assert len({cell.id for cell in cells}) == len(cells)
    assert {cell.environment for cell in cells} == {"plain", "gvisor", "guest"}
    due = {rule for cell in cells for rule in NAMES if cell.expected(rule) in DUE}
    # What no cell can stage has a program of its own: tests/lab/hidden_quota.py.
    missing = {rule.id for rule in CPU_RULES} - due - {"platform_quota_uncounted", "burst_balance_spent"}
    assert not missing, f"no scenario of tests/lab/scenarios expects {missing} to be present: add one"
    smoke, quick = (Selection(which).of(cells) for which in ("smoke", "quick"))
    assert 0 < len(smoke) < len(quick) < len(cells)


def test_all_faults_of_all_files_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(
        'title = "x"\nenvironment = "plain"\n'
        'timeline = [{ at = 5, app = "lazy" }, { at = 2, inner_quota = 0.1 }]\n[expect]\nno_such_rule = "present"\n'
    )
    (tmp_path / "two.toml").write_text('title = "x"\nenvironment = "moon"\ntimeline = []\n')
    with pytest.raises(ValueError, match=r"one\.toml") as caught:
        load(tmp_path)
    told = str(caught.value)
    for part in ("no_such_rule", "at goes back", "marks are []", "'lazy'", "inner_quota needs", "two.toml", "moon"):
        assert part in told


def test_what_is_wrong_with_a_scenario_with_logs_is_reported(tmp_path: Path) -> None:
    def write(name: str, onset: str, app: str, where: str = "plain") -> None:
        logs = f'[logs]\napp = "{app}"\n' if app else ""
        timeline = f'timeline = [{{ at = 1, mark = "onset", {onset} }}, {{ at = 9, mark = "end" }}]'
        (tmp_path / f"{name}.toml").write_text(f'title = "x"\nenvironment = "{where}"\n{timeline}\n{logs}')

    write("app", 'app = "busy"', "python bunyan")
    write("service", "service = { delay = 1 }", "python file")
    write("word", "service = { speed = 1 }", "node cloud")
    write("where", "reader = 0", "node cloud", "gvisor")
    write("none", "reader = 0", "")
    with pytest.raises(ValueError, match=r"app\.toml") as caught:
        load(tmp_path)
    for part in (
        "app 'busy'; allowed: ", "'python bunyan'; allowed: node cloud, ", "'python file' writes to none", "speed",
        "logs: needs environment plain", "service, reader and signal need [logs]",
    ):  # fmt: skip
        assert part in str(caught.value)


def test_a_scenario_with_logs_is_one_cell_and_says_its_cores() -> None:
    found = {cell.id: cell for cell in load() if cell.logs}
    assert all(cell.access == "" and cell.run_id == cell.id for cell in found.values())
    assert found["log-busy app=python stdout --rate 10000"].cores_from(0) == 0.6
    assert found["log-files case=disk"].cores_from(0) == LOG_CORES
    due = {rule for cell in found.values() for rule in NAMES if cell.expected(rule) in DUE}
    # Whether entries arrive late is asked of the service itself: tests/lab/test_log_delivery.py.  Slow calls: tests/lab/loggers.
    assert {rule.id for rule in LOG_RULES} - {"log_delivery_late", "log_call_slow"} <= due


def test_each_makes_a_cell_per_value_and_a_set_takes_some(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(
        'title = "x"\nenvironment = "plain"\nquick = [0.5]\neach.quota = [0.1, 0.5]\n'
        'each.load = [{ app = "idle", until = 30 }, { app = "busy", until = 60 }]\n'
        'timeline = [{ at = 0, mark = "onset", quota = "$quota", app = "$app" }, { at = "$until", mark = "end" }]\n'
    )
    cells = load(tmp_path)
    assert [cell.id for cell in cells] == [f"grid quota={q} app={a}" for q in (0.1, 0.5) for a in ("idle", "busy")]
    assert [cell.seconds for cell in cells] == [30, 60, 30, 60]
    assert [cell.quick for cell in cells] == [False, False, True, True]
    assert Selection(only=("app=busy",)).of(cells) == (cells[1], cells[3])


def test_a_cell_takes_the_cores_that_it_can_still_use() -> None:
    cell = scenario(
        timeline=(
            {"at": 0, "app": "busy"},
            {"at": 10, "mark": "onset", "quota": 0.05},
            {"at": 50, "mark": "lift", "neighbours": 0},
            {"at": 60, "mark": "end"},
        )
    )
    assert cell.cores_from(0) == 1.0
    assert cell.cores_from(1) == pytest.approx(0.05)
    loud = scenario(timeline=({"at": 0, "mark": "onset", "neighbours": 3}, {"at": 60, "mark": "end"}))
    assert loud.cores_from(0) > 3
