"""What the app's runtimes can use of its CPU limit: their own numbers (probes.app.runtime) beside the limit of the app's group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from agent.history import History, Missing, once
from agent.views import backlog
from agent.views.limits import CpuLimit, cpu_limit
from probes.app.cpu_count import How
from probes.app.processes import ProcessesReading
from probes.app.runtime import Fit, RuntimeReading
from probes.hooks.work import HooksReading
from probes.host.cgroup import CgroupReading
from probes.host.platform import PlatformReading
from probes.reading import Code
from probes.record import dataclass
from probes.rights import ITS_DESCRIPTORS

#: A look at the runtimes is made once a minute; an older one is of processes that may be gone.
LATEST_SECONDS = 200.0
#: Of a process's name the kernel keeps so much (TASK_COMM_LEN of include/linux/sched.h, less its end).
MOST_NAME = 15
_TITLES = {
    "go": "Go", "java": "the JVM", "node": "Node", "python": "Python", "dotnet": ".NET", "ruby": "Ruby", "nginx": "nginx",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class AppFit:
    """Of all processes of the app that are watched.  ``usable`` and ``at_once`` add up, and no more run at once than there are CPUs; ``None``:
    no number bounds them.

    ``unknown`` says which process makes a number unknown, and why; then neither may be believed.
    """

    limit: CpuLimit
    group: str
    """Target of the readings of its control group."""
    cores: float
    """The limit, or the CPUs that the processes may run on where these are fewer."""
    fits: Mapping[str, Fit]
    usable: int | None
    at_once: int | None
    unknown_usable: Missing | None
    unknown_at_once: Missing | None

    @property
    def main(self) -> tuple[str, Fit]:
        """The processes that count most."""
        return max(self.fits.items(), key=lambda each: (each[1].belief.at_once or 0) * each[1].workers)

    def how(self, name: str) -> str:
        """How the processes of this name come to their number, in a sentence that begins with their name."""
        fit = self.fits[name]
        belief, several = fit.belief, f" in each of {fit.workers} processes" if fit.workers > 1 else ""
        who = (
            f"{name} ({' '.join((_TITLES.get(fit.program.runtime, fit.program.runtime), fit.program.version)).strip()})"
        )
        if belief.how is How.ONE_THREAD:
            pool = (
                f", and {(belief.at_once or 1) - 1} more in the pool of {belief.setting}"
                if (belief.at_once or 1) > 1
                else ""
            )
            return f"{who} runs its own code on one thread{several}{pool}"
        counts = f"{who} counts {belief.counts} CPU{'' if belief.counts == 1 else 's'}{several}"
        return counts + {
            How.SET: f", by {belief.setting}",
            How.ROUNDED_DOWN: ": automaxprocs rounds the limit down",
            How.ROUNDED_UP: ": it rounds the limit up",
            How.TOLD: ", as it reports itself",
            How.MASK: ": the CPUs that it may run on, whatever the limit is",
        }.get(belief.how or How.MASK, "")


@once
def of_app(history: History) -> AppFit | Missing | None:
    """``None`` where the app has no CPU limit; ``Missing`` where that, or its runtimes, cannot be known."""
    owners, slot = history.latest(ProcessesReading), history.newest(RuntimeReading)
    if owners is None:
        return history.why_missing(ProcessesReading, LATEST_SECONDS).otherwise("the app's processes are not seen")
    group = backlog.app_group(history)
    limits = history.latest(CgroupReading, group) if group is not None else None
    if group is None or limits is None:
        why = "the control group of the app is not seen, and so its CPU limit is not known"
        return Missing(why, f"run inside the app's container, or as {ITS_DESCRIPTORS}", Code.UNREACHABLE)
    limit = cpu_limit(history, group)
    if limit is None:
        return _no_limit(history, limits)
    readings = history.window(RuntimeReading, LATEST_SECONDS)
    if not readings:
        reason = history.why_missing(RuntimeReading, LATEST_SECONDS) if slot is not None else Missing()
        return reason.otherwise("the runtimes of the app's processes have not been examined yet", "wait")
    fits = _as_told(history, readings[-1])
    if unseen := set(owners.processes or {}) - set(fits):
        return Missing(f"the runtime of {min(unseen)} has not been examined yet", "wait a minute", Code.NOT_YET)
    if not fits:
        return Missing("no process of the app could be examined", "", Code.UNREACHABLE)
    usable = [fit.belief.usable and fit.belief.usable * fit.workers for fit in fits.values()]
    at_once = [fit.belief.at_once and fit.belief.at_once * fit.workers for fit in fits.values()]
    mask = readings[-1].allowed_cpus
    return AppFit(
        limit, group, min(limit.cores, mask or limit.cores), fits, _sum(usable), _sum(at_once, mask),
        _unknown(fits, usable), _unknown(fits, at_once),
    )  # fmt: skip


def _as_told(history: History, reading: RuntimeReading) -> dict[str, Fit]:
    """The fits; what a runtime tells of itself by a hook stands above what was worked out from outside, where no call is seen."""
    heard, fits = history.latest(HooksReading), dict(reading.fits)
    for each in heard.runtimes if heard is not None else ():
        name, counts = each.process[:MOST_NAME], each.told.cpus and int(each.told.cpus)
        fit = fits.get(name)
        if fit is not None and counts and fit.program.runtime == each.told.name and fit.belief.counts != counts:
            usable = min(counts, fit.allowed_cpus)
            told = fit.belief._replace(how=How.TOLD, counts=counts, usable=usable, at_once=counts, because=None)
            fits[name] = replace(fit, belief=told)
    return fits


def _no_limit(history: History, limits: CgroupReading) -> Missing | None:
    """A limit that cannot be seen is not one that is not there."""
    platform = history.latest(PlatformReading)
    for unseen in (limits.unseen.get("cpu_limit_cores"), platform.unseen.get("cpu_limit_cores") if platform else None):
        if unseen is not None and unseen.code is not Code.ABSENT:
            return Missing(unseen, "check the limit that the platform sets", unseen.code)
    return None


def _sum(numbers: list[int | None], most: float | None = None) -> int | None:
    found = sum(number or 0 for number in numbers)
    return None if None in numbers else min(found, int(most)) if most else found


def _unknown(fits: Mapping[str, Fit], numbers: list[int | None]) -> Missing | None:
    for (name, fit), number in zip(fits.items(), numbers, strict=True):
        if number is None and fit.belief.because is not None:
            because = fit.belief.because
            remedy = f"run the agent as {ITS_DESCRIPTORS}" if because.code is Code.NOT_PERMITTED else ""
            return Missing(f"how many CPUs {name} counts is not known: {because}", remedy, because.code)
    return None
