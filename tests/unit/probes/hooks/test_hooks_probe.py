"""The hooks' probe with real sockets and files: what is heard, what is refused, and what a flood costs."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from probes.app.in_flight import InFlight
from probes.hooks.listener import MOST_NAMES as MOST_FILE_NAMES
from probes.hooks.listener import MOST_PER_SECOND, REST_SECONDS, Place, parse_place
from probes.hooks.message import MOST_BYTES
from probes.hooks.probe import HooksProbe
from probes.hooks.state import AGAIN_SECONDS, MOST_PROCESSES, SILENT_SECONDS
from probes.labels import MOST_HELD, OTHER
from probes.reading import NoData
from tests.unit.builders import FakeClock

UDP = Place("udp", host="127.0.0.1")


def told(name: str = "orders", pid: int = 1, **fields: Any) -> bytes:
    queues = [{"queue": "q", "kind": "pino", "entries": 3, "arrived": 10}]
    return json.dumps({"v": 1, "pid": pid, "name": name, "queues": queues, **fields}).encode()


class Heard:
    """A probe that listens, and a sender."""

    def __init__(self, *places: Place, clock: FakeClock | None = None, in_flight: InFlight | None = None) -> None:
        self.clock = clock or FakeClock()
        self.probe = HooksProbe(places or (UDP,), in_flight, clock=self.clock, wall=self.clock)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    async def silence(self) -> NoData:
        """Nothing is told: the first look says that nothing is left, the next that there is no data."""
        try:
            reading = await self.probe.read()
        except NoData as reason:
            return reason
        assert (reading.entries, reading.lost_at_exit, reading.ignored) == (None, {}, 0)
        with pytest.raises(NoData) as caught:
            await self.probe.read()
        return caught.value

    def send(self, *messages: bytes) -> None:
        for data in messages:
            self._socket.sendto(data, ("127.0.0.1", self.probe.sockets.ports[0]))

    async def aclose(self) -> None:
        self._socket.close()
        await self.probe.aclose()


def hearing(test: Callable[[Heard], Awaitable[None]], *places: Place, in_flight: InFlight | None = None) -> None:
    async def run() -> None:
        heard = Heard(*places, in_flight=in_flight)
        try:
            assert await heard.silence()
            await test(heard)
        finally:
            await heard.aclose()

    asyncio.run(run())


# ---- where to listen


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("udp:127.0.0.1:9769", Place("udp", host="127.0.0.1", port=9769)),
        ("127.0.0.1:9769", Place("udp", host="127.0.0.1", port=9769)),
        ("localhost:1", Place("udp", host="127.0.0.1", port=1)),
        ("udp:127.9.9.9:0", Place("udp", host="127.9.9.9")),
        ("udp:[::1]:9769", Place("udp", host="::1", port=9769)),
        ("unix:/run/hook.sock", Place("unix", "/run/hook.sock")),
        ("file:/run/hooks/stallscope", Place("file", "/run/hooks/stallscope")),
    ],
)
def test_a_place_is_understood(text: str, place: Place) -> None:
    assert parse_place(text) == place


@pytest.mark.parametrize(
    "text",
    [
        "", "udp:", "9769", "udp:9769", "0.0.0.0:9769", "udp:10.0.0.1:9769", "udp:[::]:9769", "udp:example.org:9769",
        "udp:127.0.0.1:65536", "udp:127.0.0.1:-1", "udp:127.0.0.1:", "udp:127.0.0.1:²", "unix:", "unix:hook.sock", "unix:/",
        "unix:/run/", "file:hooks", "unix:/" + "x" * 100, "tcp:127.0.0.1:9769",
    ],
)  # fmt: skip
def test_only_what_is_on_this_machine_is_a_place(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_place(text)


# ---- what is heard


def test_before_anything_is_heard_the_reason_and_the_remedy_are_given() -> None:
    async def test(heard: Heard) -> None:
        silence = await heard.silence()
        assert "30 s" in silence.because
        assert "STALLSCOPE_HOOK" in silence.remedy

    hearing(test)


def test_a_queue_is_reported_with_its_process_its_kind_and_where_it_is() -> None:
    async def test(heard: Heard) -> None:
        heard.send(told())
        reading = await heard.probe.read()
        assert reading.entries == {"orders/q": 3}
        assert reading.kinds == {"orders/q": "pino"}
        assert reading.backing["orders/q"].medium == "memory"
        assert (reading.target, reading.left_out, reading.ignored) == ("hooks", 0, 0)

    hearing(test)


def test_a_datagram_is_taken_when_it_comes_and_requests_in_flight_are_handed_on_at_once() -> None:
    flight = InFlight()

    async def test(heard: Heard) -> None:
        for count in (2, 5, 0):
            heard.send(told(in_flight=count))
            for _ in range(200):
                if flight.sources and flight.total == count:
                    break
                await asyncio.sleep(0.01)
            assert flight.total == count
        assert flight.sources == ("hook:orders",)
        assert [t.in_flight for t in flight.take()] == [2, 5, 0]

    hearing(test, in_flight=flight)


def test_who_is_silent_has_no_requests_in_flight_and_the_source_is_forgotten() -> None:
    flight = InFlight()

    async def test(heard: Heard) -> None:
        heard.send(told(in_flight=2, queues=[]))
        await heard.probe.read()
        assert flight.total == 2
        heard.clock.advance(SILENT_SECONDS + 1)
        await heard.silence()
        assert flight.sources == ()

    hearing(test, in_flight=flight)


def test_more_programs_than_there_are_sources_of_requests_do_no_harm() -> None:
    flight = InFlight()

    async def test(heard: Heard) -> None:
        for n in range(30):
            heard.send(told(f"n{n}", in_flight=1))
        reading = await heard.probe.read()
        assert reading.entries is not None
        assert len(reading.entries) == 30
        assert flight.total == 16

    hearing(test, in_flight=flight)


def test_pools_are_for_whoever_asks() -> None:
    async def test(heard: Heard) -> None:
        heard.clock.advance(SILENT_SECONDS)
        heard.send(told(pool={"main": {"size": 5, "waiting": 2, "acquires": 900}}))
        await heard.probe.read()
        assert heard.probe.pools == {"orders/main": {"size": 5, "waiting": 2, "acquires": 900}}

    hearing(test)


@pytest.mark.parametrize(
    ("log", "gap"),
    [
        ({"known": ["winston"]}, ""),
        ({"known": [], "elsewhere": []}, ""),
        ({"known": [], "elsewhere": ["http"]}, "no logger that its hook knows was found in process 'orders' (7), and it sends by http"),
        ({"known": ["winston"], "unread": ["winston's Loki"]}, "winston's Loki in process 'orders' (7): what waits there its hook cannot read"),
        (None, "no log queue was found in process 'orders' (7), and its hook is too old to tell"),
    ],
    ids=["its logger is known", "it sends nothing", "it sends, and no logger is known", "one logger is not read", "an older hook"],
)  # fmt: skip
def test_a_hook_that_speaks_is_never_called_silent_and_says_what_it_does_not_know(
    log: dict[str, Any] | None, gap: str
) -> None:
    async def test(heard: Heard) -> None:
        more: dict[str, Any] = {} if log is None else {"log": {"hook": "node", **log}}
        heard.send(told(pid=7, queues=[], **more))
        reading = await heard.probe.read()
        assert reading.loggers["orders"].gap("orders").startswith(gap)
        assert reading.loggers["orders"].complete == (not gap)
        assert reading.blind_spots.get("entries", "").startswith(gap)
        assert "spoken" not in reading.unseen["entries"]

    hearing(test)


def test_of_several_processes_of_a_name_the_one_that_knows_least_is_reported() -> None:
    async def test(heard: Heard) -> None:
        for pid, unread in ((1, []), (2, ["Shipping"]), (3, [])):
            heard.send(told(pid=pid, log={"hook": "python", "known": ["StreamHandler"], "unread": unread}))
        assert (await heard.probe.read()).loggers["orders"].pid == 2

    hearing(test)


def test_an_older_hook_knows_what_it_has_a_queue_of_but_everybody_has_a_standard_output() -> None:
    async def test(heard: Heard) -> None:
        heard.send(told("old"), told("older", queues=[{"queue": "stdout", "kind": "stdout", "bytes": 0}]))
        loggers = (await heard.probe.read()).loggers
        assert {name: each.complete for name, each in loggers.items()} == {"old": True, "older": False}

    hearing(test)


def test_processes_beyond_those_that_are_heard_are_counted() -> None:
    async def test(heard: Heard) -> None:
        for pid in range(1, MOST_PROCESSES + 7):
            heard.send(told(pid=pid))
            if pid % MOST_PER_SECOND == 0:
                await heard.probe.read()
                heard.clock.advance(REST_SECONDS)
        reading = await heard.probe.read()
        assert (reading.unheard, reading.ignored) == (6, 6)
        assert reading.unseen["ignored"] == f"the last one: it is of one process too many: {MOST_PROCESSES} are heard"

    hearing(test)


def test_messages_that_the_kernel_threw_away_are_counted_too() -> None:
    async def test(heard: Heard) -> None:
        for _ in range(1000):
            heard.send(told().ljust(MOST_BYTES))
        reading = await heard.probe.read()
        assert (reading.overflowed or 0) > 500
        assert (await heard.probe.read()).overflowed == 0

    hearing(test)


def test_the_last_word_of_a_process_is_reported_although_nobody_speaks_any_more() -> None:
    async def test(heard: Heard) -> None:
        heard.send(told(), told(exit={"pending": 3}))
        reading = await heard.probe.read()
        assert (reading.lost_at_exit, reading.entries) == ({"orders": 3}, None)
        assert "30 s" in reading.unseen["entries"]
        await heard.silence()

    hearing(test)


# ---- what is refused


def test_what_is_no_message_is_counted_with_the_reason_and_the_rest_is_heard() -> None:
    async def test(heard: Heard) -> None:
        heard.send(b"hello", b"", told(), b"[" * MOST_BYTES, told("billing").ljust(MOST_BYTES + 1))
        reading = await heard.probe.read()
        assert (reading.ignored, reading.entries) == (4, {"orders/q": 3})
        assert reading.unseen["ignored"] == f"the last one: larger than {MOST_BYTES} bytes"
        assert (await heard.probe.read()).ignored == 0

    hearing(test)


def test_names_that_change_with_every_message_run_out_of_labels() -> None:
    async def test(heard: Heard) -> None:
        seen: set[str] = set()
        lost: set[str] = set()
        for turn in range(15):
            heard.clock.advance(SILENT_SECONDS + 1)
            heard.send(
                *(told(f"a{turn}-{n}") for n in range(20)),
                *(told(f"b{turn}-{n}", exit={"pending": 1}) for n in range(20)),
            )
            reading = await heard.probe.read()
            seen |= (reading.entries or {}).keys()
            lost |= (reading.lost_at_exit or {}).keys()
        assert len((seen | lost) - {OTHER}) <= MOST_HELD
        assert reading.lost_at_exit == {OTHER: 20}  # nobody's loss goes untold
        assert reading.left_out == 40

    hearing(test)


@pytest.mark.parametrize("size", [1, MOST_BYTES], ids=["small", "large"])
def test_a_flood_is_taken_at_a_bounded_rate_and_then_honest_messages_are_heard_again(size: int) -> None:
    async def test(heard: Heard) -> None:
        for second in range(1, 4):
            heard.send(*[b"x" * size] * 200)
            for _ in range(5):
                heard.probe.sockets.drain()
                await asyncio.sleep(0)
            most = second * (MOST_PER_SECOND // (1 + size // 1024) + 1)
            assert most / 2 < heard.probe._ignored <= most
            heard.clock.advance(REST_SECONDS)
        for _ in range(600):  # what the flood left in the buffer goes first
            heard.probe.sockets.drain()
            heard.clock.advance(REST_SECONDS)
        heard.send(told())
        assert (await heard.probe.read()).entries == {"orders/q": 3}

    hearing(test)


def test_while_it_rests_the_socket_does_not_keep_the_loop_busy() -> None:
    async def test(heard: Heard) -> None:
        heard.send(*[b"x"] * 200)
        heard.probe.sockets.drain()
        turns = 0
        assert heard.probe.sockets._listeners[UDP].socket.recv(1) == b"x"  # more is there
        clock = heard.clock

        def counted() -> float:
            nonlocal turns
            turns += 1
            return clock()

        heard.probe.sockets._listeners[UDP]._clock = counted
        for _ in range(50):
            await asyncio.sleep(0)
        assert turns < 3

    hearing(test)


def test_after_a_rest_the_socket_is_read_again_without_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probes.hooks.listener.REST_SECONDS", 0.02)

    async def test(heard: Heard) -> None:
        heard.send(*[b"x"] * (MOST_PER_SECOND + 5), told())
        await heard.probe.read()
        assert heard.probe.state.in_flight() == {}
        for _ in range(300):
            heard.clock.advance(1.0)
            if heard.probe.state._heard:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the message after the flood was not heard")

    hearing(test)


# ---- sockets that cannot be had


def test_a_port_that_is_taken_is_no_data_and_is_tried_again() -> None:
    async def test(heard: Heard) -> None:
        place = Place("udp", host="127.0.0.1", port=heard.probe.sockets.ports[0])
        second = Heard(place)
        because = (await second.silence()).because
        assert because == f"udp:127.0.0.1:{place.port}: Address already in use"
        await heard.aclose()
        assert "30 s" in (await second.silence()).because
        await second.aclose()

    hearing(test)


def test_one_place_of_two_that_cannot_be_had_is_said_beside_what_is_heard(tmp_path: Path) -> None:
    async def test(heard: Heard) -> None:
        heard.send(told())
        reading = await heard.probe.read()
        assert reading.entries == {"orders/q": 3}
        assert reading.unseen["entries"] == f"unix:{tmp_path}/none/s: No such file or directory"

    hearing(test, UDP, Place("unix", f"{tmp_path}/none/s"))


def unix_send(path: Path, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(data, str(path))


def test_a_unix_socket_is_open_to_all_who_reach_it_and_goes_with_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "hook.sock"

    async def test(heard: Heard) -> None:
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        unix_send(path, told())
        assert (await heard.probe.read()).entries == {"orders/q": 3}

    hearing(test, Place("unix", str(path)))
    assert not path.exists()


def test_the_socket_of_an_agent_that_was_killed_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "hook.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(path))

    async def test(heard: Heard) -> None:
        unix_send(path, told())
        assert (await heard.probe.read()).entries == {"orders/q": 3}

    hearing(test, Place("unix", str(path)))


@pytest.mark.parametrize("living", [True, False], ids=["another agent's socket", "a file"])
def test_what_is_not_ours_to_remove_stays(tmp_path: Path, living: bool) -> None:
    path = tmp_path / "hook.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        if living:
            other.bind(str(path))
        else:
            path.write_text("precious")

        async def test(heard: Heard) -> None:
            assert "Address already in use" in (await heard.silence()).because

        hearing(test, Place("unix", str(path)))
        assert path.exists()


# ---- files


def write(path: Path, data: bytes, at: float) -> None:
    """As a hook does: whole, by a rename."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(data)
    os.utime(fresh, (at, at))
    fresh.rename(path)


