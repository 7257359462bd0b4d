"""What is out of sight from here, whatever the rules say, and what would make it visible.

The counters of the platform and the agent's own place are reported number by number.  Of what is watched beside them - a
database, another group, a place where log entries wait - there is one line for each target at most: why its last slot
carried no data, or what its newest reading lacks.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.history import History
from agent.report import CannotSee
from agent.views import backlog
from probes.cpu.suspension import SuspensionReading
from probes.host.cgroup import CgroupReading
from probes.host.platform import PlatformReading
from probes.reading import Code

#: Numbers and reasons that a line about one target names.
MOST_NAMED = 3

_CLOCK = CannotSee(
    "a pause that stops the guest's clock too",
    "no clock in here moves while it lasts",
    "compare with a clock outside, such as a database server's",
    Code.CANNOT_COUNT,
)
#: Platforms that run an app and its agent in containers of their own, each with a group of its own.
_OF_CONTAINERS = frozenset({"container_apps", "kubernetes", "ecs", "ecs_fargate", "docker"})
_OTHER_CONTAINERS = CannotSee(
    "the CPU limits of other containers",
    "each container has its own quota, and this agent sees the one it runs in",
    "share the PID namespace (Kubernetes: shareProcessNamespace: true, ECS: pidMode task, Docker: --pid container:APP) and set "
    "app.process = NAME, or run inside the app's container",
    Code.UNREACHABLE,
)


def cannot_see(history: History) -> tuple[CannotSee, ...]:
    """Everything that is out of sight now."""
    return (*_counters(history), *_own(history), *_targets(history), _CLOCK)


def app_limit_unseen(history: History) -> bool:
    """Whether the app may be in a group whose CPU limit is not read: its container is another one, or nobody knows which."""
    if backlog.app_group(history) is not None:
        return False
    platform = history.latest(PlatformReading)
    return "app" in history.targets(CgroupReading) or (platform is not None and platform.environment in _OF_CONTAINERS)


def _counters(history: History) -> Iterator[CannotSee]:
    platform = history.latest(PlatformReading)
    if platform is None:
        return
    for name, trust in platform.counters.items():
        if not trust.counts:
            yield CannotSee(name, trust.because, trust.remedy, trust.code)
    if platform.environment in _OF_CONTAINERS and "app" not in history.targets(CgroupReading):
        yield _OTHER_CONTAINERS


def _own(history: History) -> Iterator[CannotSee]:
    for kind in (SuspensionReading, CgroupReading):
        latest = history.latest(kind)
        for field, reason in latest.blind_spots.items() if latest is not None else ():
            yield CannotSee(f"{kind.probe} {_words(field)}", reason, "", reason.code)


def _targets(history: History) -> Iterator[CannotSee]:
    for kind in sorted(history.kinds(), key=lambda kind: kind.probe):
        for target in filter(None, history.targets(kind) if kind.labelled else ()):
            slot, about = history.newest(kind, target), f"{kind.probe} {target}"
            if slot is None:
                continue
            if slot.reading is None:
                yield CannotSee(about, slot.because, slot.remedy, slot.code)
            elif missing := slot.reading.blind_spots:
                named = ", ".join(map(_words, list(missing)[:MOST_NAMED]))
                more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
                reasons = list(dict.fromkeys(missing.values()))
                yield CannotSee(f"{about}: {named}{more}", "; ".join(reasons[:MOST_NAMED]), "", reasons[0].code)


def _words(field: str) -> str:
    return field.replace("_", " ")
