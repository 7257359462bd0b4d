"""Why a server could not be asked: one word for a metric, sentences for people, none of which holds a part of an address or a secret."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from probes.reading import Code, Unseen

#: What only says that this agent may not ask, or not in this way; the app may.
OWN_FAULT: Final = frozenset({"authentication", "access", "configuration", "tls"})
#: Nothing came back in time.
SILENT: Final = "timeout"
#: IP address and port.
Remote = tuple[str, int]
_CODES: Final[Mapping[str, Code]] = {
    "access": Code.NOT_PERMITTED, "authentication": Code.NOT_PERMITTED, "too many connections": Code.BUSY,
    "starting": Code.BUSY, SILENT: Code.TIMED_OUT, "endless": Code.MALFORMED, "other": Code.MALFORMED,
    "configuration": Code.NOT_CONFIGURED, "dns": Code.NOT_CONFIGURED,
}  # fmt: skip


class LinkFailed(Exception):
    """The server could not be asked.  ``reason`` is one word for a metric, the sentences are for people."""

    def __init__(self, reason: str, because: str, remedy: str) -> None:
        super().__init__(because)
        self.reason, self.remedy = reason, remedy
        self.because = Unseen(because, _CODES.get(reason, Code.UNREACHABLE))
        self.remotes: Sequence[Remote] = ()
        """Where it was looked for."""
        self.passing = False
        """Of a query that the server did not run: whether it may run it the next time."""
