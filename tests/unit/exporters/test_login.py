"""Who is let in, how often somebody may be wrong, and that files are read again when they change."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from exporters import login as logins
from exporters import sparing
from exporters.guard import Refusal
from exporters.login import LOOK_SECONDS, SECONDS_PER_WRONG, WRONG_AT_ONCE, Access, Login
from exporters.web_config import WebConfigError
from tests.unit.exporters.app import IDLE
from tests.unit.exporters.web import HASH, PASSWORD, TOKEN, web_config


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def basic(user: str, password: str) -> bytes:
    return b"Basic " + base64.b64encode(f"{user}:{password}".encode())


class Door:
    """A login whose answers are statuses; 0 lets in."""

    def __init__(self, path: Path) -> None:
        self.clock = Clock()
        self.access = Access(path, self.clock)
        self.login = Login(self.access, ("/livez",), self.clock)

    async def ask(self, authorization: bytes | None, path: str = "/metrics", client: str = "10.0.0.1") -> int:
        refusal = await self.refusal(authorization, path, client)
        return refusal.status if refusal else 0

    async def refusal(
        self, authorization: bytes | None, path: str = "/metrics", client: str = "10.0.0.1"
    ) -> Refusal | None:
        headers = {} if authorization is None else {b"authorization": authorization}
        return await self.login.refusal(path, client, headers)


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(web_config(tmp_path))


def told(work: Callable[[], Awaitable[object]]) -> object:
    async def run() -> object:
        return await work()

    return asyncio.run(run())


ASKED: dict[str, tuple[bytes | None, int]] = {
    "nothing": (None, 401),
    "the token": (b"Bearer " + TOKEN.encode(), 0),
    "the token, written otherwise": (b"bearer  " + TOKEN.encode() + b" ", 0),
    "another token": (b"Bearer " + TOKEN.encode() + b"x", 401),
    "no token": (b"Bearer ", 401),
    "the password": (basic("ann", PASSWORD), 0),
    "another password": (basic("ann", "wrong"), 401),
    "the password of another": (basic("bob", PASSWORD), 401),
    "no password": (basic("ann", ""), 401),
    "a password of 73 bytes": (basic("ann", "x" * 73), 401),
    "a password with a zero": (basic("ann", "x\0y"), 401),
    "no colon": (b"Basic " + base64.b64encode(b"ann"), 401),
    "no base64": (b"Basic %%%", 401),
    "no text": (b"Basic " + base64.b64encode(b"\xff:\xff"), 401),
    "another kind": (b"Digest abc", 401),
    "no kind": (b"\xff", 401),
}


@pytest.mark.parametrize("what", ASKED)
def test_only_a_known_login_is_let_in(what: str, door: Door) -> None:
    given, status = ASKED[what]
    assert told(lambda: door.ask(given)) == status


def test_a_refusal_says_what_is_taken_and_nothing_of_what_was_given(door: Door) -> None:
    refusal = told(lambda: door.refusal(basic("ann", "my-other-password")))
    assert isinstance(refusal, Refusal)
    assert refusal.headers == {"www-authenticate": 'Bearer, Basic realm="stallscope", charset="UTF-8"'}
    assert "my-other-password" not in refusal.because
    assert "ann" not in refusal.because


def test_an_open_path_asks_for_nothing(door: Door) -> None:
    assert told(lambda: door.ask(None, "/livez")) == 0


def test_where_only_tokens_are_known_a_password_is_not_even_checked(tmp_path: Path) -> None:
    assert told(lambda: Door(web_config(tmp_path, users="")).ask(basic("ann", PASSWORD))) == 401


def test_a_password_that_was_right_is_not_computed_again(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        assert await door.ask(basic("ann", PASSWORD)) == 0
        monkeypatch.setattr(logins, "_matches", lambda *_: pytest.fail("computed again"))
        assert [await door.ask(basic("ann", PASSWORD)) for _ in range(100)] == [0] * 100

    told(work)


def test_who_is_wrong_too_often_has_to_wait_and_nobody_else(door: Door) -> None:
    async def work() -> None:
        tries = [await door.ask(basic("ann", f"guess {n}")) for n in range(WRONG_AT_ONCE + 5)]
        assert tries == [401] * WRONG_AT_ONCE + [429] * 5
        assert await door.ask(basic("ann", PASSWORD)) == 429
        assert await door.ask(b"Bearer " + TOKEN.encode()) == 0
        assert await door.ask(basic("ann", PASSWORD), client="10.0.0.2") == 0
        assert await door.ask(basic("ann", PASSWORD)) == 0  # it is known by now
        door.clock.now += SECONDS_PER_WRONG + 0.1
        assert [await door.ask(basic("ann", f"more {n}"), client="10.0.0.3") for n in range(2)] == [401, 401]

    told(work)


def test_waiting_gives_a_try_back(door: Door) -> None:
    async def work() -> None:
        for n in range(WRONG_AT_ONCE):
            await door.ask(basic("ann", f"guess {n}"))
        refusal = await door.refusal(basic("ann", PASSWORD))
        assert refusal is not None
        assert 1 <= int(refusal.headers["retry-after"]) <= SECONDS_PER_WRONG
        door.clock.now += SECONDS_PER_WRONG + 0.1
        assert await door.ask(basic("ann", PASSWORD)) == 0

    told(work)


def test_passwords_take_a_bounded_share_of_the_cpu_however_many_ask(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "_matches", lambda *_: (False, 0.25))

    async def work() -> None:
        tries = [await door.ask(basic("ann", "x"), client=f"10.0.{n}.1") for n in range(50)]
        assert tries == [401] * 4 + [429] * 46
        door.clock.now += 26.0  # at 1 % of a core: a quarter of a second more
        assert [await door.ask(basic("ann", "x"), client=f"10.1.{n}.1") for n in range(9)].count(401) <= 2

    told(work)


def test_few_wait_for_a_check_so_that_connections_stay_for_others(door: Door) -> None:
    async def work() -> None:
        asked = [door.ask(basic("ann", f"x{n}"), client=f"10.0.{n}.1") for n in range(20)]
        assert sorted(await asyncio.gather(*asked)) == [401] * logins.MOST_WAITING + [429] * (20 - logins.MOST_WAITING)

    told(work)


def test_memory_of_the_wrong_is_bounded(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "_matches", lambda *_: (False, 0.0))

    async def work() -> None:
        for n in range(1000):
            await door.ask(basic("ann", "x"), client=f"10.{n // 250}.{n % 250}.1")

    told(work)
    assert len(door.login._wrong) == logins.MOST_CLIENTS


def test_wrong_logins_are_one_line_without_the_name_and_without_the_password(
    door: Door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sparing, "BURST_SECONDS", IDLE)

    async def work() -> None:
        for _ in range(5):
            await door.ask(basic("password-typed-as-name", "guess"))
        await asyncio.sleep(2 * IDLE)

    told(work)
    (line,) = caplog.messages
    assert line.partition(" ")[2] == "requests refused for a wrong token, user or password, the last from 10.0.0.1"


def change(path: Path, text: str) -> None:
    before = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(before + 10**9, before + 10**9))  # whatever the file system's clock is worth


def test_a_token_that_is_replaced_is_taken_after_a_look_and_the_old_one_no_longer(tmp_path: Path) -> None:
    door = Door(web_config(tmp_path))
    new = "fedcba9876543210-the-next"

    async def work() -> None:
        change(tmp_path / "token", f"{TOKEN}\n{new}\n")
        assert await door.ask(b"Bearer " + new.encode()) == 401
        door.clock.now += LOOK_SECONDS
        assert [await door.ask(b"Bearer " + each.encode()) for each in (TOKEN, new)] == [0, 0]
        change(tmp_path / "token", new)
        door.clock.now += LOOK_SECONDS
        assert [await door.ask(b"Bearer " + each.encode()) for each in (TOKEN, new)] == [401, 0]

    told(work)


def test_a_user_who_is_taken_out_is_no_longer_let_in_although_the_password_was_right(tmp_path: Path) -> None:
    door = Door(web_config(tmp_path))

    async def work() -> None:
        assert await door.ask(basic("ann", PASSWORD)) == 0
        web_config(tmp_path, users=f'bob = "{HASH}"')
        door.clock.now += LOOK_SECONDS
        assert await door.ask(basic("ann", PASSWORD)) == 401
        assert await door.ask(basic("bob", PASSWORD)) == 0

    told(work)


def test_what_cannot_be_used_any_more_is_told_and_what_was_in_force_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sparing, "BURST_SECONDS", IDLE)
    door = Door(web_config(tmp_path))

    async def work() -> None:
        for text in ("[", "", '[tls_server_config]\ncert_file = "none"'):
            change(tmp_path / "web.toml", text)
            door.clock.now += LOOK_SECONDS
            assert [await door.ask(given) for given in (None, b"Bearer " + TOKEN.encode())] == [401, 0]
        (tmp_path / "web.toml").unlink()
        door.clock.now += LOOK_SECONDS
        assert await door.ask(None) == 401
        await asyncio.sleep(2 * IDLE)

    told(work)
    (line,) = caplog.messages
    assert "what was in force stays" in line


def test_a_start_with_an_unusable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WebConfigError):
        Access(tmp_path / "none.toml")
