"""Replies of Redis: whole ones in any pieces, and everything that a stranger could send instead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.redis.resp import (
    MOST_BYTES,
    MOST_DEPTH,
    MOST_ELEMENTS,
    MOST_LINE,
    Malformed,
    Refused,
    Reply,
    Value,
    command,
)

LINES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=40)
VALUES: st.SearchStrategy[Value] = st.recursive(
    st.none() | st.integers(-(10**18), 10**18) | st.binary(max_size=80) | LINES,
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=12,
)


def encoded(value: Value) -> bytes:
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, bytes):
        return b"$%d\r\n%s\r\n" % (len(value), value)
    if isinstance(value, Refused):
        return f"-{value.code} {value.text}\r\n".encode()
    if isinstance(value, str):
        return f"+{value}\r\n".encode()
    return b"*%d\r\n" % len(value) + b"".join(map(encoded, value))


def depth(value: Value) -> int:
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


def read(*pieces: bytes) -> Value:
    reply = Reply()
    whole = [reply.feed(piece) for piece in pieces]
    assert whole == [False] * (len(pieces) - 1) + [True]
    return reply.value


@given(VALUES.filter(lambda value: depth(value) <= MOST_DEPTH), st.integers(1, 7))
def test_a_reply_is_read_in_whatever_pieces_it_comes(value: Value, size: int) -> None:
    data = encoded(value)
    assert read(*(data[at : at + size] for at in range(0, len(data), size))) == value


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_whatever_comes_is_a_reply_incomplete_or_malformed(pieces: list[bytes]) -> None:
    reply = Reply()
    try:
        for piece in pieces:
            if reply.feed(piece):
                break
    except Malformed:
        pass


@given(st.lists(VALUES.filter(lambda value: depth(value) <= MOST_DEPTH), min_size=2, max_size=4))
def test_what_follows_a_reply_is_of_the_next_one(values: list[Value]) -> None:
    data = b"".join(map(encoded, values))
    for value in values:
        reply = Reply()
        assert reply.feed(data)
        assert reply.value == value
        data = reply.rest
    assert not data


def test_an_error_is_an_answer_with_a_code() -> None:
    assert read(b"-NOPERM User app has no permissions\r\n") == Refused("NOPERM", "User app has no permissions")


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"$99999999999\r\n",
        b"$-2\r\n",
        b"$x\r\n",
        b"$3\r\nabcd\r\n",
        b"*-5\r\n",
        b"*%d\r\n" % (MOST_ELEMENTS + 1),
        b"*1\r\n" * (MOST_DEPTH + 1) + b":1\r\n",
        b"+" + b"x" * (MOST_LINE + 2),
        b"$%d\r\n" % MOST_BYTES + b"x" * MOST_BYTES,
    ],
    ids=lambda data: repr(data[:20]),
)
def test_what_is_no_reply_or_too_large_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        Reply().feed(data)


def test_a_command_is_sent_with_the_lengths_of_its_bytes() -> None:
    assert command("AUTH", "pä\r\nss") == b"*2\r\n$4\r\nAUTH\r\n$7\r\np\xc3\xa4\r\nss\r\n"
