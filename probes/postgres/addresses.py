"""Every place at which a server of a DSN may be: each host of the list in turn, and each address of its name.

As libpq does (its manual, 32.1.1.3), and by us, because libpq's own walk stops the event loop for each look-up and waits
without an end at an address that swallows everything.  A name is looked up when its turn has come.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from probes.postgres.dsn import ENCODE, Dsn, library_options, unusable
from probes.sockets.tcp_info import pack_address
from probes.store.failures import LinkFailed, Remote
from probes.store.look_up import MOST_ADDRESSES, LookUp, look_up

PORT: Final = 5432
MOST_PORT: Final = 65535


class Address(NamedTuple):
    """One place to try."""

    options: dict[str, str]
    """All of libpq's keywords for it."""
    remotes: Sequence[Remote]
    """Every address of its host; none for a unix socket, and where only the library knows."""
    left: int
    """How many are to be tried behind it, at least."""


async def addresses(dsn: Dsn, find: LookUp = look_up, end: float = math.inf) -> AsyncIterator[Address | LinkFailed]:
    """Every address in the order in which it is to be tried; a failure for a name that has none.

    Each look-up may take its share of the time that is left until ``end`` (monotonic seconds).

    Raises LinkFailed, reason ``configuration``.
    """
    options = _with_the_environment(dsn.options)
    entries = _entries(options)
    shuffle = random.shuffle if options.get("load_balance_hosts") == "random" else _leave
    shuffle(entries)
    wanted = options.get("target_session_attrs", "any")
    kinds = ["standby", "any"] if wanted == "prefer-standby" else [_OF_THE_SERVER.get(wanted, wanted)]
    turns = [(kind, entry) for kind in kinds for entry in entries]
    for left, (kind, entry) in zip(range(len(turns) - 1, -1, -1), turns, strict=True):
        host, address = entry.get("host", ""), entry.get("hostaddr", "")
        here = {**options, **entry, "target_session_attrs": kind}
        if not address and (not host or host.startswith(("/", "@"))):
            yield Address(here, (), left)
            continue
        port = int(entry.get("port") or PORT)
        fault = f"{dsn.told(host)} has no address"
        try:
            async with asyncio.timeout((end - time.monotonic()) / (left + 1)):
                found = [address] if address else list(await find(host, port))[:MOST_ADDRESSES]
        except TimeoutError:
            found, fault = [], f"the look-up of {dsn.told(host)} was not answered in time"
        except (OSError, UnicodeError):
            found = []
        if not found:
            yield LinkFailed("dns", fault, "check the host name, and the DNS of this container")
        shuffle(found)
        remotes = [(each, port) for each in found]
        for number, each in enumerate(found, 1):
            yield Address({**here, "hostaddr": each}, remotes, left + len(found) - number)


#: Our sessions are read-only by a setting of their own: what was meant is the server.
_OF_THE_SERVER: Mapping[str, str] = {"read-write": "primary", "read-only": "standby"}


def _leave(_: list[Any]) -> None:
    """In the given order."""


def _with_the_environment(given: Mapping[str, str]) -> dict[str, str]:
    """With what PGHOST and its like say, as for every program that uses libpq; a service file it reads itself."""
    said = library_options()
    names = {"target_session_attrs", "load_balance_hosts"}
    if "service" not in given:
        names |= {"port"} if given.get("host") or given.get("hostaddr") else {"host", "hostaddr", "port"}
    return {**{name: said[name] for name in names if said.get(name)}, **given}


def _entries(options: Mapping[str, str]) -> list[dict[str, str]]:
    """Host, address and port of each entry of the lists, which must be of one length (libpq-connect in the manual)."""
    lists = {name: options[name].split(",") for name in ("host", "hostaddr", "port") if options.get(name)}
    count = max((len(found) for name, found in lists.items() if name != "port"), default=1)
    if len(ports := lists.get("port", [])) == 1:
        lists["port"] = ports * count
    if any(len(found) != count for found in lists.values()):
        raise unusable(
            "its lists of hosts, addresses and ports have different lengths", "give one of each for every server"
        )
    if any(re.fullmatch(r"\s*([1-9][0-9]{0,4})?\s*", port) is None or int(port or PORT) > MOST_PORT for port in ports):
        raise unusable(f"a port in it is not a number of 1 to {MOST_PORT}", ENCODE)
    try:
        for address in filter(None, map(str.strip, lists.get("hostaddr", []))):
            pack_address(address.partition("%")[0])
    except ValueError:
        raise unusable("a hostaddr in it is no IP address", "a name stands in host") from None
    return [{name: found[at].strip() for name, found in lists.items()} for at in range(count)]
