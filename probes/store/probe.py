"""Asking one server through a connection of the agent's own: when, and what it means that there is no answer.

Manners: one operation in flight, and after a failure a pause that doubles up to 15 s, to five minutes where this agent is not
let in.  A slot in the pause is no other failure: it asks nothing, and counts nothing.  The pause ends at once when the app's
own connections are answered again, and when there is another address.

A connection that was ended while it rested (idle_session_timeout, a pooler's or a load balancer's limit) is replaced before anything
is asked: who wants it gone is not down, and who is down takes no other one.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from probes.backoff import Backoff
from probes.reading import Code, Reading, Unseen, flag, gauge, increment
from probes.record import dataclass
from probes.store.failures import OWN_FAULT, SILENT, LinkFailed
from probes.store.round_trip import PARTS, Parts, RunDelay, Trip, split

#: Of the time-out for all addresses together: that they were tried is known before the slot ends.
CONNECT_SHARE = 0.9
#: An outage that is over is seen within this time, and is reported for no longer.
MOST_PAUSE_SECONDS = 15.0
#: Where it is the agent that is not let in: that is not told as an outage, and the server writes each try down.
MOST_OWN_PAUSE_SECONDS = 300.0

#: A round trip from which a slot is judged at once: felt by people, and longer than the way to another continent's database and back.
SLOW_SECONDS = 0.25

NO_RTT = Unseen("the kernel measures no round trip on this connection", Code.CANNOT_COUNT)


class Connection(Protocol):
    """What every open connection can do."""

    phases: Mapping[str, float]

    @property
    def least_rtt(self) -> float:
        """Smallest round trip that the kernel saw, seconds; 0.0 where it does not say."""
        ...

    @property
    def ended(self) -> bool:
        """At rest: whether the other side has ended it, or said what nobody asked for."""
        ...

    def close(self) -> None:
        """End it; safe to call twice."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReading(Reading):
    """What one slot found at one server; times are the latest, by operation."""

    labelled: ClassVar[bool] = True

    up: bool | None = flag("Whether the server answered")
    round_trip_seconds: Mapping[str, float] | None = gauge("Wall time of the operation", by="operation")
    network_seconds: Mapping[str, float] | None = gauge("Of it on the network, both ways", by="operation")
    server_seconds: Mapping[str, float] | None = gauge("Of it at work or waiting in the server", by="operation")
    suspended_seconds: Mapping[str, float] | None = gauge("Of it with this client's CPU taken away", by="operation")
    client_seconds: Mapping[str, float] | None = gauge("Of it on this client's CPU", by="operation")
    unknown_seconds: Mapping[str, float] | None = gauge("Of it that cannot be told apart here", by="operation")
    method: Mapping[str, float] | None = gauge("1 for the way in which round trips are taken apart here", by="method")
    least_round_trip_seconds: float | None = gauge("Smallest round trip that the kernel saw (tcp_info min_rtt)")
    connect_seconds: Mapping[str, float] | None = gauge("What opening the latest connection took", by="phase")
    opened: float | None = increment("Connections opened by this probe")
    failures: Mapping[str, float] | None = increment("Attempts without an answer", by="reason")
    reason: str = ""
    """Why the latest attempt failed, in the word of ``failures``; in a pause nothing was tried, and that is still so."""
    because: str = ""
    """Why there was no answer, and what to do: sentences for people, without any credential."""
    remedy: str = ""

    @property
    def urgent(self) -> bool:
        """Whether it was not answered, or slowly."""
        return self.up is False or any(seconds >= SLOW_SECONDS for seconds in (self.round_trip_seconds or {}).values())


S = TypeVar("S", bound=StoreReading)
C = TypeVar("C", bound=Connection)


