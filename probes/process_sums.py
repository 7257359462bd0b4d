"""The arithmetic of the processes probe: what each process did between two looks, and what that is by name.

No clock, no kernel: looks in, numbers out.  A thread that was not there before has run since its start, which was
in between; a counter that fell belongs to such a thread, because thread ids are used again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from probes.process_files import Look, Thread

#: A ready thread that ran for less of the time is stuck (field study: see probes.processes).
STUCK_RATIO = 0.2

_FIRST = "nothing to compare with yet: this is the first look at these processes"
_NO_DELAY = "this kernel has no /proc/PID/task/TID/schedstat, which counts the run delay"
#: The fields of all looks, those of two looks, and of these what is told by looking at every thread.
_NOW = ("processes", "threads", "resident_bytes")
_BETWEEN = (
    "cpu_cores", "busiest_process_cores", "busiest_thread_ratio", "busiest_thread_delay_ratio", "stuck_threads"
)  # fmt: skip
_OF_THREADS = _BETWEEN[2:]


class Growth(NamedTuple):
    """What one process did between two looks.

    ``busiest`` and ``delay`` are the shares of that time for which its busiest thread ran, and waited for a CPU;
    None where that is not known of any thread.
    """

    cores: float
    busiest: float | None
    delay: float | None
    stuck: int


def growth(before: Look | None, now: Look) -> Growth | None:
    """What one process did between two looks; None when there are no two, or no time has passed."""
    if before is None or now.at <= before.at:
        return None
    seconds = now.at - before.at
    busiest, delay, stuck = None, None, 0
    for tid, thread in now.threads.items():
        then = before.threads.get(tid)
        if then is None or then.run > thread.run:
            if before.cut:
                continue  # it may have been there all the time
            then = Thread("", 0.0, None if thread.delay is None else 0.0)
        if (then.delay is None) != (thread.delay is None):
            continue  # told by two different clocks
        ran = min(1.0, (thread.run - then.run) / seconds)
        stuck += then.state == thread.state == "R" and ran < STUCK_RATIO
        if busiest is None or ran > busiest:
            busiest = ran
            delay = None if thread.delay is None else min(1.0, max(0.0, thread.delay - (then.delay or 0.0)) / seconds)
    cores = max(0.0, now.stat.cpu_seconds - before.stat.cpu_seconds) / seconds
    return Growth(cores, busiest, delay, stuck)


def sum_up(
    looks: Sequence[tuple[Look, Growth | None]], blind: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields by name, and the reasons of those that are None or lack something.

    ``blind`` gives the fields that cannot be believed here, with the reason.
    """
    fields: dict[str, Any] = {name: {} for name in (*_NOW, *_BETWEEN)}
    unseen = dict.fromkeys(_BETWEEN, _FIRST)
    by_name: dict[str, list[tuple[Look, Growth | None]]] = {}
    for look, grown in looks:
        by_name.setdefault(look.stat.name, []).append((look, grown))
    for name, found in by_name.items():
        stats, known = [look.stat for look, _ in found], [grown for _, grown in found if grown is not None]
        values = [len(stats), sum(s.threads for s in stats), sum(s.resident_bytes for s in stats), *_between(known)]
        for field, value in zip(fields, values, strict=False):  # what is known between two looks may be nothing
            if value is not None:
                fields[field][name] = value
                unseen.pop(field, None)
    if fields["busiest_thread_ratio"] and not fields["busiest_thread_delay_ratio"]:
        unseen["busiest_thread_delay_ratio"] = _NO_DELAY
    for look in (look for look, _ in looks if look.cut):
        part = f"only {len(look.threads)} of the {look.stat.threads} threads of {look.stat.name} were looked at"
        unseen |= dict.fromkeys(_OF_THREADS, part)
    unseen |= blind
    return {name: None if name in blind or not found else found for name, found in fields.items()}, unseen


def _between(known: Sequence[Growth]) -> tuple[float | None, ...]:
    """The values of ``_BETWEEN`` for the processes of one name."""
    if not known:
        return ()
    top = max(known, key=lambda g: -1.0 if g.busiest is None else g.busiest)
    cores = [g.cores for g in known]
    return sum(cores), max(cores), top.busiest, top.delay, None if top.busiest is None else sum(g.stuck for g in known)
