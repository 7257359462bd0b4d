"""A round trip taken apart: whose time was it?  Times in these tests are milliseconds, divided by a thousand."""

from __future__ import annotations

import select
import socket
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.store.round_trip import PARTS, Arrivals, Parts, Read, RunDelay, Trip, split


def trip(
    *reads: tuple[float | None, float], sent: float = 0.1, done: float, cpu: float = 0.2,
    run_delay: float | None = 0.0, server: float | None = 0.3,
) -> Trip:  # fmt: skip
    """Began at 100 s; reads are (arrived, taken)."""

    def at(ms: float) -> float:
        return 100.0 + ms / 1e3

    return Trip(
        at(0), at(sent), tuple(Read(None if arrived is None else at(arrived), at(taken)) for arrived, taken in reads),
        at(done), cpu / 1e3, None if run_delay is None else run_delay / 1e3, None if server is None else server / 1e3,
    )  # fmt: skip


def ms(parts: Parts) -> dict[str, float]:
    return {name: round(getattr(parts, name) * 1e3, 3) for name in PARTS}


def test_a_slow_server_is_the_servers_time() -> None:
    parts = split(trip((51.0, 51.1), done=51.2, server=50.0))
    assert ms(parts) == pytest.approx({"network": 0.9, "server": 50.0, "suspended": 0.1, "client": 0.2, "unknown": 0.0})
    assert parts.method == "kernel timestamps"


def test_a_reply_that_lies_here_unread_is_nobodys_fault_over_there() -> None:
    parts = ms(split(trip((1.0, 91.0), done=91.1)))
    assert parts["suspended"] == pytest.approx(90.0)
    assert (parts["server"], parts["network"]) == pytest.approx((0.3, 0.6))


def test_being_stopped_after_the_send_does_not_shorten_the_way() -> None:
    """The query left at once, the clock was read 80 ms later: the server's 50 ms had to fit somewhere."""
    parts = ms(split(trip((82.0, 82.1), sent=80.0, done=82.2, server=50.0), least_rtt=0.001))
    assert parts["server"] == pytest.approx(50.0)
    assert parts["suspended"] < 32.0


def test_what_arrives_while_the_client_reads_is_counted_once() -> None:
    parts = ms(split(trip((5.0, 10.0), (6.0, 12.0), (20.0, 21.0), done=21.0, cpu=8.0)))
    assert parts["client"] == pytest.approx(8.0)
    assert parts["suspended"] == pytest.approx(0.1)  # 5 to 12 and 20 to 21 were ours, and 0.1 before the send
    assert parts["network"] + parts["server"] == pytest.approx(12.9)


def test_a_cpu_clock_that_runs_on_while_stopped_is_replaced_by_what_the_work_needs() -> None:
    frozen = trip((1.0, 91.0), done=91.1, cpu=91.0)
    assert ms(split(frozen))["client"] > 80, "believed, it hides the suspension"
    parts = ms(split(frozen, own_work=0.0002))
    assert (parts["client"], parts["suspended"]) == pytest.approx((0.2, 90.0))


def test_without_arrival_times_the_run_delay_stands_in() -> None:
    parts = split(trip((None, 91.0), done=91.1, run_delay=88.0))
    assert parts.method == "run delay"
    assert ms(parts)["suspended"] == pytest.approx(88.0)


def test_where_nothing_can_be_counted_the_rest_is_called_unknown_and_blames_nobody() -> None:
    parts = split(trip((None, 91.0), done=91.1, run_delay=None, server=2.0))
    assert parts.method == "none"
    assert ms(parts) == pytest.approx({"network": 0.0, "server": 2.0, "suspended": 0.0, "client": 0.2, "unknown": 88.9})


SECONDS = st.floats(0.0, 1e4, allow_nan=False)


