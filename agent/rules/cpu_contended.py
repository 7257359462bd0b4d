"""More threads want the CPUs than there are CPUs: run delay without throttling.

Spins are asked rather than heartbeats: a thread that wakes from sleep is let in quickly by the
scheduler, one that wants to go on running is not, and the app's busy threads are of the second kind.
"""

from __future__ import annotations

from agent import breakdown
from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import settings
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from probes.cgroup import CgroupReading
from probes.suspension import SuspensionReading

SPAN = 60.0
SHARE = Threshold(
    "run delay in spins", 0.25, "ratio", "a busy thread loses a quarter of its speed; 3 on 2 CPUs lose a third"
)
RECENT = Threshold(
    "spins asked", 5, "", "the child repeats a spin that waited, some seconds apart: one is a throw of the dice"
)
ENOUGH = Threshold("spins needed", 4, "", "they span twelve seconds, longer than another process takes to start")
LEAST = Threshold("of them contended", 3, "", "most of them, and not one with a long wait")
SELF = Threshold("own use", 0.7, "ratio", "above this share of all CPUs the container crowds itself")


def _judge(history: History) -> Judgement:
    if (no := settings.cannot_count(history, "run_delay")) is not None:
        return Unknown(*no)
    view = breakdown.spin_view(history, SPAN, int(RECENT.value))
    cpu = breakdown.cpu(history, SPAN)
    beat = cpu.shares["suspended_contention"] if cpu else 0.0
    spun = view.causes.contention / view.wall if view.wall else 0.0
    waited = len(view.with_cause("contention", 0.001))
    if spun >= SHARE.value > beat and len(view.spins) < ENOUGH.value:
        return Unknown(
            f"{waited} of {len(view.spins)} short spins waited for a CPU: too few to tell", "wait half a minute"
        )
    share = max(beat, spun if waited >= LEAST.value else 0.0)
    if not view.spins and beat < SHARE.value:
        return Unknown("no spin in the last minute: the heartbeat alone does not feel contention")
    used = _own_use(history)
    evidence = (
        Evidence(f"a thread that wants to run waits {spun:.0%} of the time for a CPU", spun, "ratio"),
        Evidence(f"a thread that wakes up waits {beat:.0%} of the time", beat, "ratio"),
        *([Evidence(f"this container itself uses {used:.0%} of all CPUs", used, "ratio")] if used is not None else []),
    )  # fmt: skip
    if share < SHARE.value:
        return Absent(f"run delay beyond the quota took {share:.1%} of the time", evidence)
    own = used is not None and used >= SELF.value
    advice = Advice(
        OWN_ADVICE if own else ADVICE, _changes(history, own), "more CPU reserved or billed",
        "changing the billing mode or raising a CPU limit: no limit is the cause",
    )  # fmt: skip
    return Present("warning", 0.9, settings.scope(history), evidence, advice)


def _own_use(history: History) -> float | None:
    """CPU use of this container as a share of all CPUs."""
    readings = [r for r in history.window(CgroupReading, SPAN) if r.usage_seconds]
    platform = settings.where(history)
    wall = sum(r.seconds for r in readings)
    if not wall or platform is None or not platform.cpus:
        return None
    used = sum(next(iter((r.usage_seconds or {}).values()), 0.0) for r in readings)
    return used / wall / platform.cpus


def _changes(history: History, own: bool) -> tuple[str, ...]:
    platform = settings.where(history)
    if own:
        return ("run fewer busy threads or workers than there are CPUs", "or add CPUs")
    if platform is not None and platform.environment == "kubernetes":
        return ("raise resources.requests.cpu: it is the weight in contention", "spread pods: podAntiAffinity")
    return ("move busy neighbours to other CPUs or machines", "raise this container's cpu.weight (cpu.shares)")


ADVICE = "Other work keeps the CPUs busy: give this container a larger share of the machine, or its neighbours less."
OWN_ADVICE = "The container's own threads crowd each other out: run fewer of them, or add CPUs."

RULE = Rule(
    id="cpu_contended",
    title="Ready work waits for a CPU",
    meaning="Threads that are ready wait in the run queue because all CPUs run something else; no limit is at work.",
    disproof="run delay in /proc/PID/schedstat grows by less than a quarter of a busy thread's wall time",
    needs=(SuspensionReading,),
    thresholds=(SHARE, RECENT, ENOUGH, LEAST, SELF),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
)
