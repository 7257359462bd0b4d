"""The pulse: the witness of a freeze."""

from __future__ import annotations

import asyncio
import threading
import time

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


def test_the_pulse_beats_until_it_is_stopped_and_takes_others_along_in_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pulses, "PULSE_SECONDS", 0.01)
    pulse, where = Pulse(), list[int]()

    async def live() -> tuple[int, int]:
        pulse.start(asyncio.get_running_loop())
        await asyncio.sleep(0.05)
        alone = len(pulse._seen)
        pulse.also = [lambda: where.append(threading.get_ident())]
        await asyncio.sleep(0.05)
        pulse.stop()
        await asyncio.sleep(0.05)
        return alone, len(pulse._seen)

    alone, seen = asyncio.run(live())
    time.sleep(0.05)
    assert 2 <= alone < seen
    assert len(pulse._seen) == seen, "it is stopped"
    assert set(where) == {threading.get_ident()}


def test_the_pulse_sees_the_agent_run_while_its_loop_is_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulses, "PULSE_SECONDS", 0.01)
    pulse = Pulse()

    async def live() -> bool:
        pulse.start(asyncio.get_running_loop())
        begun = time.monotonic()
        time.sleep(0.2)  # noqa: ASYNC251 - the loop is held up on purpose
        return pulse.ran_between(begun + 0.02, begun + 0.2)

    try:
        assert asyncio.run(live())
    finally:
        pulse.stop()


def test_a_loop_that_is_closed_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulses, "PULSE_SECONDS", 0.01)
    pulse = Pulse()
    pulse.also = [lambda: None]

    async def live() -> None:
        pulse.start(asyncio.get_running_loop())

    asyncio.run(live())
    before = len(pulse._seen)
    time.sleep(0.2)
    pulse.stop()
    assert len(pulse._seen) > before


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
