"""One request: what goes over the wire, what comes back, and that nothing of it stands in an error."""

from __future__ import annotations

import asyncio
import socket

import pytest

from exporters.push.post import MOST_HEAD_BYTES, Answer, Client, Failed, Request
from tests.unit.exporters.push.receiver import receiving

SECRET = "hunter2-of-the-webhook"  # noqa: S105 - it is the point


def test_what_is_sent_arrives_and_what_is_answered_comes_back() -> None:
    async def run() -> None:
        async with receiving(lambda _: b"HTTP/1.1 429 No\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\nno") as receiver:
            request = Request(f"{receiver.url}/a/b?c=d", {"X-A": "1"}, b"body")
            assert await Client().send(request, 30) == Answer(429, 7.0, b"no")
        (got,) = receiver.got
        assert (got.method, got.path, got.body) == ("POST", "/a/b?c=d", b"body")
        assert got.headers["x-a"] == "1"
        assert got.headers["host"] == f"127.0.0.1:{receiver.port}"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("headers", "told"),
    [({}, "Basic Ym90Om4jIzE="), ({"authorization": "Bearer of the settings"}, "Bearer of the settings")],
)
def test_a_login_in_the_address_is_told_unless_the_settings_have_another(headers: dict[str, str], told: str) -> None:
    async def run() -> None:
        async with receiving(lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as receiver:
            await Client().send(Request(f"http://bot:n%23%231@127.0.0.1:{receiver.port}/", headers), 30)
        (got,) = receiver.got
        assert sum(line.lower().startswith("authorization:") for line in got.lines) == 1
        assert (got.headers["authorization"], got.headers["host"]) == (told, f"127.0.0.1:{receiver.port}")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "before an answer"),
        (b"+PONG\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 abc\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "before an answer"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * MOST_HEAD_BYTES + b"\r\n", "is larger than"),
    ],
)
def test_an_answer_that_is_none_is_a_failure(answer: bytes, said: str) -> None:
    async def run() -> None:
        async with receiving(lambda _: answer) as receiver:
            with pytest.raises(Failed, match=said):
                await Client().send(Request(receiver.url, {}), 30)

    asyncio.run(run())


def test_an_endless_body_is_not_listened_to() -> None:
    async def run() -> None:
        async with receiving(lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n" + b"x" * 99_999) as to:
            assert len((await Client().send(Request(to.url, {}), 30)).body) == 4096

    asyncio.run(run())


@pytest.mark.parametrize(
    "request_",
    [
        Request(f"http://127.0.0.1:1/{SECRET}\r\nHost: evil", {}),
        Request("http://127.0.0.1:9/", {"Authorization": f"{SECRET}\nX: y"}),
        Request(f"ftp://user:{SECRET}@host/", {}),
        Request(f"http://{SECRET}:99999/", {}),
        Request(f"http://[{SECRET}/", {}),
        Request(f"http://127.0.0.1:1/{SECRET}", {"A": SECRET}, SECRET.encode()),
        Request(f"http://{SECRET}.invalid/", {}),
    ],
    ids=range(7),
)
def test_no_failure_tells_a_secret(request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(-2, f"no such name {SECRET}")

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    with pytest.raises(Failed) as failed:
        asyncio.run(Client().send(request_, 30))
    assert SECRET not in str(failed.value)


def test_who_does_not_answer_is_given_up_in_time() -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(Failed, match=r"no answer within 0\.05 s"):
            await Client().send(Request(f"http://127.0.0.1:{silent.getsockname()[1]}/", {}), 0.05)

    asyncio.run(run())


def test_an_address_that_was_found_before_stands_in_for_one_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with receiving() as receiver:
            client, request = Client(), Request(f"http://collector.example:{receiver.port}/", {})
            found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", receiver.port))]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
            await client.send(request, 30)

            def gone(*_: object, **__: object) -> list[object]:
                raise socket.gaierror(-3, "again")

            monkeypatch.setattr(socket, "getaddrinfo", gone)
            await client.send(request, 30)
            assert len(receiver.got) == 2
            with pytest.raises(Failed, match="its name has no address"):
                await Client().send(request, 30)

    asyncio.run(run())


def test_a_name_with_several_addresses_is_tried_until_one_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with receiving() as receiver:
            found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (to, 0)) for to in ("127.0.0.2", "127.0.0.1")]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
            assert (await Client().send(Request(f"http://two.example:{receiver.port}/", {}), 30)).status == 200

    asyncio.run(run())
