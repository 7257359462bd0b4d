"""How often and for how long something was full, by samples a second apart.

Six samples a minute see a reader that stops for 12 of 36 s twice.  What is told is a lower bound: a stretch is counted from the
first sample in which it was full to the last one, and two samples that are further apart than ``BREAK_SECONDS`` (the agent
itself had no CPU) belong to two stretches.
"""

from __future__ import annotations

from probes.record import dataclass

BREAK_SECONDS = 3.0


@dataclass(slots=True)
class FullTimes:
    """Of one pipe or socket; times are monotonic seconds."""

    samples: int = 0
    full: int = 0
    asked: int = 0
    """Of those in which it was full, the ones whose writer was looked for."""
    blocked: int = 0
    longest: float = 0.0
    _began: float | None = None
    _last: float = 0.0

    def note(self, now: float, full: bool) -> None:
        """One sample."""
        self.samples += 1
        self.full += full
        if not full or now - self._last > BREAK_SECONDS:
            self._began = None
        if full:
            self._began = now if self._began is None else self._began
            self.longest = max(self.longest, now - self._began)
        self._last = now

    def note_writer(self, blocked: bool | None) -> None:
        """Whether a writer slept while it was full; ``None`` where that is not shown."""
        if blocked is not None:
            self.asked += 1
            self.blocked += blocked

    @property
    def lasts(self) -> bool:
        """Whether it was full in the sample before the last one as well, and who waits was not asked yet."""
        return self.longest > 0 and self._began is not None and not self.asked

    def take(self) -> dict[str, float]:
        """The reading's numbers of the time since they were taken last; a stretch that lasts goes on."""
        numbers = {"full_ratio": self.full / self.samples, "full_seconds": self.longest} if self.samples else {}
        if self.asked:
            numbers["blocked_ratio"] = self.blocked / self.asked
        self.samples = self.full = self.asked = self.blocked = 0
        self.longest = 0.0
        return numbers
