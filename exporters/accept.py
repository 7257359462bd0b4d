"""Accepting connections so that there is always room for one more: asyncio's own accept loop knows no limit.

A kubelet restarts an agent whose /livez does not answer, so nobody may keep it from answering by holding connections.
Whoever connects costs a descriptor until the first byte has come; then there is a protocol for the connection.  When all are taken,
the one that has kept us waiting for a request for longest is closed, else the one that was idle for longest since its
last; never one that is being answered.  Who connected or began a moment ago is not closed while few others wait in the kernel's backlog: scrapers
that come at the same instant are answered one after the other.  Thousands at once are gone through at once; who connects again and again to be
closed again costs at most ``MOST_CLOSED_PER_SECOND``, and the others wait in the backlog meanwhile.

Out of descriptors the listening socket stays readable, so a loop that went on would spin (asyncio's of Python 3.11 logs
each of its 2,048 tries a second): accepting pauses instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from agent.meter import Meter
from exporters.plain import readable
from exporters.sparing import Sparing
from probes.tls import for_asyncio

if TYPE_CHECKING:
    from ssl import SSLContext

#: A connection that is accepted and closed takes about 0.1 ms.
MOST_CLOSED_PER_SECOND, MOST_CLOSED_AT_ONCE = 1000, 4000
PAUSE_SECONDS, SHORT_PAUSE_SECONDS = 0.5, 0.05
#: Who has been there for less is not closed, unless more wait than twice as many as may be there.
MOMENT_SECONDS = 0.1
#: Of a listening socket tcp_info has the length of its accept queue as tcpi_unacked and the most of it as tcpi_sacked (net/ipv4/tcp.c).
_QUEUE = struct.Struct("=24x2I")
#: Descriptors that the rest of the agent may need: its probes, its databases, its child.
SPARE_DESCRIPTORS = 64
FEWEST = 4


class Client(Protocol):
    """A connection that has spoken."""

    #: The event loop's time at which it was made, or was answered last.
    idle_since: float

    @property
    def busy(self) -> bool:
        """Whether a whole request of it is being answered."""
        ...

    @property
    def unfinished(self) -> bool:
        """Whether it has begun a request and not ended it, or never asked for anything yet."""
        ...

    @property
    def has_spoken(self) -> bool:
        """Whether something of it lies in the kernel, to be read in a moment."""
        ...

    def close_now(self) -> None:
        """Close without waiting for the other side; nothing while the connection is not made yet."""
        ...

    def shutdown(self) -> None:
        """Close, after the answer that is being made."""
        ...


def most_for_descriptors(most: int) -> int:
    """So many connections, or fewer where the process may not open as many files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, max(FEWEST, soft - SPARE_DESCRIPTORS))


