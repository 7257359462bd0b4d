"""An event loop that its own work holds up: seen, cleared, not known, and what only looks like it."""

from __future__ import annotations

import pytest

from agent.history import History
from agent.rules import BY_ID
from agent.rules.causal_graph import Case
from agent.rules.rule import Absent, Judgement, Present, Unknown
from probes.app.processes import ProcessesReading
from probes.app.procfs import Runtime
from probes.sockets.listening import ListeningReading, Whose
from tests.unit.agent.rules.in_app_scenes import minute
from tests.unit.builders import Scene


def loop(
    late: float = 0.0, mean: float = 0.001, slowest: float = 0.002, *, looks: float = 5.0, cpu: float | None = 0.1,
    delay: float | None = 0.0, collecting: float = 0.0,
) -> dict[str, float]:  # fmt: skip
    """Of each 5 s."""
    told = {
        "loop_looks": looks, "late_loop_looks": late, "loop_late_seconds": mean * looks, "loop_slowest_seconds": slowest,
        "loop_collecting_seconds": collecting,
    }  # fmt: skip
    told |= {} if cpu is None else {"loop_cpu_seconds": cpu}
    return told | ({} if delay is None else {"loop_run_delay_seconds": delay})


BLOCKED = loop(1.0, 0.03, 0.3, cpu=1.5)


def judge(history: History) -> Judgement:
    return BY_ID["event_loop_blocked"].judge(history)


def test_it_is_asked_where_no_hook_is_listened_for() -> None:
    assert BY_ID["event_loop_blocked"].can_run({ProcessesReading, ListeningReading})


def test_a_callback_that_computes_is_seen_and_not_named() -> None:
    found = judge(minute(loop=BLOCKED))
    assert isinstance(found, Present)
    assert "asyncio loop of process 'orders' was 30 ms late on average and 300 ms at most" in found.evidence[0].text
    assert any("ran 30% of the time" in e.text and "sleeps" not in e.text for e in found.evidence)
    assert any("cannot be seen from here" in e.text for e in found.evidence)
    assert any("to_thread" in change for change in found.advice.changes)


def test_one_that_waits_is_told_from_one_that_computes() -> None:
    found = judge(minute(loop=loop(1.0, 0.03, 0.3, cpu=0.01)))
    assert isinstance(found, Present)
    assert any("sleeps" in e.text for e in found.evidence)


def test_where_the_thread_is_not_seen_nothing_is_said_of_it() -> None:
    found = judge(minute(loop=loop(1.0, 0.03, 0.3, cpu=None, delay=None)))
    assert isinstance(found, Present)
    assert not any("thread" in e.text for e in found.evidence)


def test_a_collector_of_garbage_is_named() -> None:
    found = judge(minute(loop=loop(1.0, 0.03, 0.3, cpu=1.5, collecting=0.8)))
    assert isinstance(found, Present)
    assert any("garbage" in e.text for e in found.evidence)


@pytest.mark.parametrize(
    "told",
    [loop(), loop(cpu=4.9), loop(0.0, 0.009, 0.04), loop(0.1, 0.012, 2.0)],
    ids=["idle", "busy with short callbacks, or in other threads", "a little late", "once, at its start"],
)
def test_a_loop_that_is_on_time_is_cleared_with_its_lateness(told: dict[str, float]) -> None:
    found = judge(minute(loop=told))
    assert isinstance(found, Absent)
    assert "ms late on average" in found.because


def test_look_alike_a_quota_makes_it_late() -> None:
    found = judge(minute(loop=loop(3.0, 0.05, 0.085, cpu=1.0, delay=4.0), gap=0.08))
    assert isinstance(found, Absent)
    assert "taken away" in found.because


def test_look_alike_a_quota_of_the_apps_container_alone_is_seen_by_its_run_delay() -> None:
    assert isinstance(judge(minute(loop=loop(3.0, 0.05, 0.085, cpu=1.0, delay=4.0))), Absent)


def test_under_a_quota_a_long_callback_is_seen_and_what_takes_the_cpu_goes_first() -> None:
    found = judge(minute(loop=loop(3.0, 0.6, 1.5, cpu=1.0, delay=4.0), gap=0.08))
    assert isinstance(found, Present)
    assert Case.CPU_TAKEN in found.cases


def test_look_alike_other_threads_hold_the_interpreter() -> None:
    late = loop(2.0, 0.03, 0.1, cpu=0.02)
    assert isinstance(judge(minute(loop=late, wake=0.025)), Unknown)
    assert isinstance(judge(minute(loop=late, wake=0.0001)), Present)


def test_a_library_in_c_that_keeps_the_interpreter_is_seen_where_nobody_takes_the_cpu() -> None:
    assert isinstance(judge(minute(loop=BLOCKED, wake=0.03)), Present)


