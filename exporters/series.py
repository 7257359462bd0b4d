"""The series of one field: the values of now, or what was added up since the start, by label.

Label values come from outside: endpoints that the app connects to, names of processes, cgroups that are made anew with
every restart, queues of other people's collectors.  A counter that was exported stays, so without a bound their series
would grow for as long as the agent runs, here and in whoever scrapes.  A field has at most ``MOST_SERIES`` for a target.
For a further label the one that has not been seen for longest makes room, if that is ``GONE_SECONDS`` ago; else a counter
adds to the label ``other``, and a gauge is left out, because ratios and times of several do not add up.  Both are counted.
A label that has not been seen for ``FORGOTTEN_SECONDS`` is forgotten in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exporters.exposition import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from probes.labels import GONE_SECONDS, OTHER
from probes.reading import Counts, FieldSpec, Reading, metric_name

#: Twice what any probe tells at a time.
MOST_SERIES = 64
FORGOTTEN_SECONDS = 86_400.0

Key = tuple[str, ...]


def prefix_of(kind: type[Reading], target: str) -> Key:
    """The label values that all series of one target begin with."""
    return (target or "own",) if kind.labelled else ()


class Series:
    """One field of one reading type.  ``values``: label values to a number, or to (counts, sum) of a histogram."""

    def __init__(self, kind: type[Reading], spec: FieldSpec) -> None:
        self.name, self.spec = metric_name(kind, spec), spec
        self._labels = [*(["target"] if kind.labelled else []), *([spec.by] if spec.by else [])]
        self._adds_up = spec.kind in ("increment", "histogram")
        self._values: dict[Key, Any] = {}
        #: When a label was last in a reading.
        self._seen: dict[Key, float] = {}
        #: Values that got no series of their own.
        self.folded = 0
        if self._adds_up and not self._labels:
            self._values[()] = 0.0 if spec.kind == "increment" else ([0] * (len(spec.buckets) + 1), 0.0)

    def take(self, prefix: Key, value: Any, taken: float) -> None:
        """What one reading says, ``taken`` at this time."""
        if not self.spec.by and value is not None:  # most series by far, and nothing of them comes or goes
            self._put(prefix, value, taken)
            return
        found = value if isinstance(value, Mapping) else {None: value} if value is not None else {}
        now = {prefix + ((str(label),) if label is not None else ()): x for label, x in found.items()}
        mine = [key for key in self._values if key[: len(prefix)] == prefix]
        for key in [key for key in mine if key not in now and self._is_past(key, value is None, taken)]:
            self._drop(key)
        new = [key for key in now if key not in self._values and key[-1:] != (OTHER,)] if self.spec.by else []
        for key in new[self._room(prefix, now, len(new), taken) :] if new else ():
            self.folded += 1
            x = now.pop(key)
            if self._adds_up:
                self._add((*prefix, OTHER), x)
        for key, x in now.items():
            self._put(key, x, taken)

    def _put(self, key: Key, x: Any, taken: float) -> None:
        self._seen[key] = taken
        if self._adds_up:
            self._add(key, x)
        else:
            self._values[key] = float(x)

    def forget(self, prefix: Key) -> None:
        """What was true now is no longer known: a gauge goes, a counter stays."""
        if not self._adds_up:
            for key in [key for key in self._values if key[: len(prefix)] == prefix]:
                self._drop(key)

    def family(self) -> Metric:
        """As Prometheus has it."""
        if self.spec.kind == "histogram":
            return self._histogram()
        plain = CounterMetricFamily if self._adds_up else GaugeMetricFamily
        family = plain(self.name, self.spec.help, labels=self._labels)
        for key, value in self._values.items():
            family.add_metric(key, value)
        return family

    def _histogram(self) -> Metric:
        family = HistogramMetricFamily(self.name, self.spec.help, labels=self._labels)
        for key, (counts, total) in self._values.items():
            running, buckets = 0, []
            for bound, count in zip((*map(str, self.spec.buckets), "+Inf"), counts, strict=True):
                running += count
                buckets.append((bound, running))
            family.add_metric(key, buckets, total)
        return family

    def _is_past(self, key: Key, unobservable: bool, taken: float) -> bool:
        if not self._adds_up or unobservable:
            return True
        return key[-1:] != (OTHER,) and self._seen.get(key, taken) < taken - FORGOTTEN_SECONDS

    def _room(self, prefix: Key, now: Mapping[Key, Any], wanted: int, taken: float) -> int:
        """How many further labels there is room for, once those that are gone have made it."""
        held = [key for key in self._values if key[: len(prefix)] == prefix and key[-1:] != (OTHER,)]
        missing = len(held) + wanted - MOST_SERIES
        if missing > 0:
            gone = [key for key in held if key not in now and self._seen[key] < taken - GONE_SECONDS]
            for key in sorted(gone, key=self._seen.__getitem__)[:missing]:
                self._drop(key)
                held.remove(key)
        return max(0, MOST_SERIES - len(held))

    def _drop(self, key: Key) -> None:
        del self._values[key]
        self._seen.pop(key, None)

    def _add(self, key: Key, x: Any) -> None:
        if isinstance(x, Counts):
            counts, total = self._values.get(key, ([0] * len(x.buckets), 0.0))
            self._values[key] = ([a + b for a, b in zip(counts, x.buckets, strict=True)], total + x.sum)
        else:
            self._values[key] = self._values.get(key, 0.0) + max(0.0, float(x))
