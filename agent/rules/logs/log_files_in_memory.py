"""Log files that are memory: on tmpfs, on Cloud Run's file system, in an emptyDir of medium Memory.

Files that nobody named are seen by the group's own count of what it holds in memory: where that is small none of them can be
large, where it is more than what the named ones hold nobody knows what it is.

Files that are rotated grow most of the time and get no larger, so they have room for as long as they stay below their own
high-water mark.  Where their file system takes less than the memory limit leaves, that limit is never reached by them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import raising, words
from agent.rules.confidence import measured
from agent.rules.logs import advice, queues
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import backlog
from agent.views.memory import Memory, group_memory
from probes.host.cgroup import CgroupReading
from probes.logs.reading import BacklogReading
from probes.reading import Code

SPAN = 60.0
LARGE = Threshold(
    "size of the log files in memory, at least", 64 * 2**20, "bytes", "an eighth of Cloud Run's default of 512 MiB"
)
PART = Threshold("or instead: their share of the memory limit, at least", 0.1, "ratio", "the app lacks it")
SOON = Threshold(
    "or instead: time until the memory limit is reached, or the end of their file system, at the present growth, at most",
    3600.0,
    "seconds",
    "files grow until somebody deletes them",
)
NAME_IT = "logs.files.NAME = DIRECTORY of the log files"
TOO_MANY = "there are more files than one look can count"
FEWER = "delete old log files, or move them to a directory of their own"
SURE = measured(2, 2)


def _judge(history: History) -> Judgement:
    memory = group_memory(history, SPAN, backlog.app_group(history))
    named = queues.of_files(history, SPAN, lambda queue: _files(history, queue, memory))
    if isinstance(named, Present | Unknown):
        return named
    return _unnamed(history, memory, named)


def _files(history: History, queue: backlog.Backlog, memory: Memory | None) -> Judgement:
    where = Evidence(queue.backing.because)
    if queue.backing.medium == "disk":
        return Absent(f"{queue.name} is on disk: {queue.backing.because}", (where,))
    if queue.backing.medium == "unknown":
        return Unknown(f"{queue.name}: {queue.backing.because}", code=Code.CANNOT_COUNT)
    size, end = (queue.waiting_bytes or 0.0) + (queue.deleted_bytes or 0.0), _end(history, queue, memory)
    text = f"{queue.name} holds {'at least ' if queue.part else ''}{words.megabytes(size)} in memory"
    if queue.growth_bytes is not None:
        text += f" and grows by {queue.growth_bytes / 1e3:.0f} kB per second"
    evidence = [Evidence(text, size, "bytes"), where]
    if queue.deleted_bytes:
        held = f"of it {words.megabytes(queue.deleted_bytes)} are in deleted files that a process holds open"
        evidence.append(Evidence(held, queue.deleted_bytes, "bytes"))
    if size < LARGE.value and end is None and not (memory and size >= PART.value * memory.limit):
        return Unknown(f"{text}: {TOO_MANY}", FEWER, Code.PARTIAL) if queue.part else Absent(text, tuple(evidence))
    if end is not None:
        evidence.append(Evidence(f"at this growth {end.what} in {words.duration(end.seconds)}", end.seconds, "seconds"))
    if memory is not None and (end is None or end.of_memory):
        evidence += queues.until_limit(memory if end else replace(memory, growth=None), "the app's group")
    return Present("critical" if end is not None and end.of_memory else "warning", SURE, "the app", tuple(evidence), Advice(
        ADVICE, (*raising.onto_disk(history), *advice.changes("directory")), "a volume on a disk", "more memory: files grow until they are deleted",
    ))  # fmt: skip


class _End(NamedTuple):
    """What the growth of the files comes to first."""

    seconds: float
    of_memory: bool
    """The memory limit, at which somebody is killed; else their file system, which takes no more then."""
    what: str


def _end(history: History, queue: backlog.Backlog, memory: Memory | None) -> _End | None:
    """``None`` where it is not soon, or not known: of a part of the files it is not told what their file system takes."""
    growth = min(queue.growth_bytes or 0.0, backlog.mark_growth(history, queue) or 0.0)
    rooms = []
    if memory is not None:
        rooms.append((max(0.0, memory.limit - memory.used), True, "the room is used up"))
    if queue.most_bytes is not None:
        left = max(0.0, queue.most_bytes - (queue.waiting_bytes or 0.0))
        rooms.append((left, False, f"their file system, which takes {words.megabytes(left)} more, is full"))
    if growth <= 0 or not rooms or queue.part:
        return None
    room, of_memory, what = min(rooms, key=lambda each: each[0])
    return _End(room / growth, of_memory, what) if room / growth <= SOON.value else None


def _unnamed(history: History, memory: Memory | None, named: Absent | None) -> Judgement:
    """Beside those that are named: nothing large, if the group says so."""
    files = [queue for queue in backlog.queues(history, SPAN) if queue.kind in backlog.FILES]
    if memory is None or memory.shared is None:
        if named is not None and any(queue.source != backlog.STDOUT for queue in files):
            return named
        return Unknown("no directory of logs is watched", NAME_IT, Code.NOT_CONFIGURED)
    inside = (queue for queue in files if queue.backing.medium == "memory")
    known = sum((queue.waiting_bytes or 0.0) + (queue.deleted_bytes or 0.0) for queue in inside)
    text = f"the app's group holds {words.megabytes(memory.shared)} of files in memory and shared memory"
    if memory.shared - known >= PART.value * memory.limit:
        return Unknown(f"{text}; whether log files are among them is not known", NAME_IT, Code.NOT_CONFIGURED)
    return named or Absent(text, (Evidence(text, memory.shared, "bytes"),))


ADVICE = "Log to stdout, or to a volume that is a disk, and rotate."

RULE = Rule(
    id="log_files_in_memory",
    title="Log files fill the memory",
    meaning="The log files lie on a file system that is memory, and count against the limit of whoever wrote them.",
    disproof="stat -f of the directory names a disk's file system, and this is no Cloud Run",
    needs=(),
    uses=(BacklogReading, CgroupReading),
    thresholds=(LARGE, PART, SOON),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    judges_coverage=True,
    suspect="logs",
)
