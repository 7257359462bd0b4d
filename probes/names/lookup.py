"""One look-up as the resolver makes it, timed by the kernel: what the name servers took, and not what this process slept.

The time of an answer is when the kernel received it (``SO_TIMESTAMPNS``, socket(7)), so an agent whose CPU is taken away does
not blame the name server; where no stamp is given (gVisor) the time is this process's own, and is said to be.  A kernel that
began to stamp too late gives the time at which the answer was *read* (net/socket.c, ``__sock_recv_timestamp``): that is no
stamp either, and :func:`stamping` makes it rare.  A question is unanswered when its time-out has passed and no answer lies in
the socket: read once more after the time-out, so that being held does not count as silence.

As resolver(3): names of the search list one after the other, of each the servers in their order, ``attempts`` times round.
Only IPv4 is asked for, which the app asks for together with IPv6: the time is the same, the questions are half as many.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import NamedTuple

from probes import stamps
from probes.names.message import NO_NAME, Answer, answer, question
from probes.names.resolv_conf import QUESTIONS, ResolvConf

#: A look-up is given up after so long: one that takes as long is slow, however long it would go on.
MOST_SECONDS = 6.0
PORT = 53
_MOST_BYTES = 4096
#: From the first socket that asks for stamps until the kernel gives any: a work item (net/core/dev.c, ``net_enable_timestamp``)
#: that waits for a CPU.  Seconds.
_BEGINS_SECONDS = 0.02
_SERVER_FAILED = 2


class Asked(NamedTuple):
    """What became of one question: seconds until the answer was in this kernel, and whether that is the kernel's word."""

    seconds: float
    answer: Answer | None
    stamped: bool


class LookedUp(NamedTuple):
    """What became of one look-up."""

    seconds: float
    """That the name servers took, and for which they were silent."""
    began: float
    ended: float
    """Monotonic seconds, with what this process slept."""
    questions: int
    """That a look-up by the app sends, if each is answered once."""
    unanswered: int
    """Questions that nobody answered in time."""
    found: bool
    stamped: bool
    """Whether every answer's time is the kernel's."""


Ask = Callable[[str, bytes, float], Awaitable[Asked]]


@asynccontextmanager
async def stamping(sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> AsyncIterator[None]:
    """The kernel stamps what it receives while this lasts, if it can: ready before the first question, not by its answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        with suppress(OSError):
            stamps.ask_for(sock)
        await sleep(_BEGINS_SECONDS)
        yield


async def look_up(name: str, conf: ResolvConf, ask: Ask, *, clock: Callable[[], float] = time.monotonic) -> LookedUp:
    """Look this name up once.  Raises OSError where no name server can be asked at all."""
    began, spent, questions, unanswered, stamped = clock(), 0.0, 0, 0, True
    refused: OSError | None = None
    for full in conf.tried(name):
        questions += QUESTIONS
        reply = None
        for server in conf.servers * conf.attempts:
            left = MOST_SECONDS - spent
            if reply is not None or left <= 0:
                break
            try:
                asked = await ask(server, question(int.from_bytes(os.urandom(2)), full), min(conf.timeout, left))
            except OSError as error:  # nobody listens there, or no way leads there
                refused = error
                continue
            spent += asked.seconds
            stamped = stamped and asked.stamped
            unanswered += asked.answer is None
            reply = asked.answer if asked.answer is None or asked.answer.code != _SERVER_FAILED else None
        if reply is not None and reply.code != NO_NAME and reply.records:
            return LookedUp(spent, began, clock(), questions, unanswered, True, stamped)
        if spent >= MOST_SECONDS:
            break
    if refused is not None and not spent:
        raise refused
    return LookedUp(spent, began, clock(), questions, unanswered, False, stamped)


async def ask(server: str, packet: bytes, within: float, port: int = PORT) -> Asked:
    """Ask one name server over UDP, on a socket of its own.  Raises OSError where it cannot be reached at all."""
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as sock:
        with suppress(OSError):  # then the time is this process's own
            stamps.ask_for(sock)
        sock.connect((server.partition("%")[0], port))
        sock.send(packet)
        sent, began = time.time(), time.monotonic()
        deadline = began + within
        while (left := deadline - time.monotonic()) > 0:
            await _readable(sock, left)
            if found := _take(sock, packet, sent, began):
                return found
        # Held for longer than the time-out: the answer may have come meanwhile.
        return _take(sock, packet, sent, began) or Asked(within, None, True)


async def _readable(sock: socket.socket, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock, partial(_tell, ready))
    try:
        await asyncio.wait((ready,), timeout=seconds)
    finally:
        loop.remove_reader(sock)
        ready.cancel()


def _tell(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _take(sock: socket.socket, packet: bytes, sent: float, began: float) -> Asked | None:
    """The answer that lies in the socket; ``None`` where none does.  Raises OSError where the server refuses."""
    while True:
        reading = time.time()
        try:
            text, extra, _, _ = sock.recvmsg(_MOST_BYTES, 256)
        except BlockingIOError:
            return None
        found, own = answer(text, packet), time.monotonic() - began
        if found is None:
            continue
        came = stamps.received(extra)
        if came is None:
            return Asked(own, found, False)
        # The wall clock may be set meanwhile: it is never longer than by the other one.
        return Asked(max(0.0, min(own, came - sent)), found, came < reading)
