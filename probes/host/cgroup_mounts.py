"""Where a process's cgroups are: v1, v2 and hybrids of both, inside a container and outside.

Why this is more than opening ``/sys/fs/cgroup/cpu.max``: a limit may stand at any level between the
process and the root, the halves (cpu, memory) may live in different hierarchies, and what
``/proc/<pid>/cgroup`` prints is relative to the reader's cgroup namespace while a mount may show just a
part of the tree.  ``/proc/<pid>/mountinfo`` tells which part: directory = mount point + (path - mount
root).  Sources: proc(5), cgroups(7), cgroup_namespaces(7).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from probes.kernel_files import read_text
from probes.reading import Code, Unseen
from probes.record import dataclass

#: Own group and ancestors that are looked at; Kubernetes has 4-5, nested container engines up to 8.
MAX_LEVELS = 8

_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Level:
    """One group; ``path`` as /proc/<pid>/cgroup spells it, a directory per controller found there."""

    path: str
    cpu_dir: Path | None = None
    usage_dir: Path | None = None
    memory_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class Places:
    """The groups of a process, own first.  A version is 1 or 2, and 0 where the controller is not mounted."""

    version: int
    memory_version: int
    levels: tuple[Level, ...]
    signature: str
    unseen: Mapping[str, Unseen]

    @property
    def own_cpu(self) -> Level | None:
        """The process's own level of the cpu controller."""
        return next((level for level in self.levels if level.cpu_dir), None)

    @property
    def own_memory(self) -> Level | None:
        """The process's own level of the memory controller."""
        return next((level for level in self.levels if level.memory_dir), None)


@dataclass(frozen=True, slots=True)
class Mount:
    """One cgroup mount of mountinfo; ``controllers`` is empty in v2."""

    version: int
    root: str
    point: str
    controllers: frozenset[str]


def parse_cgroup(text: str) -> dict[str, str]:
    """/proc/<pid>/cgroup as controller -> path; the v2 line (``0::``) has the key ``""``."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number.isdigit() and path.startswith("/"):
            for name in controllers.split(","):
                found.setdefault(name, path)
    return found


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """The cgroup mounts of a mountinfo text (fields: proc(5)); other and malformed lines are left out."""
    found = []
    for line in text.splitlines():
        head, dash, tail = line.partition(" - ")
        fields, kind = head.split(" "), tail.split(" ")
        if not dash or len(fields) < 6 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if kind[0] == "cgroup2" else 1
        names = frozenset(kind[2].split(",")) if version == 1 else frozenset()
        found.append(Mount(version, unescape(fields[3]), unescape(fields[4]), names))
    return tuple(found)


def locate(root: Path = Path("/"), pid: str = "self") -> Places:
    """Find the cpu and memory groups of a process; OSError when /proc/<pid>/cgroup cannot be read.

    Another process is looked at through /proc/<pid>/root, because the mount points of its mountinfo are
    those of its own mount namespace; where that is not permitted, only groups that this process's own
    mounts show are found, since its own mount point would be somebody else's group.
    """
    signature = read_text(root / "proc" / pid / "cgroup")
    paths = parse_cgroup(signature)
    base, viewer = root, pid
    if pid != "self":
        base = root / "proc" / pid / "root"
        try:
            os.stat(f"{base}/proc/.")  # access(2) would leave out the capabilities of a user who is not root
        except OSError:
            base, viewer = root, "self"
    mounts = parse_mounts(read_text(root / "proc" / viewer / "mountinfo"))
    fall_back = viewer == pid
    unseen: dict[str, Unseen] = {}

    def chain(controller: str, versions: tuple[int, ...] = (1, 2)) -> tuple[int, dict[str, Path]]:
        for version in versions:
            path = paths.get(controller if version == 1 else "")
            fitting = [m for m in mounts if m.version == version and (version == 2 or controller in m.controllers)]
            if path is None or not fitting:
                continue
            levels = _chain(base, path, fitting, fall_back)
            if levels and (version == 1 or _has_controller(levels, controller)):
                return version, levels
            if not levels:
                unseen[controller] = Unseen(f"no cgroup mount here shows the group {path}", Code.UNREACHABLE)
        unseen.setdefault(controller, Unseen(f"no cgroup {controller} controller is mounted here", Code.UNREACHABLE))
        return 0, {}

    cpu_version, cpu = chain("cpu")
    memory_version, memory = chain("memory")
    usage = cpu if cpu_version == 2 else chain("cpuacct", (1,))[1]
    if usage:
        unseen.pop("cpuacct", None)
    merged = sorted({**cpu, **usage, **memory}, key=lambda p: -len(PurePosixPath(p).parts))
    levels = tuple(Level(p, cpu.get(p), usage.get(p), memory.get(p)) for p in merged)
    return Places(cpu_version, memory_version, levels, signature, unseen)


def _chain(base: Path, path: str, mounts: list[Mount], fall_back: bool) -> dict[str, Path]:
    """Label -> directory, own group first up to the mount point, by the mount that shows most of the tree."""
    for mount in sorted(mounts, key=lambda m: len(PurePosixPath(m.root).parts)):
        below = _below(path, mount.root)
        point = base / mount.point.lstrip("/")
        if below is not None and os.path.isdir(point / below):
            return dict(_climb(path, point, below))
    for mount in mounts:
        point = base / mount.point.lstrip("/")
        # A root above the namespace ("/..") means the mount point is not the container's group either.
        if fall_back and not mount.root.startswith("/..") and os.path.isdir(point):
            return {path: point}
    return {}


def _climb(path: str, point: Path, below: PurePosixPath) -> Iterator[tuple[str, Path]]:
    label = PurePosixPath(path)
    for up in range(min(len(below.parts), MAX_LEVELS - 1) + 1):
        yield str(label), point.joinpath(*below.parts[: len(below.parts) - up])
        label = label.parent


def _below(path: str, root: str) -> PurePosixPath | None:
    pure = PurePosixPath(path)
    below = pure.relative_to(root) if pure.is_relative_to(root) else None
    return None if below is None or ".." in below.parts else below


def _has_controller(levels: Mapping[str, Path], controller: str) -> bool:
    """Whether a v2 hierarchy really has the controller: in a hybrid it may be bound to v1 or to nothing."""
    sign = "cpu.max" if controller == "cpu" else "memory.current"
    top = list(levels.values())[-1]
    try:
        return controller in read_text(top / "cgroup.controllers").split()
    except OSError:
        return any(os.path.exists(directory / sign) for directory in levels.values())


def unescape(field: str) -> str:
    """A field of mountinfo, whose blanks and the like are written in octal (proc(5))."""
    return _ESCAPE.sub(lambda found: chr(int(found.group(1), 8)), field)
