"""Log calls and event loops inside the app's own processes, as the hooks in them time these.

A handler that posts each entry holds its caller up for as long as that takes, and a callback that computes or waits holds up
everybody on its event loop: neither shows from outside, where the process merely sleeps or merely works.  The hooks add up
(:mod:`probes.hooks.message` has the form), :mod:`probes.hooks.times` adds processes of one name.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any, ClassVar

from probes.hooks.message import CALL_TOTALS, LOOP_TOTALS, MOST_TIMED, WAKE_TOTALS
from probes.hooks.times import SILENT_SECONDS, Row, Taken, Times
from probes.labels import Labels
from probes.logs.registration import Logs
from probes.reading import Code, NoData, Reading, Stability, Unseen, gauge, increment
from probes.record import dataclass
from probes.registration import Context, Planned, Registration

#: Handlers, loops and processes with a label of their own.
MOST_LABELS = 2 * MOST_TIMED
#: Upper bound of one reading: three times as many labels of 101 characters, and their numbers.
READING_BYTES = 16_000
_SILENCE = Unseen("no hook has told of log calls or event loops since the last slot", Code.IDLE)
_REMEDY = "load this version's stallscope_hook in the app"


@dataclass(frozen=True, slots=True, kw_only=True)
class InAppReading(Reading):
    """What was added since the last slot; a number that a hook does not tell is missing for it."""

    probe: ClassVar[str] = "in_app"
    stability: ClassVar[Stability] = "beta"

    log_calls: Mapping[str, float] | None = increment("Log calls that a handler took", by="handler")
    log_call_seconds: Mapping[str, float] | None = increment("Time that callers spent in them", by="handler")
    slow_log_calls: Mapping[str, float] | None = increment("Of these calls those of 10 ms and more", by="handler")
    slow_log_call_seconds: Mapping[str, float] | None = increment("Time that callers spent in slow calls", by="handler")
    slowest_log_call_seconds: Mapping[str, float] | None = gauge("The longest since the last slot", by="handler")
    loop_looks: Mapping[str, float] | None = increment("Looks at how late an event loop is", by="loop")
    late_loop_looks: Mapping[str, float] | None = increment("Of these those that it was 50 ms late for", by="loop")
    loop_late_seconds: Mapping[str, float] | None = increment("How late it was, over all looks", by="loop")
    loop_slowest_seconds: Mapping[str, float] | None = gauge("How late it was at most since the last slot", by="loop")
    loop_cpu_seconds: Mapping[str, float] | None = increment("CPU time of the loop's thread", by="loop")
    loop_run_delay_seconds: Mapping[str, float] | None = increment("Time that this thread waited for a CPU", by="loop")
    loop_collecting_seconds: Mapping[str, float] | None = increment("Time in the garbage collector", by="loop")
    loop_seconds: Mapping[str, float] | None = increment("Time watched, all workers together", by="loop")
    wakes: Mapping[str, float] | None = increment("Times that the hook's own thread woke up", by="process")
    wake_late_seconds: Mapping[str, float] | None = increment("How late it was woken, over all of them", by="process")
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Loop -> "node", "asyncio", or "" of one that this version does not know."""


_CALLS = dict(
    zip(CALL_TOTALS, ("log_calls", "log_call_seconds", "slow_log_calls", "slow_log_call_seconds"), strict=True)
)
_LOOPS = dict(zip(
    LOOP_TOTALS,
    ("loop_looks", "late_loop_looks", "loop_late_seconds", "loop_cpu_seconds", "loop_run_delay_seconds", "loop_collecting_seconds"),
    strict=True,
))  # fmt: skip
_WAKES = dict(zip(WAKE_TOTALS, ("wakes", "wake_late_seconds"), strict=True))


class InAppProbe:
    """Takes what :class:`probes.hooks.probe.HooksProbe` has heard; listens to nobody itself."""

    name = "in_app"
    target = ""
    reading_type = InAppReading

    def __init__(self, times: Callable[[], Times | None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._times, self._clock, self._before = times, clock, clock()
        self._heard = -math.inf
        self._labels = {kind: Labels(clock) for kind in ("calls", "loops", "wakes")}

    async def read(self) -> InAppReading:
        """What came since the last slot.  Raises NoData when nothing did."""
        times = self._times()
        taken = times.take() if times is not None else Taken()
        if taken.calls or taken.loops or taken.wakes:
            self._heard = self._clock()
        elif self._heard < self._clock() - SILENT_SECONDS:  # a hook with nothing new speaks each 10 s
            raise NoData(_SILENCE, _REMEDY)
        calls, loops, wakes = (
            self._labelled("calls", taken.calls), self._labelled("loops", taken.loops), self._labelled("wakes", taken.wakes),
        )  # fmt: skip
        fields: dict[str, Any] = {**_told(calls, _CALLS), **_told(loops, _LOOPS), **_told(wakes, _WAKES)}
        fields["slowest_log_call_seconds"] = {label: row.slowest for label, row in calls.items()} or None
        fields["loop_slowest_seconds"] = {label: row.slowest for label, row in loops.items()} or None
        fields["loop_seconds"] = {label: row.seconds for label, row in loops.items()} or None
        untold = Unseen("no hook tells it", Code.CANNOT_COUNT) if taken != Taken() else _SILENCE
        now, before = self._clock(), self._before
        self._before = now
        return InAppReading(
            taken=now, seconds=max(0.0, now - before), kinds={label: row.kind for label, row in loops.items()},
            unseen={name: untold for name, value in fields.items() if value is None}, **fields,
        )  # fmt: skip

    async def aclose(self) -> None:
        """Nothing is held open."""

    def _labelled(self, kind: str, rows: Mapping[str, Row]) -> dict[str, Row]:
        return {label: rows[label] for label in self._labels[kind].admit(rows, MOST_LABELS)}


def _told(rows: Mapping[str, Row], fields: Mapping[str, str]) -> dict[str, dict[str, float] | None]:
    return {
        name: {label: row.added[total] for label, row in rows.items() if total in row.added} or None
        for total, name in fields.items()
    }


def probes(context: Context) -> Iterator[Planned]:
    """One, once a hook tells any of it."""
    settings = context.settings(Logs)
    if settings.hook_listen:
        yield Planned(
            make=lambda: InAppProbe(context.times),
            every=settings.every_seconds,
            cpu_seconds=0.2e-3,
            history_bytes=READING_BYTES,
            when=lambda: (times := context.times()) is not None and times.heard,
        )


REGISTRATION = Registration(probes, readings=(InAppReading,))
