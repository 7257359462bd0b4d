"""Recognises where the process runs and which counters can be believed there.

A counter that stands at zero says "nothing happened" or "I cannot count"; the files look alike.  Both
were measured: gVisor prints ``nr_throttled 0`` for ever and charges suspended time as CPU in
10 ms ticks; a guest without a steal clock lets CPU time run through the gap that its hypervisor made.
So every counter that may attribute a gap gets a Trust (:mod:`probes.host.trust`).  The readings
themselves come from the other probes.

gVisor is recognised by /proc/sentry-meminfo, a kernel release ending in "-gvisor", the fixed version
string of its /proc/version, or a kernel log that starts with "Starting gVisor".

Environment: what each platform promises to set in every container or machine of its own, the narrowest first
(Knative sets Cloud Run's K_SERVICE too; Azure Container Apps run in a Kubernetes that nobody can reach; a container of ECS on EC2 is also
one of Docker):

- Azure Container Apps: CONTAINER_APP_NAME, CONTAINER_APP_REVISION.
- Kubernetes: KUBERNETES_SERVICE_HOST.  Cloud Run's container contract: K_SERVICE, CLOUD_RUN_JOB.
- Amazon ECS: ECS_CONTAINER_METADATA_URI_V4, and AWS_EXECUTION_ENV=AWS_ECS_FARGATE on Fargate.  Fly.io: FLY_APP_NAME.
- Docker: /.dockerenv, or a group that its cgroup drivers name (docker/ID, docker-ID.scope).
- systemd: the group of a unit (.../NAME.service).  Everything else is "none": a plain machine, or not known.

What cannot change while the process lives is read once.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from probes.host import cgroup_files as files
from probes.host.cgroup_mounts import Places, locate
from probes.host.trust import Sandbox, Trust, find_trust
from probes.kernel_files import read_text, why
from probes.reading import Code, Reading, Stability, Unseen, gauge
from probes.record import dataclass
from probes.registration import Context

Environment = Literal[
    "cloud_run_service",
    "cloud_run_job",
    "container_apps",
    "kubernetes",
    "ecs_fargate",
    "ecs",
    "fly",
    "docker",
    "systemd",
    "none",
]

_DOCKER_GROUP = re.compile(r"/docker[/-][0-9a-f]{64}(\.scope)?(/|$)", re.MULTILINE)
#: A unit, but not the manager of a user's units, below which each login stands.
_UNIT_GROUP = re.compile(r"/(?!user@)[^/]+\.service(/|$)", re.MULTILINE)
_MEM_TOTAL = re.compile(r"^MemTotal:\s+(\d+) kB$", re.MULTILINE)
_GVISOR_VERSION = "#1 SMP Sun Jan 10 15:06:54 PST 2016"
#: CLOCK_MONOTONIC_COARSE (clock_gettime(2)): it moves at the kernel's ticks, so its resolution is their length.
_MONOTONIC_COARSE = 6
#: DMI product names and vendors that only virtual machines carry (systemd's detect-virt uses the same).
_VIRTUAL_DMI = (
    "Google Compute Engine", "KVM", "QEMU", "VMware", "VirtualBox", "Virtual Machine", "HVM domU", "Bochs"
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformReading(Reading):
    """The place where this process runs, and the belief that each counter deserves."""

    probe: ClassVar[str] = "platform"
    stability: ClassVar[Stability] = "stable"

    sandbox: Sandbox
    kernel_release: str
    virtualised: bool | None
    environment: Environment
    service: str | None
    revision: str | None
    own_uid: int
    counters: Mapping[str, Trust]
    tick_seconds: float | None = None
    """The scheduler's tick; ``None`` where the kernel that schedules does not show it."""
    cpus: int | None = gauge("CPUs that this process may run on (its affinity mask)")
    cpu_limit_cores: float | None = gauge("Smallest CPU limit of all visible cgroup levels, in cores")
    memory_limit_bytes: float | None = gauge("Smallest memory limit of all visible cgroup levels")
    machine_memory_bytes: float | None = gauge("Memory of the machine (MemTotal of /proc/meminfo)")
    believable: Mapping[str, float] | None = gauge(
        "Whether a kernel counter can count here: 1 yes, 0 no; left out where that is not known", by="counter"
    )

    @property
    def labels(self) -> dict[str, str]:
        """The labels of ``stallscope_platform_info``."""
        virtualised = "unknown" if self.virtualised is None else str(self.virtualised).lower()
        return {
            "sandbox": self.sandbox,
            "environment": self.environment,
            "virtualised": virtualised,
            "kernel_release": self.kernel_release,
        }

    @property
    def summary(self) -> dict[str, Any]:
        """The ``platform`` section of the JSON report."""
        plain = ("sandbox", "kernel_release", "virtualised", "environment", "service", "revision", "own_uid")
        numbers = ("cpus", "cpu_limit_cores", "memory_limit_bytes", "machine_memory_bytes")
        section: dict[str, Any] = {name: getattr(self, name) for name in (*plain, *numbers)}
        section["counters"] = {
            name: {"counts": trust.counts, "because": trust.because, "remedy": trust.remedy}
            for name, trust in self.counters.items()
        }
        section["unseen"] = dict(self.unseen)
        return section


