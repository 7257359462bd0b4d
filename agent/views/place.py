"""Where this agent runs, as far as rules ask."""

from __future__ import annotations

from agent.history import History, Missing
from agent.report import Scope
from probes.host.cgroup import CgroupReading
from probes.host.platform import PlatformReading
from probes.reading import Code


def where(history: History) -> PlatformReading | None:
    """The newest platform reading."""
    return history.latest(PlatformReading)


def scope(history: History) -> Scope:
    """Whose CPU a gap in this container is about: Cloud Run throttles all containers of an instance."""
    platform = where(history)
    on_cloud_run = platform is not None and platform.environment in ("cloud_run_service", "cloud_run_job")
    return "whole instance" if on_cloud_run else "own container"


def named(target: str) -> str:
    """What the group of a cgroup reading is called in a sentence, by the reading's target."""
    return "the app's group" if target else "this container"


def is_cloud_run_service(history: History) -> bool:
    """Whether the billing mode decides about CPU between requests: a job's is always instance-based."""
    platform = where(history)
    return platform is not None and platform.environment == "cloud_run_service"


def cannot_count(history: History, counter: str) -> Missing | None:
    """Why, when this counter cannot count here or is not known to; ``None`` when it counts."""
    platform = where(history)
    if platform is None:
        return Missing("the platform has not been examined yet", "wait for the first platform reading", Code.NOT_YET)
    trust = platform.counters[counter]
    return None if trust.counts else Missing(trust.because, trust.remedy, trust.code)


def throttled_groups(history: History) -> list[str] | Missing:
    """Targets of the cgroup readings whose throttled time counts, or why none does.

    An agent that cannot see its own group may see the app's all the same.  In gVisor every group is made up.
    """
    read, no = history.targets(CgroupReading), cannot_count(history, "cgroup_throttled")
    if no is None:
        return read
    platform = where(history)
    if platform is None or platform.sandbox == "gvisor":
        return no
    others = [(target, history.latest(CgroupReading, target)) for target in read if target]
    return [target for target, latest in others if latest is not None and latest.throttled_seconds is not None] or no
