"""How fast a number of bytes grows that may go up and down by itself: by its slope, and by its high-water mark.

A saw (garbage that is collected, files that are rotated) rises most of the time and never gets higher.  It passes its own mark
in its first turn only, what grows with a saw on it at each of its peaks, and what has stopped to grow half a minute ago at none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

#: A slope rests on this many readings at least.
_LEAST_READINGS = 2
#: What the high-water mark is of, and the part of it in which a new one must stand.
MARK_SECONDS, NEW_SECONDS = 600.0, 30.0


def slope(points: Collection[tuple[float, float | None]]) -> float | None:
    """Least-squares slope of (seconds, value), per second; ``None`` below two known points."""
    known = [(t, v) for t, v in points if v is not None]
    if len(known) < _LEAST_READINGS:
        return None
    t0, v0 = sum(t for t, _ in known) / len(known), sum(v for _, v in known) / len(known)
    spread = sum((t - t0) ** 2 for t, _ in known)
    return sum((t - t0) * (v - v0) for t, v in known) / spread if spread else None


def mark_growth(points: Sequence[tuple[float, float]]) -> float | None:
    """Per second, by which the latest half minute went above all that was before it; ``None`` where nothing was before."""
    begin = max((taken for taken, _ in points), default=0.0) - NEW_SECONDS
    before = [value for taken, value in points if taken <= begin]
    if not before:
        return None
    return max(0.0, max(value for taken, value in points if taken > begin) - max(before)) / NEW_SECONDS
