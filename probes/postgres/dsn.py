"""What a DSN means: libpq's two forms, and what other drivers write in their own way.

Each driver reads a URL in its own way: most take the last @ as the end of the password, libpq the first; many have
parameters of their own, which libpq refuses.  What means the same is translated, what is a driver's own affair is
left out, and what can be read in two ways is refused: looked up as a host, the rest of a password would go to the
name servers.

No text of this module holds a part of a DSN, and none of the library's does get out: ``invalid percent-encoded
token`` and ``missing "=" after`` are followed by what was in the password.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote

from probes.store.failures import LinkFailed

ENCODE: Final = "percent-encode the password: @ is %40, / is %2F, : is %3A, # is %23, % is %25"
_QUOTE: Final = "give a URL, or keyword=value pairs with each value that has a space or a quote in '...'"

#: What a template, a shell or Kubernetes should have filled in.
_UNFILLED = re.compile(r"\$\{[^}]*\}|\$\([A-Z_][A-Z0-9_]*\)|\{\{.*?\}\}|%\([A-Za-z_]+\)s")
_URL = re.compile(r"(?P<java>(jdbc|r2dbc(:pool)?):)?(?P<scheme>[A-Za-z][A-Za-z0-9]*)(\+\w+)?:(?P<body>.*)", re.DOTALL)
_SCHEMES = frozenset({"postgresql", "postgres", "postgis"})
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\.?")
_BROKEN_CODE = re.compile(r"%(?![0-9A-Fa-f]{2})")
#: A part of a password of so many characters is one that could be known again.
_TELLING = 4

#: libpq's parameters that others write in another way: their names without case, - and _.
_SAME = {
    "user": "user", "username": "user", "database": "dbname", "sslmode": "sslmode", "ssl": "sslmode", "tls": "sslmode",
    "targetservertype": "target_session_attrs", "targetsessionattrs": "target_session_attrs",
    "loadbalancehosts": "load_balance_hosts", "sslrootcert": "sslrootcert", "sslcert": "sslcert", "sslkey": "sslkey",
}  # fmt: skip
_SSL = {
    "true": "require", "1": "require", "on": "require", "yes": "require", "required": "require", "no-verify": "require",
    "false": "disable", "0": "disable", "off": "disable", "no": "disable", "disabled": "disable", "preferred": "prefer",
    "verify-identity": "verify-full",
}  # fmt: skip
_VALUES: Mapping[str, Mapping[str, str]] = {
    "sslmode": _SSL,
    "load_balance_hosts": {"true": "random", "1": "random", "false": "disable", "0": "disable"},
    "target_session_attrs": {
        "master": "primary", "secondary": "standby", "slave": "standby", "preferprimary": "any",
        "prefersecondary": "prefer-standby", "preferslave": "prefer-standby", "preferstandby": "prefer-standby",
    },
}  # fmt: skip
#: Parameters of a client that finds its server without a host, and those of one that means another file by sslcert.
_FACTORIES, _OTHER_CERTIFICATES = (
    frozenset({"socketfactory", "cloudsqlinstance"}),
    frozenset({"sslaccept", "sslidentity"}),
)
#: Ours are single SELECTs: no replication, and what is looked for needs no schema.
_LEFT_OUT = frozenset({"replication", "application_name", "fallback_application_name", "client_encoding"})


class Dsn(NamedTuple):
    """libpq's keywords and values, and whether a host of it may be named in a sentence."""

    options: Mapping[str, str]
    tellable: bool = False

    def told(self, host: str) -> str:
        """This host in a sentence; no word of it where it could be a part of a password."""
        password = self.options.get("password", "")
        pieces = (password[at : at + _TELLING] for at in range(len(password) - _TELLING + 1))
        if not self.tellable or not _HOST.fullmatch(host) or any(piece.lower() in host.lower() for piece in pieces):
            return "the host's name"
        return f"the name {host}"


def unusable(because: str, remedy: str) -> LinkFailed:
    """The failure of a DSN that cannot be used."""
    return LinkFailed("configuration", f"the DSN cannot be used: {because}", remedy)


def library_options() -> dict[str, str]:
    """Every keyword of libpq, and what the environment (PGHOST and its like) or libpq itself sets it to; "": nothing."""
    from probes.postgres.libpq import pq  # noqa: PLC0415 - loaded with the connection

    found = pq.Conninfo.get_defaults()
    return {each.keyword.decode(): (each.val or b"").decode("utf-8", "replace") for each in found}


