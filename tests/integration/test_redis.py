"""A real Redis, asked: innocent with a number, guilty by its own count, and everything that can be in the way."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

import pytest

from agent.history import History
from agent.rules import BY_ID
from agent.rules.rule import Absent, Judgement, Present, Unknown
from probes.reading import Code
from probes.redis.probe import RedisProbe
from probes.redis.reading import RedisReading
from probes.sockets.connections import ConnectionsProbe
from tests.lab import Unavailable
from tests.lab.redis import Redis
from tests.lab.tcp_proxy import TcpProxy

HERE, CACHE = "127.0.0.1", "cache"
PASSWORD = "s3cr3t-of-the-test"  # noqa: S105
TIMEOUT = 1.0


@contextmanager
def started(**options: object) -> Iterator[Redis]:
    try:
        with Redis(**options) as running:  # type: ignore[arg-type]
            yield running
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    with started() as running:
        yield running


class Watch:
    """A probe with its history; slots come at once, and past every pause."""

    def __init__(self, url: str, **options: object) -> None:
        self.history = History(600.0)
        self._now = 0.0
        self.probe = RedisProbe(CACHE, lambda: url, timeout=TIMEOUT, clock=lambda: self._now, **options)  # type: ignore[arg-type]

    def slots(
        self, count: int, between: Callable[[], object] = lambda: None, every: float = 20.0
    ) -> list[RedisReading]:
        return asyncio.run(self._slots(count, between, every))

    async def _slots(self, count: int, between: Callable[[], object], every: float) -> list[RedisReading]:
        found = []
        try:
            for _ in range(count):
                await asyncio.to_thread(between)
                found.append(await self.probe.read())
                self.history.add(found[-1])
                self._now += every
        finally:
            await self.probe.aclose()
        return found

    def judge(self, rule: str) -> Judgement:
        return BY_ID[rule].judge(self.history)


@pytest.mark.core
@pytest.mark.timing(
    reason="a Redis that the machine holds for 10 ms counts a slow command, and is then rightly not cleared"
)
def test_a_healthy_redis_is_cleared_with_its_number(server: Redis) -> None:
    watch = Watch(server.url)
    readings = watch.slots(4)
    last = readings[-1]
    assert last.up
    assert last.direct, "the server sees this very connection"
    assert last.standstill_ratio == 0.0
    assert last.slow_commands == 0.0
    assert last.clients is not None
    wall, parts = (last.round_trip_seconds or {})["short"], 0.0
    for part in ("network", "server", "suspended", "client", "unknown"):
        parts += getattr(last, f"{part}_seconds")["short"]
    assert parts == pytest.approx(wall)
    told = watch.judge("redis_slow")
    assert isinstance(told, Absent), told
    assert re.search(r"Redis 'cache' answered \d+ PINGs in [\d.]+ ms", told.because)
    assert isinstance(watch.judge("redis_unreachable"), Absent)
    assert not isinstance(watch.judge("network_slow"), Present)


def test_scripts_of_another_client_convict_it_by_its_own_count(server: Redis) -> None:
    watch = Watch(server.url)
    watch.slots(1)
    script = server.hold(300, 8, 0.05)
    try:
        watch.slots(5, every=0.6)
    finally:
        script.kill()
        script.wait()
    told = watch.judge("redis_slow")
    assert isinstance(told, Present), told
    assert "EVAL" in told.evidence[0].text
    assert "tonumber" not in repr(told), "a command's name, and never its arguments"


def test_a_slow_proxy_is_the_network_and_not_the_redis(server: Redis) -> None:
    with TcpProxy(HERE, server.port) as proxy:
        proxy.delay(0.015)
        watch = Watch(f"redis://{HERE}:{proxy.port}")
        readings = watch.slots(4)
    assert readings[-1].direct is False
    told = watch.judge("network_slow")
    assert isinstance(told, Present), told
    assert "a proxy is in between" in told.evidence[1].text
    # Where the proxy itself waits for a CPU its PINGs come late: that clears nobody, and convicts nobody either.
    assert not isinstance(watch.judge("redis_slow"), Present)


def test_stopped_and_killed_it_is_unreachable_until_it_answers_again() -> None:
    with started() as redis:
        watch = Watch(redis.url)
        watch.slots(1)
        redis.server.send_signal(signal.SIGSTOP)
        assert watch.slots(2)[-1].failures == {"timeout": 1.0}
        told = watch.judge("redis_unreachable")
        assert isinstance(told, Present), told
        redis.server.send_signal(signal.SIGCONT)
        assert watch.slots(1)[-1].up
        assert isinstance(watch.judge("redis_unreachable"), Absent)
        redis.kill()
        assert watch.slots(2)[-1].failures == {"refused": 1.0}
        assert isinstance(watch.judge("redis_unreachable"), Present)
        redis.start()
        assert watch.slots(1)[-1].up
        assert isinstance(watch.judge("redis_unreachable"), Absent)


def test_it_is_asked_again_within_15_seconds_of_an_outage() -> None:
    with started() as redis:
        watch = Watch(redis.url)
        redis.kill()
        watch.slots(20, every=10.0)
        assert watch.probe.sooner is not None
        redis.start()
        assert [each.up for each in watch.slots(2, every=10.0)].count(True) >= 1


def test_passwords_wrong_missing_and_right() -> None:
    with started(password=PASSWORD) as redis:
        for url in (f"redis://{HERE}:{redis.port}", f"redis://:wrong@{HERE}:{redis.port}"):
            watch = Watch(url)
            readings = watch.slots(3)
            assert readings[0].failures == {"authentication": 1.0}
            told = watch.judge("redis_unreachable")
            assert isinstance(told, Unknown), told
            assert PASSWORD not in repr(readings)
        assert Watch(redis.url).slots(1)[-1].up
        assert Watch(f"unix://{redis.socket}?password={PASSWORD}").slots(1)[-1].up


def test_a_user_without_info_still_clears_it_by_its_answers() -> None:
    with started() as redis:
        redis.ask("ACL", "SETUSER", "few", "on", ">pw", "+ping")
        watch = Watch(f"redis://few:pw@{HERE}:{redis.port}")
        last = watch.slots(4)[-1]
    assert last.up
    for field in ("standstill_ratio", "slow_commands", "clients", "busy_ratio"):
        assert getattr(last, field) is None
        assert last.unseen[field].code is Code.NOT_PERMITTED, last.unseen
    assert isinstance(watch.judge("redis_slow"), Absent)


def test_info_and_slow_log_that_were_renamed_are_unknown_with_the_reason() -> None:
    with started(settings=["--rename-command", "INFO", "", "--rename-command", "SLOWLOG", "x"]) as redis:
        last = Watch(redis.url).slots(2)[-1]
    assert last.up
    assert last.unseen["clients"].code is Code.CANNOT_COUNT
    assert last.unseen["standstill_ratio"].code is Code.CANNOT_COUNT


def test_over_tls_the_arrival_is_seen_and_a_wrong_certificate_is_said() -> None:
    with started(tls=True) as redis:
        last = Watch(redis.url).slots(2)[-1]
        (strict,) = Watch(f"rediss://{HERE}:{redis.port}").slots(1)
        (loose,) = Watch(f"rediss://{HERE}:{redis.port}?ssl_cert_reqs=none").slots(1)
        (plain,) = Watch(f"redis://{HERE}:{redis.port}").slots(1)
        (lost,) = Watch(f"rediss://{HERE}:{redis.port}?ssl_ca_certs=/no/such/file").slots(1)
    assert lost.failures == {"configuration": 1.0}
    assert last.up, last.because
    assert last.method == {"kernel timestamps": 1.0}
    assert (last.connect_seconds or {})["tls"] > 0
    assert strict.failures == {"tls": 1.0}
    assert loose.up
    assert plain.failures == {"closed": 1.0}


@pytest.mark.usefixtures("netlink")
def test_consumers_of_a_queue_do_not_wait_for_it(server: Redis) -> None:
    """By the sockets alone nobody knows; with Redis' own count they are cleared."""

    async def look(watch: Watch, role: bool) -> None:
        named = {CACHE: [(HERE, server.port)]} if role else {}
        sockets = ConnectionsProbe((), named, samples=3, services={server.port: "redis"})
        for _ in range(4):
            watch.history.add(await sockets.read())
            if role:
                watch.history.add(await watch.probe.read())
            await asyncio.sleep(0.5)
        await watch.probe.aclose()

    waiting = [server.client("-r", "-1", "BLPOP", "queue", "1") for _ in range(2)]
    try:
        for role, verdict in ((False, Unknown), (True, Absent)):
            watch = Watch(server.url)
            watch.history = History(600.0)
            asyncio.run(look(watch, role))
            told = watch.judge("waiting_for_database")
            assert isinstance(told, verdict), told
            assert "Redis" in told.because
    finally:
        for each in waiting:
            each.kill()
            each.wait()


