"""The pages, rendered once per report and served from memory, and the table of their paths.

:class:`Front` is the ASGI application that uvicorn runs.  It answers GET on the table by itself, and what there is not:
a scrape then costs what HTTP costs, and the agent is ready without FastAPI, whose import is most of the start-up time and
a third of the memory.  Only the POST and the OpenAPI document go to the FastAPI application, loaded when one of them is
first asked for; it declares the same table.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from agent.report import to_json
from agent.snapshot import Snapshot, State
from exporters import console, page
from exporters.guard import Guard
from exporters.metrics_page import CONTENT_TYPE, MetricsPage

if TYPE_CHECKING:
    from exporters.login import Login

HEALTH_TYPE = "application/health+json"
TEXT_TYPE = "text/plain; charset=utf-8"
HTML_TYPE = "text/html; charset=utf-8"


class Pages:
    """The rendered pages of the newest report; there is one before the server starts."""

    def __init__(self, state: State, metrics: MetricsPage, fail_status: int = 200) -> None:
        self._state, self._metrics, self._fail_status = state, metrics, fail_status
        self._cached: dict[str, tuple[int, bytes]] = {}
        self._start = os.urandom(4).hex()

    def metrics(self) -> tuple[int, bytes]:
        """The exposition text."""
        return 200, self._metrics.render()

    def compressed(self, path: str) -> tuple[int, bytes] | None:
        """A page as gzip, made once for a report; None for one that is sent as it is."""
        return (200, self._metrics.render(compressed=True)) if path == "/metrics" else None

    def health(self) -> tuple[int, bytes]:
        """The report as JSON: 200 for pass and warn, ``fail_status`` for fail."""
        snapshot = self._snapshot()
        body = self._page("health", snapshot, lambda: json.dumps(to_json(snapshot.report)).encode())
        return (self._fail_status if snapshot.report.status == "fail" else 200), body

    def front(self) -> tuple[int, bytes]:
        """The report as a page for a browser; its module is loaded when it is first asked for."""
        from exporters.page import render  # noqa: PLC0415 - an agent that nobody looks at does not pay for it

        snapshot = self._snapshot()
        made = lambda: render.served(to_json(snapshot.report), self._state.timeline.as_json())  # noqa: E731 - as its neighbours
        return 200, self._page("front", snapshot, made)

    def asset(self, name: str) -> tuple[int, bytes]:
        """A file that the front page asks for."""
        from exporters.page import render  # noqa: PLC0415 - same

        return 200, render.asset(name).encode()

    def timeline(self) -> tuple[int, bytes]:
        """The last hour as JSON."""
        return 200, self._page(
            "timeline", self._snapshot(), lambda: json.dumps(self._state.timeline.as_json()).encode()
        )

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

    def tag(self) -> str:
        """Changes with every report, and is of this process alone."""
        return f'"{self._start}-{self._snapshot().version}"'

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
    #: The Content-Security-Policy: by itself nothing may be loaded, and nobody may frame it.
    policy: str = "default-src 'none'; frame-ancestors 'none'"


TABLE: dict[str, Page] = {
    "/metrics": Page(CONTENT_TYPE, Pages.metrics, "Prometheus exposition format"),
    "/health": Page(HEALTH_TYPE, Pages.health, "The report: verdict, findings, what is ruled out and what is unknown"),
    "/report.txt": Page(TEXT_TYPE, Pages.report, "The report for people"),
    "/livez": Page(TEXT_TYPE, Pages.live, "The agent's loop runs"),
    "/readyz": Page(TEXT_TYPE, Pages.ready, "The measuring child runs"),
    "/": Page(HTML_TYPE, Pages.front, "The page for a browser", page.POLICY),
    "/timeline": Page("application/json", Pages.timeline, "What the reports of the last hour said, in steps"),
    "/page.css": Page("text/css; charset=utf-8", lambda pages: pages.asset("style.css"), "The front page's style"),
    "/page.js": Page(
        "text/javascript; charset=utf-8", lambda pages: pages.asset("script.js"), "The front page's script"
    ),
}


#: The front page and its parts: for browsers, not of the contract.
PAGE = ("/", "/page.css", "/page.js")
#: What the FastAPI application answers: path to the methods there.
ELSEWHERE = {"/requests-in-flight": ("POST",), "/openapi.json": ("GET", "HEAD")}
_READ = ("GET", "HEAD")
_DAYS, _MONTHS = "MonTueWedThuFriSatSun", "JanFebMarAprMayJunJulAugSepOctNovDec"


def headers(media_type: str, policy: str = Page._field_defaults["policy"]) -> dict[str, str]:
    """The response headers of every answer; no browser may take one for a script or a page that it is not."""
    return {
        "content-type": media_type, "cache-control": "no-store", "x-content-type-options": "nosniff",
        "content-security-policy": policy, "referrer-policy": "no-referrer", "date": http_date(time.time()),
    }  # fmt: skip


def http_date(seconds: float) -> str:
    """As RFC 9110 has it, whatever the locale is; email.utils takes 10 ms to load for it."""
    at = time.gmtime(seconds)
    day, month = _DAYS[3 * at.tm_wday :][:3], _MONTHS[3 * at.tm_mon - 3 :][:3]
    return f"{day}, {at.tm_mday:02d} {month} {at.tm_year} {at.tm_hour:02d}:{at.tm_min:02d}:{at.tm_sec:02d} GMT"


class Front:
    """Answers GET and HEAD on the table, and what there is not; the POST and the OpenAPI document are ``rest``'s.

    ``rest`` gives the FastAPI application.
    """

    def __init__(
        self, pages: Pages, rest: Callable[[], Awaitable[Any]], guard: Guard, login: Login | None = None
    ) -> None:
        self._pages, self._rest, self._guard = pages, rest, guard
        self._login = login

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One ASGI connection."""
        path, method, asked = scope["path"], scope["method"], dict(scope["headers"])
        row = TABLE.get(path)
        methods = _READ if row is not None else ELSEWHERE.get(path)
        client = (scope["client"] or ("",))[0]
        refusal = self._guard.page(asked)
        if refusal is None and self._login is not None:
            refusal = await self._login.refusal(path, client, asked)
        if refusal is None and method == "POST" and path in ELSEWHERE and method in ELSEWHERE[path]:
            refusal = self._guard.post(client, asked)
        if refusal is not None:
            await _refuse(send, refusal.status, refusal.because, **refusal.headers)
        elif methods is None:
            await _refuse(send, 404, f"no such page; there are {', '.join(TABLE)}")
        elif method not in methods:
            await _refuse(send, 405, f"{path} takes {' and '.join(methods)} only", allow=", ".join(methods))
        elif row is None:
            await (await self._rest())(scope, receive, send)
        else:
            status, body, more = self._answer(path, scope["query_string"], asked)
            await _send(send, status, body, {**headers(row.media_type, row.policy), **more})

    def _answer(self, path: str, query: bytes, asked: dict[bytes, bytes]) -> tuple[int, bytes, dict[str, str]]:
        """Status, body, and the headers that are of this request."""
        more = {"connection": "close"} if _has_body(asked) else {}
        if path == "/":
            more |= {"etag": self._pages.tag()}
            if query == b"refresh":
                more |= {"refresh": str(page.REFRESH_SECONDS)}
        known = "etag" in more and more["etag"].encode() == asked.get(b"if-none-match")
        small = self._pages.compressed(path) if takes_gzip(asked.get(b"accept-encoding", b"")) else None
        if small is not None:
            more |= {"content-encoding": "gzip"}
        if path == "/metrics":
            more |= {"vary": "accept-encoding"}
        status, body = (304, b"") if known else small or TABLE[path].render(self._pages)
        return status, body, more


def takes_gzip(accepted: bytes) -> bool:
    """Whether ``Accept-Encoding`` names gzip, and not with a weight of 0 (RFC 9110, 12.5.3)."""
    for each in accepted.lower().split(b","):
        coding, *parameters = each.replace(b" ", b"").split(b";")
        if coding in (b"gzip", b"x-gzip"):
            return not any(re.fullmatch(rb"q=0(\.0*)?", parameter) for parameter in parameters)
    return False


def _has_body(asked: dict[bytes, bytes]) -> bool:
    """A body that nobody reads: its sender would go on, so the connection ends with the answer."""
    return b"transfer-encoding" in asked or asked.get(b"content-length", b"0") != b"0"


def problem(detail: str) -> bytes:
    """The body of a refusal."""
    return json.dumps({"detail": detail}).encode()


async def _refuse(send: Any, status: int, because: str, **more: str) -> None:
    await _send(send, status, problem(because), {**headers("application/json"), "connection": "close", **more})


async def _send(send: Any, status: int, body: bytes, named: dict[str, str]) -> None:
    rows = [(name.encode(), value.encode()) for name, value in named.items()]
    rows.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": rows})
    await send({"type": "http.response.body", "body": body})
