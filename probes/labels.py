"""Which foreign names become labels, and how they are written.

Names can change with every slot, and each that is given a label is a series in whoever scrapes.  So a source holds so many
labels at a time; one that is no longer asked for is given up for another name, but not at once, or names that take turns
would.  The exporters bound what they add up by themselves: :mod:`exporters.series`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

#: Labels that one source holds.
MOST_HELD = 64
#: One that nobody has asked for in this time may be given to another name.
GONE_SECONDS = 600.0
#: Where the rest is added up.
OTHER = "other"
#: Characters of a label's value: what is longer is a text and no name.
MOST_LABEL = 101


class Labels:
    """The names of one source that have a label."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: When each was asked for the last time.
        self._given: dict[str, float] = {}

    def admit(self, names: Iterable[str], most: int | None = None) -> list[str]:
        """Of these names at most ``most`` that have a label, or get one now: first who had one, then by name."""
        now = self._clock()
        kept = []
        for name in sorted(names, key=lambda name: (name not in self._given, name))[:most]:
            if name in self._given or len(self._given) < MOST_HELD or self._give_up(now):
                self._given[name] = now
                kept.append(name)
        return kept

    def _give_up(self, now: float) -> bool:
        """Make room by the label that was not asked for for longest.  False when that is not long."""
        oldest = min(self._given, key=self._given.__getitem__)
        if self._given[oldest] > now - GONE_SECONDS:
            return False
        del self._given[oldest]
        return True


def printable(name: str, most: int = MOST_LABEL) -> str:
    """A foreign name as a label: at most ``most`` characters, and ``?`` for what could steer a terminal or break a line."""
    return "".join(c if c.isprintable() else "?" for c in name[:most])
