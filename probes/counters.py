"""From totals to what was gained: the one place that knows what it means when a counter goes backwards.

A *total* only grows while its source lives (a process, a cgroup, a connection, a statistics view of a server); a *gain* is
what was added to it since the sample before, in the unit of the total and never negative.  Who wants a rate divides
by the seconds between the two samples.

The policy, everywhere: **a total that is smaller than before belongs to a source that is seen for the first time**: it was
made anew, or another one has its name now.  Totals of one source stand or fall together: when one of them fell, none
of the older ones can be compared with.  What a source shows at first sight was gained in this interval only when the
caller knows that it began to count at zero since the sample before (``from_zero``: a connection, a thread or a file
that was not there).  Otherwise nothing is known of it (None), and :meth:`Counters.added` makes that 0, for a counter that
must stand at 0 from the first scrape on: a missed event is better than one that never was.

A source that began anew and has passed its old total since the sample before cannot be told from one that went on.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping


def began_anew(before: Mapping[str, float], now: Mapping[str, float]) -> bool:
    """Whether one of the totals that both samples have fell."""
    for name, value in now.items():  # noqa: SIM110 - asked for each socket: a generator would double the price
        if value < before.get(name, value):
            return True
    return False


def gain(before: float | None, now: float, *, from_zero: bool = False) -> float | None:
    """What one total gained; None when there is nothing to compare with."""
    if before is None or now < before:
        return now if from_zero else None
    return now - before


def gains(
    before: Mapping[str, float] | None, now: Mapping[str, float], *, from_zero: bool = False
) -> dict[str, float] | None:
    """What totals of one source gained, by name; None when there is nothing to compare with.

    A total that ``before`` does not have is at first sight, alone: it gained all of it or, without ``from_zero``, 0.
    """
    if before is None or began_anew(before, now):
        return dict(now) if from_zero else None
    return {name: value - before.get(name, 0.0 if from_zero else value) for name, value in now.items()}


class Counters:
    """The latest totals of many sources by key, at most ``most``: those that were sampled longest ago are forgotten."""

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._last: dict[Hashable, Mapping[str, float]] = {}

    def __contains__(self, key: Hashable) -> bool:
        """Whether this source was sampled before."""
        return key in self._last

    def gained(self, key: Hashable, totals: Mapping[str, float], *, from_zero: bool = False) -> dict[str, float] | None:
        """What the totals of this source gained since they were given last, as :func:`gains`."""
        before = self._last.pop(key, None)
        found = gains(before, totals, from_zero=from_zero)
        anew = before is None or began_anew(before, totals)
        self._last[key] = dict(totals) if anew else {**(before or {}), **totals}
        while len(self._last) > self._most:
            del self._last[next(iter(self._last))]
        return found

    def added(self, key: Hashable, totals: Mapping[str, float], *, from_zero: bool = False) -> dict[str, float]:
        """The same, with 0 for what is not known."""
        found = self.gained(key, totals, from_zero=from_zero)
        return dict.fromkeys(totals, 0.0) if found is None else found

    def keep(self, keys: Collection[Hashable]) -> None:
        """Forget all other sources: when one comes back it is seen for the first time."""
        self._last = {key: totals for key, totals in self._last.items() if key in keys}

    def clear(self) -> None:
        """Forget all of them."""
        self._last.clear()
