"""The exact settings to change, by platform: one table that every rule's advice about CPU and memory is taken from.

Each platform says what it takes (its documented sizes, or any whole number of cores up to what the machine has) and the
lines that set it: a command, or a line of a configuration file.  Words in CAPITALS are for the reader to fill in.

- What is advised is above the present limit.  Where that cannot be seen (gVisor shows none) no number is made up.
- Nothing is advised that the platform does not take, or that the machine does not have.
- One container is changed, not all of them; a limit on a group above the container's is raised there.

``agent.rules.raising`` picks the number and fills it in; docs/advice-by-platform.md is generated from here, and the tests
hold every line against what the platform documents.
"""

from __future__ import annotations

from collections.abc import Sequence

from probes.record import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """A command or a line of a file; ``{...}`` is filled in.  ``cgroup``: only for this version of the hierarchy."""

    code: str
    note: str = ""
    cgroup: int | None = None


@dataclass(frozen=True, slots=True)
class Size:
    """CPUs that a platform takes, and the MiB of memory that it takes with them."""

    cpus: float
    memory: Sequence[int]


@dataclass(frozen=True, slots=True)
class Platform:
    """How limits are set on one platform."""

    title: str
    sign: str
    """What it is recognised by."""
    takes: str
    """The documented range in words, and where it is documented."""
    source: str
    cpu: tuple[Line, ...]
    memory: tuple[Line, ...]
    share: tuple[Line, ...]
    """How to get more of CPUs that are crowded."""
    sizes: tuple[Size, ...] = ()
    """All that it takes; empty: any whole number of cores that the machine has."""
    top: str = ""
    """What is left when the largest size is too small."""


def _sizes(*steps: tuple[float, Sequence[int]]) -> tuple[Size, ...]:
    return tuple(Size(cpus, memory) for cpus, memory in steps)


def _cloud_run(kind: str, title: str, sign: str, containers: str) -> Platform:
    update, several = (
        f"gcloud run {kind} update {{name}}",
        "of several containers: --container CONTAINER before the limit",
    )
    cpu = Line(f"{update} --cpu {{cpu}}{{needs}}", several)
    return Platform(
        title, sign,
        "1, 2, 4, 6 or 8 CPUs with 128 MiB to 4, 128 MiB to 8, 2 to 16, 4 to 24, 4 to 32 GiB; below 1 CPU (0.08 and more) only "
        "with request-based billing, at a concurrency of 1, with 512 MiB at most, from 0.5 CPU on 1 GiB",
        f"https://cloud.google.com/run/docs/configuring/{kind}/cpu",
        cpu=(cpu, Line(f'{containers}.resources.limits.cpu: "{{cpu}}"')),
        memory=(Line(f"{update} --memory {{mib}}Mi{{needs}}", several), Line(f'{containers}.resources.limits.memory: "{{mib}}Mi"')),
        share=(cpu,), sizes=CLOUD_RUN, top="run more instances: 8 CPUs and 32 GiB are the most that one can have",
    )  # fmt: skip


CLOUD_RUN = _sizes(
    (1, range(128, 4097)), (2, range(128, 8193)), (4, range(2048, 16385)), (6, range(4096, 24577)), (8, range(4096, 32769)),
)  # fmt: skip
FARGATE = _sizes(
    (0.25, (512, 1024, 2048)), (0.5, range(1024, 4097, 1024)), (1, range(2048, 8193, 1024)), (2, range(4096, 16385, 1024)),
    (4, range(8192, 30721, 1024)), (8, range(16384, 61441, 4096)), (16, range(32768, 122881, 8192)),
)  # fmt: skip
_TOGETHER = "on the Consumption plan all containers of the app together have 2 GiB for each CPU"
#: The memory is that of the CPUs, 2 GiB each: the Consumption plan takes no other pair.
CONTAINER_APPS = _sizes(*((quarters / 4, (512 * quarters,)) for quarters in range(1, 17)))
FLY = _sizes(*((cpus, range(2048 * cpus, 8192 * cpus + 1, 2048)) for cpus in (1, 2, 4, 8, 16)))

