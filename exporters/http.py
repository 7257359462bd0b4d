"""The FastAPI application: the table of pages with its OpenAPI schema, and the one endpoint that takes data.

Importing this module imports FastAPI; it is done when :class:`exporters.pages.Front`, which stands before it, first
needs it.  Who may ask is decided there, by :mod:`exporters.guard`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from exporters import schema
from exporters.pages import HEALTH_TYPE, PAGE, TABLE, Page, Pages, headers, problem

#: A body of the one endpoint that takes any is three dozen bytes.
MOST_BODY_BYTES = 1024
MOST_IN_FLIGHT = 1_000_000


def create_app(
    pages: Pages, set_in_flight: Callable[[str, int], None], version: str, fail_status: int = 200
) -> FastAPI:
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
    for path, page in TABLE.items():
        answers = schema.page_responses(path, page.description, page.media_type, fail_status)
        app.add_api_route(
            path, _handler(pages, page), methods=["GET"], responses=answers,
            name=path.strip("/") or "root", include_in_schema=path not in PAGE,
        )  # fmt: skip

    @app.post(
        "/requests-in-flight",
        status_code=204,
        responses=schema.in_flight_responses(),
        openapi_extra=schema.in_flight_body(),
    )
    async def in_flight(request: Request) -> Response:
        try:
            set_in_flight(*_parse_in_flight(await _body(request)))
        except _TooLargeError:
            return _problem(f"the body must be at most {MOST_BODY_BYTES} bytes", 413, connection="close")
        except ValueError as error:
            return _problem(str(error), 422)
        return Response(status_code=204)

    plain_openapi = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = schema.complete(plain_openapi(), HEALTH_TYPE)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app


def _handler(pages: Pages, page: Page) -> Callable[[], Any]:
    async def answer() -> Response:
        status, body = page.render(pages)
        return Response(body, status, headers(page.media_type, page.policy))

    return answer


def _problem(detail: str, status: int, **more: str) -> Response:
    return Response(problem(detail), status, {**headers("application/json"), **more})


class _TooLargeError(Exception):
    """The body is larger than any that is taken, and may be without an end."""


async def _body(request: Request) -> bytes:
    raw = b""
    try:
        async for chunk in request.stream():
            raw += chunk
            if len(raw) > MOST_BODY_BYTES:
                raise _TooLargeError
    except ClientDisconnect:
        raise ValueError("the body ended early") from None
    return raw


def _parse_in_flight(raw: bytes) -> tuple[str, int]:
    """(source, count) of ``{"in_flight": 3, "source": "proxy"}``.  Raises ValueError naming the field."""
    try:
        body: Any = json.loads(raw)
    except (ValueError, RecursionError):
        raise ValueError('the body must be JSON like {"in_flight": 3}') from None
    if not isinstance(body, dict):
        raise ValueError('the body must be JSON like {"in_flight": 3}')
    count, source = body.get("in_flight"), body.get("source", "pushed")
    if isinstance(count, float) and count.is_integer():
        count = int(count)  # 3.0 is a whole number in JSON
    faults = [f"{key}: no such field" for key in body if key not in ("in_flight", "source")]
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MOST_IN_FLIGHT:
        faults.append(f"in_flight = {count!r}: must be a whole number of 0 to {MOST_IN_FLIGHT}")
    if not isinstance(source, str) or not schema.is_plain(source):
        faults.append("source: must be 1 to 32 printable characters")
    if faults or not isinstance(count, int):
        raise ValueError("; ".join(faults))
    return str(source), count
