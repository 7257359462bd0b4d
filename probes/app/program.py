"""What executes a process and what it was set to: whatever decides how many CPUs its runtime counts.

| runtime | looks at |
|---|---|
| Go | its build (:mod:`probes.app.go_build`); GOMAXPROCS and GODEBUG in its environment |
| JVM | -XX:ActiveProcessorCount and -XX:-UseContainerSupport in its command line and in the variables that java takes options from; the file ``release`` of its home |
| Node | UV_THREADPOOL_SIZE; node_version.h beside it |
| .NET | DOTNET_PROCESSOR_COUNT; the directory that its libcoreclr.so lies in |
| CPython | PYTHON_CPU_COUNT; the name of its program |

Of an environment only these variables are looked at, and of them only whole numbers are kept, names of GODEBUG settings and
versions.  exe, environ, maps and root of another process take rights (:mod:`probes.rights`); the command line is anybody's.
It is read once for each process: it cannot change while it lives.

Over 150 lines: each runtime has places of its own.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field

from probes.app.go_build import parse_godebug, read_build
from probes.app.procfs import DELETED, Runtime, guess_runtime
from probes.kernel_files import read_bytes, why
from probes.reading import Code, Unseen
from probes.record import dataclass

AUTOMAXPROCS = "go.uber.org/automaxprocs"
#: Of a command line or environment; the kernel allows more (execve(2)), no sensible program has it.
MOST_WORDS_BYTES = 1 << 18
MOST_MAPS_BYTES = 1 << 18
MOST_FILE_BYTES = 1 << 14
MOST_COUNT = 1 << 16

_COUNTS = ("GOMAXPROCS", "UV_THREADPOOL_SIZE", "DOTNET_PROCESSOR_COUNT", "PYTHON_CPU_COUNT")
#: In the order in which the launcher and the virtual machine take them: the last one counts.
_BEFORE, _AFTER = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"), ("_JAVA_OPTIONS",)
_VERSIONS = {"node": "NODE_VERSION", "python": "PYTHON_VERSION", "ruby": "RUBY_VERSION", "dotnet": "DOTNET_VERSION"}
_JAVA_COUNT = re.compile(rb"-XX:ActiveProcessorCount=(\d{1,5})(?![\w.])")
_JAVA_CONTAINER = re.compile(rb"-XX:([+-])UseContainerSupport")
#: Options may stand in files as well.
_JAVA_FILES = re.compile(rb"(^|[\0\s])(@[^\0\s]|-XX:(Flags|VMOptionsFile)=)")
_NUMBERS = re.compile(r"\d{1,4}(\.\d{1,4}){1,3}")
_LIBRARIES: tuple[tuple[Runtime, re.Pattern[bytes]], ...] = (
    ("java", re.compile(rb"/libjvm\.so")),
    ("dotnet", re.compile(rb"/(?:Microsoft\.NETCore\.App/(\d+\.\d+\.\d+)[^/\n]*/)?libcoreclr\.so")),
    ("ruby", re.compile(rb"/libruby[^/\n]*\.so\.(\d+\.\d+)")),
    ("python", re.compile(rb"/libpython(\d\.\d+t?)\.so")),
)


@dataclass(frozen=True, slots=True)
class Program:
    """What one process is.  ``version``: numbers with dots, "" where it is not known; of CPython without an interpreter lock it ends in "t".

    ``counts`` are the settings by name that are whole numbers; ``unread`` says why its environment is not known.
    """

    runtime: Runtime
    version: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    godebug: Mapping[str, str] = field(default_factory=dict)
    automaxprocs: str = ""
    """Its version; "" where it is not linked."""
    no_modules: bool = False
    """Go: its build does not say which modules are in it."""
    container_support: bool = True
    """JVM: it looks at the limit of its control group."""
    more_options: bool = False
    """JVM: options stand in files that were not looked at."""
    unread: Unseen | None = None
    unknown: Unseen | None = None
    """Why it is not known what executes it."""

    @property
    def release(self) -> tuple[int, ...]:
        """The version as numbers; () where it is not known."""
        found = _NUMBERS.search(self.version)
        return tuple(map(int, found[0].split("."))) if found else ()


def read_program(directory: str) -> Program:
    """The process of this directory of /proc: whatever cannot be read is said, nothing is raised."""
    environment, unread = _environment(directory)
    runtime, version, unknown = _executed(directory)
    counts = {name: number for name in _COUNTS if (number := _whole(environment.get(name, b""))) is not None}
    godebug = parse_godebug(environment.get("GODEBUG", b"").decode("ascii", "replace"))
    known = {name: value for name, value in godebug.items() if name.endswith("maxprocs")}
    if runtime == "go":
        return _go(directory, counts, known, unread)
    if runtime == "java":
        return _java(directory, environment, unread)
    numbers = _NUMBERS.fullmatch(environment.get(_VERSIONS.get(runtime, ""), b"").decode("ascii", "replace"))
    version = version or (_node_version(directory) if runtime == "node" else "") or (numbers[0] if numbers else "")
    return Program(runtime, version, counts, unread=unread, unknown=unknown)


def _environment(directory: str) -> tuple[dict[str, bytes], Unseen | None]:
    """The variables that are looked at here, and no other."""
    wanted = {*_COUNTS, "GODEBUG", *_BEFORE, *_AFTER, *_VERSIONS.values()}
    try:
        text = read_bytes(f"{directory}/environ", MOST_WORDS_BYTES)
    except OSError as error:
        reason = why(error)
        return {}, reason.reworded(f"its environment may not be read ({reason})")
    pairs = (word.partition(b"=") for word in text.split(b"\0"))
    return {key: value for name, _, value in pairs if (key := name.decode("ascii", "replace")) in wanted}, None


def _whole(text: bytes) -> int | None:
    return int(text) if text.isdigit() and len(text) <= 5 and 0 < int(text) <= MOST_COUNT else None


def _executed(directory: str) -> tuple[Runtime, str, Unseen | None]:
    """(runtime, version where the program's name or a library has it, why the runtime is not known)."""
    runtime, version = guess_runtime(directory), ""
    try:
        name = os.path.basename(os.readlink(f"{directory}/exe").removesuffix(DELETED))
        if runtime in ("python", "ruby"):
            found = re.search(r"\d\.\d+t?$", name)
            version = found[0] if found else ""
        if runtime == "other":
            with suppress(ValueError):
                read_build(f"{directory}/exe")
                return "go", "", None
        if runtime in ("other", "dotnet"):
            maps = read_bytes(f"{directory}/maps", MOST_MAPS_BYTES)
            for each, library in _LIBRARIES:
                if seen := library.search(maps):
                    return each, (seen[1] or b"").decode("ascii") if library.groups else "", None
    except OSError as error:
        if runtime == "other":
            reason = why(error)
            return runtime, "", reason.reworded(f"what executes it cannot be seen ({reason})")
    if runtime == "other":
        return runtime, "", Unseen("it is executed by none of the runtimes that are known here", Code.NOT_APPLICABLE)
    return runtime, version, None


def _go(directory: str, counts: Mapping[str, int], godebug: Mapping[str, str], unread: Unseen | None) -> Program:
    try:
        build = read_build(f"{directory}/exe")
    except (OSError, ValueError) as error:
        reason = why(error)
        return Program(
            "go", counts=counts, unread=unread, unknown=reason.reworded(f"its build cannot be read ({reason})")
        )
    version = ".".join(map(str, build.release or ()))
    return Program(
        "go", version, counts, {**build.godebug, **godebug}, (build.modules or {}).get(AUTOMAXPROCS, ""),
        build.modules is None, unread=unread,
    )  # fmt: skip


def _java(directory: str, environment: Mapping[str, bytes], unread: Unseen | None) -> Program:
    try:
        line = read_bytes(f"{directory}/cmdline", MOST_WORDS_BYTES)
    except OSError as error:
        line, unread = b"", unread or why(error)
    words = b"\0".join(
        (*(environment.get(name, b"") for name in _BEFORE), line, *(environment.get(name, b"") for name in _AFTER))
    )
    found = _JAVA_COUNT.findall(words)
    count = int(found[-1]) if found else 0
    counts = {"ActiveProcessorCount": count} if 0 < count <= MOST_COUNT else {}
    container = next((sign == b"+" for sign in reversed(_JAVA_CONTAINER.findall(words))), True)
    more = bool(_JAVA_FILES.search(words)) or len(line) >= MOST_WORDS_BYTES
    said = re.search(r'^JAVA_VERSION="(?:1\.)?(\d[\d._]*)"', _beside(directory, "../release"), re.MULTILINE)
    version = said[1].replace("_", ".") if said else ""  # 1.8.0_372 is 8.0.372
    return Program("java", version, counts, container_support=container, more_options=more, unread=unread)


def _node_version(directory: str) -> str:
    text = _beside(directory, "../include/node/node_version.h")
    found = [
        re.search(rf"^#define NODE_{part}_VERSION (\d+)$", text, re.MULTILINE) for part in ("MAJOR", "MINOR", "PATCH")
    ]
    return ".".join(each[1] for each in found if each)


def _beside(directory: str, name: str) -> str:
    """A small file at this place from the program's own, as the process itself would see it; "" where there is none."""
    with suppress(OSError):
        program = os.readlink(f"{directory}/exe").removesuffix(DELETED)
        path = os.path.normpath(f"{os.path.dirname(program)}/{name}")
        fd = os.open(f"{directory}/root{path}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return os.read(fd, MOST_FILE_BYTES).decode("utf-8", "replace")
        finally:
            os.close(fd)
    return ""