#: By name of the environment, as the platform probe has it; "knative" is its "kubernetes" with a service.
PLATFORMS: dict[str, Platform] = {
    "cloud_run_service": _cloud_run("services", "Cloud Run service", "`K_SERVICE`", "spec.template.spec.containers[]"),
    "cloud_run_job": _cloud_run("jobs", "Cloud Run job", "`CLOUD_RUN_JOB`", "spec.template.spec.template.spec.containers[]"),
    "container_apps": Platform(
        "Azure Container Apps", "`CONTAINER_APP_NAME`",
        "0.25 to 4 CPUs in steps of 0.25, of all containers of the app together, with 2 GiB for each CPU (Consumption)",
        "https://learn.microsoft.com/azure/container-apps/containers",
        cpu=(Line("az containerapp update --name {name} --resource-group GROUP --container-name CONTAINER --cpu {cpu} --memory {gib}", _TOGETHER),),
        memory=(Line("az containerapp update --name {name} --resource-group GROUP --container-name CONTAINER --cpu {cpu} --memory {gib}", _TOGETHER),),
        share=(Line("az containerapp update --name {name} --resource-group GROUP --container-name CONTAINER --cpu {cpu} --memory {gib}", _TOGETHER),),
        sizes=CONTAINER_APPS, top="run more replicas, or a dedicated workload profile: 4 CPUs and 8 GiB are the most that one has on Consumption",
    ),
    "kubernetes": Platform(
        "Kubernetes", "`KUBERNETES_SERVICE_HOST`", "any amount; a pod starts only where a node has what it requests",
        "https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/",
        cpu=(Line('resources.limits.cpu: "{cpu}"', "of the container; or remove it and keep resources.requests.cpu"),
             Line("kubectl set resources deployment/NAME -c CONTAINER --limits=cpu={cpu}")),
        memory=(Line('resources.limits.memory: "{mib}Mi"', "of the container"),
                Line("kubectl set resources deployment/NAME -c CONTAINER --limits=memory={mib}Mi")),
        share=(Line('resources.requests.cpu: "CPUS"', "of the container, more than now: its weight where CPUs are crowded"),
               Line("kubectl set resources deployment/NAME -c CONTAINER --requests=cpu=CPUS")),
    ),
    "knative": Platform(
        "Knative on Kubernetes", "`KUBERNETES_SERVICE_HOST` and `K_SERVICE`", "any amount; a pod starts only where a node has what it requests",
        "https://knative.dev/docs/serving/services/configure-requests-limits-services/",
        cpu=(Line("kn service update {name} --limit cpu={cpu}"),), memory=(Line("kn service update {name} --limit memory={mib}Mi"),),
        share=(Line("kn service update {name} --request cpu=CPUS", "more than now: its weight where CPUs are crowded"),),
    ),
    "ecs_fargate": Platform(
        "Amazon ECS on Fargate", "`ECS_CONTAINER_METADATA_URI_V4` and `AWS_EXECUTION_ENV=AWS_ECS_FARGATE`",
        "0.25, 0.5, 1, 2, 4, 8 or 16 CPUs with 0.5 to 2, 1 to 4, 2 to 8, 4 to 16, 8 to 30, 16 to 60, 32 to 120 GiB, in steps of 1 "
        "(with 0.25 CPU: 0.5, 1 or 2), with 8 CPUs of 4, with 16 of 8",
        "https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task-cpu-memory-error.html",
        cpu=(Line('"cpu": "{units}", "memory": "{mib}"', "of the task definition; keep what is larger there now"),),
        memory=(Line('"cpu": "{units}", "memory": "{mib}"', "of the task definition; keep what is larger there now"),),
        share=(Line('"cpu": UNITS', "of the container in containerDefinitions, more than now: its weight in the task"),),
        sizes=FARGATE, top="run more tasks: 16 CPUs and 120 GiB are the most that one can have",
    ),
    "ecs": Platform(
        "Amazon ECS on EC2", "`ECS_CONTAINER_METADATA_URI_V4`", "128 to 196,608 CPU units for a task; 1,024 are one CPU",
        "https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_RegisterTaskDefinition.html",
        cpu=(Line('"cpu": "{units}"', "of the task definition: the limit of the whole task"),),
        memory=(Line('"memory": {mib}', "of the container in containerDefinitions; the task's memory at least as much"),),
        share=(Line('"cpu": UNITS', "of the container in containerDefinitions, more than now: its weight where CPUs are crowded"),),
    ),
    "fly": Platform(
        "Fly.io", "`FLY_APP_NAME`",
        "performance-1x, -2x, -4x, -8x or -16x, with 2 to 8 GiB for each CPU in steps of 2; a shared CPU that has used up its balance "
        "runs for 5 of every 80 ms, one of a performance Machine is not held",
        "https://fly.io/docs/machines/cpu-performance/",
        cpu=(Line("fly scale vm performance-{cpu}x", "in place of a shared-cpu Machine; with more than 2 GiB for each CPU: --vm-memory MIB"),
             Line('size = "performance-{cpu}x"', "in [[vm]] of fly.toml, which counts at the next deployment")),
        memory=(Line("fly scale memory {mib}", "in MiB; from a shared-cpu Machine's 2 GiB for each CPU on, scale the Machine first"),
                Line('memory = "{mib}mb"', "in [[vm]] of fly.toml, which counts at the next deployment")),
        share=(Line("fly scale vm performance-{cpu}x", "in place of a shared-cpu Machine"),),
        sizes=FLY, top="run more Machines: performance-16x with 128 GiB is the largest",
    ),
    "docker": Platform(
        "Docker", "`/.dockerenv`, or a group `docker/ID` or `docker-ID.scope`", "0.01 to as many CPUs as the machine has; 6 MiB of memory and more",
        "https://docs.docker.com/engine/containers/resource_constraints/",
        cpu=(Line("docker update --cpus {cpu} CONTAINER"), Line('services.NAME.deploy.resources.limits.cpus: "{cpu}"', "of compose.yaml")),
        memory=(Line("docker update --memory {mib}m --memory-swap {mib}m CONTAINER"),
                Line('services.NAME.deploy.resources.limits.memory: "{mib}M"', "of compose.yaml")),
        share=(Line("docker update --cpu-shares 2048 CONTAINER", "a weight; 1024 where none is set"),),
    ),
    "systemd": Platform(
        "systemd", "a group `.../NAME.service`", "any percentage of one CPU, 100 % for each, with at least 1 ms in a period of 1 ms to 1 s",
        "https://www.freedesktop.org/software/systemd/man/latest/systemd.resource-control.html",
        cpu=(Line("systemctl {user}set-property {unit} CPUQuota={percent}%"), Line("CPUQuota={percent}%", "of [Service] in the unit's file")),
        memory=(Line("systemctl {user}set-property {unit} MemoryMax={mib}M"), Line("MemoryMax={mib}M", "of [Service] in the unit's file")),
        share=(Line("systemctl {user}set-property {unit} CPUWeight=200", "1 to 10000; 100 where none is set"),),
    ),
    "none": Platform(
        "Plain, or not known", "nothing of the above", "1 ms of CPU and more in a period of 1 ms to 1 s",
        "https://docs.kernel.org/admin-guide/cgroup-v2.html",
        cpu=(Line("echo '{quota} {period}' > /sys/fs/cgroup{group}/cpu.max", "cgroup v2, microseconds", 2),
             Line("echo {quota} > /sys/fs/cgroup/cpu{group}/cpu.cfs_quota_us", "cgroup v1, in periods of {period} microseconds", 1)),
        memory=(Line("echo {mib}M > /sys/fs/cgroup{group}/memory.max", "cgroup v2", 2),
                Line("echo {mib}M > /sys/fs/cgroup/memory{group}/memory.limit_in_bytes", "cgroup v1", 1)),
        share=(Line("echo 200 > /sys/fs/cgroup{group}/cpu.weight", "cgroup v2: 1 to 10000; 100 where none is set", 2),
               Line("echo 2048 > /sys/fs/cgroup/cpu{group}/cpu.shares", "cgroup v1: a weight; 1024 where none is set", 1)),
    ),
}  # fmt: skip
_STDOUT_ONLY = (Line("log to stdout", "its file system is memory, and so are its in-memory volumes"),)
#: How log files get out of memory, where the platform has a line of its own for it.
ON_DISK: dict[str, tuple[Line, ...]] = {
    "cloud_run_service": _STDOUT_ONLY,
    "cloud_run_job": _STDOUT_ONLY,
    "kubernetes": (Line("emptyDir: {{}}", "of the volume, in place of emptyDir: {{ medium: Memory }}"),),
    "docker": (Line("docker run --mount type=volume,dst=DIRECTORY IMAGE", "in place of --tmpfs DIRECTORY"),),
}
#: How a container's storage gets faster, where the platform has lines of its own for it.
FEWER_SYNCS = Line(
    "batch synchronous writes (fsync, fdatasync, O_SYNC)", "iostat -x 1 on the host shows the device that is waited for"
)
STORAGE: dict[str, tuple[Line, ...]] = {
    "kubernetes": (
        Line("spec.storageClassName: FASTER", "of the PersistentVolumeClaim, or spec.volumeAttributesClassName"),
    ),
    "ecs_fargate": (
        Line(
            '"ephemeralStorage": {{ "sizeInGiB": GIB }}',
            "of the task definition: its rate grows with its size; of EFS its throughput mode",
        ),
    ),
    "ecs": (
        Line("aws ec2 modify-volume --volume-id VOLUME --iops IOPS --throughput MIBPS", "of the instance's EBS volume"),
    ),
    "docker": (
        Line("docker run without --device-read-bps, --device-write-bps, --device-read-iops, --device-write-iops"),
    ),
    "systemd": (
        Line(
            "systemctl {user}set-property {unit} IOReadBandwidthMax= IOWriteBandwidthMax=",
            "empty: no limit; IOWeight=200 beside others",
        ),
    ),
    "none": (
        Line(
            "echo 'MAJOR:MINOR rbps=max wbps=max riops=max wiops=max' > /sys/fs/cgroup{group}/io.max",
            "cgroup v2, where a limit is set",
        ),
    ),
}
#: Of a limit on a group above the container's, whoever set it: the unit where it is one, and the file.
ABOVE_POD = Line(
    'spec.resources.limits.cpu: "{cpu}"',
    "of the pod (Kubernetes 1.34), or the limits of its containers, whose sum it is",
)
ABOVE_UNIT = PLATFORMS["systemd"].cpu[0]
