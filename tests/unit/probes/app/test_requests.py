"""Are requests in flight?  Sources that tell, that lie, that hang and that go away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.app.in_flight import MOST_SOURCES, MOST_TRANSITIONS, STALE_SECONDS, InFlight
from probes.app.requests import RequestsProbe, RequestsReading
from probes.metrics_page.fetch import MOST_BYTES
from probes.reading import NoData
from tests.unit.builders import FakeClock

METRIC = "http_requests_in_flight|in_flight"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


# ---- what is pushed


def test_a_change_is_a_transition_and_a_repetition_is_none() -> None:
    clock = FakeClock(10.0)
    flight = InFlight(clock)
    for at, count in [(1.0, 0), (2.0, 3), (3.0, 3), (4.0, 1)]:
        clock.now = at
        flight.set("push", count)
    assert flight.take() == ((1.0, 0), (2.0, 3), (4.0, 1))
    assert flight.take() == ()


def test_sources_are_added_up_and_named() -> None:
    flight = InFlight(FakeClock())
    flight.set("push", 2)
    flight.set("file", 3)
    assert (flight.total, flight.sources) == (5, ("file", "push"))
    assert [t.in_flight for t in flight.take()] == [2, 5]


def test_requests_are_counted_up_and_down_and_never_below_zero() -> None:
    flight = InFlight(FakeClock())
    for change in (1, 1, -1, -1, -1):
        flight.add("own", change)
    assert flight.total == 0
    assert [t.in_flight for t in flight.take()] == [1, 2, 1, 0]


@pytest.mark.parametrize(
    ("count", "silence", "sources"),
    [(2, STALE_SECONDS + 1, ()), (2, STALE_SECONDS - 1, ("push",)), (0, STALE_SECONDS * 10, ("push",))],
    ids=["in flight and silent", "in flight and fresh", "idle and silent"],
)
def test_only_a_silent_source_that_said_in_flight_is_dropped(
    count: int, silence: float, sources: tuple[str, ...]
) -> None:
    clock = FakeClock()
    flight = InFlight(clock)
    flight.set("push", count)
    clock.advance(silence)
    flight.drop_stale()
    assert flight.sources == sources


def test_a_renewed_number_does_not_go_stale() -> None:
    clock = FakeClock()
    flight = InFlight(clock)
    for _ in range(10):
        flight.set("push", 1)
        clock.advance(STALE_SECONDS * 0.9)
        flight.drop_stale()
    assert flight.total == 1


@pytest.mark.parametrize("how", ["forget", "stale"])
def test_a_source_that_vanishes_in_flight_is_a_transition(how: str) -> None:
    clock = FakeClock()
    flight = InFlight(clock)
    flight.set("push", 0)
    flight.set("file", 3)
    flight.take()
    clock.advance(STALE_SECONDS + 1)
    if how == "forget":
        flight.forget("file")
    else:
        flight.drop_stale()
    assert [t.in_flight for t in flight.take()] == [0]


@pytest.mark.parametrize("source", ["push", "never heard of"])
def test_a_source_that_vanishes_with_nothing_in_flight_is_no_transition(source: str) -> None:
    flight = InFlight(FakeClock())
    flight.set("push", 0)
    flight.set("file", 3)
    flight.take()
    flight.forget(source)
    assert (flight.take(), flight.total) == ((), 3)


def test_there_are_at_most_so_many_sources_and_a_forgotten_one_makes_room() -> None:
    flight = InFlight(FakeClock())
    for number in range(MOST_SOURCES):
        flight.set(f"s{number}", 1)
    with pytest.raises(ValueError, match="16 sources have requests in flight already"):
        flight.set("one more", 1)
    flight.set("s3", 5)  # a known one may go on
    assert (flight.total, len(flight.sources)) == (MOST_SOURCES + 4, MOST_SOURCES)
    flight.set("own", 1)  # what the agent reads itself is never crowded out
    flight.set("s3", 0)  # an idle one makes room
    flight.set("one more", 1)
    assert "s3" not in flight.sources
    assert flight.total == MOST_SOURCES + 1


@given(steps=st.lists(st.tuples(st.sampled_from("abc"), st.integers(-2, 2)), max_size=60))
@settings(max_examples=60)
def test_the_last_transition_is_always_the_total(steps: list[tuple[str, int]]) -> None:
    clock = FakeClock()
    flight = InFlight(clock)
    for source, change in steps:
        clock.advance(1.0)
        flight.add(source, change)
    transitions = flight.take()
    assert flight.total >= 0
    assert [t.at for t in transitions] == sorted(t.at for t in transitions)
    assert (transitions[-1].in_flight if transitions else 0) == flight.total


def test_the_number_of_transitions_is_bounded_and_the_newest_are_kept() -> None:
    clock = FakeClock()
    flight = InFlight(clock)
    for n in range(MOST_TRANSITIONS + 10):
        flight.set("push", n)
    taken = flight.take()
    assert len(taken) == MOST_TRANSITIONS
    assert taken[-1].in_flight == MOST_TRANSITIONS + 9


# ---- the probe


def read(probe: RequestsProbe) -> RequestsReading:
    return asyncio.run(probe.read())


def reason(probe: RequestsProbe) -> str:
    with pytest.raises(NoData) as caught:
        read(probe)
    assert caught.value.remedy
    return caught.value.because


def test_without_any_source_the_reason_and_the_remedy_are_given() -> None:
    assert "nothing tells" in reason(RequestsProbe(InFlight()))


def test_a_reading_carries_the_transitions_since_the_one_before_it() -> None:
    clock = FakeClock(10.0)
    flight = InFlight(clock)
    probe = RequestsProbe(flight, clock=clock)
    flight.set("push", 2)
    clock.advance(5.0)
    first = read(probe)
    assert (first.in_flight, first.seconds, first.transitions, first.sources) == (2, 5.0, ((10.0, 2),), ("push",))
    clock.advance(3.0)
    assert (read(probe).transitions, probe._taken) == ((), 18.0)


@pytest.mark.parametrize(
    ("text", "count"), [("3", 3), ("0\n", 0), ("  7 since noon\n", 7), ("-4", 0), ("5" + "\n" * 500, 5)]
)
def test_a_file_shows_by_the_whole_number_that_it_begins_with(tmp_path: Path, text: str, count: int) -> None:
    file = tmp_path / "in-flight"
    file.write_text(text)
    reading = read(RequestsProbe(InFlight(), file=str(file)))
    assert (reading.in_flight, reading.sources) == (count, ("file",))


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"three", b"NaN", b"1.5", b"\xff\xfe3", b"\0", b"inf 3", b"3" * 64 + b"x"]
)
def test_a_file_that_holds_no_number_is_no_data_or_a_number_and_never_an_error(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "in-flight"
    file.write_bytes(content)
    probe = RequestsProbe(InFlight(), file=str(file))
    if content.startswith(b"3" * 64):
        assert read(probe).in_flight > 0
    else:
        assert "whole number" in reason(probe)


@pytest.mark.parametrize(("make", "why"), [(False, "No such file"), (True, "not a regular file")])
def test_a_file_that_cannot_be_read_is_no_data_with_its_reason(tmp_path: Path, make: bool, why: str) -> None:
    file = tmp_path / "in-flight"
    if make:
        file.mkdir()
    because = reason(RequestsProbe(InFlight(), file=str(file)))
    assert why in because
    assert str(file) in because


def test_a_file_that_vanishes_takes_its_number_along(tmp_path: Path) -> None:
    file = tmp_path / "in-flight"
    file.write_text("3")
    flight = InFlight()
    probe = RequestsProbe(flight, file=str(file))
    assert read(probe).in_flight == 3
    file.unlink()
    assert "No such file" in reason(probe)
    flight.set("push", 1)
    assert read(probe).in_flight == 1


# ---- the gauge


def answering(*parts: bytes) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
        finally:
            writer.close()

    return handle


def page(body: str | bytes, status: bytes = b"200 OK") -> Handler:
    raw = body.encode() if isinstance(body, str) else body
    return answering(b"HTTP/1.1 " + status + b"\r\nContent-Type: text/plain\r\n\r\n", raw)


def scrape(handler: Handler, *, timeout: float = 5.0, metric: str = METRIC) -> RequestsReading:
    """One read against a real server on the loopback interface."""

    async def run() -> RequestsReading:
        ended = asyncio.Event()

        async def handled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await handler(reader, writer)
                await writer.wait_closed()
            except ConnectionError:
                pass  # the probe has had enough
            finally:
                ended.set()

        server = await asyncio.start_server(handled, "127.0.0.1", 0)
        async with server, asyncio.timeout(30):
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics?x=1"
            try:
                return await RequestsProbe(InFlight(), url=url, metric=metric, timeout=timeout).read()
            finally:
                await ended.wait()
                await asyncio.sleep(0)

    return asyncio.run(run())


def complaint(handler: Handler, *, timeout: float = 5.0) -> str:
    with pytest.raises(NoData) as caught:
        scrape(handler, timeout=timeout)
    assert caught.value.because.startswith("requests.metrics_url: ")
    return caught.value.because.removeprefix("requests.metrics_url: ")


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("http_requests_in_flight 3\n", 3),
        ("# HELP http_requests_in_flight 9\n# TYPE x gauge\nhttp_requests_in_flight 3 1700000000\n", 3),
        ('http_requests_in_flight{path="/a b",code="} 7"} 2\nhttp_requests_in_flight{path="/b"} 4\n', 6),
        ("in_flight\t1.0e1\r\n", 10),
        ("in_flight 0\n", 0),
        ('in_flight 2\nin_flight_total 9\nmy_in_flight 9\nin_flight_max{a="b"} 9\n', 2),
        ("in_flight NaN\nhttp_requests_in_flight 2\n", 2),
    ],
)  # fmt: skip
def test_the_gauge_is_read_by_its_name_and_its_series_are_added_up(body: str, count: int) -> None:
    reading = scrape(page(body))
    assert (reading.in_flight, reading.sources) == (count, ("gauge",))


def test_invalid_utf_8_elsewhere_on_the_page_does_no_harm() -> None:
    assert scrape(page(b'other{a="\xff\xfe"} 1\nin_flight 4\n')).in_flight == 4


def test_a_name_is_no_pattern() -> None:
    assert scrape(page("in_flight 1\nin_flightx 2\n"), metric="in_fligh.|in_flight").in_flight == 1


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (page("other 3\n"), "no such gauge"),
        (page(""), "no such gauge"),
        (page("in_flight NaN\n"), "no such gauge"),
        (page("in_flight 1e999\n"), "none that is a count"),
        (page("in_flight +Inf\n"), "none that is a count"),
        (page("in_flight -3\n"), "none that is a count"),
        (page("in_flight 1\n", b"404 Not Found"), "404"),
        (answering(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\n\r\n"), "302"),
        (page("x" * 2000 + "\n" + "in_flight 1\n" * MOST_BYTES), "larger than"),
        (answering(b"\x16\x03\x01garbage"), "no HTTP"),
        (answering(), "no HTTP"),
    ],
    ids=[
        "other names",
        "empty",
        "NaN",
        "1e999",
        "+Inf",
        "negative",
        "404",
        "redirect",
        "too large",
        "garbage",
        "closed at once",
    ],
)
def test_a_page_that_cannot_be_believed_is_no_data_with_its_reason(handler: Handler, why: str) -> None:
    assert why in complaint(handler)


async def _hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()  # until the probe hangs up
    writer.close()


async def _drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Never silent for long, never done."""
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    hung_up = asyncio.ensure_future(reader.read())
    while not hung_up.done():
        writer.write(b"x")
        await asyncio.wait({hung_up}, timeout=0.01)
    writer.close()