def test_files_are_read_when_they_have_changed_and_not_when_they_are_old(tmp_path: Path) -> None:
    async def test(heard: Heard) -> None:
        clock, path = heard.clock, tmp_path / "hook.4711"
        write(path, told(exit={"pending": 3}), clock())
        assert (await heard.probe.read()).lost_at_exit == {"orders": 3}
        clock.advance(2 * AGAIN_SECONDS)
        await heard.silence()  # the last word stays in the file
        write(tmp_path / "hook.11", told(pid=11), clock() - SILENT_SECONDS - 1)
        await heard.silence()
        write(tmp_path / "hook.12", told(pid=12), clock())
        assert (await heard.probe.read()).entries == {"orders/q": 3}
        clock.advance(SILENT_SECONDS + 1)
        assert (await heard.probe.read()).silent_entries == {"orders": 3}

    hearing(test, Place("file", f"{tmp_path}/hook"))


@pytest.mark.parametrize("stale", [200, 2 * MOST_FILE_NAMES + 5])
def test_files_of_processes_that_have_ended_keep_nobody_from_being_heard(tmp_path: Path, stale: int) -> None:
    """It was deaf from the 129th on.  Of a very large directory a new file is found within some slots."""

    async def test(heard: Heard) -> None:
        for pid in range(1000, 1000 + stale):
            path = tmp_path / f"hook.{pid}"
            path.write_bytes(told(pid=pid))
            os.utime(path, (0, 0))
        write(tmp_path / "hook.7", told(pid=7), heard.clock())
        slots = stale // MOST_FILE_NAMES + 2
        with suppress(NoData):
            for _ in range(slots):
                await heard.probe.read()
        for _ in range(2):  # and from then on in each slot
            write(tmp_path / "hook.7", told(pid=7), heard.clock())
            assert (await heard.probe.read()).entries == {"orders/q": 3}

    hearing(test, Place("file", f"{tmp_path}/hook"))


