"""Why a database could not be asked: what libpq or the server says, reduced to a known reason.

Their texts may hold user names, hosts and parts of a DSN; they are matched and thrown away.  The words that are
looked for are those of PostgreSQL 12 to 18 and libpq in English; in another language the reason is ``other``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from probes.reading import Code, Unseen
from probes.store.failures import SILENT, LinkFailed

#: What libpq or the server says (first match decides) -> reason, sentence, remedy.
FAILURES: Final[tuple[tuple[tuple[str, ...], str, str, str], ...]] = (
    (("invalid sslmode", "invalid target_session", "invalid load_balance", "invalid integer", "invalid channel_binding", "service file", "definition of service"),
     "configuration", "the library does not accept a value of the DSN, or finds no such service", "check the DSN; use the app's own"),
    (("session is ", "hot standby mode"), "other role", "no server that answers is of the kind that target_session_attrs asks for", "has a primary been elected? look at the cluster's state"),
    (("no pg_hba.conf entry",), "access", "the server's pg_hba.conf has no entry for this user, database, address or encryption", "add one, or connect as the app does"),
    (("certificate",), "tls", "the server's certificate was not accepted", "renew it, or give the right sslrootcert"),
    (("password authentication failed", "no password supplied", "SCRAM", "does not exist"), "authentication", "the server does not accept this user, password or database", "check the DSN; use the app's own"),
    (("too many clients", "remaining connection slots", "too many connections"), "too many connections", "the server has no connection slot left", "look who holds them; a pooler; a larger max_connections"),
    (("SSL", "TLS"), "tls", "no encrypted connection could be agreed on", "set sslmode as the app has it"),
    (("starting up", "shutting down", "recovery mode", "not yet accepting", "not accepting connections"), "starting", "the server is starting, stopping or recovering", "wait; look at its log"),
    (("unreachable", "No route to host", "Cannot assign requested address"), "no route", "no route leads to this address", "check the address, and the routes of this container"),
    (("Connection refused", "No such file"), "refused", "nothing listens at this address", "check host and port; is the server running?"),
    (("timeout", "timed out"), SILENT, "the server did not answer in time", "is the host up, and the port open in every firewall between?"),
    (("closed the connection", "terminating connection", "reset by peer", "server closed", "EOF"), "closed", "the connection was closed by the other side", "look at the server's log, or at the proxy's"),
)  # fmt: skip
#: What stands nearest to the server comes first: of several addresses the one that got there tells most.
NEAREST: Final = ("starting", "other role", "closed", "other", SILENT, "refused", "no route", "dns")
_OTHER = ("other", "the library reported a failure that this agent does not know", "try the same DSN with psql")


def failure(text: str) -> LinkFailed:
    """Reduce what the library said, which may hold names, to a known reason."""
    for needles, *known in FAILURES:
        if any(needle in text for needle in needles):
            return LinkFailed(*known)
    return LinkFailed(*_OTHER)


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
