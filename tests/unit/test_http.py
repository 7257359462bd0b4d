"""The pages: status codes, content types, the one endpoint that takes something, and clients that misbehave."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any, NamedTuple

import jsonschema
import pytest
from fastapi import FastAPI

from agent.report import Report, to_json
from agent.settings import Http
from exporters import server
from exporters.http import MOST_BODY_BYTES, MOST_IN_FLIGHT, create_app
from exporters.pages import HEALTH_TYPE, TABLE, TEXT_TYPE, Front, Pages
from exporters.prometheus import CONTENT_TYPE, MetricsPage
from exporters.state import State
from probes import READINGS
from probes.requests import MOST_SOURCES, InFlight
from tests.unit.golden import fixed

LOOPBACK = "127.0.0.1"
#: A piece of a body that is none: the client is gone.
HANGS_UP = b"(hangs up)"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class App:
    """The application with a state of our choice, called as a server calls it, without one."""

    def __init__(
        self, state: State, fail_status: int = 503, set_in_flight: Callable[[str, int], None] | None = None
    ) -> None:
        self.state = state
        self.pushed: list[tuple[str, int]] = []
        self.pages = Pages(state, MetricsPage(state, READINGS), fail_status)
        self._set_in_flight, self._fail_status = set_in_flight or self._push, fail_status
        self.loaded = 0
        #: What is called; a test may put ``api`` here, to ask FastAPI for what the front answers by itself.
        self.asgi: Any = Front(self.pages, self._load)

    def _push(self, source: str, count: int) -> None:
        self.pushed.append((source, count))

    @cached_property
    def api(self) -> FastAPI:
        return create_app(self.pages, self._set_in_flight, "1.2.3", self._fail_status)

    def _load(self) -> FastAPI:
        self.loaded += 1
        return self.api

    def get(self, path: str) -> Answer:
        return self.call("GET", path)

    def post(self, body: bytes | Sequence[bytes], client: str | None = LOOPBACK) -> Answer:
        return self.call("POST", "/requests-in-flight", [body] if isinstance(body, bytes) else body, client)

    def call(self, method: str, path: str, body: Sequence[bytes] = (b"",), client: str | None = LOOPBACK) -> Answer:
        return asyncio.run(self._call(method, path, list(body), client))

    async def _call(self, method: str, path: str, body: list[bytes], client: str | None) -> Answer:
        scope: dict[str, Any] = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": [],
            "client": (client, 5) if client is not None else None, "server": ("127.0.0.1", 9768),
        }  # fmt: skip
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if body[0] == HANGS_UP:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": body.pop(0), "more_body": bool(body)}

        async def send(message: Any) -> None:
            sent.append(dict(message))

        await self.asgi(scope, receive, send)
        head, *rest = sent
        headers = {name.decode().lower(): text.decode() for name, text in head["headers"]}
        return Answer(head["status"], headers, b"".join(part.get("body", b"") for part in rest))


@pytest.fixture
def app() -> App:
    return App(fixed.state())


# ---- what is where


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/metrics", CONTENT_TYPE),
        ("/health", HEALTH_TYPE),
        ("/report.txt", TEXT_TYPE),
        ("/", TEXT_TYPE),
        ("/livez", TEXT_TYPE),
        ("/readyz", TEXT_TYPE),
        ("/openapi.json", "application/json"),
    ],
)
def test_each_page_says_its_type_and_its_length(app: App, path: str, content_type: str) -> None:
    answer = app.get(path)
    assert answer.headers["content-type"] == content_type
    assert int(answer.headers["content-length"]) == len(answer.body) > 0


@pytest.mark.parametrize("path", ["/metrics", "/health", "/report.txt", "/livez", "/readyz"])
def test_no_page_is_stored_by_a_cache(app: App, path: str) -> None:
    assert app.get(path).headers["cache-control"] == "no-store"


def test_metrics_is_a_plain_route_without_a_redirect(app: App) -> None:
    assert app.get("/metrics").status == 200
    assert app.get("/metrics/").status == 404
    assert any(getattr(route, "path", None) == "/metrics" for route in app.api.routes)


@pytest.mark.parametrize("path", ["/nothing", "/health/", "/docs", "/redoc", "/../etc/passwd"])
def test_there_is_nothing_else(app: App, path: str) -> None:
    assert app.get(path).status == 404


def test_the_page_for_people_is_the_front_page(app: App) -> None:
    assert app.get("/").body == app.get("/report.txt").body
    assert app.get("/").body.startswith(b"FAILING")
    assert b"\x1b" not in app.get("/").body


@pytest.mark.parametrize(
    ("report", "status"),
    [(fixed.healthy(), 200), (fixed.blind(), 200), (fixed.failing(), 503)],
    ids=["pass", "warn", "fail"],
)
def test_pass_and_warn_are_200_and_fail_is_503(report: Report, status: int) -> None:
    answer = App(fixed.state(report)).get("/health")
    assert answer.status == status
    assert json.loads(answer.body) == to_json(report)


@pytest.mark.parametrize("fail_status", [200, 429, 500, 599])
@pytest.mark.parametrize(
    ("report", "fails"),
    [(fixed.healthy(), False), (fixed.blind(), False), (fixed.failing(), True)],
    ids=["pass", "warn", "fail"],
)
def test_the_status_of_fail_is_the_configured_one(report: Report, fails: bool, fail_status: int) -> None:
    app = App(fixed.state(report), fail_status)
    answer = app.get("/health")
    assert answer.status == (fail_status if fails else 200)
    assert json.loads(answer.body) == to_json(report)
    jsonschema.validate(json.loads(answer.body), schema_of(app, answer.status))


# ---- the front and the FastAPI application: one table


STATES = {
    "pass": fixed.state(fixed.healthy()),
    "warn": fixed.state(fixed.blind()),
    "fail": fixed.state(),
    "no child": State(fixed.snapshot(), child_alive=False),
}


@pytest.mark.parametrize("fail_status", [503, 500])
@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
@pytest.mark.parametrize("path", TABLE)
def test_the_front_and_the_api_give_one_answer(path: str, state: State, fail_status: int) -> None:
    def told(answer: Answer) -> tuple[Any, ...]:
        names = ("content-type", "content-length", "cache-control")
        return answer.status, *(answer.headers[name] for name in names), "date" in answer.headers, answer.body

    app = App(state, fail_status)
    front = app.get(path)
    assert app.loaded == 0
    app.asgi = app.api
    assert told(app.get(path)) == told(front)


def test_the_api_declares_the_paths_of_the_table_and_the_post_and_no_other(app: App) -> None:
    declared = {getattr(route, "path", "") for route in app.api.routes}
    assert declared == {*TABLE, "/requests-in-flight", "/openapi.json"}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("HEAD", "/nothing", 404),
        ("GET", "/openapi.json", 200),
        ("GET", "/requests-in-flight", 405),
        ("OPTIONS", "/metrics", 405),
        ("POST", "/metrics", 405),
    ],
)
def test_what_is_not_in_the_table_is_the_apis(app: App, method: str, path: str, status: int) -> None:
    assert app.call(method, path).status == status
    assert app.loaded == 1


@pytest.mark.parametrize("path", TABLE)
def test_head_is_answered_by_the_front_with_the_headers_of_get(app: App, path: str) -> None:
    get, head = app.get(path), app.call("HEAD", path)
    assert (head.status, app.loaded) == (get.status, 0)
    assert head.headers.keys() == get.headers.keys()
    assert head.headers["content-length"] == get.headers["content-length"]  # its body is the server's to leave out


# ---- readiness


@pytest.mark.parametrize(
    ("report", "alive", "ready"),
    [(fixed.healthy(), True, 200), (fixed.failing(), True, 200), (fixed.healthy(), False, 503)],
)
def test_ready_is_a_running_child_whatever_is_found_and_liveness_asks_for_neither(
    report: Report, alive: bool, ready: int
) -> None:
    app = App(State(fixed.snapshot(report), alive))
    assert app.get("/readyz").status == ready
    assert app.get("/livez").status == 200


@pytest.mark.parametrize("path", ["/health", "/report.txt", "/metrics"])
def test_a_page_is_rendered_anew_only_for_a_new_report(app: App, path: str) -> None:
    def rendered() -> bytes:
        return TABLE[path].render(app.pages)[1]

    first = rendered()
    assert rendered() is first
    app.state.snapshot = fixed.snapshot(fixed.healthy(), version=2)
    assert app.get(path).body != first


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
@pytest.mark.parametrize("path", ["/metrics", "/health", "/livez"])
def test_pages_are_only_read(app: App, method: str, path: str) -> None:
    assert app.call(method, path).status == 405


# ---- the schema


@pytest.mark.parametrize("fail_status", [503, 500])
def test_the_schema_names_every_endpoint_and_every_answer(fail_status: int) -> None:
    app, without_child = App(fixed.state(), fail_status), App(STATES["no child"], fail_status)
    document = json.loads(app.get("/openapi.json").body)
    assert set(document["paths"]) == {"/metrics", "/health", "/report.txt", "/livez", "/readyz", "/requests-in-flight"}
    for path in set(document["paths"]) - {"/requests-in-flight"}:
        for which in (app, without_child):
            answer = which.get(path)
            said = document["paths"][path]["get"]["responses"][str(answer.status)]
            assert answer.headers["content-type"].partition(";")[0] in said["content"]


def schema_of(app: App, status: int) -> Any:
    document = json.loads(app.get("/openapi.json").body)
    return document["paths"]["/health"]["get"]["responses"][str(status)]["content"][HEALTH_TYPE]["schema"]


@pytest.mark.parametrize("report", [fixed.healthy(), fixed.blind(), fixed.failing()], ids=["pass", "warn", "fail"])
def test_health_is_what_the_schema_says(report: Report) -> None:
    app = App(fixed.state(report))
    answer = app.get("/health")
    jsonschema.validate(json.loads(answer.body), schema_of(app, answer.status))


# ---- requests in flight


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b'{"in_flight": 0}', ("pushed", 0)),
        (b'{"in_flight": 3}', ("pushed", 3)),
        (b'{"in_flight": 3, "source": "proxy"}', ("proxy", 3)),
        (b' {"source":"d\xc3\xb6cker","in_flight":1000000}\n', ("döcker", MOST_IN_FLIGHT)),
    ],
)
def test_a_number_of_requests_is_taken(app: App, body: bytes, wanted: tuple[str, int]) -> None:
    answer = app.post(body)
    assert (answer.status, answer.body) == (204, b"")
    assert app.pushed == [wanted]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "JSON"),
        (b"3", "JSON"),
        (b"[]", "JSON"),
        (b"null", "JSON"),
        (b"{", "JSON"),
        (b"\xff", "JSON"),
        (b"{}", "in_flight"),
        (b'{"in_flight": -1}', "in_flight"),
        (b'{"in_flight": 1000001}', "in_flight"),
        (b'{"in_flight": 1.5}', "in_flight"),
        (b'{"in_flight": "3"}', "in_flight"),
        (b'{"in_flight": true}', "in_flight"),
        (b'{"in_flight": NaN}', "in_flight"),
        (b'{"in_flight": 1e999}', "in_flight"),
        (b'{"in_flight": 1, "source": ""}', "source"),
        (b'{"in_flight": 1, "source": 7}', "source"),
        (b'{"in_flight": 1, "source": "a\\nb"}', "source"),
        (b'{"in_flight": 1, "source": "\\ud800"}', "source"),
        (b'{"in_flight": 1, "source": "%s"}' % (b"x" * 33), "source"),
        (b'{"in_flight": 1, "flight": 2}', "flight: no such field"),
    ],
)
def test_what_is_not_understood_is_refused_with_the_field(app: App, body: bytes, word: str) -> None:
    answer = app.post(body)
    assert (answer.status, app.pushed) == (422, [])
    assert word in json.loads(answer.body)["detail"]


def test_every_fault_of_a_body_is_told_at_once(app: App) -> None:
    detail = json.loads(app.post(b'{"in_flight": -1, "source": "", "x": 1}').body)["detail"]
    assert all(word in detail for word in ("in_flight", "source", "x: no such field"))


def test_a_body_of_the_largest_size_is_read(app: App) -> None:
    assert app.post(b'{"in_flight": 3}'.ljust(MOST_BODY_BYTES)).status == 204


@pytest.mark.parametrize(
    "body", [[b'{"in_flight": 3}'.ljust(MOST_BODY_BYTES + 1)], [b" " * 100] * 20, [b"[" * MOST_BODY_BYTES * 100]]
)
def test_a_body_that_is_too_large_is_refused_whole_or_in_pieces(app: App, body: list[bytes]) -> None:
    answer = app.post(body)
    assert (answer.status, app.pushed) == (422, [])
    assert str(MOST_BODY_BYTES) in json.loads(answer.body)["detail"]


@pytest.mark.parametrize("sent", [[HANGS_UP], [b'{"in_flight": 3}', HANGS_UP]], ids=["at once", "half way"])
def test_a_client_that_hangs_up_has_told_nothing(app: App, sent: list[bytes]) -> None:
    answer = app.post(sent)
    assert (answer.status, app.pushed) == (422, [])
    assert "ended early" in json.loads(answer.body)["detail"]


@pytest.mark.parametrize("client", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_loopback_may_tell(app: App, client: str) -> None:
    assert app.post(b'{"in_flight": 3}', client).status == 204


@pytest.mark.parametrize("client", ["10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "0.0.0.0", "localhost", "", None])
def test_others_may_not_tell(app: App, client: str | None) -> None:
    answer = app.post(b'{"in_flight": 3}', client)
    assert (answer.status, app.pushed) == (403, [])
    assert "loopback" in json.loads(answer.body)["detail"]


def test_many_sources_do_not_fill_the_memory() -> None:
    in_flight = InFlight()
    app = App(fixed.state(), set_in_flight=in_flight.set)
    answers = [app.post(b'{"in_flight": 1, "source": "proxy-%d"}' % number) for number in range(MOST_SOURCES + 2)]
    assert [answer.status for answer in answers] == [204] * MOST_SOURCES + [422] * 2
    assert str(MOST_SOURCES) in json.loads(answers[-1].body)["detail"]
    assert len(in_flight.sources) == in_flight.total == MOST_SOURCES
    assert app.post(b'{"in_flight": 5, "source": "proxy-0"}').status == 204  # those that are known go on
    assert in_flight.total == MOST_SOURCES + 4


# ---- a real server and clients that misbehave

IDLE = 0.2
SOON = 5.0

Client = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@asynccontextmanager
async def serving(most_connections: int = 32, fail_status: int = 503) -> AsyncIterator[Client]:
    sock = server.bind("127.0.0.1", 0)
    stop = asyncio.Event()
    prepared = server.prepare(App(fixed.state(), fail_status).asgi, most_connections)
    task = asyncio.create_task(prepared.serve(sock, stop))
    opened: list[asyncio.StreamWriter] = []

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        opened.append(writer)
        return reader, writer

    try:
        yield connect
    finally:
        stop.set()
        async with asyncio.timeout(SOON):
            await task
        for writer in opened:
            writer.close()


async def ask(connect: Client, path: bytes = b"/livez") -> int:
    reader, writer = await connect()
    writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    status = int((await reader.readline()).split()[1])
    await reader.read()
    writer.close()
    return status


async def answered(connect: Client) -> None:
    """Ask until the page is served; in_time() is the deadline."""
    while await ask(connect) != 200:  # noqa: ASYNC110 - nothing in the server tells when
        await asyncio.sleep(0.02)


def in_time(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(SOON):
            await work()

    asyncio.run(bounded())


_WHOLE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
_HALF_A_BODY = b"POST /requests-in-flight HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
#: What a client sends before it falls silent.
SILENCES = {
    "nothing": b"",
    "half a request line": b"GET /li",
    "half a header": b"GET /livez HTTP/1.1\r\nHost: x\r\nX-A",
    "half a body": _HALF_A_BODY,
    "a whole request": _WHOLE,
    "one and a half requests": _WHOLE + b"GET /li",
    "a request and half a body": _WHOLE + _HALF_A_BODY,
}


@pytest.mark.parametrize("sent", SILENCES)
def test_a_client_that_falls_silent_is_given_up(sent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", IDLE)
    monkeypatch.setattr(server, "REQUEST_SECONDS", IDLE)
    ended = False

    async def work() -> None:
        nonlocal ended
        async with serving() as connect:
            reader, writer = await connect()
            writer.write(SILENCES[sent])
            try:
                async with asyncio.timeout(IDLE * 5):
                    await reader.read()
                ended = True
            except ConnectionResetError:
                ended = True
            except TimeoutError:
                writer.transport.abort()  # or the server would wait for it at its end

    in_time(work)
    assert ended


def test_a_client_that_drips_for_ever_is_given_up_although_it_is_never_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", IDLE)

    async def work() -> None:
        async with serving() as connect:
            reader, writer = await connect()
            writer.write(b"GET /livez HTTP/1.1\r\nX: ")
            while not reader.at_eof() and reader.exception() is None:  # in_time() is the deadline
                writer.write(b"x")
                await asyncio.sleep(IDLE / 10)

    in_time(work)


def test_a_connection_may_rest_longer_between_two_requests_than_a_request_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", IDLE / 3)

    async def work() -> None:
        async with serving() as connect:
            reader, writer = await connect()
            for _ in range(2):
                writer.write(_WHOLE)
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200")
                assert await reader.readexactly(3) == b"ok\n"
                await asyncio.sleep(IDLE)

    in_time(work)


@pytest.mark.parametrize("path", TABLE)
def test_head_has_the_status_and_the_length_of_get_and_no_body(path: str) -> None:
    async def work() -> None:
        async with serving() as connect:

            async def told(method: str) -> tuple[bytes, bytes]:
                reader, writer = await connect()
                writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
                return re.sub(rb"\r\ndate: [^\r]*", b"", head), body

            (get, page), (head, nothing) = await told("GET"), await told("HEAD")
            assert head == get
            assert b"content-length: %d" % len(page) in get
            assert (bool(page), nothing) == (True, b"")

    in_time(work)


@pytest.mark.parametrize("status", [204, 205, 304])
def test_a_status_that_may_have_no_body_is_no_fail_status(status: int) -> None:
    with pytest.raises(ValueError, match="fail_status"):
        Http(fail_status=status)


def test_a_client_that_drips_byte_by_byte_does_not_keep_others_waiting() -> None:
    async def work() -> None:
        async with serving(most_connections=10) as connect:
            drips = [await connect() for _ in range(6)]
            for byte in b"GET /livez":
                for _, writer in drips:
                    writer.write(bytes([byte]))
                assert await ask(connect) == 200

    in_time(work)


def test_connections_above_the_limit_get_503_until_the_others_leave() -> None:
    async def work() -> None:
        async with serving(most_connections=4) as connect:
            idle = [await connect() for _ in range(4)]
            await asyncio.sleep(0)
            assert await ask(connect) == 503
            for _, writer in idle:
                writer.close()
            await answered(connect)

    in_time(work)


def test_idle_clients_above_the_limit_are_given_up_and_the_page_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", IDLE)

    async def work() -> None:
        async with serving(most_connections=8) as connect:
            for _ in range(20):
                await connect()
            assert await ask(connect) in (200, 503)
            await answered(connect)

    in_time(work)


def test_the_server_ends_although_a_client_holds_its_connection() -> None:
    async def work() -> None:
        async with serving() as connect:
            await connect()
            assert await ask(connect) == 200

    in_time(work)


def test_a_port_that_is_taken_is_an_os_error_and_leaves_no_socket_behind() -> None:
    taken = server.bind("127.0.0.1", 0)
    try:
        with pytest.raises(OSError, match="in use"):
            server.bind("127.0.0.1", taken.getsockname()[1])
    finally:
        taken.close()
