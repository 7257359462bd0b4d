"""The words of the report for people: what its codes are called, on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

#: Parts of the breakdowns.
PARTS = {
    "quota": "CPU limit", "hypervisor": "hypervisor", "contention": "other work", "freeze": "freeze", "unknown": "unknown",
    "computes": "the app computes", "server": "the server works", "starved": "the server has no CPU", "lock": "lock",
    "other_side": "the other side", "network": "network", "held": "held by the app", "idle": "idle", "own_pace": "may be meant to wait",
}  # fmt: skip
STATUS = {"pass": "HEALTHY", "warn": "WARNING", "fail": "FAILING"}
#: Where a queue lies.
WHERE = {"memory": "in memory", "disk": "on disk"}
_COUNTED = ("entries", "batches", "chunks")


def status(report: Mapping[str, Any]) -> str:
    """One word for the whole report."""
    return STATUS[report["status"]] if report["conclusive"] else "UNKNOWN"


def first_cause(report: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The finding to act on; not one that holds nobody up, where the verdict is about something worse or about nothing yet."""
    first = next(iter(causes(report)), None)
    if first is not None and first["severity"] == "info" and status(report) != STATUS["pass"]:
        return None
    return first


def causes(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The findings that no other explains, in the report's order."""
    return [finding for finding in report["findings"] if not finding.get("explained_by")]


def of_the_app(report: Mapping[str, Any]) -> bool:
    """Whether what stands still is counted of the app, and not only of a thread of this container."""
    parts = report["breakdown"]
    return parts.get("threads_of") == "the app" or any(group != "threads" for group in parts.get("stalled", {}))


def error_of_cpu(parts: Mapping[str, Any]) -> str:
    """How far the shares of ``breakdown.cpu`` may be wrong, to be put behind a title's last word; empty where it is not known."""
    error = parts.get("cpu_error")
    return "" if error is None else f"; ± {error:.1%}"


def alike(items: Iterable[Mapping[str, Any]], key: str) -> Iterator[tuple[str, str]]:
    """(names, why and how it would be seen) of those that have the same reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for item in items:
        found.setdefault((item["because"], item.get("remedy") or ""), []).append(item[key])
    for (because, remedy), names in found.items():
        yield ", ".join(names), because + (f" (to see it: {remedy})" if remedy else "")


def waiting(numbers: Mapping[str, Any]) -> str:
    """What waits in one queue of the breakdown and where; empty where nothing does."""
    counted = [f"{value:g} {name}" for name, value in numbers.items() if name in _COUNTED and value]
    if numbers.get("bytes"):
        counted.append(f"{numbers['bytes'] / 1e6:.2f} MB")
    if not counted:
        return ""
    age = f", the oldest for {numbers['oldest_seconds']:.1f} s" if numbers.get("oldest_seconds") else ""
    return f"{', '.join(counted)}, {WHERE.get(numbers['backing'], 'nobody knows where')}{age}"


def memory(whose: str, numbers: Mapping[str, Any]) -> tuple[str, str]:
    """Whose memory, and how full it is."""
    left = f", at its limit in {numbers['seconds_to_limit'] / 60:.0f} min" if "seconds_to_limit" in numbers else ""
    name = "Memory of the app" if whose == "app" else "Memory of this container"
    return name, f"{numbers['used_bytes'] / 1e6:.0f} of {numbers['limit_bytes'] / 1e6:.0f} MB{left}"


def place(platform: Mapping[str, Any]) -> str:
    """Where the agent runs."""
    words = (
        platform.get("environment") if platform.get("environment") != "none" else None,
        "gVisor" if platform.get("sandbox") == "gvisor" else None,
        "virtual machine" if platform.get("virtualised") else None,
        f"{platform['cpus']} CPUs" if platform.get("cpus") else None,
        f"limit {platform['cpu_limit_cores']:.2f} cores" if platform.get("cpu_limit_cores") else None,
    )
    return ", ".join(str(word) for word in words if word) or "an unknown platform"


def cost(agent: Mapping[str, Any]) -> str:
    """What the agent took since its start, and what it takes at most."""
    most = f" (at most {3600 * agent['cpu_most_ratio']:.0f} an hour)" if agent.get("cpu_most_ratio") else ""
    return f"{agent['cpu_seconds']:.2f} CPU-s{most}, {agent['memory_bytes'] / 2**20:.0f} MiB"
