"""The HTTP endpoints, on FastAPI.

Every page is rendered once per report and served from memory, so a scrape costs what HTTP costs.
``/metrics`` is a plain route because Managed Prometheus for Cloud Run follows no redirect.  The
liveness answer depends on nothing but the loop: a verdict that restarts containers makes storms.

Importing this module imports FastAPI, which is most of the start-up time: ``agent.service`` does it
after the port has been taken and before the measuring child is started.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from email.utils import formatdate
from ipaddress import ip_address
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from agent.report import to_json
from exporters import console, schema
from exporters.prometheus import CONTENT_TYPE, MetricsPage
from exporters.state import State

HEALTH_TYPE = "application/health+json"
TEXT_TYPE = "text/plain; charset=utf-8"
#: A body of the one endpoint that takes any is three dozen bytes.
MOST_BODY_BYTES = 1024
MOST_IN_FLIGHT = 1_000_000


class Pages:
    """The rendered pages of the newest report."""

    def __init__(self, state: State, metrics: MetricsPage) -> None:
        self._state, self.metrics = state, metrics
        self._cached: dict[str, tuple[int, bytes]] = {}

    def health(self) -> tuple[int, bytes]:
        """(HTTP status, body): pass and warn are 200, fail is 503."""
        snapshot = self._state.snapshot
        assert snapshot is not None, "the first report is made before the server starts"
        body = self._page("health", lambda: json.dumps(to_json(snapshot.report)).encode())
        return (503 if snapshot.report.status == "fail" else 200), body

    def text(self) -> bytes:
        """The report as text."""
        snapshot = self._state.snapshot
        assert snapshot is not None, "the first report is made before the server starts"
        return self._page("text", lambda: console.render(to_json(snapshot.report)).encode())

    def ready(self) -> bool:
        """Whether a report exists and the measuring child runs."""
        return self._state.snapshot is not None and self._state.child_alive

    def _page(self, name: str, make: Callable[[], bytes]) -> bytes:
        version = self._state.snapshot.version if self._state.snapshot is not None else 0
        cached = self._cached.get(name)
        if cached is None or cached[0] != version:
            cached = self._cached[name] = (version, make())
        return cached[1]


def _answer(body: bytes, media_type: str, status: int = 200) -> Response:
    headers = {"Cache-Control": "no-store", "Date": formatdate(usegmt=True)}
    return Response(body, status, headers, media_type)


def create_app(pages: Pages, set_in_flight: Callable[[str, int], None], version: str) -> FastAPI:
    """The application.  ``set_in_flight(source, count)`` takes what the app pushes."""
    app = FastAPI(
        title="stallscope",
        version=version,
        description="Why is this service slow: database, network, CPU taken away, or logs piling up?",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        default_response_class=Response,
    )
    _add_pages(app, pages)

    @app.post(
        "/requests-in-flight",
        status_code=204,
        responses=schema.in_flight_responses(),
        openapi_extra=schema.in_flight_body(),
    )
    async def in_flight(request: Request) -> Response:
        if request.client is None or not _is_loopback(request.client.host):
            return _answer(b'{"detail":"only from loopback"}', "application/json", 403)
        try:
            set_in_flight(*_parse_in_flight(await _body(request)))
        except ValueError as error:
            return _answer(json.dumps({"detail": str(error)}).encode(), "application/json", 422)
        return Response(status_code=204)

    plain_openapi = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = schema.complete(plain_openapi(), HEALTH_TYPE)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app


def _add_pages(app: FastAPI, pages: Pages) -> None:
    @app.get("/metrics", responses=schema.text_response("Prometheus exposition format"))
    async def metrics() -> Response:
        return _answer(pages.metrics.render(), CONTENT_TYPE)

    @app.get("/health", responses=schema.health_responses(HEALTH_TYPE))
    async def health() -> Response:
        status, body = pages.health()
        return _answer(body, HEALTH_TYPE, status)

    @app.get("/", include_in_schema=False)
    @app.get("/report.txt", responses=schema.text_response("The report for people"))
    async def report() -> Response:
        return _answer(pages.text(), TEXT_TYPE)

    @app.get("/livez", responses=schema.text_response("The agent's loop runs"))
    async def livez() -> Response:
        return _answer(b"ok\n", TEXT_TYPE)

    @app.get("/readyz", responses=schema.ready_responses())
    async def readyz() -> Response:
        if pages.ready():
            return _answer(b"ok\n", TEXT_TYPE)
        return _answer(b"starting, or the measuring child is not running\n", TEXT_TYPE, 503)


def _is_loopback(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


async def _body(request: Request) -> bytes:
    raw = b""
    try:
        async for chunk in request.stream():
            raw += chunk
            if len(raw) > MOST_BODY_BYTES:
                raise ValueError(f"the body must be at most {MOST_BODY_BYTES} bytes")
    except ClientDisconnect:
        raise ValueError("the body ended early") from None
    return raw


def _parse_in_flight(raw: bytes) -> tuple[str, int]:
    """(source, count) of ``{"in_flight": 3, "source": "proxy"}``.  Raises ValueError naming the field."""
    try:
        body: Any = json.loads(raw)
    except ValueError:
        raise ValueError('the body must be JSON like {"in_flight": 3}') from None
    if not isinstance(body, dict):
        raise ValueError('the body must be JSON like {"in_flight": 3}')
    count, source = body.get("in_flight"), body.get("source", "pushed")
    faults = [f"{key}: no such field" for key in body if key not in ("in_flight", "source")]
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MOST_IN_FLIGHT:
        faults.append(f"in_flight = {count!r}: must be a whole number of 0 to {MOST_IN_FLIGHT}")
    if not isinstance(source, str) or not 1 <= len(source) <= 32 or not source.isprintable():
        faults.append("source: must be 1 to 32 printable characters")
    if faults or not isinstance(count, int):
        raise ValueError("; ".join(faults))
    return str(source), count