def test_the_last_word_in_a_file_counts_once_where_files_are_read_in_two_places(tmp_path: Path) -> None:
    async def test(heard: Heard) -> None:
        write(tmp_path / "a.7", told(exit={"pending": 3}), heard.clock())
        lost = []
        for _ in range(3):
            lost.append((await heard.probe.read()).lost_at_exit)
            heard.clock.advance(2 * AGAIN_SECONDS)
            write(tmp_path / "b.8", told("billing", 8), heard.clock())
        assert lost == [{"orders": 3}, {}, {}]

    hearing(test, Place("file", f"{tmp_path}/a"), Place("file", f"{tmp_path}/b"))


@pytest.mark.parametrize("end", ["killed", "not waited for", "alive", "elsewhere"])
def test_a_killed_process_is_found_out_where_its_id_means_something(end: str) -> None:
    namespace = "pid:[1]" if end == "elsewhere" else os.readlink("/proc/self/ns/pid")

    def kill(app: subprocess.Popen[bytes]) -> None:
        app.kill()
        os.waitid(os.P_PID, app.pid, os.WEXITED | os.WNOWAIT)
        if end != "not waited for":
            app.wait()

    async def test(heard: Heard) -> None:
        heard.send(told(pid=app.pid, pid_ns=namespace))
        assert not (await heard.probe.read()).lost_at_exit
        if end != "alive":
            kill(app)
        wanted = {"orders": 3} if end in ("killed", "not waited for") else {}
        assert (await heard.probe.read()).lost_at_exit == wanted

    with subprocess.Popen(["sleep", "60"]) as app:
        try:
            hearing(test)
        finally:
            app.kill()


def test_names_and_kinds_of_files_that_no_hook_writes_are_left_alone(tmp_path: Path) -> None:
    async def test(heard: Heard) -> None:
        now = heard.clock()
        for name in ("hook", "hook.", "hook.1x", "other.1", "hook.²", "ahook.1"):
            write(tmp_path / name, told(), now)
        (tmp_path / "hook.2").symlink_to(tmp_path / "hook")
        (tmp_path / "hook.3").mkdir()
        os.mkfifo(tmp_path / "hook.4")
        await heard.silence()
        write(tmp_path / "hook.5", b"x" * (MOST_BYTES + 100), now)
        assert (await heard.probe.read()).ignored == 1

    hearing(test, Place("file", f"{tmp_path}/hook"))
