"""Accepting connections so that there is always room for one more: asyncio's own accept loop knows no limit.

A kubelet restarts an agent whose /livez does not answer, so nobody may keep it from answering by holding connections.
Whoever connects costs a descriptor until the first byte has come; then there is a protocol for the connection.  When all are taken,
the one that has been silent or idle for longest is closed, never one that is being answered.  Thousands at once are
gone through at once; who connects again and again to be closed again costs at most ``MOST_CLOSED_PER_SECOND``, and the
others wait in the kernel's backlog meanwhile.

Out of descriptors the listening socket stays readable, so a loop that went on would spin (asyncio's of Python 3.11 logs
each of its 2,048 tries a second): accepting pauses instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import select
import socket
from collections.abc import Callable
from typing import Any, Protocol

from exporters.sparing import Sparing

#: A connection that is accepted and closed takes about 0.1 ms.
MOST_CLOSED_PER_SECOND, MOST_CLOSED_AT_ONCE = 1000, 4000
PAUSE_SECONDS, SHORT_PAUSE_SECONDS = 0.5, 0.05
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

    def close_now(self) -> None:
        """Close without waiting for the other side."""
        ...

    def shutdown(self) -> None:
        """Close, after the answer that is being made."""
        ...


def most_for_descriptors(most: int) -> int:
    """So many connections, or fewer where the process may not open as many files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, max(FEWEST, soft - SPARE_DESCRIPTORS))


class Acceptor:
    """Accepts on ``sock``, at most ``most`` connections at a time; ``make`` gives the protocol of one that has spoken.

    The protocol calls :meth:`forget` at its end.  Who says nothing for ``patience`` seconds is closed.
    """

    def __init__(self, sock: socket.socket, most: int, make: Callable[[], Any], patience: float) -> None:
        self._sock, self._most, self._make, self._patience = sock, most, make, patience
        self._loop = asyncio.get_running_loop()
        #: Accepted, and nothing has come yet: since when, the oldest first.
        self._silent: dict[socket.socket, float] = {}
        self._clients: set[Client] = set()
        self._beginning: set[asyncio.Task[Any]] = set()
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
        self._loop.add_reader(self._sock, self._accept)

    def close(self) -> None:
        """Accept no more and close those that have not spoken; the others are not touched."""
        for timer in (self._rest, self._sweep):
            if timer is not None:
                timer.cancel()
        self._loop.remove_reader(self._sock)
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
            await asyncio.wait(self._beginning, timeout=seconds)
        self._finished = asyncio.Event()
        for client in list(self._clients):
            client.shutdown()
        if self._clients:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._finished.wait(), seconds)
        for client in list(self._clients):
            client.close_now()

    def _accept(self) -> None:
        for _ in range(max(1, self._most // 4)):  # so that those who have spoken are heard in between
            if len(self._silent) + len(self._clients) >= self._most and not self._make_room():
                return
            try:
                accepted, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._refused.note(why=error.strerror)
                self._make_room()
                self._pause(PAUSE_SECONDS)
                return
            accepted.setblocking(False)
            self._silent[accepted] = self._loop.time()
            self._loop.add_reader(accepted, self._spoke, accepted)
            if self._sweep is None:
                self._sweep = self._loop.call_later(self._patience, self._close_silent)

    def _spoke(self, accepted: socket.socket) -> None:
        """The first bytes are there, or its end: from now on a protocol has it."""
        client = self._make()
        client.idle_since = self._loop.time()
        self._clients.add(client)
        begin = self._loop.connect_accepted_socket(lambda: client, self._leave(accepted))
        task = self._loop.create_task(begin)
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    def _leave(self, accepted: socket.socket) -> socket.socket:
        del self._silent[accepted]
        self._loop.remove_reader(accepted)
        return accepted

    def _make_room(self) -> bool:
        """Close the connection that nobody will miss.  False when there is none now: accepting rests."""
        now = self._loop.time()
        earned = (now - self._reckoned) * MOST_CLOSED_PER_SECOND
        self._may_close, self._reckoned = min(MOST_CLOSED_AT_ONCE, self._may_close + earned), now
        if self._may_close < 1:
            self._pause(SHORT_PAUSE_SECONDS)
            return False
        while self._silent:
            oldest = next(iter(self._silent))
            if not _readable(oldest):
                self._leave(oldest).close()
                break
            self._spoke(oldest)
        else:
            idle = [client for client in self._clients if not client.busy]
            if not idle:
                self._pause(SHORT_PAUSE_SECONDS)
                return False
            idlest = min(idle, key=lambda client: client.idle_since)
            self._clients.discard(idlest)
            idlest.close_now()
        self._may_close -= 1
        self._closed.note(most=self._most)
        return True

    def _close_silent(self) -> None:
        """Close those who have been silent for too long, and come again for the next."""
        self._sweep = None
        now = self._loop.time()
        for silent, since in list(self._silent.items()):
            if since > now - self._patience:
                self._sweep = self._loop.call_at(since + self._patience, self._close_silent)
                return
            self._leave(silent).close()

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._sock)
        if self._rest is not None:
            self._rest.cancel()
        self._rest = self._loop.call_later(seconds, self.open)


def _readable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
