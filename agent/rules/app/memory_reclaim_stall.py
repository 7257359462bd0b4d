"""The app waits for memory: the kernel takes pages away that the app needs again, or holds it while it makes room.

Nothing is killed and nothing is full by its own account: a group whose files and heap do not fit under ``memory.max`` or
``memory.high`` is slowed down by the kernel instead.  Three look-alikes are asked about.  A copy of large files keeps a group
at its limit in peace: nobody waits and nothing is read twice.  A group that met its limit often and waited hardly ever is
served by cheap reclaim.  And a task that loses its CPU while it reclaims seems to wait for memory (:mod:`agent.views.pressure`).
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence, Severity
from agent.rules import raising
from agent.rules.confidence import not_measured
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import place
from agent.views.memory import group_memory
from agent.views.pressure import stall
from probes.host.cgroup import CgroupReading
from probes.reading import Code, Unseen

SPAN = 45.0
SHARE = Threshold(
    "time in which some task of the group waits for memory, at least",
    0.1,
    "ratio",
    "a healthy group waits below 1 % (kernel, accounting/psi.rst); a tenth is what a person notices",
)
SEVERE = Threshold(
    "time in which all work of the group waits for memory, critical from",
    0.5,
    "ratio",
    "more time held than running; systemd-oomd kills from 0.6 on (oomd.conf)",
)
RECLAIMED = Threshold(
    "pages per second that were read again soon after they had been reclaimed, or faults that read from storage, at least",
    1.0,
    "per second",
    "without any, and without having met memory.high or memory.max, it is not this group's memory that is short",
)
READ = Threshold(
    "or instead: wait for storage for each page that was read again, at most",
    0.05,
    "seconds",
    "one read of a slow volume lasts 1 to 50 ms; with more, other reads and writes are what is waited for. The kernel counts such a "
    "wait as one for memory only where the page had been in long use (mm/workingset.c)",
)
SURE = not_measured(
    0.9, "the kernel counts the waits and their reason; two real stalls in a guest kernel (docs/evidence/os-stalls.md)"
)

_NO_PSI = Unseen("the pressure of the group has not been read twice yet", Code.NOT_YET)
REMEDY = "cgroup v2 and a kernel that was booted with psi=1"


def _judge(history: History) -> Judgement:
    target = "app" if history.latest(CgroupReading, "app") is not None else ""
    seen, latest = stall(history, SPAN, target, "memory"), history.latest(CgroupReading, target)
    if seen is None:
        reason = latest.unseen.get("memory_stalled_seconds", _NO_PSI) if latest is not None else _NO_PSI
        return Unknown(reason, "wait" if reason.code is Code.NOT_YET else REMEDY, reason.code)
    again = stall(history, SPAN, target, "io")
    read = again.some if again is not None and seen.refaults >= max(RECLAIMED.value, again.some / READ.value) else 0.0
    whose = place.named(target)
    waits = Evidence(
        f"some work of {whose} waited for memory {seen.some:.1%} of the time, all of it {seen.every:.1%}",
        seen.some,
        "ratio",
    )
    if seen.some < SHARE.value and read < SHARE.value:
        return Absent(waits.text, (waits,))
    if seen.refaults + seen.faults < RECLAIMED.value and not seen.met:
        return Unknown(
            f"{waits.text}, and nothing was reclaimed from it: the machine's own memory may be short",
            "check the memory and the swap of the machine (vmstat 1)",
            Code.CANNOT_COUNT,
        )
    memory = group_memory(history, SPAN, target)
    evidence = [
        waits,
        Evidence(
            f"{seen.refaults:.0f} pages a second were needed again soon after they had been taken away", seen.refaults
        ),
    ]
    if again is not None and read > seen.some:
        evidence.insert(
            0,
            Evidence(
                f"some work of {whose} waited {read:.1%} of the time for pages to be read that had been taken away",
                read,
                "ratio",
            ),
        )
    if seen.met:
        evidence.append(
            Evidence(f"the group met its memory limit (memory.high or memory.max) {seen.met:.0f} times", seen.met)
        )
    severity: Severity = (
        "critical" if max(seen.every, again.every if again is not None and read else 0.0) >= SEVERE.value else "warning"
    )
    changes = (HIGH, *(raising.raise_memory(history, memory, target) if memory is not None else ()))
    return Present(
        severity, SURE, "the app" if target else place.scope(history), tuple(evidence),
        Advice(ADVICE, changes, "memory is reserved and billed", "more CPU, a faster disk, a faster database"),
        share=max(seen.some, read),
    )  # fmt: skip


ADVICE = "Give the group more memory, or let the app keep less: what it uses does not fit under its limit."
HIGH = (
    "raise or remove memory.high of the group where it is set   # systemd: MemoryHigh=; Kubernetes: the MemoryQoS feature "
    "sets it from requests and limits"
)

RULE = Rule(
    id="memory_reclaim_stall",
    title="The app waits for memory that the kernel takes away",
    meaning=(
        "The group is at its memory limit and works on more than fits: the kernel reclaims pages that are needed again at "
        "once, or holds the app at memory.high. Nothing is killed; everything is slow."
    ),
    disproof="memory.pressure of the group stays near 0 while the app is slow",
    needs=(CgroupReading,),
    thresholds=(SHARE, SEVERE, RECLAIMED, READ),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
)
