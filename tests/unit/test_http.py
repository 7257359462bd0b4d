"""The pages: status codes, content types, the one endpoint that takes something, and clients that misbehave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import jsonschema
import pytest

from agent.report import Report, to_json
from exporters import server
from exporters.http import HEALTH_TYPE, MOST_BODY_BYTES, MOST_IN_FLIGHT, TEXT_TYPE, Pages, create_app
from exporters.prometheus import CONTENT_TYPE, MetricsPage
from exporters.state import State
from probes import READINGS
from probes.requests import InFlight
from tests.unit.golden import fixed

LOOPBACK = "127.0.0.1"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class App:
    """The application with a state of our choice, called as a server calls it, without one."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.pushed: list[tuple[str, int]] = []
        self.pages = Pages(state, MetricsPage(state, READINGS))
        self.asgi = create_app(self.pages, lambda source, count: self.pushed.append((source, count)), "1.2.3")

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


@pytest.fixture
def starting() -> App:
    return App(State())


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
    assert any(getattr(route, "path", None) == "/metrics" for route in app.asgi.routes)


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


def test_before_the_first_report_health_fails_and_liveness_does_not(starting: App) -> None:
    answer = starting.get("/health")
    assert (answer.status, json.loads(answer.body)["status"]) == (503, "fail")
    assert starting.get("/livez").status == 200
    assert starting.get("/readyz").status == 503
    assert starting.get("/metrics").status == 200
    assert starting.get("/report.txt").body.startswith(b"Starting")


@pytest.mark.parametrize(
    ("report", "alive", "ready"),
    [
        (fixed.healthy(), True, 200),
        (fixed.failing(), True, 200),
        (fixed.healthy(), False, 503),
        (None, True, 503),
    ],
)
def test_ready_is_a_report_and_a_running_child_and_liveness_asks_for_neither(
    report: Report | None, alive: bool, ready: int
) -> None:
    app = App(State(fixed.snapshot(report) if report else None, alive))
    assert app.get("/readyz").status == ready
    assert app.get("/livez").status == 200


@pytest.mark.parametrize("path", ["/health", "/report.txt", "/metrics"])
def test_a_page_is_rendered_anew_only_for_a_new_report(app: App, path: str) -> None:
    def rendered() -> bytes:
        return {"/health": lambda: app.pages.health()[1], "/report.txt": app.pages.text,
                "/metrics": app.pages.metrics.render}[path]()  # fmt: skip

    first = rendered()
    assert rendered() is first
    app.state.snapshot = fixed.snapshot(fixed.healthy(), version=2)
    assert app.get(path).body != first


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
@pytest.mark.parametrize("path", ["/metrics", "/health", "/livez"])
def test_pages_are_only_read(app: App, method: str, path: str) -> None:
    assert app.call(method, path).status == 405


# ---- the schema


def test_the_schema_names_every_endpoint_and_every_answer(app: App, starting: App) -> None:
    document = json.loads(app.get("/openapi.json").body)
    assert set(document["paths"]) == {"/metrics", "/health", "/report.txt", "/livez", "/readyz", "/requests-in-flight"}
    for path in set(document["paths"]) - {"/requests-in-flight"}:
        for which in (app, starting):
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


@pytest.mark.xfail(strict=True, reason="defect: the schema of 503 is the report's; the starting answer is not one")
def test_health_is_what_the_schema_says_before_the_first_report_too(starting: App) -> None:
    answer = starting.get("/health")
    jsonschema.validate(json.loads(answer.body), schema_of(starting, answer.status))


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


@pytest.mark.parametrize("client", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_loopback_may_tell(app: App, client: str) -> None:
    assert app.post(b'{"in_flight": 3}', client).status == 204


@pytest.mark.parametrize("client", ["10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "0.0.0.0", "localhost", "", None])
def test_others_may_not_tell(app: App, client: str | None) -> None:
    answer = app.post(b'{"in_flight": 3}', client)
    assert (answer.status, app.pushed) == (403, [])
    assert "loopback" in json.loads(answer.body)["detail"]


@pytest.mark.xfail(strict=True, reason="defect: InFlight keeps every source for ever: memory without a bound")
def test_many_sources_do_not_fill_the_memory() -> None:
    state, in_flight = fixed.state(), InFlight()
    app = create_app(Pages(state, MetricsPage(state, READINGS)), in_flight.set, "1")
    caller = App(state)
    caller.asgi = app
    for number in range(300):
        caller.post(json.dumps({"in_flight": 0, "source": f"request-{number}"}).encode())
    assert len(in_flight.sources) <= 100


# ---- a real server and clients that misbehave

IDLE = 0.3
SOON = 5.0

Client = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@asynccontextmanager
async def serving(most_connections: int = 32) -> AsyncIterator[Client]:
    sock = server.bind("127.0.0.1", 0)
    stop = asyncio.Event()
    task = asyncio.create_task(server.serve(App(fixed.state()).asgi, sock, stop, most_connections))
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


#: What a client sends before it falls silent.
SILENCES = {
    "nothing": b"",
    "half a request line": b"GET /li",
    "half a header": b"GET /livez HTTP/1.1\r\nHost: x\r\nX-A",
    "half a body": b"POST /requests-in-flight HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
    "a whole request": b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
}
_STUCK = pytest.mark.xfail(
    strict=True, reason="defect: the idle timer is cancelled by the first byte, so a stalled client is kept for ever"
)


@pytest.mark.parametrize(
    "sent",
    [
        "nothing",
        pytest.param("half a request line", marks=_STUCK),
        pytest.param("half a header", marks=_STUCK),
        pytest.param("half a body", marks=_STUCK),
        "a whole request",
    ],
)
def test_a_client_that_falls_silent_is_given_up(sent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", IDLE)
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
            except TimeoutError:
                ended = False

    in_time(work)
    assert ended


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
