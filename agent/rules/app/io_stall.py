"""The app waits for storage: all that has work to do in its group sleeps for a block device.

Asked is *full* pressure, in which nothing of the group went on.  That some task waits is no harm by itself: a thread that
writes logs or reads a large file waits for the disk all day, and nobody waits for it.  A group in which one thread computes
while others wait has no full pressure: that is said with its number, and not called a stall.  Waits that come from memory
taken away are ``memory_reclaim_stall``'s, which explains this.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence, Severity
from agent.rules import raising
from agent.rules.confidence import not_measured
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import place
from agent.views.cpu import cores_used
from agent.views.pressure import stall
from probes.app.processes import ProcessesReading
from probes.host.cgroup import CgroupReading
from probes.reading import Code, Unseen

SPAN = 45.0
SHARE = Threshold(
    "time in which all work of the group waits for storage, at least",
    0.1,
    "ratio",
    "a tenth is what a person notices; some work alone may wait by design (kernel, accounting/psi.rst: some and full)",
)
SEVERE = Threshold(
    "time in which all work of the group waits for storage, critical from", 0.5, "ratio", "more time held than running"
)
BESIDE = Threshold(
    "cores that the group uses, and the time in which all of its work is said to wait, together, above which some work runs meanwhile",
    1.05,
    "",
    "on several CPUs the kernel's full is a mean over them, and not nothing while a thread computes on another (kernel/sched/psi.c); "
    "work that takes turns with its waits uses the rest of the time at most",
)
SURE = not_measured(
    0.9, "the kernel counts the waits; a slow block device in a guest kernel (docs/evidence/os-stalls.md)"
)

_NO_PSI = Unseen("the pressure of the group has not been read twice yet", Code.NOT_YET)
REMEDY = "cgroup v2 and a kernel that was booted with psi=1"


def _judge(history: History) -> Judgement:
    target = "app" if history.latest(CgroupReading, "app") is not None else ""
    seen, latest = stall(history, SPAN, target, "io"), history.latest(CgroupReading, target)
    sleepers = _uninterruptible(history)
    if seen is None:
        reason = latest.unseen.get("io_stalled_seconds", _NO_PSI) if latest is not None else _NO_PSI
        also = f"; {sleepers[0].text}" if sleepers else ""
        return Unknown(f"{reason}{also}", "wait" if reason.code is Code.NOT_YET else REMEDY, reason.code)
    whose = place.named(target)
    waits = Evidence(
        f"all work of {whose} waited for storage {seen.every:.1%} of the time, some of it {seen.some:.1%}",
        seen.every,
        "ratio",
    )
    if seen.every < SHARE.value:
        return Absent(waits.text, (waits,))
    used = cores_used(history, SPAN, target)
    if used is not None and used + seen.every > BESIDE.value:
        why = f"{waits.text}, as the kernel has it; but it used {used:.2f} cores meanwhile, so other work of it went on"
        return Unknown(why, "io.pressure and the threads in state D of whoever is slow", Code.PARTIAL)
    severity: Severity = "critical" if seen.every >= SEVERE.value else "warning"
    return Present(
        severity, SURE, "the app" if target else place.scope(history), (waits, *sleepers),
        Advice(ADVICE, raising.faster_storage(history), "faster volumes are billed by their rate", "more CPU or memory, a faster database elsewhere"),
        share=seen.every,
    )  # fmt: skip


def _uninterruptible(history: History) -> tuple[Evidence, ...]:
    """In how many of the samples a thread of the app slept for a device (state D)."""
    readings = [r for r in history.window(ProcessesReading, SPAN) if r.uninterruptible_threads is not None]
    hit = sum(any((r.uninterruptible_threads or {}).values()) for r in readings)
    if not hit:
        return ()
    text = f"a thread of the app slept uninterruptibly (state D) in {hit} of {len(readings)} samples"
    return (Evidence(text, hit / len(readings), "ratio"),)


ADVICE = "Let the app wait less for its disk: a faster volume, or fewer synchronous reads and writes."

RULE = Rule(
    id="io_stall",
    title="The app waits for storage",
    meaning=(
        "All threads of the group that have work to do sleep until a block device answers: a slow or used-up volume, "
        "an I/O limit, or too many synchronous writes."
    ),
    disproof="io.pressure of the group shows full near 0 while the app is slow",
    needs=(CgroupReading,),
    thresholds=(SHARE, SEVERE, BESIDE),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
)
