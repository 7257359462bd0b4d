"""The memory limit is near, or will be soon: whoever passes it is killed, and the logs in its memory with it.

Used is what the kernel cannot give back (memory.current without the page cache of files on disks and without reclaimable
slab): it reclaims those before it kills, so a group that reads and writes files stands at its limit in peace (kernel,
cgroup-v2.rst, memory.stat).

The kernel also kills where the group has no limit: the machine's memory is used up, or that of a group above which is not
seen from inside.  memory.events counts those kills as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent.history import History
from agent.report import Advice, Evidence, Severity
from agent.rules import raising, words
from agent.rules.causal_graph import Case
from agent.rules.confidence import measured
from agent.rules.logs import log_files_in_memory, log_queue_in_memory, queues
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import backlog, place
from agent.views.growth import NEW_SECONDS
from agent.views.memory import Memory, group_memory
from probes.app.processes import ProcessesReading
from probes.host.cgroup import CgroupReading
from probes.reading import Code, Unseen

SPAN = 120.0
NEAR = Threshold("memory in use of the limit, at least", 0.9, "ratio", "a burst takes the rest")
SOON = Threshold(
    "or instead: time until the limit is reached at the present growth of its floor and of its high-water mark, at most",
    600.0,
    "seconds",
    "ten minutes to act",
)
NEW = Threshold(
    "since it stood higher than ever in ten minutes, for that growth to count, at most",
    NEW_SECONDS,
    "seconds",
    "simulated: a collector's saw and a start that stops pass in 1 to 23 % of the samples instead of 3 to 80 %",
)
HALF = Threshold("memory in use of the limit, at least, for that growth to count", 0.5, "ratio", "a start grows fast")
KILLED = Threshold(
    "or instead: processes that the kernel killed for want of memory, at least",
    1,
    "",
    "memory.events counts them (oom_kill)",
)
SURE = measured(2, 2)


_UNREAD = Unseen("no memory limit could be read", Code.NOT_YET)


def _judge(history: History) -> Judgement:
    target = "app" if history.latest(CgroupReading, "app") is not None else ""
    memory, latest = group_memory(history, SPAN, target), history.latest(CgroupReading, target)
    untrusted = place.cannot_count(history, "cgroup_memory")
    if untrusted is not None:
        return Unknown(*untrusted)
    killed = sum((r.memory_events or {}).get("oom_kill", 0.0) for r in history.window(CgroupReading, SPAN, target))
    kills = Evidence(
        f"the kernel killed {killed:.0f} of the processes of {place.named(target)} in the last two minutes", killed
    )
    if memory is None:
        reason = latest.unseen.get("memory_limit_lowest_bytes", _UNREAD) if latest is not None else _UNREAD
        if killed:
            return _present(history, target, (kills, _whose_end(reason)), None, "critical", WITHOUT_LIMIT)
        return Absent(reason) if reason.code is Code.ABSENT else Unknown(reason, code=reason.code)
    soon = memory.full_within(SOON.value) and memory.share >= HALF.value
    whose = f"the group {memory.path} above it" if memory.above else place.named(target)
    limit = queues.until_limit(memory, whose)[0]
    evidence = [Evidence(limit.text, memory.share, "ratio")]
    if memory.share < NEAR.value and not soon and not killed:
        return Absent(limit.text, tuple(evidence))
    if not memory.sure and not killed:
        return Unknown(
            f"{limit.text}, and how much of it is page cache is not known",
            "memory.stat of the group",
            Code.CANNOT_COUNT,
        )
    if killed:
        evidence.append(kills)
    severity: Severity = "critical" if soon or killed else "warning"
    return _present(history, target, evidence, memory, severity, raising.raise_memory(history, memory, target))


def _present(
    history: History, target: str, first: Sequence[Evidence], memory: Memory | None, severity: Severity, changes: tuple[str, ...]
) -> Present:  # fmt: skip
    named = (*(_what_grows(memory) if memory is not None else ()), *_who_holds_it(history, target))
    return Present(
        severity, SURE, "the app" if target else place.scope(history), (*first, *named),
        Advice(ADVICE, changes, "memory is reserved and billed", "more CPU, a faster database"),
        cases=_filled_by(history, target),
    )  # fmt: skip


def _whose_end(no_limit: Unseen) -> Evidence:
    """What was used up when the kernel killed and no limit is seen."""
    if no_limit.code is Code.ABSENT:
        return Evidence(f"{no_limit}: the machine's memory was used up, or the limit of a group above was reached")
    return Evidence(f"{no_limit}: which limit was reached is not known")


def _filled_by(history: History, target: str) -> tuple[Case, ...]:
    """Whose size is enough for this group's memory: of queues that gather, of files, each over the span of its rule."""
    kinds = (
        (Case.LOGS_FILL, log_queue_in_memory.SPAN, _gathers_in_app),
        (Case.FILES_FILL, log_files_in_memory.SPAN, _is_files),
    )
    return tuple(case for case, seconds, which in kinds if _fills(history, target, seconds, which))


