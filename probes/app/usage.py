"""The arithmetic of the processes probe: what each process did between two samples, and what that is by name.

No clock, no kernel: samples in, numbers out.  A thread that was not there before has run since its start, which was
in between; a counter that fell belongs to such a thread, because thread ids are used again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from probes.app.procfs import ProcessSample
from probes.counters import gain
from probes.reading import Code, Unseen

#: A ready thread that ran for less of the time is stuck (measured: see probes.app.processes).
STUCK_RATIO = 0.2

_FIRST = Unseen("nothing to compare with yet: this is the first sample of these processes", Code.NOT_YET)
_NO_DELAY = Unseen("this kernel has no /proc/PID/task/TID/schedstat, which counts the run delay", Code.CANNOT_COUNT)
#: The fields of all samples, those of two samples, and of these what takes a sample of every thread.
_NOW = ("processes", "threads", "uninterruptible_threads", "resident_bytes")
_BETWEEN = (
    "cpu_cores", "busiest_process_cores", "busiest_thread_ratio", "busiest_thread_delay_ratio", "stuck_threads",
    "main_thread_ratio", "main_thread_delay_ratio",
)  # fmt: skip
_OF_THREADS = _BETWEEN[2:]


class Growth(NamedTuple):
    """What one process did between two samples.

    ``busiest`` and ``delay`` are the shares of that time for which its busiest thread ran, and waited for a CPU;
    None where that is not known of any thread; ``main`` and ``main_delay`` are those of its first one.
    """

    cores: float
    busiest: float | None
    delay: float | None
    stuck: int
    main: float | None = None
    main_delay: float | None = None


def growth(before: ProcessSample | None, now: ProcessSample) -> Growth | None:
    """What one process did between two samples; None when there are no two, or no time has passed."""
    if before is None or now.at <= before.at:
        return None
    seconds = now.at - before.at
    busiest, delay, stuck = None, None, 0
    main: tuple[float | None, float | None] = None, None
    for tid, thread in now.threads.items():
        then = before.threads.get(tid)
        if then is not None and thread.run < then.run:
            then = None  # its id was given to another thread
        if then is not None and (then.delay is None) != (thread.delay is None):
            continue  # told by two different clocks
        ran = gain(then.run if then else None, thread.run, from_zero=not before.cut)
        if ran is None:
            continue  # it may have been there all the time
        share = min(1.0, ran / seconds)
        stuck += then is not None and then.state == thread.state == "R" and share < STUCK_RATIO
        waited = None if thread.delay is None else gain(then.delay if then else 0.0, thread.delay) or 0.0
        both = share, None if waited is None else min(1.0, waited / seconds)
        if busiest is None or share > busiest:
            busiest, delay = both
        if tid == now.pid:
            main = both
    cores = (gain(before.stat.cpu_seconds, now.stat.cpu_seconds) or 0.0) / seconds
    return Growth(cores, busiest, delay, stuck, *main)


def sum_up(
    samples: Sequence[tuple[ProcessSample, Growth | None]], blind: Mapping[str, Unseen]
) -> tuple[dict[str, Any], dict[str, Unseen]]:
    """The fields by name, and the reasons of those that are None or lack something.

    ``blind`` gives the fields that cannot be believed here, with the reason.
    """
    fields: dict[str, Any] = {name: {} for name in (*_NOW, *_BETWEEN)}
    unseen = dict.fromkeys(_BETWEEN, _FIRST)
    by_name: dict[str, list[tuple[ProcessSample, Growth | None]]] = {}
    for sample, grown in samples:
        by_name.setdefault(sample.stat.name, []).append((sample, grown))
    for name, found in by_name.items():
        stats, known = [sample.stat for sample, _ in found], [grown for _, grown in found if grown is not None]
        asleep = sum(thread.state == "D" for sample, _ in found for thread in sample.threads.values())
        values = [
            len(stats), sum(s.threads for s in stats), asleep, sum(s.resident_bytes for s in stats), *_between(known)
        ]  # fmt: skip
        for field, value in zip(fields, values, strict=False):  # what is known between two samples may be nothing
            if value is not None:
                fields[field][name] = value
                unseen.pop(field, None)
    if fields["busiest_thread_ratio"] and not fields["busiest_thread_delay_ratio"]:
        unseen["busiest_thread_delay_ratio"] = _NO_DELAY
    for sample in (sample for sample, _ in samples if sample.cut):
        part = f"only {len(sample.threads)} of the {sample.stat.threads} threads of {sample.stat.name} were sampled"
        unseen |= dict.fromkeys(_OF_THREADS, Unseen(part, Code.PARTIAL))
    unseen |= blind
    return {name: None if name in blind or not found else found for name, found in fields.items()}, unseen


def _between(known: Sequence[Growth]) -> tuple[float | None, ...]:
    """The values of ``_BETWEEN`` for the processes of one name."""
    if not known:
        return ()
    top = max(known, key=lambda g: -1.0 if g.busiest is None else g.busiest)
    first = max(known, key=lambda g: -1.0 if g.main is None else g.main)
    cores, stuck = [g.cores for g in known], None if top.busiest is None else sum(g.stuck for g in known)
    return sum(cores), max(cores), top.busiest, top.delay, stuck, first.main, first.main_delay