class PlatformProbe:
    """Reads the kernel's self-description; cheap, and never without an answer."""

    name = "platform"
    reading_type = PlatformReading

    def __init__(
        self,
        target: str = "",
        *,
        root: Path = Path("/"),
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.target = target
        self._root = root
        self._environ = environ
        self._clock = clock
        self._fixed: tuple[Sandbox, str, bool | None] | None = None

    async def read(self) -> PlatformReading:
        """Measure once."""
        if self._fixed is None:
            release = kernel_release(self._root)
            self._fixed = find_sandbox(self._root, release), release, find_virtualised(self._root)
        sandbox, release, virtualised = self._fixed
        places, nowhere = _places(self._root)
        cpu_limit, no_cpu = _lowest(places, "cpu", "cpu_dir", _cores, nowhere)
        memory_limit, no_memory = _lowest(places, "memory", "memory_dir", files.read_memory_limit, nowhere)
        unseen = {k: v for k, v in (("cpu_limit_cores", no_cpu), ("memory_limit_bytes", no_memory)) if v is not None}
        if sandbox == "gvisor":
            blind = Code.CANNOT_COUNT
            unseen = {k: Unseen(f"{v}; gVisor shows none even where there is one", blind) for k, v in unseen.items()}
        counters = find_trust(self._root, sandbox, virtualised, places, nowhere)
        environment, service, revision = find_environment(self._environ)
        machine_memory, no_total = _machine_memory(self._root)
        unseen |= {"machine_memory_bytes": no_total} if no_total is not None else {}
        return PlatformReading(
            taken=self._clock(),
            target=self.target,
            unseen=unseen,
            sandbox=sandbox,
            kernel_release=release,
            virtualised=virtualised,
            environment=find_container(self._root) if environment == "none" else environment,
            service=service,
            revision=revision,
            own_uid=os.getuid(),
            counters=counters,
            tick_seconds=None if sandbox == "gvisor" else time.clock_getres(_MONOTONIC_COARSE),
            cpus=len(os.sched_getaffinity(0)),
            cpu_limit_cores=cpu_limit,
            memory_limit_bytes=memory_limit,
            machine_memory_bytes=machine_memory,
            believable={n: float(t.counts) for n, t in counters.items() if t.counts is not None},
        )

    async def aclose(self) -> None:
        """Nothing is held open."""


def kernel_release(root: Path) -> str:
    """The release as ``uname -r`` prints it."""
    return _first_line(root / "proc/sys/kernel/osrelease") or os.uname().release


def find_sandbox(root: Path, release: str) -> Sandbox:
    """Whether this kernel is gVisor's; the kernel log is asked last, as reading it is often forbidden."""
    version = _first_line(root / "proc/version") or os.uname().version
    if os.path.exists(root / "proc/sentry-meminfo") or release.endswith("-gvisor") or _GVISOR_VERSION in version:
        return "gvisor"
    return "gvisor" if "Starting gVisor" in _kernel_log_start(root) else "none"


def find_virtualised(root: Path) -> bool | None:
    """Whether a hypervisor runs this kernel; None where neither the CPU nor the firmware says so."""
    cpuinfo = _text(root / "proc/cpuinfo")
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "")
    dmi = " ".join(_first_line(root / "sys/class/dmi/id" / name) for name in ("product_name", "sys_vendor"))
    if "hypervisor" in flags.split() or _first_line(root / "sys/hypervisor/type"):
        return True
    if any(name in dmi for name in _VIRTUAL_DMI):
        return True
    return False if flags else None  # only x86 prints flags, and there a missing one is an answer


