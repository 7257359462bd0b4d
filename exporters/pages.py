"""The pages, rendered once per report and served from memory, and the table of their paths.

:class:`Front` is the ASGI application that uvicorn runs.  It answers GET on the table by itself: a
scrape then costs what HTTP costs, and the agent is ready without FastAPI, whose import is most of the
start-up time and a third of the memory.  Everything else (the POST, the OpenAPI document, errors) goes
to the FastAPI application, loaded when it is first needed; it declares the same table.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, NamedTuple

from agent.report import to_json
from exporters import console
from exporters.prometheus import CONTENT_TYPE, MetricsPage
from exporters.state import Snapshot, State

HEALTH_TYPE = "application/health+json"
TEXT_TYPE = "text/plain; charset=utf-8"


class Pages:
    """The rendered pages of the newest report; there is one before the server starts."""

    def __init__(self, state: State, metrics: MetricsPage, fail_status: int = 503) -> None:
        self._state, self._metrics, self._fail_status = state, metrics, fail_status
        self._cached: dict[str, tuple[int, bytes]] = {}

    def metrics(self) -> tuple[int, bytes]:
        """The exposition text."""
        return 200, self._metrics.render()

    def health(self) -> tuple[int, bytes]:
        """The report as JSON: 200 for pass and warn, ``fail_status`` for fail."""
        snapshot = self._snapshot()
        body = self._page("health", snapshot, lambda: json.dumps(to_json(snapshot.report)).encode())
        return (self._fail_status if snapshot.report.status == "fail" else 200), body

    def report(self) -> tuple[int, bytes]:
        """The report as text."""
        snapshot = self._snapshot()
        return 200, self._page("text", snapshot, lambda: console.render(to_json(snapshot.report)).encode())

    def live(self) -> tuple[int, bytes]:
        """The loop runs: nothing else is asked, or a verdict would restart containers."""
        return 200, b"ok\n"

    def ready(self) -> tuple[int, bytes]:
        """Whether the measuring child runs."""
        if self._state.child_alive:
            return 200, b"ok\n"
        return 503, b"the measuring child is not running\n"

    def _snapshot(self) -> Snapshot:
        assert self._state.snapshot is not None, "the first report is made before the server starts"
        return self._state.snapshot

    def _page(self, name: str, snapshot: Snapshot, make: Callable[[], bytes]) -> bytes:
        cached = self._cached.get(name)
        if cached is None or cached[0] != snapshot.version:
            cached = self._cached[name] = (snapshot.version, make())
        return cached[1]


class Page(NamedTuple):
    """One row of the table."""

    media_type: str
    render: Callable[[Pages], tuple[int, bytes]]
    description: str


TABLE: dict[str, Page] = {
    "/metrics": Page(CONTENT_TYPE, Pages.metrics, "Prometheus exposition format"),
    "/health": Page(HEALTH_TYPE, Pages.health, "The report: verdict, findings, what is ruled out and what is unknown"),
    "/report.txt": Page(TEXT_TYPE, Pages.report, "The report for people"),
    "/livez": Page(TEXT_TYPE, Pages.live, "The agent's loop runs"),
    "/readyz": Page(TEXT_TYPE, Pages.ready, "The measuring child runs"),
    "/": Page(TEXT_TYPE, Pages.report, "The report for people"),
}


def headers(page: Page) -> dict[str, str]:
    """The response headers of a page."""
    return {"content-type": page.media_type, "cache-control": "no-store", "date": formatdate(usegmt=True)}


class Front:
    """Answers GET and HEAD on the table; hands everything else to ``rest()``."""

    def __init__(self, pages: Pages, rest: Callable[[], Any]) -> None:
        self._pages, self._rest = pages, rest

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One ASGI connection."""
        page = TABLE.get(scope["path"]) if scope["type"] == "http" and scope["method"] in ("GET", "HEAD") else None
        if page is None:
            await self._rest()(scope, receive, send)
            return
        status, body = page.render(self._pages)
        rows = [(name.encode(), value.encode()) for name, value in headers(page).items()]
        rows.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": rows})
        await send({"type": "http.response.body", "body": body})
