"""What the processes did since the reading before."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.app.processes import (
    MOST_THREADS,
    ProcessesProbe,
    ProcessesReading,
)
from probes.app.procfs import ProcessSample, Stat, Thread
from probes.app.usage import Growth, growth
from probes.host.trust import Trust
from probes.reading import specs
from tests.unit.probes.app.processes.conftest import BETWEEN, Scene


def test_shares_are_of_the_time_since_the_previous_reading(scene: Scene) -> None:
    web = scene.process(60, "web").holds(71).thread(61, run=100.0, delay=5.0).thread(62, run=7.0)
    first = scene.read()
    assert (first.seconds, first.threads, first.resident_bytes) == (0.0, {"web": 3}, {"web": 1000 * 4096})
    for name in BETWEEN:
        assert getattr(first, name) is None
        assert "first sample" in first.unseen[name]
    web.thread(61, run=109.0, delay=5.5).thread(62, run=8.0)
    second = scene.read(10.0)
    assert second.unseen == {}
    assert second.seconds == 10.0
    assert second.cpu_cores == pytest.approx({"web": 1.0})
    assert second.busiest_thread_ratio == pytest.approx({"web": 0.9})
    assert second.busiest_thread_delay_ratio == pytest.approx({"web": 0.05})
    assert second.stuck_threads == {"web": 0}


def test_processes_of_one_name_are_added_up_and_the_busiest_thread_of_any_is_reported(tmp_path: Path) -> None:
    scene = Scene(tmp_path, process="web")
    one, two = scene.process(60, "web"), scene.process(61, "web")
    scene.read()
    one.thread(60, run=2.0, delay=8.0)
    two.thread(61, run=6.0, delay=1.0).thread(65, run=3.0)
    reading = scene.read(10.0)
    assert reading.cpu_cores == pytest.approx({"web": 1.1})
    assert reading.busiest_process_cores == pytest.approx({"web": 0.9})
    assert reading.busiest_thread_ratio == pytest.approx({"web": 0.6})
    assert reading.busiest_thread_delay_ratio == pytest.approx({"web": 0.1})
    assert (reading.processes, reading.threads) == ({"web": 2}, {"web": 3})


@pytest.mark.parametrize(
    ("before", "after", "ran", "stuck"),
    [("R", "R", 0.5, 1), ("R", "R", 2.5, 0), ("S", "R", 0.5, 0), ("R", "S", 0.5, 0), ("D", "D", 0.0, 0)],
)
def test_a_thread_is_stuck_when_it_is_ready_twice_and_hardly_ran(
    scene: Scene, before: str, after: str, ran: float, stuck: int
) -> None:
    web = scene.process(60, "web").holds(71).thread(61, run=50.0, state=before)
    scene.read()
    web.thread(61, run=50.0 + ran, delay=9.0, state=after)
    assert scene.read(10.0).stuck_threads == {"web": stuck}


def test_a_new_thread_ran_since_its_start_and_one_that_ended_stays_in_the_process(scene: Scene) -> None:
    web = scene.process(60, "web").holds(71).thread(61, run=500.0)
    scene.read()
    web.end_thread(61)
    web.thread(62, run=4.0, delay=1.0)
    reading = scene.read(10.0)
    assert reading.busiest_thread_ratio == pytest.approx({"web": 0.4})
    assert reading.cpu_cores == pytest.approx({"web": 0.4})


def test_a_thread_id_that_is_used_again_starts_at_zero(scene: Scene) -> None:
    web = scene.process(60, "web").holds(71).thread(61, run=500.0, delay=50.0)
    scene.read()
    web.thread(61, run=3.0, delay=1.0)
    reading = scene.read(10.0)
    assert reading.busiest_thread_ratio == pytest.approx({"web": 0.3})
    assert reading.busiest_thread_delay_ratio == pytest.approx({"web": 0.1})
    assert reading.cpu_cores == {"web": 0.0}


def test_a_process_id_that_is_used_again_is_another_process(scene: Scene) -> None:
    scene.process(60, "web").holds(71).thread(60, run=5.0)
    scene.read()
    scene.process(60, "shell", started=900).thread(60, run=9.0)
    scene.process(61, "web").holds(71)
    (scene.fake.root / "proc/60/fd/0").unlink()
    reading = scene.read(10.0)
    assert reading.processes == {"web": 1}
    assert reading.cpu_cores is None


def test_the_same_id_as_the_settings_name_it_starts_anew(tmp_path: Path) -> None:
    scene = Scene(tmp_path, pid=60)
    scene.process(60, "web").thread(60, run=5.0).runs("/bin/node")
    assert scene.read().runtimes == {"web": "node"}
    (tmp_path / "proc/60/exe").unlink()
    scene.process(60, "web", started=900).thread(60, run=9.0).runs("/bin/java")
    reading = scene.read(10.0)
    assert (reading.cpu_cores, reading.runtimes) == (None, {"web": "java"})
    scene.process(60, "web", started=900).thread(60, run=10.0)
    assert scene.read(10.0).cpu_cores == pytest.approx({"web": 0.1})


def test_without_schedstat_run_time_comes_from_ticks_and_the_delay_is_not_known(scene: Scene) -> None:
    web = scene.process(60, "web").thread(60, delay=None).holds(71)
    scene.read()
    web.thread(60, run=4.0, delay=None)
    reading = scene.read(10.0)
    assert reading.busiest_thread_ratio == pytest.approx({"web": 0.4})
    assert reading.busiest_thread_delay_ratio is None
    assert "schedstat" in reading.unseen["busiest_thread_delay_ratio"]


def test_a_schedstat_that_appears_is_not_compared_with_ticks(scene: Scene) -> None:
    web = scene.process(60, "web").thread(60, run=3.0, delay=None).holds(71)
    scene.read()
    web.thread(60, run=900.0, delay=3.0)
    assert scene.read(10.0).busiest_thread_ratio is None


def test_more_threads_than_the_bound_are_said_and_those_not_seen_before_are_not_new(scene: Scene) -> None:
    web = scene.process(60, "java").holds(71)
    for tid in range(1000, 1000 + MOST_THREADS):
        web.thread(tid, run=100.0)
    scene.read()
    shown = sorted(os.listdir(web.directory / "task"))
    reading = scene.read(10.0)
    for name in ("busiest_thread_ratio", "busiest_thread_delay_ratio", "stuck_threads"):
        assert f"only {MOST_THREADS} of the {len(shown)} threads of java" in reading.unseen[name]
    assert reading.busiest_thread_ratio == {"java": 0.0}
    assert reading.threads == {"java": MOST_THREADS + 1}


def test_a_thread_that_an_earlier_sample_may_have_left_out_is_not_new() -> None:
    stat = Stat("app", "S", 5.0, 900, 100, 4096)
    before = ProcessSample(100.0, stat, {1: Thread("S", 5.0, 0.0)}, cut=True)
    now = ProcessSample(110.0, stat, {1: Thread("S", 6.0, 1.0), 2: Thread("R", 500.0, 0.0)}, cut=True)
    assert growth(before, now) == Growth(0.0, 0.1, 0.1, 0)
    assert growth(before._replace(cut=False), now) == Growth(0.0, 1.0, 0.0, 0)


BELIEVED = Trust(True, "it counts")
LIES = Trust(False, "gVisor counts in 10 ms ticks")
UNKNOWN = Trust(None, "this may be a guest")
DELAYS = {"busiest_thread_delay_ratio", "main_thread_delay_ratio"}


@pytest.mark.parametrize(
    ("counters", "blind"),
    [
        ({"thread_cpu_time": LIES, "run_delay": LIES}, set(BETWEEN)),
        ({"thread_cpu_time": BELIEVED, "run_delay": LIES}, DELAYS),
        ({"thread_cpu_time": LIES, "run_delay": BELIEVED}, set(BETWEEN) - DELAYS),
        ({"thread_cpu_time": UNKNOWN, "run_delay": UNKNOWN}, set()),
    ],
)
def test_a_counter_that_lies_here_is_none_with_the_platforms_reason(
    tmp_path: Path, counters: Mapping[str, Trust], blind: set[str]
) -> None:
    scene = Scene(tmp_path, counters=lambda: counters)
    web = scene.process(60, "web").holds(71)
    scene.read()
    web.thread(60, run=9.0, delay=1.0)
    reading = scene.read()
    fields = {*BETWEEN, *(spec.name for spec in specs(ProcessesReading))}
    assert {name for name in fields if getattr(reading, name) is None} == blind
    assert {name for name in blind if reading.unseen[name] == LIES.because} == blind
    assert reading.threads == {"web": 1}


SECONDS = st.floats(0, 1e6)
THREADS = st.dictionaries(
    st.integers(1, 9), st.builds(Thread, st.sampled_from("RSD"), SECONDS, st.none() | SECONDS), max_size=6
)
SAMPLES = st.builds(
    ProcessSample, SECONDS, st.builds(Stat, st.just("app"), st.just("S"), SECONDS, st.just(1), st.just(1), st.just(1)),
    THREADS, st.booleans(),
)  # fmt: skip


@given(SAMPLES, SAMPLES)
def test_growth_is_never_negative_and_a_thread_never_more_than_one_core(
    before: ProcessSample, now: ProcessSample
) -> None:
    grown = growth(before, now)
    assert (grown is None) == (now.at <= before.at)
    if grown is not None:
        assert grown.cores >= 0
        assert grown.busiest is None or 0 <= grown.busiest <= 1
        assert grown.delay is None or 0 <= grown.delay <= 1
        assert 0 <= grown.stuck <= len(now.threads)


def test_this_machine() -> None:
    probe = ProcessesProbe(pid=os.getpid())
    for _ in range(2):
        reading = asyncio.run(probe.read())
    for spec in specs(ProcessesReading):
        assert getattr(reading, spec.name) is not None or reading.unseen[spec.name]
    assert list(reading.runtimes.values()) == ["python"]
    asyncio.run(probe.aclose())
