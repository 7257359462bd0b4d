"""Requests in flight, by the ASGI and WSGI middleware."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.unit.hooks.python.conftest import Stage
from tests.unit.hooks.python.libraries import queue_handler


def in_flight(stage: Stage) -> int:
    while stage.told() is not None:
        pass
    stage.clock.now += 10
    found: int = stage.message()["in_flight"]
    return found


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_asgi_requests_are_in_flight_until_they_end_or_fail(stage: Stage, kind: str) -> None:
    seen = []

    async def app(scope: dict[str, str], *_: object) -> None:
        seen.append(in_flight(stage))
        if len(seen) == 2:
            raise LookupError
        await wrapped(scope, None, None)

    wrapped = stage.module.asgi(app)
    assert in_flight(stage) == 0
    with pytest.raises(LookupError):
        asyncio.run(wrapped({"type": kind}, None, object()))
    assert seen == [1, 2]
    assert in_flight(stage) == 0


def test_the_first_request_and_the_end_of_the_last_are_reported_at_once_with_what_was_reported_last(
    stage: Stage,
) -> None:
    handler = queue_handler()
    stage.module.asgi(None)
    (waiting,) = stage.message()["queues"]
    stage.hook.begin("a")
    stage.hook.begin("b")
    first = stage.told()
    assert first is not None
    assert (first["in_flight"], first["queues"], first["pid"]) == (1, [waiting], os.getpid())
    stage.hook.end("a")
    assert stage.told() is None
    stage.hook.end("b")
    last = stage.told()
    assert last is not None
    assert (last["in_flight"], last["queues"]) == (0, [waiting])
    stage.hook.end("b")
    assert stage.told() is None
    assert handler


def test_a_request_ends_with_its_response_and_before_the_platform_knows(stage: Stage) -> None:
    """What the app does after its response is no request for a platform that takes the CPU away then."""
    seen: list[tuple[str, int]] = []

    async def app(_scope: object, _receive: object, send: Any) -> None:
        await send({"type": "http.response.start"})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": b"b"})
        seen.append(("after", len(stage.hook.requests)))

    async def send(message: dict[str, Any]) -> None:
        told = stage.told()
        seen.append((message.get("body", b"").decode(), -1 if told is None else told["in_flight"]))

    asyncio.run(stage.module.asgi(app)({"type": "http"}, None, send))
    assert seen == [("", 1), ("a", -1), ("b", 0), ("after", 0)]
    assert stage.told() is None


@pytest.mark.parametrize("message", [None, "text", {}, {"type": "http.response.body", "more_body": True}])
def test_what_an_app_sends_is_handed_on_whatever_it_is(stage: Stage, message: object) -> None:
    sent = []

    async def app(_scope: object, _receive: object, send: Any) -> None:
        await send(message)

    async def send(message: object) -> None:
        sent.append((message, len(stage.hook.requests)))

    asyncio.run(stage.module.asgi(app)({"type": "http"}, None, send))
    assert sent == [(message, 1)]


def test_requests_that_come_and_go_all_the_time_are_reported_twice_a_second(stage: Stage) -> None:
    stage.module.asgi(None)
    for _ in range(1000):
        stage.clock.now += 0.01
        stage.hook.begin("a")
        stage.hook.end("a")
    told = sum(stage.told() is not None for _ in range(2000))
    assert told <= stage.module.AT_ONCE + 10 / stage.module.SOON_SECONDS
    assert stage.woken.is_set()  # the thread says what it is in the end
    stage.hook.turn(late=True)
    last = stage.told()
    assert last is not None
    assert last["in_flight"] == 0


def test_a_file_is_never_written_by_the_thread_that_serves_a_request(stage: Stage, tmp_path: Path) -> None:
    stage.module.asgi(None)
    stage.hook.target = "file", str(tmp_path / "hook")
    stage.hook.begin("a")
    assert list(tmp_path.glob("hook*")) == []
    assert stage.woken.is_set()
    stage.hook.turn(late=True)
    assert json.loads((tmp_path / f"hook.{os.getpid()}").read_text())["in_flight"] == 1


def test_while_the_hook_looks_a_request_does_not_wait_for_it(stage: Stage) -> None:
    stage.module.asgi(None)
    with stage.hook._lock:
        stage.hook.begin("a")
    assert stage.told() is None
    assert stage.woken.is_set()


def test_there_is_no_word_after_the_last_one(stage: Stage) -> None:
    stage.module.asgi(None)
    stage.hook.begin("a")
    stage.told()
    assert stage.message(last=True)["in_flight"] == 1
    stage.hook.end("a")
    stage.hook.begin("b")
    assert stage.told() is None


def test_that_the_last_request_ended_is_reported_at_the_next_look_too(stage: Stage) -> None:
    stage.module.asgi(None)
    stage.hook.requests["a"] = None
    assert stage.message()["in_flight"] == 1
    stage.hook.requests.clear()
    stage.clock.now += 2
    assert stage.message()["in_flight"] == 0
    stage.clock.now += 2
    stage.look()
    assert stage.told() is None


def test_asgi_s_lifespan_is_no_request(stage: Stage) -> None:
    seen = []

    async def app(*_: object) -> None:
        seen.append(in_flight(stage))

    asyncio.run(stage.module.asgi(app)({"type": "lifespan"}, None, None))
    assert seen == [0]


def test_a_wsgi_response_that_is_there_at_once_is_handed_on_as_it_is(stage: Stage) -> None:
    body = [b"whole"]
    assert stage.module.wsgi(lambda *_: body)({}, None) is body
    assert in_flight(stage) == 0


def test_a_file_that_the_server_sends_itself_is_handed_on_as_it_is(stage: Stage) -> None:
    class Wrapper:
        pass

    body = Wrapper()
    assert stage.module.wsgi(lambda *_: body)({"wsgi.file_wrapper": Wrapper}, None) is body
    assert in_flight(stage) == 0
    own = stage.module.wsgi(lambda *_: body)(
        {"wsgi.file_wrapper": lambda _: body}, None
    )  # some servers have a function
    assert own is not body
    own.close()


def test_a_wsgi_response_that_is_made_while_it_is_sent_is_in_flight_until_it_is_closed(stage: Stage) -> None:
    closed = []

    def pieces() -> Iterator[bytes]:
        try:
            yield b"a"
            yield b"b"
        finally:
            closed.append(True)

    body = stage.module.wsgi(lambda *_: pieces())({}, None)
    assert in_flight(stage) == 1
    assert list(body) == [b"a", b"b"]
    assert in_flight(stage) == 1
    body.close()
    body.close()
    assert in_flight(stage) == 0
    assert closed == [True]
    unread = stage.module.wsgi(lambda *_: pieces())({}, None)
    unread.close()
    assert in_flight(stage) == 0


def test_a_wsgi_app_that_fails_is_no_longer_in_flight(stage: Stage) -> None:
    def app(*_: object) -> NoReturn:
        raise LookupError

    with pytest.raises(LookupError):
        stage.module.wsgi(app)({}, None)
    assert in_flight(stage) == 0
