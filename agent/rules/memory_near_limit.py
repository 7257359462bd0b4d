"""The memory limit is near, or will be soon: whoever passes it is killed, and the logs in its memory with it.

Used is what the kernel cannot give back (memory.current without the page cache of files on disks): it reclaims those
before it kills, so a group that reads and writes files stands at its limit in peace (kernel, cgroup-v2.rst, memory.stat).
"""

from __future__ import annotations

from agent import backlog
from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import log_view, settings
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from probes.cgroup import CgroupReading
from probes.processes import ProcessesReading

SPAN = 120.0
NEAR = Threshold("used of the limit", 0.9, "ratio", "kubelet and Cloud Run warn there; a burst takes the rest")
SOON = Threshold("or reached at the present growth within", 600.0, "seconds", "ten minutes to act")
HALF = Threshold("and used of the limit then", 0.5, "ratio", "a start grows fast, and stops")
KILLED = Threshold("or processes that the kernel killed for it", 1, "", "memory.events oom_kill")


def _judge(history: History) -> Judgement:
    target = "app" if history.latest(CgroupReading, "app") is not None else ""
    memory, latest = backlog.memory(history, SPAN, target), history.latest(CgroupReading, target)
    untrusted = settings.cannot_count(history, "cgroup_memory")
    if untrusted is not None:
        return Unknown(*untrusted)
    if memory is None:
        why = (latest.unseen if latest is not None else {}).get("memory_limit_lowest_bytes", "")
        return Absent(why) if why.startswith("no memory limit") else Unknown(why or "no memory limit could be read")
    killed = sum((r.memory_events or {}).get("oom_kill", 0.0) for r in history.window(CgroupReading, SPAN, target))
    left = memory.seconds_to_limit
    soon = left is not None and left <= SOON.value and memory.share >= HALF.value
    limit = log_view.until_limit(memory, "the app's group" if target else "this container")[0]
    evidence = [Evidence(limit.text, memory.share, "ratio")]
    if memory.share < NEAR.value and not soon and not killed:
        return Absent(limit.text, tuple(evidence))
    if not memory.sure and not killed:
        return Unknown(f"{limit.text}, and how much of it is page cache is not told", "memory.stat of the group")
    if killed:
        evidence.append(Evidence(f"the kernel killed {killed:.0f} of its processes in the last two minutes", killed))
    return Present("critical" if soon or killed else "warning", 0.9, "the app" if target else settings.scope(history), (*evidence, *_what_grows(history, memory)), Advice(
        ADVICE, settings.raise_memory_limit(history, memory.limit), "memory is reserved and billed", "more CPU, a faster database",
    ))  # fmt: skip


def _what_grows(history: History, memory: backlog.Memory) -> list[Evidence]:
    """What of it can be named: files in memory, queues of logs, processes."""
    found = []
    if memory.shared and memory.shared > 0.1 * memory.used:
        found.append(
            Evidence(
                f"{log_view.megabytes(memory.shared)} of it are files in memory and shared memory",
                memory.shared,
                "bytes",
            )
        )
    inside = (q for q in backlog.queues(history, SPAN) if q.kind not in backlog.FILES and q.backing.medium == "memory")
    deep = max(inside, key=lambda q: (q.waiting_bytes or 0.0, q.entries or 0.0), default=None)
    if deep is not None and (deep.waiting_bytes or deep.entries):
        size = log_view.megabytes(deep.waiting_bytes) if deep.waiting_bytes else f"{deep.entries:.0f} {deep.unit}"
        found.append(Evidence(f"{size} wait in {deep.name}", deep.waiting_bytes or deep.entries))
    owners = history.latest(ProcessesReading)
    resident = (owners.resident_bytes if owners is not None else None) or {}
    largest = max(resident, key=resident.__getitem__, default="")
    if largest:
        found.append(
            Evidence(f"process {largest!r} holds {log_view.megabytes(resident[largest])}", resident[largest], "bytes")
        )
    return found


ADVICE = "Stop what grows; more memory alone only delays the end."

RULE = Rule(
    id="memory_near_limit",
    title="The memory limit is near",
    meaning="The group will be at its memory limit soon, or was: there the kernel kills a process of it.",
    disproof="memory.current falls by itself when it nears memory.max, and memory.events counts no oom_kill",
    needs=(CgroupReading,),
    thresholds=(NEAR, SOON, HALF, KILLED),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
)
