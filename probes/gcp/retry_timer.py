"""When a call to a service with quotas is due again, and what became of the last one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from probes.backoff import Backoff
from probes.gcp.cloud_api import CallFailed

T = TypeVar("T")

OK = "ok"
#: After failures the distance doubles up to this.
MOST_PAUSE_SECONDS = 300.0


class RetryTimer(Generic[T]):
    """One kind of call.  ``every`` is seconds, 0 for never; ``slack`` seconds early is early enough.

    ``outcome`` is "ok", a key of :data:`probes.gcp.cloud_api.FAILURES`, or "" before the first; ``value`` is what the latest
    call gave, None when it failed.
    """

    def __init__(self, every: float, slack: float, clock: Callable[[], float]) -> None:
        self.every, self._slack, self._clock = every, slack, clock
        self._next = float("-inf")
        self._backoff = Backoff(every, max(every, MOST_PAUSE_SECONDS), clock)
        self.outcome = ""
        self.value: T | None = None

    @property
    def due(self) -> bool:
        """Whether it is time."""
        early = max(self._next - self._clock(), self._backoff.seconds_left)
        return bool(self.every) and early <= self._slack

    def take(self, work: Callable[[], T]) -> None:
        """Do it now, and remember what became of it."""
        try:
            self.value = work()
        except CallFailed as failure:
            self.outcome, self.value = failure.reason, None
            self._backoff.failed()
        else:
            self.outcome = OK
            self._backoff.succeeded()
            self._next = self._clock() + self.every
