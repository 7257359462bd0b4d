"""Why a database could not be asked: what libpq or the server says, reduced to a known reason.

Their texts may hold user names, hosts and parts of a DSN; they are matched and thrown away.  The words that are
looked for are those of PostgreSQL 12 to 18, PgBouncer and libpq in English; in another language the reason is ``access``
where a server refuses the login, and else ``other``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from probes.reading import Code, Unseen
from probes.store.failures import SILENT, LinkFailed

_LOGIN = (
    "authentication",
    "the server does not accept this user, password or database",
    "check the DSN; use the app's own",
)
_CLOSED = ("closed", "the connection was closed by the other side", "look at the server's log, or at the proxy's")
#: What libpq or the server says (first match decides) -> reason, sentence, remedy.
FAILURES: Final[tuple[tuple[tuple[str, ...], str, str, str], ...]] = (
    (("invalid sslmode", "invalid target_session", "invalid load_balance", "invalid integer", "invalid channel_binding", "service file", "definition of service"),
     "configuration", "the library does not accept a value of the DSN, or finds no such service", "check the DSN; use the app's own"),
    (("session is ", "hot standby mode"), "other role", "no server that answers is of the kind that target_session_attrs asks for", "has a primary been elected? look at the cluster's state"),
    (("no pg_hba.conf entry",), "access", "the server's pg_hba.conf has no entry for this user, database, address or encryption", "add one, or connect as the app does"),
    (("not permitted to log in", "permission denied for database", "not currently accepting connections"),
     "access", "the server does not let this role into this database", "GRANT CONNECT and LOGIN, or connect as the app does"),
    (("authentication failed", "no such database", "no such user"), *_LOGIN),
    (("certificate",), "tls", "the server's certificate was not accepted", "renew it, or give the right sslrootcert"),
    (("no password supplied", "SCRAM", "does not exist"), *_LOGIN),
    (("too many clients", "remaining connection slots", "too many connections", "no more connections", "connections exceeded", "connections reached", "clients reached"), "too many connections", "the server has no connection slot left", "look who holds them; a pooler; a larger max_connections"),
    (("server login", "server down", "cannot connect to server", "waiting to acquire", "connect to compute node"),
     "no server", "the pooler answers, and has no server behind it that does", "look at the server, and at the pooler's log"),
    (("starting up", "shutting down", "recovery mode", "not yet accepting", "not accepting connections"), "starting", "the server is starting, stopping or recovering", "wait; look at its log"),
    (("unreachable", "No route to host", "Cannot assign requested address"), "no route", "no route leads to this address", "check the address, and the routes of this container"),
    (("Connection refused", "No such file"), "refused", "nothing listens at this address", "check host and port; is the server running?"),
    (("terminating connection",), *_CLOSED),  # due to a timeout, too: that was told, and at once
    (("timeout", "timed out"), SILENT, "the server did not answer in time", "is the host up, and the port open in every firewall between?"),
    (("closed the connection", "reset by peer", "server closed", "closed unexpectedly", "EOF", "unexpected eof", "SSL SYSCALL"), *_CLOSED),
    # Behind all that an encrypted connection ends in: those texts name its layer too.
    (("SSL", "TLS"), "tls", "no encrypted connection could be agreed on", "set sslmode as the app has it"),
)  # fmt: skip
#: What stands nearest to the server comes first: of several addresses the one that got there tells most.
NEAREST: Final = ("starting", "no server", "other role", "closed", "other", SILENT, "refused", "no route", "dns")
_OTHER = ("other", "the library reported a failure that this agent does not know", "try the same DSN with psql")
#: What libpq sets between the severity, which is in the server's language, and what the server says (pqBuildErrorMessage3).
_SAYS: Final = ":  "


class NotLetIn(LinkFailed):
    """Who is there refuses the login, in words that this agent does not know."""

    def __init__(self) -> None:
        super().__init__(
            "access", "the server answers and does not let this agent in, for a reason that it does not know",
            "try the same DSN with psql",
        )  # fmt: skip


def failure(text: str) -> LinkFailed:
    """Reduce what the library said, which may hold names, to a known reason."""
    for needles, *known in FAILURES:
        if any(needle in text for needle in needles):
            return LinkFailed(*known)
    return LinkFailed(*_OTHER)


def at_login(text: str) -> LinkFailed:
    """As :func:`failure`, of a connection that was not opened: whoever answers is there, whatever the words.

    By the severity alone, because libpq gives no SQLSTATE for it, in no field and in no text.
    """
    fault = failure(text)
    return NotLetIn() if fault.reason == "other" and _SAYS in text else fault


#: SQLSTATE of a query that the server did not run -> sentence, remedy (PostgreSQL's appendix A).
REFUSALS: Final[Mapping[str, tuple[str, str]]] = {
    "42501": ("this role may not read it", "GRANT pg_monitor TO the role of the agent"),
    "57014": ("it took longer than statement_timeout", "look at the server: it is busy, or postgres.timeout_seconds is short"),
    "55000": ("the server was not started with the library that it needs", "add it to shared_preload_libraries and restart the server"),
}  # fmt: skip
_REFUSAL_CODES: Final[Mapping[str, Code]] = {
    "42501": Code.NOT_PERMITTED, "57014": Code.TIMED_OUT, "55000": Code.NOT_CONFIGURED,
}  # fmt: skip
REFUSED = "refused by the server"


#: Classes of SQLSTATE that are of the moment: rolled back, out of resources, cancelled.
PASSING: Final = frozenset({"40", "53", "57"})


def refusal(state: str) -> LinkFailed:
    """A query that the server did not run, by its SQLSTATE; the session goes on."""
    because, remedy = REFUSALS.get(state, (f"the server refused the query (SQLSTATE {state})", ""))
    failed = LinkFailed(REFUSED, because, remedy)
    failed.because = Unseen(because, _REFUSAL_CODES.get(state, Code.CANNOT_COUNT))
    failed.passing = state[:2] in PASSING
    return failed