def test_look_alike_on_a_crowded_machine_short_callbacks_are_late_as_everybody_is() -> None:
    """Measured: 150 callbacks of 2 ms in a row, beside other work, 41 ms late on average."""
    assert isinstance(judge(minute(loop=loop(1.5, 0.041, 0.295, cpu=1.5, delay=1.0), wake=0.03)), Unknown)


def test_look_alike_a_host_that_takes_the_cpu_makes_late_who_has_no_thread_of_the_hook_to_tell() -> None:
    """As Node's: 30 ms late on average, where the agent's own heartbeats are 5 ms late and 45 % of the CPU is gone."""
    found = judge(minute(loop=loop(1.5, 0.025, 0.9, cpu=0.9), wake=None, gap=0.045))
    assert isinstance(found, Unknown)
    assert "on this machine" in found.because
    assert isinstance(judge(minute(loop=loop(3.0, 0.09, 0.9, cpu=2.0), wake=None, gap=0.045)), Present)


def test_look_alike_a_limit_that_is_as_new_as_the_loop() -> None:
    """In a sandbox an app that began under a limit was blamed, because the CPU had been there for the half minute before."""
    late = loop(3.0, 0.06, 0.25, cpu=0.5, delay=None)
    assert not isinstance(judge(minute(loop=late, gap=0.09, since=8)), Present)
    assert isinstance(judge(minute(loop=late, since=8)), Present)


def test_where_run_delay_is_not_counted_a_loop_is_not_blamed_while_most_of_the_cpu_is_gone() -> None:
    """In a sandbox at 10 % of a core callbacks of 30 ms took 300 ms: 78 ms late on average, while the CPU was gone for two thirds of the time."""
    found = judge(minute(loop=loop(3.2, 0.3, 0.9, cpu=None, delay=None), gap=0.08))
    assert isinstance(found, Unknown)
    assert "cannot be counted" in found.because
    assert isinstance(judge(minute(loop=loop(3.2, 0.3, 0.9, cpu=None, delay=None), gap=0.02)), Present)


def test_a_loop_that_has_ended_is_no_finding_any_more() -> None:
    """43 s after its end an app was blamed whose CPU a limit had held: that, too, was over, and looked small over the whole minute."""
    assert isinstance(judge(minute(loop=BLOCKED, until=6)), Unknown)
    assert isinstance(judge(minute(loop=BLOCKED, until=8)), Present)


@pytest.mark.parametrize(("woken", "verdict"), [(0.015, Unknown), (0.001, Present)])
def test_a_loop_that_waits_for_the_interpreter_again_and_again_is_not_held(woken: float, verdict: type) -> None:
    """Two threads that compute made it 45 ms late, and who only waits 15 ms."""
    assert isinstance(judge(minute(loop=loop(1.0, 0.045, 0.168, cpu=0.02), wake=woken)), verdict)


def test_log_calls_that_wait_meanwhile_go_first() -> None:
    found = judge(minute(loop=BLOCKED, calls=(6.0, 1.0, 6.0, 1.0, 0.3)))
    assert isinstance(found, Present)
    assert Case.LOGS_MEANWHILE in found.cases


def workers(*each: dict[str, float]) -> dict[str, float]:
    """Of several processes of one name, as the hooks' listener adds them up."""
    slowest = max(one["loop_slowest_seconds"] for one in each)
    added = {name: sum(one[name] for one in each) for name in each[0]}
    return {**added, "loop_slowest_seconds": slowest, "loop_seconds": 5.0 * len(each)}


SLEEPS = loop(1.0, 0.3, 1.5, cpu=0.35, collecting=0.1)
IDLE = loop(cpu=0.05)


@pytest.mark.parametrize("number", [1, 2, 8, 64])
def test_however_many_workers_do_the_same_each_is_judged_as_one(number: int) -> None:
    found, alone = judge(minute(loop=workers(*[SLEEPS] * number))), judge(minute(loop=SLEEPS))
    assert isinstance(found, Present)
    assert isinstance(alone, Present)
    texts = [e.text for e in found.evidence]
    assert any("ran 7% of the time: what holds the loop mostly sleeps" in text for text in texts)
    assert not any("garbage" in text for text in texts)
    assert texts[2:] == [e.text for e in alone.evidence][2:]


@pytest.mark.parametrize("number", [1, 8])
def test_look_alike_other_threads_hold_the_interpreter_of_every_worker(number: int) -> None:
    assert isinstance(judge(minute(loop=workers(*[SLEEPS] * number), wake=0.15)), Unknown)


