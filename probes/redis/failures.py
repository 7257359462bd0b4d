"""Why a Redis could not be asked: what it or the kernel says, reduced to a known reason.

Codes are the first words of its errors (Redis 2.8 to 8, Valkey); their texts may hold names and are thrown away.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

from probes.redis.resp import Refused
from probes.store.failures import SILENT, LinkFailed

_TOO_MANY = ("too many connections", "the server has no connection left", "look who holds them; a larger maxclients")
_AUTHENTICATION = (
    "authentication",
    "the server does not accept this user or password, or wants one",
    "check redis.targets and redis.passwords; use the app's own",
)
#: An error's code -> reason, sentence, remedy.
CODES: Final[Mapping[str, tuple[str, str, str]]] = {
    "NOAUTH": _AUTHENTICATION,
    "WRONGPASS": _AUTHENTICATION,
    "DENIED": ("access", "the server is in protected mode and takes connections from its own host alone", "set a password on it, or bind it to this network"),
    "LOADING": ("starting", "the server is loading its data, and serves nobody until that is done", "wait; INFO persistence says how far it is"),
    "BUSY": ("script", "a script has run for so long that the server refuses every other command", "SCRIPT KILL or FUNCTION KILL; make the script short"),
    "MASTERDOWN": ("replica", "a replica that has lost its primary refuses to answer", "look at its primary, and at replica-serve-stale-data"),
    "MISCONF": ("refuses writes", "the server could not save its data and refuses writes", "look at its log, and at the space on its disk"),
}  # fmt: skip
_OTHER = ("other", "the server reported an error that this agent does not know", "try the same address with redis-cli")
CLOSED = ("closed", "the connection was closed by the other side", "look at the server's log, or at the proxy's; a server that wants TLS does so too: rediss://")  # fmt: skip
#: The reasons among these that a server gives when it takes a connection, unasked, before it closes it (acceptCommonHandler, networking.c).
AT_ACCEPT: Final = frozenset({"too many connections", "access"})
NO_REDIS = ("malformed", "what answers at this address is no Redis server", "check host and port")


def refusal(said: Refused) -> LinkFailed:
    """An error that says that nobody, or not this agent, is served."""
    if said.code == "ERR" and "max number of clients" in said.text:
        return LinkFailed(*_TOO_MANY)
    if said.code == "ERR" and ("invalid password" in said.text or "auth" in said.text.lower()):
        return LinkFailed(*_AUTHENTICATION)
    return LinkFailed(*CODES.get(said.code, _OTHER))


def of_kernel(error: OSError) -> LinkFailed:
    """A connection that was not made, or broke."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return LinkFailed("tls", "the server's certificate was not accepted", "give the right ssl_ca_certs in the URL, or the name that the certificate has")  # fmt: skip
    if isinstance(error, ssl.SSLError) and "CERTIFICATE_REQUIRED" in (error.reason or ""):
        return LinkFailed("tls", "the server wants a certificate of its clients, which this agent has not", "tls-auth-clients optional on the server")  # fmt: skip
    if isinstance(error, ssl.SSLError):
        return LinkFailed(
            "tls", "no encrypted connection could be agreed on", "is TLS on at this port? redis:// is without"
        )
    if isinstance(error, (ConnectionRefusedError, FileNotFoundError)):
        return LinkFailed("refused", "nothing listens at this address", "check host and port; is the server running?")
    if isinstance(error, PermissionError):
        return LinkFailed("access", "this process may not use the socket", "give it the group of the socket")
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return LinkFailed(*CLOSED)
    if isinstance(error, TimeoutError):
        return LinkFailed(SILENT, "the server did not answer in time", "is the host up, and the port open in every firewall between?")  # fmt: skip
    return LinkFailed(
        "no route", "no route leads to this address", "check the address, and the routes of this container"
    )
