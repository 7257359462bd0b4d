"""Log files that are memory: on tmpfs, on Cloud Run's file system, in an emptyDir of medium Memory.

Where no directory of logs is watched, the group's own count of files in memory can still clear it.
"""

from __future__ import annotations

from agent import backlog
from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import log_settings, log_view
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from probes.backlog import BacklogReading
from probes.cgroup import CgroupReading

SPAN = 60.0
LARGE = Threshold("bytes in memory", 64 * 2**20, "bytes", "an eighth of Cloud Run's default of 512 MiB")
PART = Threshold("or of the memory limit", 0.1, "ratio", "the app lacks it")
SOON = Threshold(
    "or at the limit at the present growth within", 3600.0, "seconds", "files grow until somebody deletes them"
)
NAME_IT = "logs.files.NAME = DIRECTORY of the log files"


def _judge(history: History) -> Judgement:
    memory = backlog.memory(history, SPAN, backlog.app_group(history))
    return log_view.of_files(history, SPAN, lambda queue: _files(queue, memory)) or _unnamed(memory)


def _files(queue: backlog.Backlog, memory: backlog.Memory | None) -> Judgement:
    where = Evidence(queue.backing.because)
    if queue.backing.medium == "disk":
        return Absent(f"{queue.name} is on disk: {queue.backing.because}", (where,))
    if queue.backing.medium == "unknown":
        return Unknown(f"{queue.name}: {queue.backing.because}")
    size, growth = (queue.waiting_bytes or 0.0) + (queue.deleted_bytes or 0.0), queue.growth_bytes or 0.0
    text = f"{queue.name} holds {log_view.megabytes(size)} in memory and grows by {growth / 1e3:.0f} kB per second"
    evidence = [Evidence(text, size, "bytes"), where]
    if queue.deleted_bytes:
        held = f"of it {log_view.megabytes(queue.deleted_bytes)} are in deleted files that a process holds open"
        evidence.append(Evidence(held, queue.deleted_bytes, "bytes"))
    room = (memory.limit - memory.used) if memory else queue.most_bytes and queue.most_bytes - size
    soon = bool(room) and growth > 0 and (room or 0.0) / growth <= SOON.value
    if size < LARGE.value and not soon and not (memory and size >= PART.value * memory.limit):
        return Absent(text, tuple(evidence))
    if soon:
        evidence.append(Evidence(f"at this growth the room is used up in {log_view.duration((room or 0.0) / growth)}"))
    return Present("critical" if soon else "warning", 0.9, "the app", (*evidence, *log_view.until_limit(memory, "the app's group")), Advice(
        ADVICE, log_settings.changes("directory"), "a volume on a disk", "more memory: files grow until they are deleted",
    ))  # fmt: skip


def _unnamed(memory: backlog.Memory | None) -> Judgement:
    if memory is None or memory.shared is None:
        return Unknown("no directory of logs is watched", NAME_IT)
    text = f"the app's group holds {log_view.megabytes(memory.shared)} of files in memory and shared memory"
    if memory.shared >= PART.value * memory.limit:
        return Unknown(f"{text}; whether log files are among them is not known", NAME_IT)
    return Absent(text, (Evidence(text, memory.shared, "bytes"),))


ADVICE = "Log to stdout, or to a volume that is a disk, and rotate."

RULE = Rule(
    id="log_files_in_memory",
    title="Log files fill the memory",
    meaning="The log files lie on a file system that is memory, and count against the limit of whoever wrote them.",
    disproof="stat -f of the directory names a disk's file system, and this is no Cloud Run",
    needs=(),
    uses=(BacklogReading, CgroupReading),
    thresholds=(LARGE, PART, SOON),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    explains=("memory_near_limit",),
    judges_coverage=True,
)