def find_environment(environ: Mapping[str, str]) -> tuple[Environment, str | None, str | None]:
    """The platform, the service (or job, or app) and its revision (or execution), from the environment."""
    get = environ.get
    service = get("K_SERVICE") or get("CLOUD_RUN_JOB") or None
    revision = get("K_REVISION") or get("CLOUD_RUN_EXECUTION") or None
    found: Environment = "none"
    if get("CONTAINER_APP_NAME"):  # before Kubernetes, whose variables are there as well
        return "container_apps", get("CONTAINER_APP_NAME"), get("CONTAINER_APP_REVISION") or None
    if get("KUBERNETES_SERVICE_HOST"):  # first: Knative sets K_SERVICE too, and has no billing mode
        found = "kubernetes"
    elif get("K_SERVICE"):
        found = "cloud_run_service"
    elif get("CLOUD_RUN_JOB"):
        found = "cloud_run_job"
    elif get("ECS_CONTAINER_METADATA_URI_V4"):
        found = "ecs_fargate" if get("AWS_EXECUTION_ENV") == "AWS_ECS_FARGATE" else "ecs"
    elif get("FLY_APP_NAME"):
        return "fly", get("FLY_APP_NAME"), get("FLY_MACHINE_VERSION") or None
    return found, service, revision


def find_container(root: Path) -> Environment:
    """Docker or a systemd unit, by what they leave in the file system and in the names of groups."""
    groups = _text(root / "proc/self/cgroup")
    if os.path.exists(root / ".dockerenv") or _DOCKER_GROUP.search(groups):
        return "docker"
    return "systemd" if _UNIT_GROUP.search(groups) else "none"


def _machine_memory(root: Path) -> tuple[float | None, Unseen | None]:
    try:
        found = _MEM_TOTAL.search(read_text(root / "proc/meminfo"))
    except OSError as error:
        return None, why(error)
    return (float(found[1]) * 1024, None) if found else (None, Unseen("/proc/meminfo has no MemTotal", Code.MALFORMED))


def _places(root: Path) -> tuple[Places | None, Unseen]:
    try:
        return locate(root), Unseen("", Code.ABSENT)
    except OSError as error:
        reason = why(error)
        return None, reason.reworded(f"no cgroup can be seen: {reason}")


def _lowest(
    places: Places | None,
    controller: str,
    directory: str,
    read: Callable[[Path, int], float | None],
    nowhere: Unseen,
) -> tuple[float | None, Unseen | None]:
    """The smallest limit of all visible levels, or None and the reason."""
    version = 0 if places is None else places.version if controller == "cpu" else places.memory_version
    if places is None or not version:
        return None, places.unseen[controller] if places else nowhere
    found, because = [], Unseen("no limit is set at any cgroup level that is visible here", Code.ABSENT)
    for path in (getattr(level, directory) for level in places.levels):
        try:
            limit = read(path, version) if path else None
        except (OSError, ValueError) as error:
            because = why(error)
        else:
            found += [] if limit is None else [limit]
    return (min(found), None) if found else (None, because)


def _cores(directory: Path, version: int) -> float | None:
    quota = files.read_quota(directory, version)
    return quota.cores if quota else None


def _kernel_log_start(root: Path) -> str:
    """The first record of the kernel log, "" where it may not be read."""
    try:
        fd = os.open(root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, 8192).decode("utf-8", "replace").partition("\n")[0]
    except OSError:
        return ""
    finally:
        os.close(fd)


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except OSError:
        return ""


def _first_line(path: Path) -> str:
    return _text(path).partition("\n")[0].strip()


def in_gvisor(context: Context) -> bool:
    """Whether this process is known to run in gVisor."""
    platform = context.latest(PlatformReading)
    return platform is not None and platform.sandbox == "gvisor"


def counters_of(context: Context) -> Mapping[str, Trust]:
    """Which of the kernel's counters can count here, as far as that is known."""
    platform = context.latest(PlatformReading)
    return platform.counters if platform is not None else {}


def trust_of(context: Context) -> dict[str, bool | None]:
    """The same without the reasons."""
    return {name: trust.counts for name, trust in counters_of(context).items()}
