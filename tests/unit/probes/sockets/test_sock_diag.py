"""Netlink answers built byte by byte: whole, short, malformed, refused and endless.

The bytes follow include/uapi/linux/inet_diag.h and tcp.h, spelt out here a second time on purpose.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.sockets import proc_net
from probes.sockets.netlink import MOST_RECEIVES, MOST_WANTED, bytecode, dump, look_up, parse, request
from probes.sockets.tcp_info import ESTABLISHED, SYN_SENT, TIME_WAIT, Dump, Socket, TcpInfo, pack_address

V4, V6 = socket.AF_INET, socket.AF_INET6
DONE = struct.pack("=IHHIIi", 20, 3, 2, 1, 99, 0)
FIRST = Socket(V4, ESTABLISHED, "10.0.0.2", 40001, "10.0.0.9", 5432, 7, 3, 1000, 4242)


def frame(kind: int, body: bytes) -> bytes:
    message = struct.pack("=IHHII", 16 + len(body), kind, 2, 1, 99) + body
    return message + bytes(-len(message) % 4)


def attribute(kind: int, body: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(body), kind) + body + bytes(-len(body) % 4)


def refusal(kind: int, status: int) -> bytes:
    return frame(kind, struct.pack("=i", status) + bytes(16))


def tcp_info() -> bytes:
    """A struct tcp_info of 248 bytes in which every field that is read has a value of its own."""
    head = struct.pack("=8B24I", 1, *bytes(7), 0, 0, 0, 0, 2, 0, 0, 0, 0, 11, 0, 13, 15, 0, 0, 17_000, *[0] * 7, 19)
    tail = struct.pack("=4Q6I4Q", 0, 0, 23, 29, 31, 37, 39, 41, 43, 47, 0, 53_000_000, 59_000_000, 61_000_000)
    return head + tail + bytes(56)


def message(found: Socket, attributes: bytes = b"") -> bytes:
    """One inet_diag_msg in its frame."""
    ends = [pack_address(host)[1].ljust(16, b"\0") for host in (found.source, found.destination)]
    body = struct.pack(">BBBBHH", found.family, found.state, 0, 0, found.source_port, found.destination_port)
    body += ends[0] + ends[1] + struct.pack("=IQI", 1, 0x1234_5678_9ABC, 0)
    body += struct.pack("=IIII", found.rqueue, found.wqueue, found.uid, found.inode) + attributes
    return frame(18, body)


class Kernel:
    """A netlink socket for each question: its answers lie ready, and it remembers what it was asked."""

    def __init__(self, *answers: Sequence[bytes]) -> None:
        self._answers = iter(answers)
        self.asked: list[bytes] = []
        self._far_ends: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        return self

    def __exit__(self, *_: object) -> None:
        for end in self._far_ends:
            self.asked.append(end.recv(65536))
        self._stack.close()

    def open(self) -> socket.socket:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._far_ends.append(self._stack.enter_context(far))
        near.setblocking(False)
        for datagram in next(self._answers):
            far.send(datagram)
        return near


def ask(*answers: Sequence[bytes], most_sockets: int = 100, most_bytes: int = 100_000) -> Dump:
    with Kernel(*answers) as kernel:
        return dump([("", 5432)], most_sockets=most_sockets, most_bytes=most_bytes, open_socket=kernel.open)


# ---- one message


def test_a_whole_message_gives_every_field_in_base_units() -> None:
    others = attribute(8, b"\0") + attribute(22, b"\1\2")
    sockets, done = parse(message(FIRST, others + attribute(2, tcp_info()) + attribute(21, bytes(8))))
    assert not done
    (found,) = sockets
    assert found[:-1] == FIRST[:-1]
    assert found.info == pytest.approx(TcpInfo(
        unacked=2, last_data_sent_seconds=0.011, last_data_recv_seconds=0.013,
        last_ack_recv_seconds=0.015,
        retransmits=19, bytes_acked=23, bytes_received=29, segs_in=37, notsent_bytes=39, min_rtt_seconds=41e-6,
        data_segs_in=43, data_segs_out=47,
    ))  # fmt: skip


def test_several_messages_and_the_end_come_in_one_datagram() -> None:
    second = FIRST._replace(source_port=40002, inode=4243)
    sockets, done = parse(message(FIRST) + frame(1, b"") + message(second) + DONE + message(FIRST))
    assert (sockets, done) == ([FIRST, second], True)


@pytest.mark.parametrize(
    ("family", "source", "destination", "shown"),
    [
        (V6, "2001:db8::1", "2001:db8:0:0::2", "2001:db8::2"),
        (V6, "::1", "::1", "::1"),
        (V6, "::ffff:10.0.0.2", "::ffff:10.0.0.9", "10.0.0.9"),
    ],
)
def test_addresses_are_written_canonically_and_mapped_ones_as_ipv4(
    family: int, source: str, destination: str, shown: str
) -> None:
    raw = message(FIRST._replace(family=family, source="::", destination="::"))
    packed = socket.inet_pton(V6, source) + socket.inet_pton(V6, destination)
    (found,), _ = parse(raw[:24] + packed + raw[56:])
    assert (found.family, found.destination) == (family, shown)


@pytest.mark.parametrize("size", [0, 1, 23, 24, 47, 48, 104, 128, 135, 136, 148, 152, 168, 191, 192, 232, 248, 400])
def test_of_a_shorter_tcp_info_the_whole_fields_are_read_and_of_a_longer_one_the_known(size: int) -> None:
    full = parse(message(FIRST, attribute(2, tcp_info())))[0][0].info
    ends = (28, 48, 56, 60, 104, 128, 136, 144, 148, 152, 156, 160)
    raw = tcp_info().ljust(size, b"\xff")[:size]
    info = parse(message(FIRST, attribute(2, raw)))[0][0].info
    assert info == tuple(value if end <= size else None for end, value in zip(ends, full, strict=True))


def test_a_round_trip_that_was_never_measured_is_none_and_not_an_hour() -> None:
    raw = bytearray(tcp_info())
    raw[148:152] = b"\xff" * 4
    (found,), _ = parse(message(FIRST, attribute(2, bytes(raw))))
    assert (found.info.min_rtt_seconds, found.info.data_segs_out) == (None, 47)


@pytest.mark.parametrize(
    "attributes",
    [b"\2", struct.pack("=HH", 3, 2), struct.pack("=HH", 0, 2) + bytes(300), struct.pack("=HH", 400, 2) + tcp_info()],
    ids=["short", "length below its header", "length 0", "longer than the message"],
)
def test_a_broken_attribute_costs_the_tcp_info_and_not_the_socket(attributes: bytes) -> None:
    assert parse(message(FIRST, attributes) + DONE) == ([FIRST], True)


@pytest.mark.parametrize(
    "chunk",
    [
        b"", b"\0" * 15, bytes(16), frame(18, b""), frame(18, bytes(71)), frame(18, bytes(72)), frame(77, bytes(200)),
        struct.pack("=IHHII", 5000, 18, 2, 1, 0) + bytes(100), message(FIRST)[:-1],
    ],
)  # fmt: skip
def test_what_is_no_socket_is_left_out(chunk: bytes) -> None:
    assert parse(chunk) == ([], False)


@pytest.mark.parametrize(
    ("chunk", "code"),
    [
        (refusal(2, -errno.ENOENT), errno.ENOENT),
        (refusal(2, -errno.EPERM), errno.EPERM),
        (refusal(3, -errno.EINVAL), errno.EINVAL),
        (refusal(2, 0), errno.EPROTO),
        (refusal(2, -(1 << 31)), errno.EPROTO),
        (frame(2, b""), errno.EPROTO),
    ],
)
def test_a_refusal_is_an_os_error_with_the_kernels_number(chunk: bytes, code: int) -> None:
    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        parse(chunk)
    assert caught.value.errno == code


@given(chunk=st.binary(max_size=600))
@settings(max_examples=150)
def test_no_bytes_raise_anything_but_an_os_error(chunk: bytes) -> None:
    for raw in (chunk, frame(18, chunk), frame(18, b"\2\1" + bytes(70) + chunk), message(FIRST, chunk)):
        try:
            sockets, _ = parse(raw)
        except OSError:
            continue
        assert all(isinstance(found, Socket) for found in sockets)


@given(at=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.integers(0, 10_000))
@settings(max_examples=150)
def test_no_changed_byte_and_no_cut_raises_anything_but_an_os_error(at: int, byte: int, cut: int) -> None:
    raw = bytearray(message(FIRST, attribute(2, tcp_info())) * 2 + DONE)
    raw[at % len(raw)] = byte
    try:
        sockets, _ = parse(bytes(raw[: cut % (len(raw) + 1)]))
    except OSError:
        return
    assert len(sockets) <= 2


# ---- a whole dump


def test_both_families_are_asked_in_one_question_and_datagrams_are_joined() -> None:
    other = FIRST._replace(family=V6, source="::1", destination="::1")
    with Kernel([message(FIRST), message(FIRST) + message(other), DONE]) as kernel:
        assert dump([("", 5432)], open_socket=kernel.open) == Dump((FIRST, FIRST, other))
    assert kernel.asked == [request(bytecode([("", 5432)]))]


def test_the_question_is_that_of_the_header_file() -> None:
    code = bytecode([("", 5432)])
    raw = request(code)
    assert raw[:16] == struct.pack("=IHHII", len(raw), 18, 0x301, 1, 0)
    assert raw[16:20] == struct.pack("=BBBB", 0, 0, 0, 1 << 1)
    assert raw[20:68] == bytes(48)
    assert raw[68:76] == struct.pack("=II", 1 << ESTABLISHED | 1 << SYN_SENT, 0)
    assert raw[76:] == struct.pack("=HH", 4 + len(code), 1) + code


@pytest.mark.parametrize(
    ("limits", "count", "why"),
    [({"most_sockets": 3}, 3, "only the first 3 sockets"), ({"most_bytes": 300}, 4, "only the first 4 sockets")],
)
def test_a_dump_over_its_bounds_is_cut_and_says_so(limits: dict[str, int], count: int, why: str) -> None:
    found = ask([message(FIRST) * 2] * 5 + [DONE], **limits)
    assert len(found.sockets) == count
    assert why in found.missing


def test_a_dump_just_within_its_bounds_is_whole() -> None:
    assert ask([message(FIRST) * 3, DONE], most_sockets=3) == Dump((FIRST,) * 3)


def test_an_answer_that_stops_before_its_end_is_reported_and_never_waited_for() -> None:
    assert ask([message(FIRST)]) == Dump((FIRST,), "the kernel's answer had no end")


def test_an_endless_answer_ends() -> None:
    class Endless(socket.socket):
        calls = 0

        def send(self, *_: object) -> int:
            return 0

        def recv(self, *_: object) -> bytes:
            Endless.calls += 1
            return frame(1, b"")

    assert dump([("", 1)], open_socket=Endless).missing == "the kernel's answer had no end"
    assert Endless.calls == MOST_RECEIVES


class Long(socket.socket):
    """An answer of more datagrams than a pair of sockets holds."""

    def __init__(self, chunks: Sequence[bytes]) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._chunks = iter(chunks)

    def send(self, _: object, _flags: int = 0) -> int:
        return 0

    def recv(self, _: int, _flags: int = 0) -> bytes:
        return next(self._chunks)


@given(
    count=st.integers(1, 700),
    followed=st.integers(1, 80),
    first=st.integers(1024, 65535),
    step=st.integers(1, 7),
    beside=st.integers(0, 5),
)
@settings(max_examples=30, deadline=None)
def test_of_many_to_one_end_some_are_read_and_the_others_counted(
    count: int, followed: int, first: int, step: int, beside: int
) -> None:
    many = [FIRST._replace(source_port=(first + n * step) % 65536, inode=n) for n in range(count)]
    few = [FIRST._replace(destination="10.0.0.8", source_port=n, inode=10_000 + n) for n in range(beside)]
    answer = [b"".join(map(message, many[at : at + 300])) for at in range(0, count, 300)]
    answer.append(b"".join(map(message, few)) + DONE)
    found = dump([("", 5432)], followed=followed, open_socket=lambda: Long(answer))
    read = [s for s in found.sockets if s.destination == FIRST.destination]
    assert set(read) <= set(many)
    assert len(read) == count if count <= followed else len(read) <= followed
    scale = found.scale.get(("10.0.0.9", 5432), 1.0)
    assert len(read) * scale == pytest.approx(count if read else 0)
    if beside <= followed:
        assert sum(s.destination == "10.0.0.8" for s in found.sockets) == beside


def test_the_same_connections_are_followed_from_dump_to_dump_as_others_come() -> None:
    ports = list(range(32768, 60999, 2))
    before = followed_of(ports[:1000])
    after = followed_of(ports[:100] + ports[150:1100])  # some went, others came
    assert len(before) > 16
    assert before - set(ports[100:150]) <= after
    doubled = followed_of(ports[:2400])
    assert doubled & set(ports[:1000]) <= before, "fewer of these, and no other ones"


def followed_of(ports: Sequence[int]) -> set[int]:
    parts = [ports[at : at + 300] for at in range(0, len(ports), 300)]
    chunks = [*(b"".join(message(FIRST._replace(source_port=n)) for n in part) for part in parts), DONE]
    found = dump([("", 5432)], followed=64, open_socket=lambda: Long(chunks))
    return {s.source_port for s in found.sockets}


@pytest.mark.parametrize("first", [2000, 33333, 40001, 51234])
def test_those_in_time_wait_are_counted_by_remote_end_and_take_no_place(first: int) -> None:
    """Whatever their ports: none was counted where no port of theirs fell below the bound at which one is followed."""
    closed = [FIRST._replace(source_port=n, state=TIME_WAIT, inode=0) for n in range(first, first + 300)]
    other = FIRST._replace(destination="10.0.0.8", state=TIME_WAIT, inode=0)
    answer = [b"".join(map(message, closed)), message(FIRST) + message(other) + DONE]
    found = dump([("", 5432)], most_sockets=1, open_socket=lambda: Long(answer))
    assert (found.sockets, found.missing) == ((FIRST,), "")
    assert {s.destination: number for s, number in found.closed.items()} == {"10.0.0.9": 300, "10.0.0.8": 1}


def test_one_that_is_known_is_asked_for_by_its_two_ends() -> None:
    with Kernel([message(FIRST._replace(rqueue=9))]) as kernel:
        (found,) = look_up([FIRST], open_socket=kernel.open)
    assert found == FIRST._replace(rqueue=9)
    (asked,) = kernel.asked
    size, kind, flags = struct.unpack_from("=IHH", asked)
    assert (size, kind, flags) == (len(asked), 18, 1)  # TCPDIAG_GETSOCK, NLM_F_REQUEST and no dump
    assert asked[16:20] == bytes((V4, 0, 0, 2))
    assert asked[20:24] == struct.pack(">HH", 40001, 5432)
    assert asked[24:56] == bytes((10, 0, 0, 2)) + bytes(12) + bytes((10, 0, 0, 9)) + bytes(12)


@pytest.mark.parametrize("status", [-errno.ENOENT, -errno.EPERM])
def test_one_that_is_not_there_is_an_os_error(status: int) -> None:
    with Kernel([refusal(2, status)]) as kernel, pytest.raises(OSError, match=os.strerror(-status)):
        look_up([FIRST], open_socket=kernel.open)


def test_a_refused_dump_is_an_os_error() -> None:
    with pytest.raises(FileNotFoundError):
        ask([refusal(2, -errno.ENOENT)])


def test_who_wants_nothing_does_not_ask() -> None:
    assert dump([], open_socket=Kernel().open) == Dump(())


# ---- the filter


def passes(code: bytes, host: str, port: int) -> bool:
    """inet_diag_bc_run of net/ipv4/inet_diag.c, as far as D_COND and JMP go."""
    family, address = pack_address(host)
    at = 0
    while at < len(code):
        op, yes, no = struct.unpack_from("=BBH", code, at)
        holds = False
        if op == 8:
            wanted_family, prefix, wanted_port = struct.unpack_from("=BBxxi", code, at + 4)
            wanted = code[at + 12 : at + 12 + prefix // 8]
            assert yes == 12 + len(wanted)
            holds = wanted_port == port and wanted_family in (0, family) and address.startswith(wanted)
        else:
            assert op == 1
        at += yes if holds else no
    return at == len(code)


WANTED = [("", 5432), ("10.0.0.9", 443), ("2001:db8::2", 443), ("", 6432)]


@pytest.mark.parametrize(
    ("host", "port", "kept"),
    [
        ("10.0.0.1", 5432, True), ("::1", 6432, True), ("10.0.0.9", 443, True), ("10.0.0.8", 443, False),
        ("2001:db8::2", 443, True), ("2001:db8::3", 443, False), ("10.0.0.9", 80, False), ("::ffff:10.0.0.9", 443, True),
    ],
)  # fmt: skip
def test_the_filter_keeps_what_is_wanted_and_nothing_else(host: str, port: int, kept: bool) -> None:
    for wanted in (WANTED, WANTED[::-1]):
        assert passes(bytecode(wanted), host, port) is kept


def test_the_largest_filter_keeps_its_jumps_within_sixteen_bits() -> None:
    code = bytecode([(f"2001:db8::{n:x}", 443) for n in range(MOST_WANTED)])
    assert passes(code, "2001:db8::0", 443)
    assert not passes(code, "2001:db8::0", 444)


@pytest.mark.parametrize("host", ["db.example", "10.0.0", "1:2", "10.0.0.1\0", "\udcff", "fe80::1%eth0"])
def test_an_address_that_is_none_is_a_value_error(host: str) -> None:
    with pytest.raises(ValueError, match="not an IP address"):
        bytecode([(host, 5432)])


def test_too_many_addresses_are_a_value_error() -> None:
    with pytest.raises(ValueError, match="more than 256"):
        bytecode([("", port) for port in range(MOST_WANTED + 1)])


# ---- the tables in /proc

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LINE = "   1: {local}:9C41 {remote}:{port:04X} {state} 00000003:00000007 00:00000000 00000000  1000        0 4242 1 0 20 4\n"


def line(family: int = V4, port: int = 5432, state: str = "01", host: str = "10.0.0.9") -> str:
    ends = []
    for text in ("10.0.0.2" if family == V4 else "::2", host):
        packed = socket.inet_pton(family, text)
        ends.append("".join(f"{n:08X}" for n in struct.unpack(f"={len(packed) // 4}I", packed)))
    return LINE.format(local=ends[0], remote=ends[1], port=port, state=state)


def tables(root: Path, tcp: str | None, tcp6: str | None = None) -> Path:
    (root / "proc/net").mkdir(parents=True)
    for name, text in (("tcp", tcp), ("tcp6", tcp6)):
        if text is not None:
            (root / "proc/net" / name).write_text(HEADER + text)
    return root


def test_the_tables_give_queues_and_states_and_no_tcp_info(tmp_path: Path) -> None:
    root = tables(tmp_path, line() + line(state="02"), line(V6, host="2001:db8::9") + line(V6, host="::ffff:10.0.0.9"))
    six = FIRST._replace(family=V6, source="::2")
    assert proc_net.dump([("", 5432)], root=root) == Dump(
        (FIRST, FIRST._replace(state=SYN_SENT), six._replace(destination="2001:db8::9"), six)
    )


def test_of_the_tables_only_what_is_wanted_is_kept(tmp_path: Path) -> None:
    text = (
        line() + line(port=443) + line(port=443, host="10.0.0.8") + line(port=80) + line(state="0A") + line(state="06")
    )
    found = proc_net.dump([("", 5432), ("10.0.0.9", 443)], root=tables(tmp_path, text))
    assert [(s.destination, s.destination_port) for s in found.sockets] == [("10.0.0.9", 5432), ("10.0.0.9", 443)]


@pytest.mark.parametrize(
    "text",
    ["\n", "x y z\n", line().replace("00000007", "0000000G"), line().replace("4242", "many"), line()[:-30], line()[:-1],
     line().replace("0900000A", "09"), line().replace("0900000A", "0900000A0900000A"), line().replace("3:0", "3 0")],
)  # fmt: skip
def test_a_malformed_line_is_left_out(tmp_path: Path, text: str) -> None:
    root = tables(tmp_path, text + "\n" + line() if text.endswith("\n") else text)
    found = proc_net.dump([("", 5432)], root=root).sockets
    assert found == ((FIRST,) if text.endswith("\n") else ())


def test_a_table_that_is_too_long_is_cut_and_says_so(tmp_path: Path) -> None:
    root = tables(tmp_path, line() * 10)
    found = proc_net.dump([("", 5432)], root=root, most_bytes=len(HEADER) + len(line()) * 3 + 5)
    assert len(found.sockets) == 3
    assert "only the first" in found.missing


def test_without_a_table_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        proc_net.dump([("", 5432)], root=tables(tmp_path, None))


@pytest.mark.parametrize(
    ("text", "opened"),
    [
        (
            "Ip: Forwarding\nIp: 1\nTcp: RtoMin ActiveOpens PassiveOpens CurrEstab\nTcp: 200 1234 5 17\nUdp: In\nUdp: 1\n",
            proc_net.Opened(1234, 5, 17),
        ),
        ("Tcp: RtoMin ActiveOpens\nTcp: 200 1234\n", proc_net.Opened(1234, None, None)),
        ("Tcp: RtoMin PassiveOpens\nTcp: 200 5\n", None),
        ("Tcp: RtoMin ActiveOpens\nTcp: 200\n", None),
        ("Tcp: RtoMin ActiveOpens\nTcp: 200 x\n", None),
        ("Ip: 1\n", None),
        ("", None),
        (None, None),
    ],
)
def test_connections_that_were_begun_are_counted_where_the_kernel_tells_them(
    tmp_path: Path, text: str | None, opened: proc_net.Opened | None
) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    if text is not None:
        (tmp_path / "proc/net/snmp").write_text(text)
    assert proc_net.opened(tmp_path) == opened