class Acceptor:
    """Accepts on ``socks``, at most ``most`` connections at a time; ``make`` gives the protocol of one that has spoken.

    The protocol calls :meth:`forget` at its end.  Who says nothing for ``patience`` seconds is closed, and who does not
    get through the handshake of ``tls`` in that time.  What that takes is added to ``meter``.
    """

    def __init__(
        self,
        socks: Sequence[socket.socket],
        most: int,
        make: Callable[[], Any],
        patience: float,
        tls: Callable[[], SSLContext | None] = lambda: None,
        meter: Meter | None = None,
    ) -> None:
        self._socks, self._most, self._make, self._patience, self._tls = socks, most, make, patience, tls
        self._meter = meter or Meter()
        self._loop = asyncio.get_running_loop()
        #: Accepted, and nothing has come yet: since when, the oldest first.
        self._silent: dict[socket.socket, float] = {}
        self._clients: set[Client] = set()
        #: Those whose connection is not made yet, because of the handshake.
        self._beginning: dict[Client, asyncio.Task[Any]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._finished: asyncio.Event | None = None
        self._may_close, self._reckoned = float(MOST_CLOSED_AT_ONCE), self._loop.time()
        self._closed = Sparing(
            "{count} idle connections closed for newer ones: {most} are the most (http.most_connections)"
        )
        self._refused = Sparing("connections could not be accepted, {count} times: {why}; trying again")

    def open(self) -> None:
        """Accept from now on."""
        self._rest = None
        for sock in self._socks:
            self._loop.add_reader(sock, self._meter.add, self._accept, sock)

    def close(self) -> None:
        """Accept no more and close those that have not spoken; the others are not touched."""
        for timer in (self._rest, self._sweep):
            if timer is not None:
                timer.cancel()
        for sock in self._socks:
            self._loop.remove_reader(sock)
        for task in self._beginning.values():
            task.cancel()
        for silent in list(self._silent):
            self._leave(silent).close()

    def forget(self, client: Client) -> None:
        """A connection has ended."""
        self._clients.discard(client)
        if not self._clients and self._finished is not None:
            self._finished.set()

    def replace(self, client: Client, other: Client) -> None:
        """The same connection goes on with another protocol."""
        self._clients.discard(client)
        self._clients.add(other)

    async def finish(self, seconds: float) -> None:
        """End all connections; those that are being answered have this long."""
        if self._beginning:
            await asyncio.wait(self._beginning.values(), timeout=seconds)
        self._finished = asyncio.Event()
        for client in list(self._clients):
            client.shutdown()
        if self._clients:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._finished.wait(), seconds)
        for client in list(self._clients):
            client.close_now()

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(max(1, self._most // 8)):  # so that those who have spoken are heard in between
            if len(self._silent) + len(self._clients) >= self._most and not self._make_room(sock):
                return
            try:
                accepted, _ = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._refused.note(why=error.strerror)
                self._make_room()
                self._pause(PAUSE_SECONDS)
                return
            accepted.setblocking(False)
            self._silent[accepted] = self._loop.time()
            self._loop.add_reader(accepted, self._meter.add, self._spoke, accepted)
            if self._sweep is None:
                self._sweep = self._loop.call_later(self._patience, self._meter.add, self._close_silent)

    def _spoke(self, accepted: socket.socket) -> None:
        """The first bytes are there, or its end: from now on a protocol has it."""
        client = self._make()
        client.idle_since = self._loop.time()
        self._clients.add(client)
        context = for_asyncio(self._tls())
        times = {"ssl_handshake_timeout": self._patience, "ssl_shutdown_timeout": self._patience} if context else {}
        begin = self._loop.connect_accepted_socket(lambda: client, self._leave(accepted), ssl=context, **times)
        self._beginning[client] = task = self._loop.create_task(begin)
        task.add_done_callback(lambda _: self._begun(client, task))

    def _begun(self, client: Client, task: asyncio.Task[Any]) -> None:
        """The connection is made, or the handshake went wrong, which is the other side's affair."""
        self._beginning.pop(client, None)
        if task.cancelled() or task.exception() is not None:
            self.forget(client)

    def _leave(self, accepted: socket.socket) -> socket.socket:
        del self._silent[accepted]
        self._loop.remove_reader(accepted)
        return accepted

    def _make_room(self, sock: socket.socket | None = None) -> bool:
        """Close the connection that nobody will miss.  False when there is none now: accepting rests.

        ``sock`` is where the next one waits.
        """
        now = self._loop.time()
        earned = (now - self._reckoned) * MOST_CLOSED_PER_SECOND
        self._may_close, self._reckoned = min(MOST_CLOSED_AT_ONCE, self._may_close + earned), now
        if self._may_close < 1:
            self._pause(SHORT_PAUSE_SECONDS)
            return False
        while True:
            silent = next(iter(self._silent), None)
            asking = min((each for each in self._clients if self._unfinished(each)), key=_since, default=None)
            if silent is not None and (asking is None or self._silent[silent] <= asking.idle_since):
                if readable(silent):
                    self._spoke(silent)
                    continue
                if self._is_new(self._silent[silent], sock):
                    return False
                self._leave(silent).close()
                break
            idlest = asking or self._idlest()
            if asking is not None and self._is_new(asking.idle_since, sock):
                return False
            if idlest is None:
                self._pause(SHORT_PAUSE_SECONDS)
                return False
            self._clients.discard(idlest)
            if idlest in self._beginning:
                self._beginning[idlest].cancel()  # in vain when its last step is due: then there is something to close
            idlest.close_now()
            break
        self._may_close -= 1
        self._closed.note(most=self._most)
        return True

    def _is_new(self, since: float, sock: socket.socket | None) -> bool:
        """Whether it is left for now, because it has just come and few wait behind it: accepting rests then."""
        if sock is None or self._loop.time() - since >= MOMENT_SECONDS or (waiting := _waiting(sock)) is None:
            return False
        if waiting > 2 * self._most:
            return False
        self._pause(SHORT_PAUSE_SECONDS)
        return True

    def _idlest(self) -> Client | None:
        """The one that was idle for longest: nothing is answered there, and no further request of it lies in the kernel."""
        idle = sorted((each for each in self._clients if not each.busy), key=_since)
        return next((each for each in idle if not each.has_spoken), None)

    def _unfinished(self, client: Client) -> bool:
        """Whether it has not got through its handshake, or to the end of its request."""
        return client.unfinished or (client in self._beginning and self._tls() is not None)

    def _close_silent(self) -> None:
        """Close those who have been silent for too long, and come again for the next."""
        self._sweep = None
        now = self._loop.time()
        for silent, since in list(self._silent.items()):
            if since > now - self._patience:
                self._sweep = self._loop.call_at(since + self._patience, self._meter.add, self._close_silent)
                return
            self._leave(silent).close()

    def _pause(self, seconds: float) -> None:
        for sock in self._socks:
            self._loop.remove_reader(sock)
        if self._rest is not None:
            self._rest.cancel()
        self._rest = self._loop.call_later(seconds, self.open)


def _waiting(sock: socket.socket) -> int | None:
    """How many wait to be accepted; None where the kernel does not tell."""
    try:
        waiting, most = _QUEUE.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _QUEUE.size))
    except (OSError, struct.error):
        return None
    return waiting if most else None


def _since(client: Client) -> float:
    return client.idle_since