class StoreProbe(ABC, Generic[S, C]):
    """Asks one server.  Never raises: that a server cannot be asked is a reading."""

    reading_type: type[S]
    alone = True

    def __init__(
        self,
        target: str,
        address: Callable[[], str],
        *,
        timeout: float,
        connect_every: float,
        every: float,
        believe_cpu: Callable[[], bool],
        app_is_answered: Callable[[float], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``address`` is asked for each connection, so that a rotated secret is taken up; it may raise OSError or ValueError.

        A new connection comes after ``connect_every`` seconds and as many slots as these are at one each ``every`` seconds: where slots come further
        apart, so do they (of what an idle database costs, opening with SCRAM was a fifth).
        ``app_is_answered`` says whether the app's own connections to this server have had data since a monotonic instant.
        """
        self.target, self._address, self._timeout = target, address, timeout
        self._connect_every, self._connect_slots = connect_every, int(connect_every / every)
        self._believe_cpu, self._clock = believe_cpu, clock
        self._app_is_answered = app_is_answered
        self._turn = asyncio.Lock()
        self._run_delay = RunDelay()
        self._link: C | None = None
        self._connected, self._slots = float("-inf"), 0
        first = min(timeout, MOST_PAUSE_SECONDS)
        self._outage = self._backoff = Backoff(first, MOST_PAUSE_SECONDS, clock)
        self._not_let_in = Backoff(first, MOST_OWN_PAUSE_SECONDS, clock)
        self._failed_at, self._tried = 0.0, ""
        self._own_work: dict[str, float] = {}
        self._last_failure: LinkFailed | None = None
        self._taken = clock()

    @abstractmethod
    async def _connect(self, address: str, seconds: float) -> C:
        """Open a connection within about ``seconds``.  Raises LinkFailed."""

    @abstractmethod
    async def _ask(self, link: C) -> tuple[Mapping[str, Parts], Mapping[str, Any]]:
        """(round trips by operation, further fields with ``unseen``).  Raises LinkFailed."""

    async def read(self) -> S:
        """Ask once."""
        async with self._turn:
            return await self._read()

    async def _read(self) -> S:
        opened = 0.0
        if self._last_failure is not None and not self._due(self._last_failure):
            return self._unanswered(self._last_failure)
        try:
            async with asyncio.timeout(self._timeout) as self._limit:
                self._slots += 1
                if self._link is None or self._is_old() or self._link.ended:
                    opened = 1.0
                    await self._open()
                assert self._link is not None
                return self._answered(self._link, opened, *await self._ask(self._link))
        except TimeoutError:
            fault = LinkFailed(
                SILENT,
                f"no answer within {self._timeout:g} s",
                "is the host up, and the port open in every firewall between?",
            )
        except LinkFailed as known:
            fault = known
        return self._failed(fault, opened)

    @property
    def sooner(self) -> float | None:
        """Seconds after which the next slot is wanted, where that is before its time; ``None``: it is not."""
        fault = self._last_failure
        return MOST_PAUSE_SECONDS if fault is not None and fault.reason not in OWN_FAULT else None

    def _due(self, fault: LinkFailed) -> bool:
        """Whether the pause is over, would be too long if it lasted until the next slot, or is of no more use."""
        now = self._clock()
        if self._backoff.due or self._changed():
            return True
        if fault.reason in OWN_FAULT:
            return False
        next_slot = now + (now - self._taken)
        return next_slot > self._failed_at + MOST_PAUSE_SECONDS or self._app_is_answered(self._failed_at)

    def _changed(self) -> bool:
        """Whether another address stands there than the one that failed."""
        with suppress(OSError, ValueError):
            return self._tried != self._address()
        return False

    def _is_old(self) -> bool:
        """Whether the connection is to be replaced: by its age, or because it has rested for as long, and the network may have forgotten it."""
        now = self._clock()
        enough = self._slots >= self._connect_slots or now - self._taken >= self._connect_every
        return enough and now - self._connected >= self._connect_every

    def _left(self) -> float:
        """Seconds until the slot's time-out."""
        when = self._limit.when()
        return 0.0 if when is None else when - asyncio.get_running_loop().time()

    async def _open(self) -> None:
        """Open a connection; it replaces the one that there was, which is closed when the new one stands."""
        try:
            self._tried = ""
            self._tried = address = self._address()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            name = self.reading_type.probe
            word = "DSN" if name == "postgres" else "URL"
            raise LinkFailed("configuration", f"the {word} could not be read: {why}", f"check {name}.targets") from None
        link = await self._connect(address, CONNECT_SHARE * self._timeout)
        self._close()
        self._link, self._connected, self._slots = link, self._clock(), 0

    def _split(self, name: str, trip: Trip, least_rtt: float, growth: float = 1.02) -> Parts:
        """Where the CPU clock runs on while we are stopped, the operation's own work is the least ever seen."""
        raw = split(trip, least_rtt)
        ours = raw.suspended + raw.client
        # It may grow again, slowly: an upgrade or a larger result is not suspended for ever.
        self._own_work[name] = min(ours, self._own_work.get(name, ours) * growth)
        return raw if self._believe_cpu() else split(trip, least_rtt, self._own_work[name])

    def _answered(self, link: C, opened: float, parts: Mapping[str, Parts], more: Mapping[str, Any]) -> S:
        for backoff in (self._outage, self._not_let_in):
            backoff.succeeded()
        self._last_failure = None
        times = {f"{part}_seconds": {n: getattr(p, part) for n, p in parts.items()} for part in PARTS}
        unseen = {**({} if link.least_rtt else {"least_round_trip_seconds": NO_RTT}), **more.get("unseen", {})}
        now, before = self._clock(), self._taken
        self._taken = now
        given: dict[str, Any] = {**times, **more, "unseen": unseen}
        return self.reading_type(
            taken=now, seconds=now - before, target=self.target, up=True,
            round_trip_seconds={name: p.wall for name, p in parts.items()},
            method={parts["short"].method: 1.0}, least_round_trip_seconds=link.least_rtt or None,
            connect_seconds=link.phases, opened=opened, failures={}, **given,
        )  # fmt: skip

    def _failed(self, fault: LinkFailed, opened: float) -> S:
        self._close()
        self._failed_at, self._last_failure = self._clock(), fault
        self._backoff = self._not_let_in if fault.reason in OWN_FAULT else self._outage
        self._backoff.failed()
        return self._unanswered(fault, opened=opened, failures={fault.reason: 1.0})

    def _unanswered(self, fault: LinkFailed, **counted: Any) -> S:
        now, before = self._clock(), self._taken
        self._taken = now
        unseen = dict.fromkeys((f"{part}_seconds" for part in (*PARTS, "round_trip")), fault.because)
        return self.reading_type(
            taken=now, seconds=now - before, target=self.target, up=False, reason=fault.reason, because=fault.because, remedy=fault.remedy,
            unseen=unseen, **{"opened": 0.0, "failures": {}, **counted},
        )  # fmt: skip

    def _close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    async def aclose(self) -> None:
        """Close the connection."""
        self._close()
