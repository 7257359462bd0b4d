"""When a call to a service with quotas is due again, and what became of the last one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from probes.cloud_api import CallFailed

T = TypeVar("T")

OK = "ok"
#: After failures the distance doubles up to this.
MOST_PAUSE_SECONDS = 300.0


class Turn(Generic[T]):
    """One kind of call.  ``every`` is seconds, 0 for never; ``slack`` seconds early is early enough.

    ``outcome`` is "ok", a key of :data:`probes.cloud_api.FAILURES`, or "" before the first; ``value`` is what the latest
    call gave, None when it failed.
    """

    def __init__(self, every: float, slack: float, clock: Callable[[], float]) -> None:
        self.every, self._slack, self._clock = every, slack, clock
        self._next, self._pause = float("-inf"), every
        self.outcome = ""
        self.value: T | None = None

    @property
    def due(self) -> bool:
        """Whether it is time."""
        return bool(self.every) and self._clock() >= self._next - self._slack

    def take(self, work: Callable[[], T]) -> None:
        """Do it now, and remember what became of it."""
        try:
            self.value = work()
        except CallFailed as failure:
            self.outcome, self.value = failure.reason, None
            self._next = self._clock() + self._pause
            self._pause = max(self.every, min(MOST_PAUSE_SECONDS, self._pause * 2))
        else:
            self.outcome, self._pause = OK, self.every
            self._next = self._clock() + self.every
