"""Numbers as they stand in sentences."""

from __future__ import annotations

#: Below so many seconds, in this unit, which is so many seconds, with so many places.
_UNITS = (
    (1e-3, 1e-6, 0, "us"), (0.1, 1e-3, 1, "ms"), (1.0, 1e-3, 0, "ms"), (10.0, 1.0, 1, "s"), (120.0, 1.0, 0, "s"),
    (7200.0, 60.0, 0, "min"), (float("inf"), 3600.0, 0, "h"),
)  # fmt: skip


def duration(seconds: float) -> str:
    """Seconds with the unit that suits them: ``384 ms``, ``2.5 s``, ``3 h``."""
    _, unit, places, name = next(row for row in _UNITS if seconds < row[0] or row[0] == float("inf"))
    return f"{seconds / unit:.{places}f} {name}"


def some(number: float, thing: str) -> str:
    """So many of them: ``1 session``, ``3 sessions``."""
    return f"{number:.0f} {thing}{'' if round(number) == 1 else 's'}"


def megabytes(number: float) -> str:
    """Bytes as megabytes."""
    return f"{number / 1e6:.{0 if number >= 1e7 else 1}f} MB"
