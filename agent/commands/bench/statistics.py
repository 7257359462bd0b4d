"""The arithmetic of repeated runs: means with their 95 % interval, Welch's test, percentiles, and the knee of a curve.

Student's distribution comes from the regularised incomplete beta function (continued fraction of Lentz, Numerical
Recipes 6.4): a package of statistics would weigh more than the rest of the command.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final

#: Of an interval.
CONFIDENCE: Final = 0.95
#: A number of clients pays as long as it brings this share of the best throughput.
KNEE_RATIO: Final = 0.95
_DRAWS, _TINY = 400, 1e-300


@dataclass(frozen=True, slots=True)
class Series:
    """Repeats of one number: how many, their mean and standard deviation, and half the width of the mean's 95 % interval.

    ``sd`` and ``half`` are ``None`` of a single repeat: it says nothing about the next one.
    """

    count: int
    mean: float
    sd: float | None = None
    half: float | None = None

    @property
    def low(self) -> float:
        """The lower end of the interval; the mean where there is none."""
        return self.mean - (self.half or 0.0)

    @property
    def high(self) -> float:
        """The upper end of the interval; the mean where there is none."""
        return self.mean + (self.half or 0.0)

    def as_json(self) -> dict[str, float | int | None]:
        """As it stands in a result."""
        return {"count": self.count, "mean": self.mean, "sd": self.sd, "low": self.low, "high": self.high}


def series(values: Sequence[float]) -> Series:
    """The mean of repeats and how sure it is.  Raises ValueError of none."""
    if not values:
        raise ValueError("a mean of no values")
    mean = fmean(values)
    if len(values) < 2:
        return Series(1, mean)
    sd = stdev(values)
    return Series(len(values), mean, sd, student_quantile(len(values) - 1) * sd / math.sqrt(len(values)))


@dataclass(frozen=True, slots=True)
class Difference:
    """``after - before``, its 95 % interval, and the probability of one as large where nothing changed (Welch).

    ``p`` and the interval are ``None`` where one side was measured once: then nobody can say.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None


def difference(before: Sequence[float], after: Sequence[float]) -> Difference:
    """Compare two sets of repeats.  Source: Welch 1947, degrees of freedom after Satterthwaite."""
    mean = fmean(after) - fmean(before)
    if len(before) < 2 or len(after) < 2:
        return Difference(mean)
    parts = [stdev(values) ** 2 / len(values) for values in (before, after)]
    variance = sum(parts)
    if variance == 0.0:
        return Difference(mean, mean, mean, 1.0 if mean == 0.0 else 0.0)
    freedom = variance**2 / sum(v**2 / (len(s) - 1) for v, s in zip(parts, (before, after), strict=True))
    half = student_quantile(freedom) * math.sqrt(variance)
    return Difference(mean, mean - half, mean + half, student_tail(mean / math.sqrt(variance), freedom))


def holm(values: Sequence[float]) -> list[float]:
    """Probabilities of several tests, corrected for their number (Holm 1979), in their order."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found, most = [0.0] * len(values), 0.0
    for rank, at in enumerate(order):
        most = max(most, min(1.0, (len(values) - rank) * values[at]))
        found[at] = most
    return found


def percentiles(values: Iterable[float], wanted: Sequence[float] = (0.5, 0.95, 0.99)) -> list[float]:
    """The nearest-rank percentiles.  Raises ValueError of none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("percentiles of no values")
    return [ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))] for share in wanted]


@dataclass(frozen=True, slots=True)
class Knee:
    """From how many clients on more of them bring less than a twentieth, the range of that, and who was fastest."""

    clients: int
    low: int
    high: int
    best: int
    beyond: bool
    """Throughput still grows at the largest number that was tried: the knee may lie beyond."""


def knee(runs: Mapping[int, Sequence[float]], seed: int = 1) -> Knee | None:
    """Of throughput by number of clients; ``None`` with fewer than two numbers.

    The range holds nine in ten of the knees of redrawn means (normal, each with its own standard error, or that of the
    others where a number was measured once).
    """
    measured = {clients: series(values) for clients, values in sorted(runs.items()) if values}
    if len(measured) < 2:
        return None
    spreads = [s.sd / s.mean for s in measured.values() if s.sd is not None and s.mean > 0]
    spread = fmean(spreads) if spreads else 0.0
    draw = random.Random(seed)  # noqa: S311 - no secret; the same result gives the same page
    drawn = []
    for _ in range(_DRAWS):
        means = {}
        for clients, s in measured.items():
            error = (s.sd if s.sd is not None else spread * s.mean) / math.sqrt(s.count)
            means[clients] = draw.gauss(s.mean, error)
        drawn.append(_knee(means))
    drawn.sort()
    told = {clients: s.mean for clients, s in measured.items()}
    best = max(told, key=told.__getitem__)
    found = _knee(told)
    low, high = drawn[round(0.05 * _DRAWS)], drawn[round(0.95 * _DRAWS) - 1]
    return Knee(found, min(found, low), max(found, high), best, beyond=found == max(told))


def _knee(means: Mapping[int, float]) -> int:
    most = max(means.values())
    return min(clients for clients, mean in means.items() if mean >= KNEE_RATIO * most)


def student_tail(t: float, freedom: float) -> float:
    """The probability of a value at least this far from 0, on either side."""
    return _beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def student_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """How far from 0 this share of the values lies at most: 12.7 for one degree of freedom and 95 %, 1.96 for many."""
    low, high = 0.0, 2.0
    while student_tail(high, freedom) > 1 - confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, freedom) > 1 - confidence else (low, middle)
    return high


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function."""
    if x <= 0.0 or x >= 1.0:
        return min(1.0, max(0.0, x))
    log = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    front = math.exp(log)
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1.0 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1 / _no_zero(1 - (a + b) * x / (a + 1))
    h = d
    for m in range(1, 300):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d, c = 1 / _no_zero(1 + even * d), _no_zero(1 + even / c)
        h *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = 1 / _no_zero(1 + odd * d), _no_zero(1 + odd / c)
        h *= d * c
        if abs(d * c - 1) < 1e-12:
            break
    return h


def _no_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
