"""The pages: status codes, content types, and the one endpoint that takes something."""

from __future__ import annotations

import gzip
import json
from email.utils import formatdate
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.report import Report, to_json
from agent.snapshot import State
from exporters.http import MOST_BODY_BYTES, MOST_IN_FLIGHT
from exporters.metrics_page import CONTENT_TYPE
from exporters.pages import HEALTH_TYPE, HTML_TYPE, PAGE, TABLE, TEXT_TYPE, http_date
from probes.app.in_flight import MOST_SOURCES, InFlight
from tests.unit.exporters.app import HANGS_UP, LOOPBACK, Answer, App
from tests.unit.golden import fixed


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
        ("/", HTML_TYPE),
        ("/timeline", "application/json"),
        ("/page.css", "text/css; charset=utf-8"),
        ("/page.js", "text/javascript; charset=utf-8"),
        ("/livez", TEXT_TYPE),
        ("/readyz", TEXT_TYPE),
        ("/openapi.json", "application/json"),
    ],
)
def test_each_page_says_its_type_and_its_length(app: App, path: str, content_type: str) -> None:
    answer = app.get(path)
    assert answer.headers["content-type"] == content_type
    assert int(answer.headers["content-length"]) == len(answer.body) > 0


@pytest.mark.parametrize("path", TABLE)
def test_no_page_is_stored_by_a_cache(app: App, path: str) -> None:
    assert app.get(path).headers["cache-control"] == "no-store"


def test_metrics_is_a_plain_route_without_a_redirect(app: App) -> None:
    assert app.get("/metrics").status == 200
    assert app.get("/metrics/").status == 404
    assert any(getattr(route, "path", None) == "/metrics" for route in app.api.routes)


@pytest.mark.parametrize("path", ["/nothing", "/health/", "/docs", "/redoc", "/../etc/passwd"])
def test_there_is_nothing_else(app: App, path: str) -> None:
    assert app.get(path).status == 404


@pytest.mark.parametrize(
    ("accepted", "small"),
    [
        ("gzip", True), ("GZIP;q=0.5, identity", True), ("br, gzip ; q=1", True), ("x-gzip", True), ("gzip;q=0.001", True),
        ("", False), ("identity", False), ("gzip;q=0", False), ("gzip; q=0.000", False), ("br", False), ("gzipped", False),
    ],
)  # fmt: skip
def test_metrics_are_compressed_for_those_who_ask_for_it(app: App, accepted: str, small: bool) -> None:
    plain, answer = app.get("/metrics"), app.call("GET", "/metrics", accept_encoding=accepted)
    assert (answer.headers.get("content-encoding") == "gzip") is small
    assert (gzip.decompress(answer.body) if small else answer.body) == plain.body
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert plain.headers["vary"] == answer.headers["vary"] == "accept-encoding"
    assert answer.body is app.call("GET", "/metrics", accept_encoding=accepted).body, "made once for a report"


@pytest.mark.parametrize("path", ["/livez", "/health", "/report.txt"])
def test_the_other_pages_are_sent_as_they_are(app: App, path: str) -> None:
    assert "content-encoding" not in app.call("GET", path, accept_encoding="gzip").headers


@given(seconds=st.integers(0, 4_000_000_000))
def test_a_date_is_written_as_the_standard_library_writes_it(seconds: int) -> None:
    assert http_date(seconds) == formatdate(seconds, usegmt=True)


def test_the_page_for_people_is_the_front_page(app: App) -> None:
    assert app.get("/").body.startswith(b"<!DOCTYPE html>")
    assert b"A CPU limit holds the work back" in app.get("/").body
    assert app.get("/report.txt").body.startswith(b"FAILING")
    assert b"\x1b" not in app.get("/report.txt").body
    assert app.loaded == 0


@pytest.mark.parametrize("report", [fixed.healthy(), fixed.blind(), fixed.failing()], ids=["pass", "warn", "fail"])
def test_health_is_200_whatever_was_found(report: Report) -> None:
    answer = App(fixed.state(report)).get("/health")
    assert answer.status == 200
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


