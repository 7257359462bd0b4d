"""The pulse: the witness of a freeze."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

import agent.pulse as pulses
from agent.pulse import PULSE_SECONDS, Pulse
from probes.cpu.suspension import LONG_GAP_SECONDS, SuspensionProbe
from tests.unit.builders import FakeClock, beat


def test_the_pulse_knows_between_which_instants_the_loop_ran() -> None:
    clock = FakeClock(10.0)
    pulse = Pulse(clock)
    pulse.note()
    assert pulse.ran_between(9.9, 10.1)
    assert not pulse.ran_between(10.1, 20.0)
    assert not pulse.ran_between(0.0, 9.9)
    assert not pulse.ran_between(10.1, 9.9)


def test_the_pulse_remembers_a_bounded_past() -> None:
    clock = FakeClock(0.0)
    pulse = Pulse(clock)
    for _ in range(1000):
        clock.advance(0.9)
        pulse.note()
    assert pulse.ran_between(clock() - 60.0, clock() - 59.0)
    assert not pulse.ran_between(0.0, 100.0)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pulse]:
    monkeypatch.setattr(pulses, "PULSE_SECONDS", 0.01)
    pulse = Pulse()
    yield pulse
    pulse.stop()


def beats(pulse: Pulse, more: int = 3) -> bool:
    """Whether so many more beats come; a loaded machine may take its time."""
    before, until = len(pulse._seen), time.monotonic() + 5.0
    while len(pulse._seen) < before + more and time.monotonic() < until:
        time.sleep(0.01)
    return len(pulse._seen) >= before + more


def test_the_pulse_beats_until_it_is_stopped_and_takes_others_along_in_its_thread(quick: Pulse) -> None:
    where = list[int]()
    quick.start()
    assert beats(quick)
    quick.also = [lambda: where.append(threading.get_ident())]
    assert beats(quick)
    quick.stop()
    time.sleep(0.05)
    seen = len(quick._seen)
    time.sleep(0.05)
    assert len(quick._seen) == seen, "it is stopped"
    assert len(set(where)) == 1
    assert threading.get_ident() not in where


def test_what_fails_at_a_beat_stops_neither_the_pulse_nor_the_others(quick: Pulse) -> None:
    done = list[str]()

    def fail() -> None:
        raise ValueError("a defect")

    quick.also = [fail, lambda: done.append("the other")]
    quick.start()
    assert beats(quick)
    assert len(done) >= 2


def test_the_pulse_sees_the_agent_run_while_its_loop_is_held_up(quick: Pulse) -> None:
    async def live() -> bool:
        quick.start()
        begun = time.monotonic()
        time.sleep(0.2)  # noqa: ASYNC251 - the loop is held up on purpose
        return quick.ran_between(begun + 0.02, begun + 0.2)

    assert asyncio.run(live())


def test_a_pulse_that_never_began_can_be_stopped() -> None:
    Pulse().stop()


@pytest.mark.parametrize("held", [1.501, 1.6, 3.0, 20.0])
def test_the_pulse_sees_every_stop_of_the_child_alone_that_is_long_enough_to_pass_for_a_freeze(held: float) -> None:
    assert held > LONG_GAP_SECONDS
    clock = FakeClock(0.0)
    pulse = Pulse(clock)
    while clock() < 100.0:
        clock.advance(PULSE_SECONDS + 0.001)
        pulse.note()
    probe = SuspensionProbe(lambda: "", witness=pulse.ran_between, clock=clock)
    for phase in range(20):
        end = 80.0 + phase * PULSE_SECONDS / 20
        window = beat(end - held - 0.5, late=[held], seconds=held + 0.5)
        assert probe._held_alone(window), f"phase {phase}"


@pytest.mark.parametrize("frozen", [1.55, 3.0, 60.0])
@pytest.mark.parametrize("later", [0.0, 0.1, 0.2], ids=lambda x: f"loop wakes {x} s before the child")
def test_the_pulse_is_silent_in_a_freeze_of_everything(frozen: float, later: float) -> None:
    clock = FakeClock(0.0)
    pulse = Pulse(clock)
    for _ in range(10):
        clock.advance(PULSE_SECONDS)
        pulse.note()
    began = clock()
    clock.advance(frozen)
    pulse.note()
    probe = SuspensionProbe(lambda: "", witness=pulse.ran_between, clock=clock)
    window = beat(began - 0.5, late=[frozen], seconds=frozen + 0.5 + later)
    assert not probe._held_alone(window)
