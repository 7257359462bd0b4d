"""Why a database could not be asked: what libpq or the server says, reduced to a known reason.

Their texts may hold user names, hosts and parts of a DSN; they are matched and thrown away.  The words that are
looked for are those of PostgreSQL 12 to 18 and libpq in English; in another language the reason is ``other``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: What libpq or the server says (first match decides) -> reason, sentence, remedy.
FAILURES: Final[tuple[tuple[tuple[str, ...], str, str, str], ...]] = (
    (("no pg_hba.conf entry",), "access", "the server's pg_hba.conf has no entry for this user, database, address or encryption", "add one, or connect as the app does"),
    (("certificate",), "tls", "the server's certificate was not accepted", "renew it, or give the right sslrootcert"),
    (("password authentication failed", "no password supplied", "SCRAM", "does not exist"), "authentication", "the server does not accept this user, password or database", "check the DSN; use the app's own"),
    (("too many clients", "remaining connection slots", "too many connections"), "too many connections", "the server has no connection slot left", "look who holds them; a pooler; a larger max_connections"),
    (("SSL", "TLS"), "tls", "no encrypted connection could be agreed on", "set sslmode as the app has it"),
    (("starting up", "shutting down", "recovery mode", "not yet accepting"), "starting", "the server is starting, stopping or recovering", "wait; look at its log"),
    (("Connection refused", "No such file"), "refused", "nothing listens at this address", "check host and port; is the server running?"),
    (("timeout", "timed out"), "timeout", "the server did not answer in time", "is the host up, and the port open in every firewall between?"),
    (("closed the connection", "terminating connection", "reset by peer", "server closed", "EOF"), "closed", "the connection was closed by the other side", "look at the server's log, or at the proxy's"),
)  # fmt: skip
_OTHER = ("other", "the library reported a failure that this agent does not know", "try the same DSN with psql")


class LinkFailed(Exception):
    """The database could not be asked.  ``reason`` is one word for a metric, the sentences are for people."""

    def __init__(self, reason: str, because: str, remedy: str) -> None:
        super().__init__(because)
        self.reason, self.because, self.remedy = reason, because, remedy


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
REFUSED = "refused by the server"


def refusal(state: str) -> LinkFailed:
    """A query that the server did not run, by its SQLSTATE; the session goes on."""
    because, remedy = REFUSALS.get(state, (f"the server refused the query (SQLSTATE {state})", ""))
    return LinkFailed(REFUSED, because, remedy)
