"""Bounded memory of readings: ring buffers per reading type and target.

How much is kept is a constant of the configuration (``agent.settings.load.history_bytes``), whatever
happens.  *Coverage* is the share of due slots that carried data: the engine answers UNKNOWN below
one half, whatever a rule says, so a probe that mostly fails can never look like a healthy system.

The rules of one report ask for the same sums over the same spans: inside :meth:`History.moment` time stands still and
each sum that is marked with :func:`once` is worked out once.  What is worked out of one reading is :func:`remembered` from report to report,
and no longer than the reading and some minutes, or it would keep what the buffers have given up.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

from probes.reading import Code, NoData, Reading

R = TypeVar("R", bound=Reading)
P = ParamSpec("P")
T = TypeVar("T")

#: What is :func:`remembered` is let go of so often: working it all out again takes 20 ms of CPU.
FORGET_SECONDS = 300.0
_forget: list[Callable[[], None]] = []


class Slot(NamedTuple):
    """One due slot: when, and what came of it (a reading, or the reason why there is none)."""

    at: float
    reading: Reading | None
    because: str = ""
    remedy: str = ""
    code: Code = Code.UNSPECIFIED


class Missing(NamedTuple):
    """Why there is no data, what would help, and the code that decides; blank where there is data."""

    because: str = ""
    remedy: str = ""
    code: Code = Code.UNSPECIFIED

    def otherwise(self, because: str, remedy: str = "", code: Code = Code.NOT_YET) -> Missing:
        """This reason, or that one where there is none."""
        return self if self.because else Missing(because, remedy, code)


def once(work: Callable[Concatenate[History, P], T]) -> Callable[Concatenate[History, P], T]:
    """A pure sum over a history that many ask for: worked out once in each :meth:`History.moment`.

    Its arguments must be hashable and its result is shared: nobody may change it.
    """

    @wraps(work)
    def asked(history: History, /, *args: P.args, **given: P.kwargs) -> T:
        if history.known is None:
            return work(history, *args, **given)
        key = (work, args, tuple(given.items()))
        if key not in history.known:
            history.known[key] = work(history, *args, **given)
        return cast("T", history.known[key])

    return asked


def remembered(most: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """What is worked out of a reading, which never changes: of the ``most`` that were asked for last, until it is let go of."""

    def made(work: Callable[P, T]) -> Callable[P, T]:
        kept = lru_cache(maxsize=most)(work)
        _forget.append(kept.cache_clear)
        return cast("Callable[P, T]", kept)

    return made


class History:
    """Readings of the last ``seconds``.  ``clock`` is monotonic seconds."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._now: float | None = None
        #: What was added in this moment.
        self._added: list[tuple[type[Reading], str, Slot]] = []
        self._forgot = clock()
        self._slots: dict[tuple[type[Reading], str], deque[Slot]] = {}
        self._targets: dict[type[Reading], list[str]] = {}
        #: How many times as far back as they ask all look, because slots come so rarely (:mod:`agent.cost`).
        self.stretch = 1.0
        #: What :func:`once` has worked out in this moment; None outside of one.
        self.known: dict[Hashable, Any] | None = None

    def clock(self) -> float:
        """Monotonic seconds; inside a moment always the same."""
        return self._clock() if self._now is None else self._now

    def reach(self, seconds: float) -> float:
        """Seconds of which :meth:`slots` can tell whoever asks for so many: more where slots are rare, and never more than are kept."""
        return min(self.seconds, seconds * self.stretch)

    @contextmanager
    def moment(self) -> Iterator[None]:
        """One moment for all who ask within.  What is added meanwhile is there after it."""
        self._now, self.known = self._clock(), {}
        if self._now - self._forgot >= FORGET_SECONDS:
            self._forgot = self._now
            for forget in _forget:
                forget()
        try:
            yield
        finally:
            self._now = self.known = None
            added, self._added = self._added, []
            for reading_type, target, slot in added:
                self._append(reading_type, target, slot)

    def add(self, reading: Reading) -> None:
        """Remember a reading."""
        self._append(type(reading), reading.target, Slot(self._clock(), reading))

    def miss(self, reading_type: type[Reading], target: str, reason: NoData) -> None:
        """Remember that a due slot carried no data, and why."""
        self._append(reading_type, target, Slot(self._clock(), None, reason.because, reason.remedy, reason.code))

    def _append(self, reading_type: type[Reading], target: str, slot: Slot) -> None:
        if self._now is not None:
            self._added.append((reading_type, target, slot))
            return
        if (slots := self._slots.get((reading_type, target))) is None:
            slots = self._slots[reading_type, target] = deque(maxlen=4096)
            self._targets.setdefault(reading_type, []).append(target)
        slots.append(slot)
        horizon = slot.at - self.seconds
        while slots and slots[0].at < horizon:
            slots.popleft()

    @once
    def slots(self, reading_type: type[Reading], seconds: float, target: str = "") -> list[Slot]:
        """Every slot of the last ``seconds``, or of :attr:`stretch` times as many, oldest first."""
        horizon, found = self.clock() - seconds * self.stretch, []
        for slot in reversed(self._slots.get((reading_type, target), ())):  # the span is short, the history long
            if slot.at < horizon:
                break
            found.append(slot)
        found.reverse()
        return found

    def window(self, reading_type: type[R], seconds: float, target: str = "") -> list[R]:
        """The readings of the last ``seconds``, oldest first."""
        slots = self.slots(reading_type, seconds, target)
        return cast("list[R]", [slot.reading for slot in slots if slot.reading is not None])

    def latest(self, reading_type: type[R], target: str = "") -> R | None:
        """The newest reading, or ``None`` when there is none in the whole history."""
        for slot in reversed(self._slots.get((reading_type, target), ())):
            if slot.reading is not None:
                return cast("R", slot.reading)
        return None

    def newest(self, reading_type: type[Reading], target: str = "") -> Slot | None:
        """The slot that was due last, whether or not it carried data."""
        slots = self._slots.get((reading_type, target))
        return slots[-1] if slots else None

    def targets(self, reading_type: type[Reading]) -> list[str]:
        """The targets that this reading type has been due for."""
        return list(self._targets.get(reading_type, ()))

    def kinds(self) -> set[type[Reading]]:
        """The reading types that have been due."""
        return set(self._targets)

    @once
    def coverage(self, reading_type: type[Reading], seconds: float, target: str = "") -> float:
        """Share of the due slots of the last ``seconds`` that carried data; 0.0 when none was due."""
        slots = self.slots(reading_type, seconds, target)
        return sum(slot.reading is not None for slot in slots) / len(slots) if slots else 0.0

    def why_missing(self, reading_type: type[Reading], seconds: float, target: str = "") -> Missing:
        """Of the newest slot without data in the last ``seconds``; blank when there is none."""
        for slot in reversed(self.slots(reading_type, seconds, target)):
            if slot.reading is None:
                return Missing(slot.because, slot.remedy, slot.code)
        return Missing()
