"""The pulse: the witness of a freeze."""

from __future__ import annotations

import asyncio
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


def test_the_pulse_beats_until_it_is_stopped_and_knows_its_lateness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulses, "PULSE_SECONDS", 0.01)

    async def live() -> tuple[int, float, int]:
        pulse = Pulse()
        pulse.start(asyncio.get_running_loop())
        await asyncio.sleep(0.06)
        time.sleep(0.05)  # noqa: ASYNC251 - the loop is held up on purpose
        for _ in range(3):  # timers come after what is ready
            await asyncio.sleep(0)
        seen, late = len(pulse._seen), pulse.lateness_seconds
        pulse.stop()
        await asyncio.sleep(0.03)
        return seen, late, len(pulse._seen) - seen

    seen, late, after = asyncio.run(live())
    assert seen >= 3
    assert late >= 0.03
    assert after == 0


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
