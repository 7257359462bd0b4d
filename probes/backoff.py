"""When something that failed is tried again: the pause doubles with each failure in a row, up to a bound.

Seconds of a monotonic clock, which is a parameter.  Nothing here sleeps: who tries asks :attr:`Backoff.due` in its own
slots, or waits for :attr:`Backoff.seconds_left`.
"""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Tried at once, ``first`` seconds after the first failure, then after twice that, never later than ``most`` seconds."""

    def __init__(self, first: float, most: float, clock: Callable[[], float]) -> None:
        self._first, self._most, self._clock = first, most, clock
        self._pause, self._at = first, float("-inf")

    @property
    def due(self) -> bool:
        """Whether it may be tried now."""
        return self.seconds_left <= 0

    @property
    def seconds_left(self) -> float:
        """Until the next try; 0.0 when it may be now."""
        return max(0.0, self._at - self._clock())

    def failed(self) -> None:
        """A try failed now: the next one waits, and the one after it twice as long."""
        self._at = self._clock() + self._pause
        self._pause = min(self._most, self._pause * 2)

    def wait_at_least(self, seconds: float) -> None:
        """Who was asked said when to come again: not before."""
        self._at = max(self._at, self._clock() + seconds)

    def succeeded(self) -> None:
        """A try succeeded: the next one need not wait, and a failure is the first one again."""
        self._pause, self._at = self._first, float("-inf")

    def note_sign_of_life(self) -> None:
        """A sign of life, which is no proof of health: only the next pause is shorter, by half."""
        self._pause = max(self._first, self._pause / 2)