@given(
    gaps=st.lists(st.tuples(SECONDS, SECONDS, st.booleans()), max_size=5), sent=SECONDS, tail=SECONDS, cpu=SECONDS,
    run_delay=st.none() | SECONDS, server=st.none() | SECONDS, rtt=SECONDS, own=st.none() | SECONDS,
)  # fmt: skip
def test_the_parts_sum_to_the_wall_time_and_none_is_negative(
    gaps: list[tuple[float, float, bool]], sent: float, tail: float, cpu: float,
    run_delay: float | None, server: float | None, rtt: float, own: float | None,
) -> None:  # fmt: skip
    reads, now = [], sent
    for waited, lain, told in gaps:
        reads.append((now + waited if told else None, now + waited + lain))
        now += waited + lain
    observed = trip(*reads, sent=sent, done=now + tail, cpu=cpu, run_delay=run_delay, server=server)
    parts = split(observed, rtt / 1e3, None if own is None else own / 1e3)
    values = [getattr(parts, name) for name in PARTS]
    assert sum(values) == pytest.approx(observed.wall, abs=1e-6)
    assert min(values) >= -1e-9


@pytest.mark.parametrize(
    ("schedstat", "seconds"),
    [
        ("2500000000 1500000000 37\n", 1.5),
        ("2500000000 0 37\n", 0.0),
        ("0 0 0\n", None),
        ("2500000000 0 0\n", None),
        ("2500000000\n", None),
        ("", None),
        (None, None),
    ],
    ids=[
        "counts",
        "has waited for nobody yet",
        "counts nothing",
        "counts no slices",
        "another form",
        "empty",
        "not there",
    ],
)
def test_a_run_delay_that_is_not_counted_is_not_zero(
    tmp_path: Path, schedstat: str | None, seconds: float | None
) -> None:
    path = tmp_path / "schedstat"
    if schedstat is not None:
        path.write_text(schedstat)
    assert RunDelay(str(path)).seconds() == seconds


# ---- the kernel's side, for real


@pytest.fixture
def pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
    return client, peer


def stamped(client: socket.socket, peer: socket.socket) -> Arrivals:
    """Asked for, and really on: the kernel takes a moment to switch its stamping on."""
    arrivals = Arrivals(client.fileno())
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        began = time.monotonic()
        peer.sendall(b"x")
        time.sleep(0.001)
        arrived = arrivals.first(began)
        assert client.recv(1) == b"x"
        if arrived is not None:
            return arrivals
    raise AssertionError("this kernel stamps nothing")


def test_the_arrival_is_the_kernels_and_not_the_readers(pair: tuple[socket.socket, socket.socket]) -> None:
    client, peer = pair
    with client, peer:
        arrivals = stamped(client, peer)
        began = time.monotonic()
        peer.sendall(b"reply")
        sent = time.monotonic()
        time.sleep(0.05)
        arrived = arrivals.first(began)
        assert arrived is not None
        assert began <= arrived <= sent + 0.02, "50 ms later it still says when it came"
        assert client.recv(100) == b"reply", "nothing was taken from the stream"
        assert arrivals.least_rtt() < 0.1
        arrivals.close()


def test_an_empty_socket_has_no_arrival(pair: tuple[socket.socket, socket.socket]) -> None:
    client, peer = pair
    with client, peer:
        arrivals = Arrivals(client.fileno())
        assert arrivals.first(time.monotonic()) is None
        arrivals.close()


def test_what_lies_unread_is_seen_and_left_there_and_so_is_the_end(pair: tuple[socket.socket, socket.socket]) -> None:
    client, peer = pair
    with client, peer:
        arrivals = Arrivals(client.fileno())
        assert not arrivals.lie_unread()
        peer.sendall(b"reply")
        assert select.select([client], [], [], 5)[0]
        assert arrivals.lie_unread()
        assert client.recv(100) == b"reply"
        assert not arrivals.lie_unread()
        peer.shutdown(socket.SHUT_WR)
        assert select.select([client], [], [], 5)[0]
        assert arrivals.lie_unread(), "who reads now is told of the end"
        arrivals.close()


def test_an_arrival_from_before_the_question_is_not_believed(pair: tuple[socket.socket, socket.socket]) -> None:
    client, peer = pair
    with client, peer:
        arrivals = stamped(client, peer)
        peer.sendall(b"x")
        time.sleep(0.02)
        assert arrivals.first(time.monotonic()) is None
        arrivals.close()


def test_a_unix_socket_has_no_arrival_times_and_no_round_trip() -> None:
    left, right = socket.socketpair()
    with left, right:
        arrivals = Arrivals(left.fileno())
        right.sendall(b"x")
        assert (arrivals.first(0.0), arrivals.least_rtt(), arrivals.believable) == (None, 0.0, False)
        arrivals.close()
