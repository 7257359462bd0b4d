"""One connection to a Redis on the event loop: asked one command at a time, nothing that writes.

The socket is ours, because a round trip can only be taken apart by who waits for it himself: between "readable" and "read" the
arrival is asked for.  TLS is fed from memory for the same reason (docs/adr/0007-peek-at-the-arrival.md).
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final, NamedTuple

from probes.redis.address import RedisAddress
from probes.redis.failures import AT_ACCEPT, CLOSED, NO_REDIS, of_kernel, refusal
from probes.redis.resp import Malformed, Refused, Reply, Value, command
from probes.store.failures import LinkFailed, Remote
from probes.store.look_up import MOST_ADDRESSES, LookUp, look_up
from probes.store.round_trip import Arrivals, Read, RunDelay, Trip, ready

PHASES: Final = ("dns", "tcp", "tls", "authentication", "ready")
#: By which the server's operator knows us in CLIENT LIST.
NAME: Final = "stallscope"
_CHUNK: Final = 1 << 16
_ADDRESS: Final = re.compile(r"(?:^| )addr=(\S+):(\d+)(?: |$)")


class _Tls(NamedTuple):
    """TLS between two buffers of memory."""

    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    layer: ssl.SSLObject


class RedisLink:
    """An open connection.  One command at a time; close it after any exception."""

    def __init__(self, sock: socket.socket, phases: Mapping[str, float]) -> None:
        self._socket, self._arrivals = sock, Arrivals(sock.fileno())
        self._tls: _Tls | None = None
        self.phases = phases
        self.direct: bool | None = None
        """Whether the server sees this very connection, so that no proxy is in between; ``None`` where it does not say."""

    @property
    def least_rtt(self) -> float:
        """Seconds; 0.0 where the kernel does not say."""
        return self._arrivals.least_rtt()

    @property
    def ended(self) -> bool:
        """At rest: whether the other side has ended it, or said what nobody asked for."""
        return self._arrivals.lie_unread()

    @property
    def local(self) -> bool:
        """Whether it is a unix socket, which has no network."""
        return self._socket.family == socket.AF_UNIX

    async def ask(self, *words: str) -> Value:
        """One command.  Raises LinkFailed; an error of the server is an answer (:class:`Refused`)."""
        return (await self.ask_all([words]))[0]

    async def ask_all(self, questions: Sequence[Sequence[str]]) -> list[Value]:
        """Several commands, sent at once: a server that is held up lets one wait, and the others follow."""
        return (await self._exchange(b"".join(command(*words) for words in questions), [], len(questions)))[1]

    async def ping(self, run_delay: RunDelay) -> Trip:
        """One PING, and what its round trip took.  Raises LinkFailed, also where the server answers that it serves nobody."""
        reads: list[Read] = []
        cpu, delay = time.thread_time(), run_delay.seconds()
        began = time.monotonic()
        sent, (said,) = await self._exchange(command("PING"), reads, 1, began)
        done = time.monotonic()
        waited = run_delay.seconds()
        if isinstance(said, Refused) and said.code != "NOPERM":  # not allowed is an answer as quick as any
            raise refusal(said)
        return Trip(
            began, sent, tuple(reads), done, time.thread_time() - cpu,
            None if delay is None or waited is None else waited - delay, None,
        )  # fmt: skip

    async def encrypt(self, address: RedisAddress) -> None:
        """Begin TLS."""
        try:
            changed = os.stat(address.authorities).st_mtime_ns if address.authorities else 0
            context = _context(address.authorities, changed, address.verify, address.verify and address.check_host)
        except OSError:
            raise LinkFailed(
                "configuration",
                "the file of ssl_ca_certs cannot be read",
                "check its path, and that it holds certificates",
            ) from None
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = _Tls(incoming, outgoing, context.wrap_bio(incoming, outgoing, server_hostname=address.host))
        while True:
            try:
                tls.layer.do_handshake()
            except ssl.SSLWantReadError:
                await self._send(outgoing.read())
                incoming.write(await self._receive([], 0.0))
            else:
                await self._send(outgoing.read())
                self._tls = tls
                return

    async def introduce(self, address: RedisAddress) -> None:
        """Log in, and find out how far the server is.  Raises LinkFailed."""
        began = time.monotonic()
        if address.password:
            said = await self.ask("AUTH", *([address.user] if address.user else []), address.password)
            if address.user and isinstance(said, Refused) and said.text.startswith("wrong number of arguments"):
                # Before version 6 there are no users, and clients try once more (redis-py, on_connect).
                said = await self.ask("AUTH", address.password)
            if isinstance(said, Refused) and not (said.code == "ERR" and "without any password" in said.text):
                raise refusal(said)
        self.phases = {**self.phases, "authentication": time.monotonic() - began}
        began = time.monotonic()
        said = await self.ask("CLIENT", "SETNAME", NAME)
        # That it does not know or allow the command is no matter.
        if isinstance(said, Refused) and (fault := refusal(said)).reason in AT_ACCEPT:
            raise fault
        seen = await self.ask("CLIENT", "INFO")
        self.phases = {**self.phases, "ready": time.monotonic() - began}
        found = _ADDRESS.search(seen.decode("utf-8", "replace")) if isinstance(seen, bytes) else None
        if self.local:
            self.direct = True
        elif found is not None:
            # The address may be another one behind a NAT; a proxy has a port of its own.
            self.direct = int(found[2]) == self._socket.getsockname()[1]

    async def _exchange(
        self, data: bytes, reads: list[Read], count: int, began: float = 0.0
    ) -> tuple[float, list[Value]]:
        """(when it was sent, so many replies)."""
        try:
            if self._tls is not None:
                self._tls.layer.write(data)
                data = self._tls.outgoing.read()
            # What it said before it closed lies here all the same.
            with suppress(BrokenPipeError, ConnectionResetError):
                await self._send(data)
            sent = time.monotonic()
            came, found = b"", []
            for _ in range(count):
                reply = Reply()
                whole = reply.feed(came)
                while not whole:
                    whole = reply.feed(self._plain(await self._receive(reads, began)))
                came = reply.rest
                found.append(reply.value)
            if came:
                raise Malformed("something that nobody asked for")
        except Malformed:
            raise LinkFailed(*NO_REDIS) from None
        except OSError as error:
            raise of_kernel(error) from None
        return sent, found

    def _plain(self, data: bytes) -> bytes:
        if self._tls is None:
            return data
        self._tls.incoming.write(data)
        found = b""
        while True:
            try:
                piece = self._tls.layer.read(_CHUNK)
            except ssl.SSLWantReadError:
                return found
            if not piece:
                raise LinkFailed(*CLOSED)
            found += piece

    async def _send(self, data: bytes) -> None:
        while data:
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                await ready(self._socket.fileno(), writing=True)

    async def _receive(self, reads: list[Read], began: float) -> bytes:
        await ready(self._socket.fileno(), writing=False)
        arrived = self._arrivals.first(began)
        data = self._socket.recv(_CHUNK)
        if not data:
            raise LinkFailed(*CLOSED)
        reads.append(Read(arrived, time.monotonic()))
        return data

    def close(self) -> None:
        """End it; safe to call twice."""
        self._arrivals.close()
        self._socket.close()


@lru_cache(maxsize=16)
def _context(authorities: str, _changed: int, verify: bool, check_host: bool) -> ssl.SSLContext:
    """How TLS is spoken; kept, because reading the system's authorities costs more than all the rest of a slot.  Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = check_host
    context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
    if authorities:
        context.load_verify_locations(authorities)
    elif verify:
        context.load_default_certs()
    return context


