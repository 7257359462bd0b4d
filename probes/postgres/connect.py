"""Opening a connection in phases, at the first address of a DSN whose server lets us in.

An address that refuses, does not answer or holds another kind of server makes room for the next; a server that does not
accept this user ends the search, as in libpq.  The time is shared out: an address that swallows everything takes its
part of it and no more.  One that answers may go on: a login over TLS takes seven ways there and back, and of a server
some way off behind a name with several addresses no part is long enough for all of them.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, NamedTuple

from probes.own_connections import OwnConnections
from probes.postgres.addresses import Address, addresses
from probes.postgres.dsn import parse
from probes.postgres.failures import NEAREST, NotLetIn, at_login, failure
from probes.postgres.link import Link
from probes.store.failures import SILENT, LinkFailed
from probes.store.look_up import LookUp, look_up
from probes.store.round_trip import ready

#: A phase of opening a connection, by libpq's status while it lasts.
PHASES: Final = ("dns", "tcp", "tls", "authentication", "ready")
SECONDS: Final = 5.0
_SILENT = LinkFailed(
    SILENT, "the server did not answer in time", "is the host up, and the port open in every firewall between?"
)


class _Patience(NamedTuple):
    """How long an address is listened to."""

    silence: float
    """Seconds without a sign of life: its part of the time."""
    end: float
    """Of all addresses together, monotonic seconds."""

    def left(self) -> float:
        """Seconds until it is over, unless there is a sign of life."""
        return min(self.silence, self.end - time.monotonic())


async def connect(
    dsn: str, *, application: str, options: str, seconds: float = SECONDS, find: LookUp = look_up,
    own: OwnConnections | None = None,
) -> Link:  # fmt: skip
    """Open a connection within about ``seconds``, noting what each phase took, and in ``own`` each that is begun.  Raises LinkFailed.

    Poolers refuse ``options``, each in its own words, because their sessions are shared and no setting of ours may stay in
    them: where the login is refused for a reason that is not known, it is tried once more without.
    """
    phases = dict.fromkeys(PHASES, 0.0)
    end = time.monotonic() + seconds
    faults: list[LinkFailed] = []
    remotes: list[tuple[str, int]] = []
    tried = 0
    began = time.monotonic()
    async for address in addresses(parse(dsn), find, end):
        phases["dns"] += time.monotonic() - began
        if isinstance(address, LinkFailed):
            faults.append(address)
        else:
            tried += 1
            remotes += (remote for remote in address.remotes if remote not in remotes)
            patience = _Patience((end - time.monotonic()) / (address.left + 1), end)
            try:
                link = await _open_anyhow(address, application, options, phases, own or OwnConnections(), patience)
                link.phases, link.remotes = phases, address.remotes
                return link
            except TimeoutError:
                faults.append(_SILENT)
            except LinkFailed as fault:
                faults.append(fault)
                if fault.reason not in NEAREST:
                    break
        began = time.monotonic()
    raise _worst(faults, remotes, tried)


def _worst(faults: list[LinkFailed], remotes: list[tuple[str, int]], tried: int) -> LinkFailed:
    """The failure that tells most."""
    last = faults[-1]
    told = last if last.reason not in NEAREST else min(faults, key=lambda fault: NEAREST.index(fault.reason))
    several = f" ({tried} addresses were tried)" if tried > 1 else ""
    found = LinkFailed(told.reason, told.because + several, told.remedy)
    found.remotes = remotes
    return found


async def _open_anyhow(
    address: Address, application: str, options: str, phases: dict[str, float], own: OwnConnections, patience: _Patience
) -> Link:
    try:
        return await _open(address, application, options, phases, own, patience)
    except NotLetIn:
        if not options:
            raise
    link = await _open(address, application, "", phases, own, patience)
    link.pooled = True
    return link


async def _open(
    address: Address, application: str, options: str, phases: dict[str, float], own: OwnConnections, patience: _Patience
) -> Link:
    from probes.postgres.libpq import Error, pq  # noqa: PLC0415 - memory that only a watched database is worth

    given: dict[str, str] = {**address.options, "application_name": application, "client_encoding": "UTF8"}
    if options:
        given["options"] = f"{given.get('options', '')} {options}".strip()
    now = time.monotonic()
    try:
        connection = pq.PGconn.connect_start(" ".join(map(_pair, given.items())).encode())
    except (Error, UnicodeError) as error:
        raise failure(str(error)) from None
    # It has called connect(2) by now; what it tries besides, such as once more without encryption, nobody notes.
    if "hostaddr" in given and connection.status != pq.ConnStatus.BAD:
        own.begins()
    try:
        connection.nonblocking = 1
        phase = "tcp"
        while connection.status != pq.ConnStatus.BAD:
            poll = connection.connect_poll()
            before, now = now, time.monotonic()
            phases[phase] += now - before
            if poll == pq.PollingStatus.OK:
                return Link(connection)
            if poll == pq.PollingStatus.FAILED:
                break
            phase = _phase(connection.status, phase)
            async with asyncio.timeout(patience.left()):
                await ready(connection.socket, writing=poll == pq.PollingStatus.WRITING)
        raise at_login(connection.error_message.decode("utf-8", "replace"))
    except Error as error:
        connection.finish()
        raise failure(str(error)) from None
    except BaseException:
        connection.finish()
        raise


def _pair(option: tuple[str, str]) -> str:
    """As a connection string has it (PostgreSQL, "Keyword/Value Connection Strings")."""
    name, value = option
    return "{}='{}'".format(name, value.replace("\\", r"\\").replace("'", r"\'"))


def _phase(status: int, before: str) -> str:
    """The phase that libpq's status stands for (libpq-fe.h, ConnStatusType)."""
    from probes.postgres.libpq import pq  # noqa: PLC0415 - same

    known = pq.ConnStatus
    return {
        known.STARTED: "tcp", known.MADE: "authentication", known.SSL_STARTUP: "tls",
        known.AWAITING_RESPONSE: "authentication", known.AUTH_OK: "ready", known.SETENV: "ready",
    }.get(known(status), before)  # fmt: skip