@pytest.mark.parametrize("number", [1, 8])
def test_what_each_of_many_sleeping_workers_waits_for_a_cpu_is_not_why_they_are_late(number: int) -> None:
    """Of half the time that each is late it wants the CPU for a tenth, and gets a fifth of that."""
    told = workers(*[loop(2.5, 0.08, 0.1, cpu=0.05, delay=0.2)] * number)
    assert isinstance(judge(minute(loop=told)), Present)


@pytest.mark.parametrize(
    ("blocked", "asleep"),
    [(loop(1.5, 0.3, 1.5, cpu=2.5), False), (loop(4.0, 1.0, 9.0, looks=4.0, cpu=0.05), True)],
    ids=["computes", "sleeps all the time"],
)
def test_one_worker_that_is_held_up_is_seen_among_seven_that_are_not(blocked: dict[str, float], asleep: bool) -> None:
    found = judge(minute(loop=workers(blocked, *[IDLE] * 7), wake=0.005))
    assert isinstance(found, Present)
    assert any("sleeps" in e.text for e in found.evidence) is asleep


def test_one_worker_whose_heap_is_full_is_named_among_seven() -> None:
    found = judge(minute(loop=workers(loop(2.0, 0.3, 1.5, cpu=2.5, collecting=2.0), *[IDLE] * 7)))
    assert isinstance(found, Present)
    assert any("garbage" in e.text for e in found.evidence)


@pytest.mark.parametrize(("seconds", "meanwhile"), [(0.8, False), (6.0, True)])
def test_slow_log_calls_of_all_workers_are_held_against_the_lateness_of_all(seconds: float, meanwhile: bool) -> None:
    """A fifth of the checks is late, of 40 s."""
    found = judge(minute(loop=workers(*[BLOCKED] * 8), calls=(6.0, seconds, 6.0, seconds, 0.3)))
    assert isinstance(found, Present)
    assert (Case.LOGS_MEANWHILE in found.cases) is meanwhile


def test_what_nobody_tells_is_not_known() -> None:
    assert isinstance(judge(minute()), Unknown)
    assert isinstance(judge(minute(wake=None)), Unknown)
    assert isinstance(judge(minute(loop=loop(looks=0.5))), Unknown)
    assert isinstance(judge(minute(loop=loop(1.0, 0.03, 0.3, cpu=None, delay=None), watched=False)), Unknown)


def outside(
    ran: float,
    waited: float = 0.0,
    *,
    runtime: Runtime = "node",
    whose: Whose = "app",
    gap: float = 0.0,
    slots: int = 12,
) -> History:
    """A minute of a process without a hook."""
    scene = Scene()
    for _ in range(slots):
        now = scene.run(5.0, gap=gap, cause="hypervisor" if gap else "nobody").clock()
        scene.history.add(ProcessesReading(
            taken=now, seconds=5.0, runtimes={"shop": runtime}, main_thread_ratio={"shop": ran}, main_thread_delay_ratio={"shop": waited},
        ))  # fmt: skip
        scene.history.add(ListeningReading(taken=now, seconds=5.0, queued={"8080": 0.0}, whose={"8080": whose}))
    return scene.history


def test_without_a_hook_a_main_thread_of_node_that_never_sleeps_is_a_loop_that_is_held_up() -> None:
    found = judge(outside(0.97))
    assert isinstance(found, Present)
    assert found.severity == "warning"
    assert "'shop'" in found.evidence[0].text
    assert "97%" in found.evidence[0].text
    assert any("worker_threads" in change for change in found.advice.changes)


@pytest.mark.parametrize(
    "history",
    [
        outside(0.5), outside(0.97, runtime="python"), outside(0.97, whose="other"), outside(0.97, whose="unknown"),
        outside(0.91, 0.09), outside(0.97, gap=0.05), outside(0.97, slots=2),
    ],
    ids=[
        "it sleeps: it may be held up all the same", "its loop may be on any thread", "it serves nobody", "whom it serves is not known",
        "others want its CPU", "the hypervisor takes it", "just begun",
    ],
)  # fmt: skip
def test_what_else_the_kernel_shows_convicts_and_clears_no_loop(history: History) -> None:
    assert isinstance(judge(history), Unknown)


@pytest.mark.parametrize(
    "history", [outside(0.7, 0.25), outside(0.97, gap=0.05)], ids=["others want its CPU", "the hypervisor takes it"]
)
def test_a_main_thread_that_is_busy_while_its_cpu_is_taken_away_is_named_with_both_numbers(history: History) -> None:
    judged = judge(history)
    assert isinstance(judged, Unknown)
    assert "'shop'" in judged.because
    assert "taken away" in judged.because
    assert "taken away" not in judge(outside(0.5, 0.25)).because  # type: ignore[union-attr]
