"""A request that failed by a fault of ours is reported in a log line, with the request's trace; then the fault goes its way.

It is the only line that is written because of a request.  What a client does wrong is answered and not logged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from exporters import trace

#: Writes a message and the further fields of its line.
Log = Callable[[str, Mapping[str, Any]], None]
MOST_PATH = 100


class Failures:
    """The ASGI application ``app``, watched.  ``project`` is the Google Cloud project, empty where there is none."""

    def __init__(self, app: Any, log: Log, project: str = "") -> None:
        self._app, self._log, self._project = app, log, project

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One ASGI connection."""
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            if scope["type"] == "http":
                method, path = scope["method"], scope["path"][:MOST_PATH]
                request = {"requestMethod": method, "requestUrl": path, "status": 500}
                text = f"{method} {path} failed: {type(error).__name__}"
                self._log(text, {"httpRequest": request, **trace.fields(scope["headers"], self._project)})
            raise
