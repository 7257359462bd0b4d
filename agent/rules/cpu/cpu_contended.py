"""More threads want the CPUs than there are CPUs: run delay without throttling.

Spins are asked rather than heartbeats: a thread that wakes from sleep is let in quickly by the
scheduler, one that wants to go on running is not, and the app's busy threads are of the second kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import raising
from agent.rules.confidence import by_kernel, kernel, measured
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.views import backlog, place
from agent.views.attribution import attribute
from agent.views.comb_clock import binomial_tail
from agent.views.cpu import cores_used, cpu_breakdown, held_outside, idle_share, spin_view, spins_within, stat_cpus
from agent.views.stalled import CONTENTION
from agent.views.taken import on_other_cpus
from probes.app.processes import ProcessesReading
from probes.cpu.suspension import SuspensionReading, Window
from probes.host.cgroup import CgroupReading
from probes.reading import Code

SPAN = 60.0
#: In which the latest five are: one each 24 s, 30 s at most, while they wait (:mod:`probes.cpu.registration`).
LOOK_BACK = 150.0
SHARE = Threshold(
    "time for which ready work waits for a CPU, at least",
    0.25,
    "ratio",
    "a busy thread loses a quarter of its speed; three on two CPUs lose a third",
)
RECENT = Threshold(
    "latest busy-loop probes, at least, each of which waited; of more nearly each, as seven of eight",
    5,
    "",
    "beside busy threads nearly each waits (55 of 57 measured), beside neighbours that take a tenth of a busy thread's time each third one: "
    "three of five is chance there",
)
LATEST = int(RECENT.value)
#: So many probes wait by chance beside such neighbours; as many as that convict which are there as rarely as all of the least number.
BY_CHANCE = 1 / 3
MOST_CHANCE = BY_CHANCE**LATEST
#: Readings of the app's busy thread, at least: one may be a burst.  It is the only one from this share of what the app uses.
LEAST_READINGS, ALONE = 3, 0.8
#: It is over when so many in a row met nothing.
CLEAN = 2
SPREAD = Threshold(
    "time from the first to the last probe that waited, at least",
    10.0,
    "seconds",
    "longer than another process takes to start",
)
STARTED = Threshold(
    "time with heartbeats, at least, for them to count", 20.0, "seconds", "the agent's own start fills a small machine"
)
WHOLE = Threshold(
    "use of the CPU limit from which nothing else holds the work", 0.9, "ratio", "asked where no probe was made"
)
SELF = Threshold(
    "use of all CPUs by this container, from which it crowds itself",
    0.7,
    "ratio",
    "its neighbours have less than a third of them",
)
APP = Threshold(
    "CPU used in the agent's container, from which an app must be in it",
    0.2,
    "cores",
    "twenty times what the agent may use",
)
WAITED = Threshold(
    "wait of a busy-loop probe for a CPU, at least, to count", 0.001, "seconds", "less is the cost of a switch"
)
HOST = Threshold(
    "time that the host, or a limit around the machine, takes from one without a steal clock, from which waits in it mean nothing",
    0.05,
    "ratio",
    "who waits for a CPU that the host holds has run delay: blamed by mistake in 6 of 6 runs of the lab",
)
IDLE = Threshold(
    "time in which the CPUs are idle since the first probe that waited, from which nobody waits for other work",
    0.6,
    "ratio",
    "an idle CPU takes over who waits for another within a tick",
)
OTHERS = Threshold(
    "use of all CPUs by anybody but the app and this agent, from which others may crowd it",
    0.1,
    "ratio",
    "two threads of an app that fill two CPUs in bursts make a probe, the third, wait 53 % in the lab, and do not wait themselves",
)
BUSY = Threshold(
    "time for which a thread of the app runs, at least, for its own run delay to answer",
    0.5,
    "ratio",
    "it wants to go on running, as the busy-loop probe does, and may have a larger share of the CPUs",
)
UNHELD = Threshold(
    "wait of that thread for a CPU, of the time in which it is ready, less than this is not held by what the agent waits for",
    0.1,
    "ratio",
    "three busy threads of one weight on two CPUs wait a third of the time",
)
PLAIN = measured(5, 5, where="plain")
GUEST = measured(
    0,
    3,
    where="guest",
    mended=3,
    note="what the host takes is run delay there; three more at the agent's own start are mended",
)


def _judge(history: History) -> Judgement:
    if (no := place.cannot_count(history, "run_delay")) is not None:
        return Unknown(*no)
    lasts = lasting(spins_within(history, LOOK_BACK), lambda w: attribute(w).contention >= WAITED.value)
    minute, latest = spin_view(history, SPAN), spin_view(history, LOOK_BACK, len(lasts) or LATEST)
    cpu = cpu_breakdown(history, SPAN)
    beat = cpu.shares["suspended_contention"] if cpu and cpu.seconds >= STARTED.value else 0.0
    waited = lasts or latest.with_cause("contention", WAITED.value)
    spun = latest.waiting if lasts else min(latest.waiting, minute.waiting)
    if spun >= SHARE.value > beat and not lasts:
        return Unknown(
            f"{len(waited)} of the latest {len(latest.spins)} busy-loop probes waited for a CPU: too few to judge by",
            "wait half a minute",
            Code.NOT_YET,
        )
    share = max(beat, spun)
    used, platform = cores_used(history, SPAN), place.where(history)
    if not minute.spins and beat < SHARE.value:
        return _without_spins(history, used)
    ours = _with_the_app(history, used)
    use = ours / platform.cpus if ours is not None and platform is not None and platform.cpus else None
    told = (
        Evidence(f"a thread that wants to run waits {spun:.0%} of the time for a CPU", spun, "ratio"),
        Evidence(f"a thread that wakes up waits {beat:.0%} of the time", beat, "ratio"),
    )  # fmt: skip
    evidence = (
        *(told if spun >= beat else reversed(told)),
        *([Evidence(f"the app and this agent use {use:.0%} of {_cpus(history)}", use, "ratio")] if use is not None else [NOT_SEEN]),
    )  # fmt: skip
    if on_other_cpus(history):
        why = f"{evidence[0].text}; but that is on {_cpus(history)}, and the app may run on others"
        return Unknown(why, OF_THE_APP, Code.CANNOT_COUNT)
    if share < SHARE.value:
        return Absent(f"run delay beyond the quota took {share:.1%} of the time", evidence)
    app = _busy_app_waits(history)
    if app is not None and app < UNHELD.value:
        why = f"the app's busy thread waits {app:.0%} of the time in which it is ready: what this agent waits for does not hold it"
        return Absent(why, (Evidence(why, app, "ratio"), *evidence))
    host = held_outside(history, cpu) if cpu is not None else 0.0
    if kernel(history) == "guest" and host >= HOST.value:
        why = f"{evidence[0].text}; but the host takes {host:.0%} of it, and who waits for a CPU that the host holds looks like one who waits for other work"
        return Unknown(why, "the host's run queue and cpu.stat while this is seen", Code.CANNOT_COUNT)
    idle = _idle_since(history, waited[0].start) if waited and beat < SHARE.value else 0.0
    if idle >= IDLE.value:
        why = f"{evidence[0].text}, while the CPUs were idle {idle:.0%} of it: a limit that no counter here shows looks like that"
        return Unknown(
            why, "look for a CPU limit above this container: of the pod, the task or the machine", Code.CANNOT_COUNT
        )
    own = use is not None and use >= SELF.value
    if use is not None and not own and 1 - idle - use < OTHERS.value:
        why = f"{evidence[0].text}, and nobody but the app uses these CPUs: in bursts it fills them, and whether its own threads wait for each other is not known by a probe, which is one thread more"
        return Unknown(why, OF_THE_APP, Code.CANNOT_COUNT)
    # On a platform with sizes the limit is the machine's size, which is advised.
    or_limit = "" if raising.platform_here(history).sizes else " or raising a CPU limit"
    advice = Advice(
        OWN_ADVICE if own else ADVICE if use is not None else EITHER_ADVICE, _changes(history, own), "more CPU reserved or billed",
        f"changing the billing mode{or_limit}: no limit is the cause",
    )  # fmt: skip
    return Present("warning", by_kernel(history, PLAIN, GUEST), place.scope(history), evidence, advice, share=share)


def lasting(spins: Sequence[Window], met: Callable[[Window], bool]) -> Sequence[Window]:
    """The fewest of the latest probes that show that it lasts, by itself no start of another process; none where they do not.

    Nearly each of them met it: more than chance puts there (the binomial tail).  While it is looked into they come closer together, so that it
    takes more of them than are enough in number, and of those one may have come through.
    """
    hits = 0
    for count, window in enumerate(reversed(spins), 1):
        hits += met(window)
        if count >= CLEAN and not hits:
            return ()
        long = count >= LATEST and spins[-1].start - window.start >= SPREAD.value
        if long and 2 * hits > count and binomial_tail(hits, count, BY_CHANCE) <= MOST_CHANCE:
            return spins[-count:]
    return ()


def _idle_since(history: History, start: float) -> float:
    """Share of the time since then in which the CPUs stood idle; 0 where that is not known."""
    return idle_share([r for r in history.window(SuspensionReading, SPAN) if r.taken - r.seconds >= start])


def _with_the_app(history: History, used: float | None) -> float | None:
    """Cores that this container and the app's use; ``None`` where the app's share cannot be seen, so that nobody is blamed for it."""
    group = backlog.app_group(history)
    if group == "":
        return used
    if group is not None:
        app = cores_used(history, SPAN, group)
    else:
        processes = history.latest(ProcessesReading)
        cores = processes.cpu_cores if processes is not None and processes.own_group is False else None
        app = sum(cores.values()) if cores else None
    if app is not None:
        return app + (used or 0.0)
    # Alone in its container an agent uses next to nothing: what uses more is the app beside it.
    return used if used is not None and used >= APP.value else None


def _busy_app_waits(history: History) -> float | None:
    """Of the time in which the app's one busy thread was ready, that in which it waited for a CPU; ``None`` where it has none or several.

    A sidecar that requests 0.01 CPUs has a hundredth of the weight of an app that requests one: it waits where the app does not.
    Of several threads the one that ran most is the one that waited least, and does not speak for the others.
    """
    readings = [r for r in history.window(ProcessesReading, SPAN) if r.busiest_thread_delay_ratio and r.cpu_cores]
    alone = [_only_thread(r) for r in readings]
    if len(alone) < LEAST_READINGS or not all(alone):
        return None
    told = [each for each in alone if each is not None]
    waited = sum(delay for _, delay in told)
    return waited / (waited + sum(ran for ran, _ in told))


def _only_thread(reading: ProcessesReading) -> tuple[float, float] | None:
    """Shares of the time for which the thread ran that is nearly all of the app's use of the CPU, and for which it waited, with those that use the rest."""
    ran, delays, cores = reading.busiest_thread_ratio or {}, reading.busiest_thread_delay_ratio or {}, reading.cpu_cores
    name = max(ran, key=ran.__getitem__, default="")
    if name not in delays or ran[name] < max(BUSY.value, ALONE * sum((cores or {}).values())):
        return None
    return ran[name], sum(delays.values())


