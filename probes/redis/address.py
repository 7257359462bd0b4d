"""What a Redis URL means: the forms of the usual clients.

    redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]     rediss:// is the same over TLS     unix:///PATH[?password=PASSWORD]

Of the parameters those of TLS count (ssl_ca_certs=PATH, ssl_cert_reqs=none, ssl_check_hostname=false); pools and time-outs are
a client's own affair.  What can be read in two ways is refused: looked up as a host, the rest of a password would go to the name
servers.  No text of this module holds a part of a URL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from probes.store.failures import LinkFailed
from probes.store.place import is_place, secret_from

PORT: Final = 6379
SCHEMES: Final = ("redis", "rediss", "unix")
ENCODE: Final = "percent-encode the password: @ is %40, / is %2F, : is %3A, # is %23, % is %25"
_UNFILLED = re.compile(r"\$\{[^}]*\}|\$\([A-Z_][A-Z0-9_]*\)|\{\{.*?\}\}")
_NO = frozenset({"none", "false", "0", "no", "cert_none"})


class RedisAddress(NamedTuple):
    """Where a server is, and how it is spoken to."""

    host: str
    port: int
    path: str
    """Of its unix socket; "" for the network."""
    user: str
    password: str
    tls: bool
    verify: bool
    """Whether its certificate must be that of a known authority, ..."""
    check_host: bool
    """... and of this host."""
    authorities: str
    """File with their certificates; "": the system's."""


def unusable(because: str, remedy: str = ENCODE) -> LinkFailed:
    """The failure of a URL that cannot be used."""
    return LinkFailed("configuration", f"the URL cannot be used: {because}", remedy)


def parse(text: str) -> RedisAddress:
    """Read a URL.  Raises LinkFailed, reason ``configuration``, whose texts hold no part of it."""
    text = text.strip().strip("'\"")
    scheme = text.partition("://")[0].lower()
    if _UNFILLED.search(text):
        raise unusable("a placeholder like ${NAME} stands in it that nothing has filled in", "fill it in before it is given to the agent")  # fmt: skip
    if scheme not in SCHEMES:
        raise unusable("it does not begin with redis://, rediss:// or unix://", "give one address of a server; of a Sentinel or a cluster that of one node")  # fmt: skip
    try:
        parts = urlsplit(text)
        port, host = parts.port or PORT, parts.hostname or ""
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
    except ValueError:
        raise unusable("its host, port or parameters cannot be read") from None
    if parts.netloc.count("@") > 1 or "@" in parts.path + parts.fragment or parts.fragment:
        raise unusable("it has more than one @, or an @ or # behind the host")
    if scheme == "unix" and not parts.path:
        raise unusable("it names no path", "give unix:///PATH/OF/THE/SOCKET")
    if scheme != "unix" and (not host or "," in parts.netloc.rpartition("@")[2]):
        raise unusable("it names no host, or several", "give the address of one server")
    user = unquote(parts.username or "")
    password = (
        unquote(parts.password) if parts.password else query.get("password", "")
    )  # of a query it is decoded already
    return RedisAddress(
        host, port, unquote(parts.path) if scheme == "unix" else "", user, password, tls=scheme == "rediss",
        verify=query.get("ssl_cert_reqs", "").lower() not in _NO,
        check_host=query.get("ssl_check_hostname", "").lower() not in _NO, authorities=query.get("ssl_ca_certs", ""),
    )  # fmt: skip


def without_password(text: str) -> str:
    """A URL that may stand in the settings, as it is.  Raises ValueError for one with a password, or none."""
    try:
        found = parse(text)
    except LinkFailed as fault:
        raise ValueError(f"{fault}; {fault.remedy}") from None
    if found.password:
        raise ValueError(
            "must not hold a password: give env:VARIABLE or file:PATH, where the URL is, or redis.passwords"
        )
    return text


def address_from(place: str, password: str, environ: Mapping[str, str]) -> Callable[[], str]:
    """The whole URL, read anew each time: ``place`` is one or where it stands, ``password`` where that stands, "" for none.

    The function raises OSError or ValueError, whose texts hold no part of either.
    """
    url = secret_from(place, environ) if is_place(place) else lambda: place
    if not password:
        return url
    secret = secret_from(password, environ)

    def both() -> str:
        scheme, slashes, rest = url().partition("://")
        filled = quote(secret(), safe="")
        if scheme.lower() == "unix":
            return f"{scheme}{slashes}{rest}{'&' if '?' in rest else '?'}password={filled}"
        who, at, where = rest.rpartition("@")
        return f"{scheme}{slashes}{who.partition(':')[0] if at else ''}:{filled}@{where}"

    return both
