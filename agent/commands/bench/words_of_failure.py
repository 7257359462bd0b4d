"""What a connection of our own met, as a reason without a part of the DSN."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agent.commands.bench.runner import RunFailed
from probes.postgres.failures import failure

#: Classes and codes of SQLSTATE that say all that there is to say (PostgreSQL's appendix A).
_STATES = {
    "42501": "this role may not do that (insufficient privilege)",
    "53100": "the server's disk is full",
    "53200": "the server is out of memory",
    "25006": "transactions of this server or role are read-only",
    "55006": "it is in use by other sessions",
}


@contextmanager
def told(what: str) -> Iterator[None]:
    """Turn psycopg's errors into RunFailed: ``what`` could not be done, and why."""
    import psycopg  # noqa: PLC0415 - loaded with the connection

    try:
        yield
    except psycopg.Error as error:
        state = error.sqlstate or ""
        if state in _STATES:
            raise RunFailed(f"{what}: {_STATES[state]}") from None
        known = failure(f"{error}")
        code = f" (SQLSTATE {state})" if state and known.reason == "other" else ""
        raise RunFailed(
            f"{what}: {known.because}{code}; {known.remedy}", gone=isinstance(error, psycopg.OperationalError)
        ) from None
