"""How much of the app's CPU is taken away, as far as it can be seen from where the agent is."""

from __future__ import annotations

from agent.history import History, once
from agent.views import backlog
from agent.views.cpu import cpu_breakdown, stat_cpus, throttling
from probes.app.processes import ProcessesReading
from probes.cpu.suspension import SuspensionReading
from probes.host.platform import PlatformReading


@once
def taken_from_app(history: History, seconds: float, *, crowd: bool = True) -> float:
    """Share of the time; 0.0 where nothing shows any.

    What takes the whole machine away the agent meets itself; a quota of its own group says nothing of another's.  Without the
    ``crowd``: other work on these CPUs holds up those alone who are ready to run, which somebody who sleeps is not.
    """
    return taken_from_group(history, seconds, backlog.app_group(history), crowd=crowd and not on_other_cpus(history))


@once
def taken_from_group(history: History, seconds: float, group: str | None, *, crowd: bool = True) -> float:
    """The same of whoever is in this target's group; ``""`` is the agent's own, ``None`` one that is not seen."""
    own = cpu_breakdown(history, seconds)
    held = throttling(history, seconds, group) if group is not None else None
    apart = ([] if group == "" else ["suspended_quota"]) + ([] if crowd else ["suspended_contention"])
    shared = own.suspended - sum(own.shares[part] for part in apart) if own else 0.0
    return max(held.share if held else 0.0, shared)


def on_other_cpus(history: History) -> bool:
    """Whether the app that is seen may run on CPUs that this agent may not: who waits for the agent's then says nothing of it.

    A container may have CPUs of its own (Kubernetes' static CPU manager, --cpuset-cpus, CPUAffinity=).  Beside an agent that may
    run on all of the machine's the app runs on some of them; otherwise its processes' masks tell, or that it is in the agent's own group.
    """
    platform, owners = history.latest(PlatformReading), history.latest(ProcessesReading)
    if platform is None or not platform.cpus or platform.cpus >= stat_cpus(history):
        return False
    if owners is not None and owners.own_cpus is not None:
        return not owners.own_cpus
    group = backlog.app_group(history)
    return bool(group) or (owners is not None and group is None)


def held_between(history: History, begin: float, end: float) -> float:
    """Seconds of gaps that this process's measuring child saw between these two instants (monotonic), as far as seen."""
    windows = (w for r in history.window(SuspensionReading, history.clock() - begin + 30.0) for w in r.windows)
    gaps = ((at - length, at) for w in windows if w.end > begin and w.start < end for at, length in w.ends)
    return sum(max(0.0, min(stop, end) - max(start, begin)) for start, stop in gaps)
