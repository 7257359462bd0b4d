"""More threads want the CPUs than there are CPUs: run delay without throttling.

Spins are asked rather than heartbeats: a thread that wakes from sleep is let in quickly by the
scheduler, one that wants to go on running is not, and the app's busy threads are of the second kind.
"""

from __future__ import annotations

from agent import breakdown
from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import settings
from agent.rules.rule import IDLE_CLIENT, Absent, Judgement, Present, Rule, Threshold, Unknown
from probes.cgroup import CgroupReading
from probes.suspension import SuspensionReading

SPAN = 60.0
SHARE = Threshold(
    "run delay in spins", 0.25, "ratio", "a busy thread loses a quarter of its speed; 3 on 2 CPUs lose a third"
)
RECENT = Threshold(
    "spins asked", 5, "", "the child repeats a spin that waited, some seconds apart: one is a throw of the dice"
)
LEAST = Threshold("of them contended", 3, "", "most of them, and not one with a long wait")
SPREAD = Threshold("first to last of these", 10.0, "seconds", "longer than another process takes to start")
STARTED = Threshold("heartbeats told of, at least", 20.0, "seconds", "the agent's own start crowds a small machine")
WHOLE = Threshold("use of the CPU limit", 0.9, "ratio", "without spins: who gets all of its limit is not contended")
SELF = Threshold("own use", 0.7, "ratio", "above this share of all CPUs the container crowds itself")


def _judge(history: History) -> Judgement:
    if (no := settings.cannot_count(history, "run_delay")) is not None:
        return Unknown(*no)
    view = breakdown.spin_view(history, SPAN, int(RECENT.value))
    cpu = breakdown.cpu(history, SPAN)
    beat = cpu.shares["suspended_contention"] if cpu and cpu.seconds >= STARTED.value else 0.0
    spun = view.causes.contention / view.wall if view.wall else 0.0
    waited = view.with_cause("contention", 0.001)
    spread = waited[-1].start - waited[0].start if waited else 0.0
    if spun >= SHARE.value > beat and len(view.spins) < RECENT.value and spread < SPREAD.value:
        return Unknown(f"{len(waited)} of {len(view.spins)} short spins waited: too few to tell", "wait half a minute")
    share = max(beat, spun if len(waited) >= LEAST.value else 0.0)
    used, platform = breakdown.cores_used(history, SPAN), settings.where(history)
    if not view.spins and beat < SHARE.value:
        return _without_spins(history, used)
    use = used / platform.cpus if used is not None and platform is not None and platform.cpus else None
    told = (
        Evidence(f"a thread that wants to run waits {spun:.0%} of the time for a CPU", spun, "ratio"),
        Evidence(f"a thread that wakes up waits {beat:.0%} of the time", beat, "ratio"),
    )  # fmt: skip
    evidence = (
        *(told if spun >= beat else reversed(told)),
        *([Evidence(f"this container itself uses {use:.0%} of all CPUs", use, "ratio")] if use is not None else []),
    )  # fmt: skip
    if share < SHARE.value:
        return Absent(f"run delay beyond the quota took {share:.1%} of the time", evidence)
    own = use is not None and use >= SELF.value
    advice = Advice(
        OWN_ADVICE if own else ADVICE, _changes(history, own), "more CPU reserved or billed",
        "changing the billing mode or raising a CPU limit: no limit is the cause",
    )  # fmt: skip
    return Present("warning", 0.9, settings.scope(history), evidence, advice)


def _without_spins(history: History, used: float | None) -> Judgement:
    """No spin is made while a limit holds the work anyway; who gets all of that limit waits for nobody else."""
    reading = history.latest(CgroupReading)
    limit = reading.cpu_limit_cores if reading is not None else None
    if limit and used is not None and used >= WHOLE.value * limit:
        why = f"the container gets {used:.2f} of the {limit:.2f} cores of its limit: nothing else holds it up"
        return Absent(why, (Evidence(why, used, "cores"),))
    return Unknown("no spin in the last minute: the heartbeat alone does not feel contention")


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
    thresholds=(SHARE, RECENT, LEAST, SPREAD, STARTED, WHOLE, SELF),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    explains=IDLE_CLIENT,
)
