"""TLS of the standard library for asyncio, loaded where something is encrypted and nowhere else.

asyncio loads OpenSSL when it is imported, which takes 3.6 MB and a tenth of an agent's start, and most agents encrypt nothing: their pages are scraped
in the pod, and the database library brings an OpenSSL of its own.  It may be missing, though: a Python that was built without it has an asyncio
all the same.  So ``run`` and ``doctor`` begin with :func:`agent.commands.start.leave_tls_out`, and whoever needs TLS asks for it here.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ssl import SSLContext


def verifying(authorities_file: str | None = None) -> SSLContext:
    """A context that checks the other side's certificate and name; ``None``: by the system's authorities.  Raises OSError.

    Without VERIFY_X509_STRICT, which Python has by default since 3.13: it refuses authorities without the extensions that RFC 5280 asks
    for, as those of many clusters and companies are, and which curl, Go and libpq take.
    """
    import ssl  # noqa: PLC0415 - only where something is encrypted

    context = ssl.create_default_context(cafile=authorities_file)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def for_asyncio(context: SSLContext | None) -> SSLContext | None:
    """The same context, after making sure that this process's asyncio can use it."""
    if context is not None and asyncio.sslproto.__dict__["ssl"] is None:
        import ssl  # noqa: PLC0415 - only here, and loaded already: there is a context

        importlib.reload(asyncio.sslproto)  # classes and constants are made of it; nobody has an instance yet
        for name, module in list(sys.modules.items()):
            names: dict[str, Any] = vars(module) if name.startswith("asyncio.") else {}
            if "ssl" in names and names["ssl"] is None:
                names["ssl"] = ssl
    return context
