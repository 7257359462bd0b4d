"""How a probe becomes part of the agent: what it may be given, and what it says of itself before it runs.

A probe's module (or ``registration.py`` of its room) holds a :class:`Registration`, and one line in ``probes/__init__.py``
names that module.  Its ``probes(context)`` says which probes these settings ask for, how often each is due, and what it costs:
the agent schedules them, and refuses settings that cannot keep within its budget, without knowing any of them.

The :class:`Context` is all that a probe may know of its surroundings.  Its second half is what one probe tells another: a
:class:`Question` is answered with "nothing" until the probe that knows is there.  So the order of registration decides nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from importlib import import_module
from pathlib import Path
from typing import Generic, Protocol, TypeVar, cast, runtime_checkable

from probes.app.in_flight import InFlight
from probes.hooks.times import Times
from probes.metrics_page.fetch import Shared
from probes.own_connections import OwnConnections
from probes.reading import Code, NoData, Probe, R, Reading
from probes.record import dataclass
from probes.section import Section

#: CPU of one slot that reads a file or fetches a page, with its share of the report: measured on 2 cores by ``make bench``.
SLOT_CPU_SECONDS = 2.5e-3

S = TypeVar("S", bound=Section)
T = TypeVar("T")
#: Address and port of the other end.
Peer = tuple[str, int]


class Latest(Protocol):
    """Asks the history."""

    def __call__(self, reading_type: type[R], target: str = "") -> R | None:
        """The newest reading of this type, ``None`` while there is none."""
        ...


class NothingYet:
    """A history without readings."""

    def __call__(self, reading_type: type[R], target: str = "") -> R | None:
        """Always ``None``."""
        return None


class Question(Generic[T]):
    """What one probe asks another, whichever of them is there first."""

    def __init__(self, nothing: T) -> None:
        self._answer: Callable[[], T] = lambda: nothing

    def __call__(self) -> T:
        """The answer of now: ``nothing`` while nobody can tell."""
        return self._answer()

    def let(self, answer: Callable[[], T]) -> None:
        """From now on this one answers."""
        self._answer = answer


@dataclass(slots=True)
class Context:
    """What a probe may be given."""

    sections: Mapping[type[Section], Section]
    """The settings; :meth:`settings` finds a probe's own."""
    root: Path = Path("/")
    """Where /proc and /sys begin: tests have a tree of their own."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    latest: Latest = field(default_factory=NothingYet)
    """What another probe measured last."""
    ask_for_slot: Callable[[], None] = lambda: None
    """Brings the next slots forward, because something has just happened."""
    loop_ran_between: Callable[[float, float], bool] = lambda _start, _end: False
    """Whether the agent's event loop was seen running between two monotonic instants."""
    each_second: list[Callable[[], None]] = field(default_factory=list)
    """Called about once a second in a thread of its own, in a wake-up that happens anyway: for what takes well below a millisecond and never waits."""
    in_flight: InFlight = field(default_factory=InFlight)
    """Requests in flight, pushed by whoever knows of them."""
    pages: Shared = field(default_factory=Shared)
    """Fetches metrics pages: once where several probes look at the same one."""
    own_connections: OwnConnections = field(default_factory=OwnConnections)
    """What the kernel counts among the app's connections and is the agent's."""

    # What one probe tells another.
    child_pid: Question[int | None] = field(default_factory=lambda: Question(None))
    """The agent's measuring child, which is none of the app's processes."""
    socket_inodes: Question[frozenset[int]] = field(default_factory=lambda: Question(frozenset()))
    """The app's connections to the watched ports."""
    app_pids: Question[tuple[int, ...]] = field(default_factory=lambda: Question(()))
    """The app's processes, as many as are watched."""
    app_all_pids: Question[tuple[int, ...]] = field(default_factory=lambda: Question(()))
    """Those, and the ones beyond them that the last search found; some may have ended since."""
    app_missing: Question[NoData] = field(
        default_factory=lambda: Question(NoData("nobody has looked for the app yet", code=Code.NOT_YET))
    )
    """Why there is none of them."""
    pools: Question[Mapping[str, Mapping[str, float]]] = field(default_factory=lambda: Question({}))
    """The app's connection pools, as hooks report them: ``PROCESS/POOL`` to numbers by name."""
    times: Question[Times | None] = field(default_factory=lambda: Question(None))
    """What hooks tell of log calls and event loops; ``None`` where nobody listens to them."""
    databases: dict[str, frozenset[Peer]] = field(default_factory=dict)
    """Where each configured database is, or was looked for: its target and every address of its name."""
    host_names: list[Callable[[], Iterable[str]]] = field(default_factory=list)
    """Asked for the hosts of configured databases, as the settings write them; filled while the probes are planned."""
    on_databases: list[Callable[[Mapping[str, Collection[Peer]]], None]] = field(default_factory=list)
    """Told all of them when one is found, or looked for elsewhere."""

    def found_database(self, target: str, peers: Iterable[Peer]) -> None:
        """This configured database is, or was looked for, at these addresses; none: they are none of the network's."""
        if (found := frozenset(peers)) and self.databases.get(target) != found:
            self.databases[target] = found
            for tell in self.on_databases:
                tell(self.databases)

    def settings(self, section: type[S]) -> S:
        """The section of the settings with this class.  Raises LookupError when the settings have none such."""
        if section not in self.sections:
            raise LookupError(f"{section.__name__} is no section: give it a name in Config, agent/settings/schema.py")
        return cast("S", self.sections[section])


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One probe that the settings ask for; nothing is opened or started before ``make``."""

    make: Callable[[], Probe[Reading]]
    every: float
    """Seconds between two slots."""
    cpu_seconds: float
    """CPU of one slot, predicted: measure it, ``tests/bench`` shows how.  0 where another probe's number covers it."""
    history_bytes: int
    """Upper bound of one reading in the history.  0 where another probe's number covers it."""
    growing: Callable[[], float] = lambda: 0.0
    """CPU of one slot beyond that, for as much as there is to look at now."""
    timeout: float | None = None
    """Seconds that one slot may take; ``None``: 80 % of ``every``."""
    when: Callable[[], bool] | None = None
    """Begin only once this is so, which is asked after each wake-up; ``None``: at once."""
    first: bool = False
    """The others need its reading before they start."""


def cpu_ratio(plans: Iterable[Planned]) -> float:
    """Share of one core that these take together, as they say: an upper bound, since in quiet times slots come further apart."""
    return sum((plan.cpu_seconds + plan.growing()) / plan.every for plan in plans)


@dataclass(frozen=True, slots=True)
class Registration:
    """Of one probe, or of several that share something: every type that they may read, and which of them are wanted."""

    probes: Callable[[Context], Iterable[Planned]]
    readings: tuple[type[Reading], ...]


@runtime_checkable
class Starting(Protocol):
    """A probe that has something to start before its first slot."""

    def start(self) -> None:
        """Start it.  Raises OSError when it cannot be started; the agent then ends."""
        ...


def load(package: str, *modules: str) -> tuple[Registration, ...]:
    """``REGISTRATION`` of each of these modules of a package.  Raises TypeError for a module without one."""
    return tuple(_registration(f"{package}.{module}") for module in modules)


def _registration(name: str) -> Registration:
    found = getattr(import_module(name), "REGISTRATION", None)
    if not isinstance(found, Registration):
        raise TypeError(
            f"{name} is named in probes/__init__.py and has no REGISTRATION = Registration(probes, readings=...)"
        )
    return found