def _fills(history: History, target: str, seconds: float, which: Callable[[backlog.Backlog], bool]) -> bool:
    memory = group_memory(history, seconds, target)
    return memory is not None and any(queues.fills(queue, memory) for queue in _held(history, seconds, target, which))


def _held(
    history: History, seconds: float, target: str, which: Callable[[backlog.Backlog], bool]
) -> list[backlog.Backlog]:
    """Those that are in this group's memory."""
    here = backlog.queues(history, seconds) if backlog.app_group(history) == target else []
    return [queue for queue in here if queue.backing.medium == "memory" and which(queue)]


def _gathers_in_app(queue: backlog.Backlog) -> bool:
    return queues.in_app(queue) and log_queue_in_memory.gathers(queue)


def _is_files(queue: backlog.Backlog) -> bool:
    return queue.kind in backlog.FILES


def _what_grows(memory: Memory) -> list[Evidence]:
    """What of it can be named by its kind: that which grows, files in memory."""
    found = []
    if memory.grows is not None:
        name, growth = memory.grows
        found.append(Evidence(f"what grows is {name}: {words.megabytes(growth * 60)} a minute", growth))
    if memory.shared and memory.shared > 0.1 * memory.used:
        found.append(
            Evidence(
                f"{words.megabytes(memory.shared)} of it are files in memory and shared memory",
                memory.shared,
                "bytes",
            )
        )
    return found


def _who_holds_it(history: History, target: str) -> list[Evidence]:
    """What of it can be named by its owner: queues of logs, processes."""
    found = []
    deep = max(
        _held(history, SPAN, target, queues.in_app),
        key=lambda q: (q.waiting_bytes or 0.0, q.entries or 0.0),
        default=None,
    )
    if deep is not None and (deep.waiting_bytes or deep.entries):
        size = words.megabytes(deep.waiting_bytes) if deep.waiting_bytes else f"{deep.entries:.0f} {deep.unit}"
        found.append(Evidence(f"{size} wait in {deep.name}", deep.waiting_bytes or deep.entries))
    owners = history.latest(ProcessesReading)
    resident = (owners.resident_bytes if owners is not None else None) or {}
    largest = max(resident, key=resident.__getitem__, default="")
    if largest:
        found.append(
            Evidence(f"process {largest!r} holds {words.megabytes(resident[largest])}", resident[largest], "bytes")
        )
    return found


WITHOUT_LIMIT = (
    "see in the kernel log which memory was used up: dmesg | grep oom-kill   # CONSTRAINT_NONE: the machine's; CONSTRAINT_MEMCG: the limit of the group after oom_memcg=",
    "give the app a memory request and a limit of its own, and see what else uses the machine's memory   # Kubernetes: resources.requests.memory, resources.limits.memory; systemd: MemoryMax=",
)
ADVICE = "Stop what grows; more memory alone only delays the end."

RULE = Rule(
    id="memory_near_limit",
    title="The memory limit is near",
    meaning="The group will be at its memory limit soon, or was, or at the end of the machine's memory: there the kernel kills a process of it.",
    disproof="memory.current falls by itself when it nears memory.max, and memory.events counts no oom_kill",
    needs=(CgroupReading,),
    thresholds=(NEAR, SOON, NEW, HALF, KILLED, queues.FILLS),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    suspect="app",
)
