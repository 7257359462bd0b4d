"""The exact settings to change, by platform: one table that every CPU rule's advice is taken from."""

from __future__ import annotations

from agent.history import History
from agent.report import Scope
from probes.platform import PlatformReading


def where(history: History) -> PlatformReading | None:
    """The newest platform reading."""
    return history.latest(PlatformReading)


def scope(history: History) -> Scope:
    """Whose CPU a gap in this container is about: Cloud Run throttles all containers of an instance."""
    platform = where(history)
    on_cloud_run = platform is not None and platform.environment.startswith("cloud_run")
    return "whole instance" if on_cloud_run else "own container"


def on_cloud_run(history: History) -> bool:
    """Whether this is a Cloud Run service: there the billing mode decides about CPU between requests."""
    platform = where(history)
    return platform is not None and platform.environment == "cloud_run_service"


def service(history: History) -> str:
    """The service's name for a command line, or a placeholder."""
    platform = where(history)
    return (platform.service if platform is not None else None) or "SERVICE"


def cannot_count(history: History, counter: str) -> tuple[str, str] | None:
    """(because, remedy) when this counter cannot count here or is not known to; ``None`` when it counts."""
    platform = where(history)
    if platform is None:
        return "the platform has not been looked at yet", "wait for the first platform slot"
    trust = platform.counters[counter]
    return None if trust.counts else (trust.because, trust.remedy)


def instance_billing(history: History) -> tuple[str, ...]:
    """How to get CPU outside requests on Cloud Run."""
    name = service(history)
    return (
        f"gcloud run services update {name} --no-cpu-throttling",
        'spec.template.metadata.annotations: run.googleapis.com/cpu-throttling: "false"',
        "Cloud Run API v2: template.containers[].resources.cpuIdle: false",
    )


def raise_cpu_limit(history: History, cores: float) -> tuple[str, ...]:
    """How to raise the CPU limit to ``cores`` on this platform."""
    platform = where(history)
    environment = platform.environment if platform is not None else "none"
    whole = max(1, round(cores + 0.49))
    if environment.startswith("cloud_run"):
        return (f"gcloud run services update {service(history)} --cpu {whole}",)
    if environment == "kubernetes":
        return (
            f'resources.limits.cpu: "{whole}"   # or remove the CPU limit and keep resources.requests.cpu',
            f"kubectl set resources deployment {service(history)} --limits=cpu={whole}",
        )
    return (
        f"docker update --cpus {whole} CONTAINER",
        f"cgroup v2: echo '{whole}00000 100000' > /sys/fs/cgroup/GROUP/cpu.max",
        f"cgroup v1: echo {whole}00000 > /sys/fs/cgroup/cpu/GROUP/cpu.cfs_quota_us",
        f"systemd: CPUQuota={whole}00%",
    )


def raise_memory_limit(history: History, limit: float) -> tuple[str, ...]:
    """How to raise the memory limit to at least ``limit`` bytes, to the next whole half GiB, on this platform."""
    platform = where(history)
    environment = platform.environment if platform is not None else "none"
    mebibytes = 512 * (int(limit / 2**29) + 1)
    if environment.startswith("cloud_run"):
        return (f"gcloud run services update {service(history)} --memory {mebibytes}Mi",)
    if environment == "kubernetes":
        return (
            f'resources.limits.memory: "{mebibytes}Mi"',
            f"kubectl set resources deployment {service(history)} --limits=memory={mebibytes}Mi",
        )
    return (
        f"docker update --memory {mebibytes}m --memory-swap {mebibytes}m CONTAINER",
        f"cgroup v2: echo {mebibytes}M > /sys/fs/cgroup/GROUP/memory.max",
        f"systemd: MemoryMax={mebibytes}M",
    )
