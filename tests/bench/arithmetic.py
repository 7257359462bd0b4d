"""The bench's arithmetic: rates, percentiles, pairs and their intervals.  Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from math import comb
from statistics import median
from typing import NamedTuple

#: An interval covers the true median with at least this probability, where there are pairs enough for it (six).
COVERAGE = 0.95


class Interval(NamedTuple):
    """A median, between which two values the true one lies, and with which probability."""

    median: float
    low: float
    high: float
    coverage: float
    of: int

    def told(self, digits: int = 2, unit: str = "") -> str:
        """In words; of one value there is no interval."""
        value = f"{self.median:.{digits}f}{unit}"
        if self.of < 2:
            return f"{value} (one only)"
        return f"{value} ({self.low:.{digits}f} to {self.high:.{digits}f}, {self.coverage:.0%} of {self.of})"


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: a value that was really measured."""
    ranked = sorted(values)
    return ranked[max(0, min(len(ranked) - 1, round(share * len(ranked) + 0.5) - 1))]


def interval(values: Sequence[float]) -> Interval:
    """The median and its order-statistics interval: no shape of the noise is assumed.

    Between the k-th smallest and the k-th largest of n values the true median lies with 1 - 2 P(B(n, 1/2) < k) (binomial); the narrowest
    that covers 95 %, or all values where there are too few for that.
    """
    ranked, n = sorted(values), len(values)
    if not n:
        raise ValueError("no values")
    best = 1
    for k in range(1, (n + 1) // 2 + 1):
        if _coverage(n, k) >= COVERAGE:
            best = k
    return Interval(median(ranked), ranked[best - 1], ranked[n - best], _coverage(n, best), n)


def _coverage(n: int, k: int) -> float:
    return max(0.0, 1 - 2 * sum(comb(n, i) for i in range(k)) / float(2**n))


def per_hour(seconds: float, passed: float) -> float:
    """CPU seconds an hour of so many in so many seconds."""
    return seconds * 3600 / passed


def slices(marks: Sequence[tuple[float, float]]) -> list[float]:
    """CPU-s/h from each (time, CPU seconds so far) to the next."""
    return [per_hour(b[1] - a[1], b[0] - a[0]) for a, b in itertools.pairwise(marks)]


def ratios(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Of pairs; those without a second are left out."""
    return [a / b for a, b in zip(first, second, strict=False) if b > 0]


def lost(with_it: float, without: float) -> float:
    """Percent of the work done without it that was not done with it; below 0 where noise was larger."""
    if without <= 0:
        raise ValueError("the group without the agent did no work")
    return 100 * (1 - with_it / without)


def latencies(prefix: str, seconds: Sequence[float]) -> dict[str, float]:
    """p50, p99 and the largest in ms, and of how many: below 100 the p99 is the largest."""
    return {
        f"{prefix}_p50": median(seconds) * 1e3,
        f"{prefix}_p99": percentile(seconds, 0.99) * 1e3,
        f"{prefix}_max": max(seconds) * 1e3,
        f"{prefix}_count": len(seconds),
    }


def growth(page: str, before: str, name: str, *, having: str = "") -> float:
    """By how much the series of this name grew from one metrics page to the next, those whose labels contain ``having``."""
    return total(page, name, having=having) - total(before, name, having=having)


def total(page: str, name: str, *, having: str = "") -> float:
    """The sum of the series of this name on a metrics page, those whose labels contain ``having``; 0.0 where there is none."""
    lines = (line for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{")) and having in line)
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def crowding(before: Sequence[int], after: Sequence[int]) -> dict[str, float]:
    """Shares of all CPU time between two readings of /proc/stat's first line: for whom the machine worked."""
    grew = [b - a for a, b in zip(before, after, strict=True)][:8]  # guest time is in user time already
    whole = sum(grew) or 1
    names: Mapping[str, Iterable[int]] = {"idle": (3, 4), "niced": (1,), "other": (0, 2, 5, 6), "steal": (7,)}
    return {name: sum(grew[i] for i in fields) / whole for name, fields in names.items()}