@pytest.mark.parametrize("handler", [_hang, _drip], ids=["silent", "endless"])
def test_a_server_that_never_ends_is_cut_off_and_the_reason_says_so(handler: Handler) -> None:
    assert complaint(handler, timeout=0.05).strip()


@pytest.mark.parametrize("handler", [_hang, _drip], ids=["silent", "endless"])
def test_a_server_that_never_ends_is_cut_off(handler: Handler) -> None:
    with pytest.raises(NoData):
        scrape(handler, timeout=0.05)


def test_a_port_where_nobody_listens_is_no_data_with_the_systems_reason() -> None:
    probe = RequestsProbe(InFlight(), url="http://127.0.0.1:1/metrics", metric=METRIC)
    assert "onnect" in reason(probe)


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999/", "http://127.0.0.1:x/", "http://" + "a" * 70 + ".invalid/"])
def test_an_impossible_address_is_no_data_and_never_an_error(url: str) -> None:
    assert reason(RequestsProbe(InFlight(), url=url, metric=METRIC))


@pytest.mark.parametrize(
    "handler",
    [answering(b"HTTP/1.1 " + b"9" * 500_000), page("in_flight " + "-" * 500_000 + "\n")],
    ids=["endless status", "endless number"],
)
def test_a_hostile_page_cannot_blow_up_the_report(handler: Handler) -> None:
    assert len(complaint(handler)) < 500


def test_a_gauge_that_fails_hides_no_other_source() -> None:
    async def run() -> Any:
        flight = InFlight()
        flight.set("push", 2)
        return await RequestsProbe(flight, url="http://127.0.0.1:1/", metric=METRIC).read()

    assert asyncio.run(run()).sources == ("push",)


def test_all_faults_are_reported_together(tmp_path: Path) -> None:
    probe = RequestsProbe(InFlight(), file=str(tmp_path / "none"), url="http://127.0.0.1:1/", metric=METRIC)
    because = reason(probe)
    assert "requests.file" in because
    assert "requests.metrics_url" in because