# ---- a stranger at the address


@contextmanager
def stranger(*says: bytes) -> Iterator[str]:
    """Yields the URL of a listener that answers so, again and again, whatever it is asked."""
    with socket.create_server((HERE, 0)) as listener:
        threading.Thread(target=_serve, args=(listener, says), daemon=True).start()
        yield f"redis://{HERE}:{listener.getsockname()[1]}"


def _serve(listener: socket.socket, says: Sequence[bytes]) -> None:
    while True:
        try:
            connection = listener.accept()[0]
        except OSError:
            return
        with closing(connection):
            connection.settimeout(2 * TIMEOUT)
            try:
                while connection.recv(4096):
                    for each in says:
                        connection.sendall(each)
            except OSError:
                pass


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ((b"HTTP/1.1 400 Bad Request\r\n\r\n",), "malformed"),
        ((b"$900000000\r\n",), "malformed"),
        ((b"*1\r\n" * 100,), "malformed"),
        ((b"$1000000\r\n", b"x" * 2_000_000), "malformed"),
        ((b"-LOADING Redis is loading the dataset in memory\r\n",), "starting"),
        ((b"-BUSY Redis is busy running a script\r\n",), "script"),
        ((b"-DENIED Redis is running in protected mode\r\n",), "access"),
        ((b"-ERR max number of clients reached\r\n",), "too many connections"),
        ((b"+OK\r\n" * 2,), "malformed"),
        ((b"$5\r\nab",), "timeout"),
    ],
    ids=lambda each: repr(each[0][:12]) if isinstance(each, tuple) else each,
)
def test_whatever_a_stranger_says_is_a_reading(says: tuple[bytes, ...], reason: str) -> None:
    with stranger(*says) as url:
        (reading,) = Watch(url).slots(1)
    assert not reading.up
    assert reading.failures == {reason: 1.0}, reading.because