async def connect(
    address: RedisAddress, *, seconds: float, find: LookUp = look_up
) -> tuple[RedisLink, Sequence[Remote]]:
    """(a connection that is logged in, every address of its name), within about ``seconds``.  Raises LinkFailed with ``remotes``."""
    began = time.monotonic()
    places: Sequence[str]
    try:
        places = [address.path] if address.path else list(await find(address.host, address.port))[:MOST_ADDRESSES]
    except (OSError, UnicodeError):
        places = []
    if not places:
        raise LinkFailed("dns", "the host's name has no address", "check the host name, and the DNS of this container")
    remotes = [] if address.path else [(each, address.port) for each in places]
    looked = time.monotonic() - began
    fault = LinkFailed(*CLOSED)
    for left, place in zip(range(len(places), 0, -1), places, strict=True):
        try:
            async with asyncio.timeout((began + seconds - time.monotonic()) / left):
                return await _open(address, place, looked), remotes
        except TimeoutError as silent:
            fault = of_kernel(silent)
        except OSError as error:
            fault = of_kernel(error)
        except LinkFailed as known:
            fault = known
            if known.reason not in {"closed", "malformed", "starting", "replica"}:
                break
    fault.remotes = remotes
    raise fault


async def _open(address: RedisAddress, place: str, looked: float) -> RedisLink:
    family = socket.AF_UNIX if address.path else socket.AF_INET6 if ":" in place else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    link = None
    try:
        if not address.path:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = time.monotonic()
        await asyncio.get_running_loop().sock_connect(sock, place if address.path else (place, address.port))
        connected = time.monotonic()
        link = RedisLink(sock, dict.fromkeys(PHASES, 0.0) | {"dns": looked, "tcp": connected - began})
        if address.tls:
            await link.encrypt(address)
            link.phases = {**link.phases, "tls": time.monotonic() - connected}
        await link.introduce(address)
    except BaseException:
        if link is not None:
            link.close()
        sock.close()
        raise
    return link