def hosts(dsn: Callable[[], str]) -> list[str]:
    """The hosts that a DSN names, for whoever looks them up: none where it cannot be read, or they might be no hosts."""
    try:
        found = parse(dsn())
    except (OSError, ValueError, LinkFailed):
        return []
    listed = [] if "hostaddr" in found.options else found.options.get("host", "").split(",")
    return [host for host in listed if host] if found.tellable else []


def parse(text: str) -> Dsn:
    """Read a DSN of any driver.  Raises LinkFailed, reason ``configuration``, whose texts hold no part of it."""
    text = text.strip().lstrip("\ufeff")
    if text[:1] in "'\"" and text[-1:] == text[:1]:
        text = text[1:-1].strip()
    if _UNFILLED.search(text):
        raise unusable("a placeholder like ${NAME} stands in it that nothing has filled in", "fill it in before it is given to the agent")  # fmt: skip
    url = _URL.match(text)
    if url is None:
        return _pairs(text)
    if url["scheme"].lower() not in _SCHEMES:
        raise unusable("it is the URL of something else than PostgreSQL", "give a postgresql:// URL")
    body = url["body"]
    if not body.startswith("//"):  # jdbc:postgresql:database
        if not url["java"]:
            raise unusable("there is no // behind its scheme", "give a postgresql:// URL")
        body = f"//localhost/{body.lstrip('/')}"
    return _url(body[2:])


def _url(body: str) -> Dsn:
    """What stands behind the //."""
    who = re.match(r"[^@/]*@", body)
    rest = body[who.end() :] if who else body
    place, mark, query = rest.partition("?")
    if "@" in place:
        raise unusable("it has more than one @, or an @ behind a /", ENCODE)
    if not who and "@" in query and not re.search(r"(^|&)(user|password)=", query):
        raise unusable("it has an @ behind a ?", ENCODE)
    try:
        kept, clean = _parameters(query) if mark else ([], True)
        address = f"postgresql://{who[0] if who else ''}{place}" + (f"?{'&'.join(kept)}" if kept else "")
        if _BROKEN_CODE.search(address):
            raise unusable("a % in it is not followed by two hexadecimal digits", ENCODE)
        return Dsn(_of_the_library(address, ENCODE), tellable=clean and "@" not in query)
    except ValueError:
        raise unusable("its parameters cannot be read", ENCODE) from None


def _parameters(query: str) -> tuple[list[str], bool]:
    """The parameters that mean something to libpq, in its words, and whether all the others look like parameters.

    Raises ValueError, without a text.
    """
    known = library_options()
    pairs = [pair.split("=") for pair in query.split("&") if pair]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError
    names = {_plain(name) for name, _ in pairs}
    if names & _FACTORIES:
        raise unusable("the app finds its server through a factory inside of its own process", "give the agent a DSN with a host: that of a proxy, or the server's address")  # fmt: skip
    kept: dict[str, str] = {}
    clean = True
    for name, value in pairs:
        plain = _plain(name)
        keyword = _SAME.get(plain, name)
        if keyword not in known or keyword in _LEFT_OUT or (keyword == "sslcert" and names & _OTHER_CERTIFICATES):
            clean = clean and re.fullmatch(r"[A-Za-z][\w.\[\]-]*", name) is not None
            continue
        words = _VALUES.get(keyword, {})
        given = unquote(value).lower().replace("_", "-") if words else value
        if plain not in {"ssl", "tls"} or "sslmode" not in kept:  # what says more counts
            kept[keyword] = words.get(given, given)
    return [f"{name}={value}" for name, value in kept.items()], clean


def _plain(name: str) -> str:
    return re.sub("[-_]", "", name).lower()


def _pairs(text: str) -> Dsn:
    if ";" in text and re.search(r"(^|;)\s*(Host|Server)\s*=", text, re.IGNORECASE):
        raise unusable("it is a connection string of ADO.NET", "give a postgresql:// URL")
    options = _of_the_library(text, _QUOTE)
    return Dsn(options, tellable="@" not in text)


def _of_the_library(text: str, remedy: str) -> dict[str, str]:
    from probes.postgres.libpq import Error, pq  # noqa: PLC0415 - loaded with the connection

    try:
        told = pq.Conninfo.parse(text.encode())
        return {option.keyword.decode(): option.val.decode() for option in told if option.val is not None}
    except (Error, UnicodeError, ValueError):
        raise unusable("the library cannot read it", remedy) from None
