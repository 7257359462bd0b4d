"""The trace of a request in the lines that are written because of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporters.failures import MOST_PATH, Failures
from exporters.trace import HEADER, fields

TRACE = "105445aa7843bc8bf206b12000100000"
NAME, SPAN, SAMPLED = (f"logging.googleapis.com/{word}" for word in ("trace", "spanId", "trace_sampled"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"{TRACE}/1;o=1", {NAME: f"projects/p/traces/{TRACE}", SPAN: "0000000000000001", SAMPLED: True}),
        (f"{TRACE}/11803532876627986230;o=0",
         {NAME: f"projects/p/traces/{TRACE}", SPAN: "a3ce929d0e0e4736", SAMPLED: False}),
        (f"{TRACE}/7", {NAME: f"projects/p/traces/{TRACE}", SPAN: "0000000000000007"}),
        (TRACE.upper(), {NAME: f"projects/p/traces/{TRACE}"}),
        (f" {TRACE};o=3 ", {NAME: f"projects/p/traces/{TRACE}", SAMPLED: True}),
        (f"{TRACE}/0;o=2", {NAME: f"projects/p/traces/{TRACE}", SAMPLED: False}),
        (f"{TRACE}/99999999999999999999", {NAME: f"projects/p/traces/{TRACE}"}),
        ("0" * 32, {}),
        (f"{TRACE}0/1", {}),
        (f"{TRACE}/x;o=1", {}),
        ("", {}),
    ],
)  # fmt: skip
def test_the_header_becomes_the_special_fields_of_a_log_line(text: str, wanted: Mapping[str, Any]) -> None:
    assert fields([(b"host", b"x"), (HEADER, text.encode())], "p") == wanted


def test_without_the_header_or_the_project_there_is_no_trace() -> None:
    assert fields([(b"host", b"x")], "p") == {}
    assert fields([(HEADER, TRACE.encode())], "") == {}


@given(st.binary(max_size=200))
def test_whatever_a_client_sends_is_a_trace_or_none(text: bytes) -> None:
    assert set(fields([(HEADER, text)], "p")) <= {NAME, SPAN, SAMPLED}


# ---- the one line that is written because of a request


def serve(app: Any, scope: dict[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    told: list[tuple[str, Mapping[str, Any]]] = []

    async def nothing(*_: Any) -> None: ...

    watched = Failures(app, lambda message, body: told.append((message, body)), "p")
    try:
        asyncio.run(watched(scope, nothing, nothing))
    except LookupError:
        told.append(("raised", {}))
    return told


async def broken(_scope: Any, _receive: Any, _send: Any) -> None:
    raise LookupError("password=hunter2")


async def sound(_scope: Any, _receive: Any, _send: Any) -> None: ...


def request(path: str = "/health") -> dict[str, Any]:
    return {"type": "http", "method": "GET", "path": path, "headers": [(HEADER, f"{TRACE}/1;o=1".encode())]}


def test_a_fault_of_ours_is_reported_with_the_requests_trace_and_goes_its_way() -> None:
    (message, body), (last, _) = serve(broken, request())
    assert message == "GET /health failed: LookupError"
    assert body["httpRequest"] == {"requestMethod": "GET", "requestUrl": "/health", "status": 500}
    assert body[NAME] == f"projects/p/traces/{TRACE}"
    assert last == "raised"


def test_a_long_path_is_cut_and_the_faults_text_is_not_told() -> None:
    (message, body), _ = serve(broken, request("/" + "x" * 9000))
    assert len(message) < MOST_PATH + 40
    assert "hunter2" not in message + str(body)


def test_a_request_that_is_answered_is_not_told() -> None:
    assert serve(sound, request()) == []


def test_a_fault_that_has_no_request_is_not_told_as_one() -> None:
    assert serve(broken, {"type": "lifespan"}) == [("raised", {})]