@pytest.mark.parametrize("fail_status", [200, 500])
@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
@pytest.mark.parametrize("path", TABLE)
def test_the_front_and_the_api_give_one_answer(path: str, state: State, fail_status: int) -> None:
    def told(answer: Answer) -> tuple[Any, ...]:
        names = ("content-type", "content-length", "cache-control", "content-security-policy")
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
    ("method", "path", "status", "allow"),
    [
        ("GET", "/nothing", 404, None),
        ("HEAD", "/nothing", 404, None),
        ("POST", "/nothing", 404, None),
        ("GET", "/" + "x" * 10_000, 404, None),
        ("OPTIONS", "*", 404, None),
        ("GET", "/requests-in-flight", 405, "POST"),
        ("OPTIONS", "/requests-in-flight", 405, "POST"),
        ("POST", "/openapi.json", 405, "GET, HEAD"),
        ("OPTIONS", "/metrics", 405, "GET, HEAD"),
        ("POST", "/metrics", 405, "GET, HEAD"),
        ("ABSURD-" + "X" * 1000, "/livez", 405, "GET, HEAD"),
    ],
)
def test_what_there_is_not_is_answered_without_fastapi(
    app: App, method: str, path: str, status: int, allow: str | None
) -> None:
    answer = app.call(method, path)
    assert (answer.status, answer.headers.get("allow"), app.loaded) == (status, allow, 0)
    assert json.loads(answer.body)["detail"]


@pytest.mark.parametrize(("method", "path"), [("GET", "/openapi.json"), ("HEAD", "/openapi.json")])
def test_the_openapi_document_is_the_apis(app: App, method: str, path: str) -> None:
    assert (app.call(method, path).status, app.loaded) == (200, 1)


@pytest.mark.parametrize("path", [*TABLE, "/nothing"])
def test_no_answer_is_taken_for_a_script(app: App, path: str) -> None:
    assert app.get(path).headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("headers", "ends"),
    [
        ({}, False),
        ({"content_length": "0"}, False),
        ({"content_length": "9"}, True),
        ({"transfer_encoding": "chunked"}, True),
    ],
)
def test_a_connection_whose_request_bears_a_body_that_nobody_reads_ends(
    app: App, headers: dict[str, str], ends: bool
) -> None:
    assert (app.call("GET", "/livez", (b"",), LOOPBACK, **headers).headers.get("connection") == "close") is ends


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


@pytest.mark.parametrize("path", ["/", "/health", "/report.txt", "/metrics"])
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


@pytest.mark.parametrize("fail_status", [200, 500])
def test_the_schema_names_every_endpoint_and_every_answer(fail_status: int) -> None:
    app, without_child = App(fixed.state(), fail_status), App(STATES["no child"], fail_status)
    document = json.loads(app.get("/openapi.json").body)
    assert set(document["paths"]) == {*TABLE, "/requests-in-flight"} - {*PAGE}
    for path in set(document["paths"]) - {"/requests-in-flight"}:
        for which in (app, without_child):
            answer = which.get(path)
            said = document["paths"][path]["get"]["responses"][str(answer.status)]
            kind = answer.headers["content-type"].partition(";")[0]
            body = json.loads(answer.body) if kind.endswith("json") else answer.body.decode()
            jsonschema.validate(body, said["content"][kind]["schema"])


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
        (b'{"in_flight": 3.0}', ("pushed", 3)),
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
        (b"[" * 1000, "JSON"),
        (b'{"in_flight":' * 70, "JSON"),
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


def test_every_fault_of_a_body_is_reported_at_once(app: App) -> None:
    detail = json.loads(app.post(b'{"in_flight": -1, "source": "", "x": 1}').body)["detail"]
    assert all(word in detail for word in ("in_flight", "source", "x: no such field"))


def test_a_body_of_the_largest_size_is_read(app: App) -> None:
    assert app.post(b'{"in_flight": 3}'.ljust(MOST_BODY_BYTES)).status == 204


@pytest.mark.parametrize(
    "body", [[b'{"in_flight": 3}'.ljust(MOST_BODY_BYTES + 1)], [b" " * 100] * 20, [b"[" * MOST_BODY_BYTES * 100]]
)
def test_a_body_that_is_too_large_is_refused_whole_or_in_pieces(app: App, body: list[bytes]) -> None:
    answer = app.post(body)
    assert (answer.status, answer.headers["connection"], app.pushed) == (413, "close", [])
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
    assert (answer.status, app.pushed, app.loaded) == (403, [], 0)
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