def _without_spins(history: History, used: float | None) -> Judgement:
    """No spin is made while a limit holds the work anyway; who gets all of that limit waits for nobody else."""
    reading = history.latest(CgroupReading)
    limit = reading.cpu_limit_cores if reading is not None else None
    if limit and used is not None and used >= WHOLE.value * limit:
        why = f"the container gets {used:.2f} of the {limit:.2f} cores of its limit: nothing else holds it up"
        return Absent(why, (Evidence(why, used, "cores"),))
    return Unknown(
        "no busy-loop probe in the last minute: a heartbeat alone does not feel crowded CPUs", code=Code.NOT_YET
    )


def _cpus(history: History) -> str:
    """The CPUs of which this agent tells."""
    platform, whole = place.where(history), stat_cpus(history)
    own = (platform.cpus if platform is not None else None) or whole
    return f"the {own} of {whole} CPUs that this agent may run on" if own < whole else "all CPUs"


def _changes(history: History, own: bool) -> tuple[str, ...]:
    if own:
        return ("run fewer busy threads or workers than there are CPUs", "or add CPUs")
    here = raising.platform_here(history)
    apart = () if here.sizes else ("move busy neighbours to other CPUs or machines (Kubernetes: podAntiAffinity)",)
    return (*raising.share_of_cpu(history), *apart)


OF_THE_APP = "run delay of the app's threads: schedstat in /proc/PID/task/TID"
ADVICE = "Other work keeps the CPUs busy: give this container a larger share of the machine, or its neighbours less."
EITHER_ADVICE = (
    "Look who keeps the CPUs busy: other containers, the app of this one, or neighbours. The app's own use is not seen from here: "
    "shareProcessNamespace and app.process, or the agent in the app's container, would show it."
)
NOT_SEEN = Evidence("how much of the CPUs the app itself uses is not seen from here")
OWN_ADVICE = "The app's own threads crowd each other out: run fewer of them, or add CPUs."

RULE = Rule(
    id="cpu_contended",
    title="Ready work waits for a CPU",
    meaning="Threads that are ready wait in the run queue because all CPUs run something else; no limit is at work.",
    disproof="run delay in /proc/PID/schedstat grows by less than a quarter of a busy thread's wall time",
    needs=(SuspensionReading,),
    thresholds=(SHARE, RECENT, SPREAD, STARTED, WHOLE, SELF, APP, WAITED, HOST, IDLE, OTHERS, BUSY, UNHELD),
    confidences=(PLAIN, GUEST),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    stalls=(CONTENTION,),
    suspect="CPU",
)
