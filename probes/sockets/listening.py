"""Who waits to be accepted: the queues of the listening sockets, which no process that sleeps can see.

The kernel completes a handshake by itself and puts the connection into the listener's accept queue; the client believes
itself connected, and waits until the server calls accept(2).  A server that never does looks idle from within.  Asked are:

* the queue and its bound (NETLINK_SOCK_DIAG has both as Recv-Q and Send-Q of ``ss -ltn``: sk_ack_backlog and
  sk_max_ack_backlog, tcp_diag_get_info in net/ipv4/tcp_diag.c); /proc/net/tcp has the queue alone;
* ListenOverflows and ListenDrops of /proc/net/netstat: handshakes that were dropped because a queue was full, and those
  dropped for that or any other reason.  They count for the whole network namespace, since it began: only what they gain is
  reported;
* who waits: an established connection that no process holds (inode 0) has not been accepted.  One that is still there at a
  later sample has waited at least for the time between; one whose client has left is in another state, and waits no more.

*Whose listener* it is, is known where the app's processes are seen with their descriptors, or by ``listening.ports``.  A
socket that several processes hold, as of forked workers, is each one's.  The agent's own are left out.

One sample a slot, three more within two seconds when anything waits there, and the next slot after five when somebody has waited long: 0.25 ms of CPU each, as much again for the
counters and the sums, with a dozen listeners on a crowded machine.  In gVisor the queues
always read 0.

Over 300 lines: queue, counters and who waits are one sample, taken at one moment.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from probes.app.search import App
from probes.counters import Counters
from probes.host.platform import in_gvisor
from probes.kernel_files import why
from probes.reading import Code, NoData, Reading, Stability, Unseen, gauge, increment
from probes.record import dataclass
from probes.registration import Context, Planned, Registration
from probes.section import Field, Section
from probes.sockets import netlink, proc_net
from probes.sockets.proc_net import sockets_of_this_process
from probes.sockets.tcp_info import Dump, Socket

Whose = Literal["app", "other", "unknown"]

#: Ports with a label of their own: the app's, and of the rest those with the longest queues.
MOST_PORTS = 32
#: Descriptors of one process that are looked at for listeners.
MOST_LINKS = 512
#: Clients that wait and are told apart, in all.
MOST_CLIENTS = 1024
#: More samples in a slot, once something waits; the pause before each is half to all of this, or of this part of a slot.
MORE_SAMPLES, BETWEEN_SECONDS, BETWEEN_RATIO = 3, 0.7, 0.15
#: Whoever was met waiting for so long, or was dropped, is looked for again so soon, so many times, until nobody is.
LONG_WAIT_SECONDS, SOON_SECONDS, MOST_SOON = 0.1, 5.0, 2
#: CPU of one slot, and upper bound of one reading (measured: 0.3 to 0.5 ms and 3300 bytes with ten ports).
CPU_SECONDS, READING_BYTES = 0.5e-3, 10_000

_GVISOR = Unseen("gVisor shows no accept queue: in its /proc/net/tcp every queue reads 0", Code.CANNOT_COUNT)
_REMEDY = "let the agent see the network namespace of the application, with its /proc and NETLINK_SOCK_DIAG allowed"
_NO_BOUND = Unseen("/proc/net/tcp does not have it, and NETLINK_SOCK_DIAG is refused", Code.CANNOT_COUNT)


class Listening(Section):
    """The app's listening sockets: who waits to be accepted."""

    stability: ClassVar[Stability] = "beta"

    ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = Field(
        (), max_length=32,
        description="Ports that the app listens on; none: those that its processes hold, where these are visible.",
    )  # fmt: skip
    every_seconds: float = Field(20.0, ge=1, le=300, description="Time between two slots.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningReading(Reading):
    """The accept queues of one network namespace; sockets of one port are added up."""

    probe: ClassVar[str] = "listening"
    stability: ClassVar[Stability] = "beta"

    queued: Mapping[str, float] | None = gauge("Connections that wait to be accepted, mean of the samples", by="port")
    most_queued: Mapping[str, float] | None = gauge(
        "Connections that may wait (backlog of listen(2), net.core.somaxconn)", by="port"
    )
    waited_seconds: Mapping[str, float] | None = gauge(
        "How long, at least, the first of these clients has waited", by="port"
    )
    waiting_clients: Mapping[str, float] | None = gauge(
        "Of those that wait those whose client is still there; asked where any waits", by="port"
    )
    waiting_ratio: Mapping[str, float] | None = gauge("Share of the samples in which a connection waited", by="port")
    full_ratio: Mapping[str, float] | None = gauge("Share of the samples in which the queue took no more", by="port")
    overflows: float | None = increment(
        "Handshakes dropped because an accept queue was full (ListenOverflows, all ports)"
    )
    drops: float | None = increment("Handshakes dropped for that or any other reason (ListenDrops, all ports)")
    #: Whose listener each port is.
    whose: Mapping[str, Whose] = field(default_factory=dict)
    #: Whether the app's processes are in another network namespace, whose queues are not these.
    app_elsewhere: bool = False
    #: Whether the settings name the app, and no process of it is there: then who waits may wait for anybody.
    app_absent: bool = False


class ListeningProbe:
    """Samples the queues of this network namespace; ``pids`` gives the app's processes, ``ports`` what the settings name; ``named``: they name the app."""

    name = "listening"
    target = ""
    reading_type = ListeningReading

    def __init__(
        self,
        ports: Collection[int] = (),
        *,
        pids: Callable[[], Sequence[int]] = tuple,
        named: bool = False,
        gvisor: Callable[[], bool] = lambda: False,
        own: Callable[[], Collection[int]] = sockets_of_this_process,
        ask: Callable[[], Dump] = netlink.dump_listening,
        unaccepted: Callable[[Collection[int]], Dump] = netlink.dump_unaccepted,
        table: Callable[[], Dump] = proc_net.dump_listening,
        table_unaccepted: Callable[[Collection[int]], Dump] = proc_net.dump_unaccepted,
        root: Path = Path("/"),
        between: float = BETWEEN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._ports, self._pids, self._gvisor, self._own = frozenset(ports), pids, gvisor, own
        self._ask, self._table, self._root = ask, table, root
        self._unaccepted, self._table_unaccepted = unaccepted, table_unaccepted
        self._between, self._clock, self._sleep, self._named = between, clock, sleep, named
        self._counters = Counters()
        self._taken: float | None = None
        #: Whose each inode is, as of these listeners and these processes.
        self._known: tuple[frozenset[int], tuple[int, ...]] = frozenset(), ()
        self._owners: dict[int, Whose | Literal["own"]] = {}
        self._elsewhere = False
        #: Since when each of those who wait has been seen: local port, remote address and port.
        self._met: dict[tuple[int, str, int], float] = {}
        #: Slots in a row in which somebody waited long, or was dropped.
        self._held = 0

    @property
    def sooner(self) -> float | None:
        """Seconds to the next slot, for the first that meet somebody: a queue that stands is told by three."""
        return SOON_SECONDS if 1 <= self._held <= MOST_SOON else None

    async def read(self) -> ListeningReading:
        """Sample once, and more where something waits.  Raises NoData in gVisor and without netlink and tables."""
        if self._gvisor():
            raise NoData(_GVISOR, "measure in the application: the time from connect to the first byte")
        counted = self._count()
        samples = [self._sample()]
        while len(samples) <= MORE_SAMPLES and (counted.get("overflows") or any(map(self._waits, samples[0]))):
            if len(samples) == 1:
                self._meet(samples[0])
            await self._sleep(self._between * random.uniform(0.5, 1))  # noqa: S311 - no secret
            samples.append(self._sample())
        taken = self._clock()
        seconds = 0.0 if self._taken is None else max(0.0, taken - self._taken)
        self._taken = taken
        fields, whose = self._sum_up(samples)
        unseen = (
            {}
            if fields["most_queued"] or not fields["queued"]
            else dict.fromkeys(("most_queued", "full_ratio"), _NO_BOUND)
        )
        fields |= dict.fromkeys(unseen)
        refused = self._meet(samples[-1])
        if refused is None:
            fields |= self._clients(fields["queued"])
        else:
            unseen |= dict.fromkeys(("waiting_clients", "waited_seconds"), refused)
        held = counted.get("overflows") or any(
            w >= LONG_WAIT_SECONDS for w in fields.get("waited_seconds", {}).values()
        )
        self._held = self._held + 1 if held else 0
        for name in ("overflows", "drops"):
            if name not in counted:
                unseen[name] = Unseen("/proc/net/netstat does not have it here", Code.CANNOT_COUNT)
        return ListeningReading(
            taken=taken, seconds=seconds, unseen=unseen, whose=whose, app_elsewhere=self._elsewhere,
            app_absent=self._named and not self._known[1], **fields, **counted,
        )  # fmt: skip

    async def aclose(self) -> None:
        """Nothing is held open."""

    def _count(self) -> dict[str, Any]:
        found = proc_net.counted(self._root / "proc/net/netstat", "TcpExt", "ListenOverflows", "ListenDrops")
        names = {"ListenOverflows": "overflows", "ListenDrops": "drops"}
        totals = {names[name]: float(value) for name, value in found.items()}
        return self._counters.added("net", totals) if totals else {}

    def _sample(self) -> list[Socket]:
        """The listeners that are not the agent's."""
        dump = _either(self._ask, self._table)
        self._learn(frozenset(s.inode for s in dump.sockets))
        return [s for s in dump.sockets if self._owners.get(s.inode) != "own"]

    def _waits(self, found: Socket) -> bool:
        """Whether anybody waits at a listener that may be the app's."""
        return bool(found.rqueue) and self._whose(found.source_port, (found,)) != "other"

    def _meet(self, sample: Sequence[Socket]) -> Unseen | None:
        """Note who waits now, and since when they have been seen; why not, where that is refused."""
        ports = {s.source_port for s in sample if self._waits(s)}
        found = Dump(())
        if ports:
            own = sorted(ports)
            try:
                found = _either(lambda: self._unaccepted(own), lambda: self._table_unaccepted(own))
            except NoData as refused:
                return Unseen(refused.because, refused.code)
        now = self._clock()
        keys = [(s.source_port, s.destination, s.destination_port) for s in found.sockets[:MOST_CLIENTS]]
        self._met = {key: self._met.get(key, now) for key in keys}
        # What is cut off may hide who waits, and takes nothing from whom it does not.
        return Unseen(found.missing, Code.PARTIAL) if found.missing and not keys else None

    def _clients(self, queued: Mapping[str, float]) -> dict[str, dict[str, float]]:
        """By port, where any waited in this slot: those who wait now, and for how long the first of them has."""
        now, fields = self._clock(), dict[str, dict[str, float]](waiting_clients={}, waited_seconds={})
        for port in (port for port, queue in queued.items() if queue):
            since = [first for (own, _, _), first in self._met.items() if own == int(port)]
            fields["waiting_clients"][port] = float(len(since))
            fields["waited_seconds"][port] = max((now - first for first in since), default=0.0)
        return fields

    def _learn(self, inodes: frozenset[int]) -> None:
        """Whose these are: asked again when there are others, or the app has other processes."""
        pids = tuple(self._pids())
        if (inodes, pids) == self._known:
            return
        self._known, own = (inodes, pids), self._own()
        here = _link(self._root / "proc/self/ns/net")
        places = [_link(self._root / f"proc/{pid}/ns/net") for pid in pids]
        self._elsewhere = bool(places) and here != "" and all(there not in ("", here) for there in places)
        held, complete = self._held_by(pids)
        rest: Whose = "other" if pids and complete else "unknown"
        self._owners = {inode: "own" if inode in own else "app" if inode in held else rest for inode in inodes}

    def _held_by(self, pids: Sequence[int]) -> tuple[set[int], bool]:
        """The sockets that these processes hold, and whether all of their descriptors could be looked at."""
        held: set[int] = set()
        complete = True
        for pid in pids:
            try:
                with os.scandir(self._root / f"proc/{pid}/fd") as entries:
                    links = [_link(Path(entry.path)) for entry in islice(entries, MOST_LINKS)]
            except OSError:
                complete = False
                continue
            complete = complete and len(links) < MOST_LINKS
            held.update(int(link[8:-1]) for link in links if link.startswith("socket:["))
        return held, complete

    def _sum_up(self, samples: Sequence[Sequence[Socket]]) -> tuple[dict[str, Any], dict[str, Whose]]:
        """The fields by port, and whose each port is."""
        whose: dict[str, Whose] = {}
        sums: dict[str, dict[str, float]] = {}
        for sample in samples:
            for port, sockets in _by_port(sample):
                found = sums.setdefault(port, {"queued": 0.0, "most": 0.0, "waits": 0.0, "full": 0.0})
                found["queued"] += sum(s.rqueue for s in sockets) / len(samples)
                found["most"] = float(sum(s.wqueue for s in sockets))
                found["waits"] += any(s.rqueue for s in sockets) / len(samples)
                # sk_acceptq_is_full (net/sock.h): one more than the bound may wait.
                found["full"] += any(s.rqueue > s.wqueue > 0 for s in sockets) / len(samples)
                whose[port] = self._whose(int(port), sockets)
        kept = sorted(sums, key=lambda port: (whose[port] != "app", -sums[port]["queued"], port))[:MOST_PORTS]
        names = {"queued": "queued", "waiting_ratio": "waits", "most_queued": "most", "full_ratio": "full"}
        shown = [port for port in kept if whose[port] != "other"]
        fields = {name: {port: sums[port][key] for port in shown} for name, key in names.items()}
        if not any(fields["most_queued"].values()):
            fields["most_queued"] = {}
        return fields, {port: whose[port] for port in kept}

    def _whose(self, port: int, sockets: Sequence[Socket]) -> Whose:
        if self._ports:
            return "app" if port in self._ports else "other"
        known = {self._owners.get(s.inode, "unknown") for s in sockets}
        return "app" if "app" in known else "unknown" if "unknown" in known else "other"


def _either(ask: Callable[[], Dump], table: Callable[[], Dump]) -> Dump:
    """What netlink says, or else the tables.  Raises NoData without both."""
    try:
        return ask()
    except OSError as refused:
        try:
            return table()
        except OSError as error:
            raise NoData(f"NETLINK_SOCK_DIAG: {why(refused)}; {why(error)}", _REMEDY, code=why(refused).code) from error


def _by_port(sample: Sequence[Socket]) -> Iterator[tuple[str, list[Socket]]]:
    found: dict[int, list[Socket]] = {}
    for each in sample:
        found.setdefault(each.source_port, []).append(each)
    for port, sockets in found.items():
        yield str(port), sockets


def _link(path: Path) -> str:
    with suppress(OSError):
        return os.readlink(path)
    return ""


def probes(context: Context) -> Iterator[Planned]:
    """One, always."""
    settings = context.settings(Listening)
    yield Planned(
        make=lambda: ListeningProbe(
            settings.ports, between=min(BETWEEN_SECONDS, BETWEEN_RATIO * settings.every_seconds), pids=context.app_pids, named=context.settings(App).named, gvisor=lambda: in_gvisor(context), root=context.root,
            table=lambda: proc_net.dump_listening(root=context.root), table_unaccepted=lambda ports: proc_net.dump_unaccepted(ports, root=context.root),
        ),
        every=settings.every_seconds, cpu_seconds=CPU_SECONDS, history_bytes=READING_BYTES,
    )  # fmt: skip


REGISTRATION = Registration(probes, readings=(ListeningReading,))
