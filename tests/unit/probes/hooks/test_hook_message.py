"""Messages of hooks: what is one, and everything else that may reach the socket."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.hooks.message import KINDS, MOST_BYTES, MOST_LOGGERS, MOST_POOLS, MOST_QUEUES, Message, parse
from probes.metrics_page.samples import MOST_VALUE

FULL: dict[str, Any] = {
    "v": 1, "pid": 4711, "name": "orders",
    "queues": [{
        "queue": "logging-winston", "kind": "logging-winston", "entries": 12, "bytes": 4096, "most_entries": 2048,
        "most_bytes": 16384, "oldest_seconds": 3.2, "arrived": 100, "drained": 88, "dropped": 7, "errors": 3, "refused": 2,
    }],
    "in_flight": 3,
    "pool": {"main": {"size": 5, "checked_out": 5, "waiting": 2, "wait_seconds": 12.5, "acquires": 900}},
    "exit": {"pending": 501},
    "pid_ns": "pid:[4026531836]", "start": "9f3ac2",
    "log": {"hook": "node", "known": ["logging-winston"], "unread": ["winston's LokiTransport"], "elsewhere": ["http"]},
}  # fmt: skip


def told(**changes: Any) -> bytes:
    return json.dumps({**FULL, **changes}).encode()


def queue(**changes: Any) -> bytes:
    return told(queues=[{**FULL["queues"][0], **changes}])


def test_the_message_of_the_agreement_is_understood_whole() -> None:
    message = parse(told())
    assert message[:2] == (4711, "orders")
    (only,) = message.queues.values()
    assert only.gauges == {
        "entries": 12, "waiting_bytes": 4096, "most_entries": 2048, "most_bytes": 16384, "oldest_seconds": 3.2
    }  # fmt: skip
    assert only.totals == {"arrived": 100, "drained": 88, "dropped": 7, "errors": 3, "refused": 2}
    assert (message.in_flight, message.lost) == (3, 501)
    assert message.pools == FULL["pool"]
    assert (message.pid_namespace, message.start) == ("pid:[4026531836]", "9f3ac2")
    assert message.loggers == ("node", ("logging-winston",), ("winston's LokiTransport",), ("http",))


def test_the_smallest_message_tells_nothing_and_makes_nothing_up() -> None:
    assert parse(b'{"v":1,"pid":1,"name":"a"}') == Message(1, "a", {}, None, {}, None)


def test_who_tells_nothing_of_its_loggers_is_an_older_hook_and_an_empty_list_is_none() -> None:
    assert parse(b'{"v":1,"pid":1,"name":"a","log":{"hook":"perl"}}').loggers == ("other", (), (), ())


def test_a_number_that_is_left_out_is_missing_and_not_zero() -> None:
    message = parse(told(queues=[{"queue": "q", "kind": "pino", "entries": 0}]))
    assert message.queues["q"].gauges == {"entries": 0}
    assert message.queues["q"].totals == {}


def test_keys_of_a_newer_hook_are_passed_over() -> None:
    assert parse(told(later={"x": [1]}, queues=[{"queue": "q", "later": None}])).queues["q"].kind == "other"


@pytest.mark.parametrize(("kind", "known"), [(k, k) for k in sorted(KINDS)] + [("mine", "other"), (7, "other")])
def test_a_kind_is_one_of_a_few_words(kind: object, known: str) -> None:
    assert parse(queue(kind=kind)).queues["logging-winston"].kind == known


def test_what_cannot_be_printed_in_a_name_becomes_a_question_mark() -> None:
    message = parse(told(name="a\n\x1b[2J\ud800", queues=[{"queue": 'x"} 1\n'}]))
    assert message.name == "a??[2J?"
    assert list(message.queues) == ['x"} 1?']
    message.name.encode()


NO_MESSAGE: dict[str, bytes] = {
    "nothing": b"",
    "text": b"hello",
    "not utf-8": b'{"v":1,"pid":1,"name":"\xff"}',
    "utf-16": json.dumps(FULL).encode("utf-16"),
    "cut": told()[:-1],
    "two": told() + told(),
    "a list": b"[1]",
    "a number": b"1",
    "null": b"null",
    "another version": told(v=2),
    "true for a version": told(v=True),
    "no version": b'{"pid":1,"name":"a"}',
    "no pid": b'{"v":1,"name":"a"}',
    "pid 0": told(pid=0),
    "negative pid": told(pid=-1),
    "huge pid": told(pid=2**40),
    "text pid": told(pid="4711"),
    "half a pid": told(pid=1.5),
    "true for a pid": told(pid=True),
    "no name": b'{"v":1,"pid":1}',
    "empty name": told(name=""),
    "long name": told(name="x" * 41),
    "name is no text": told(name=["a"]),
    "queues are no list": told(queues={"a": 1}),
    "a queue is no object": told(queues=["q"]),
    "too many queues": told(queues=[{"queue": f"q{n}"} for n in range(MOST_QUEUES + 1)]),
    "a queue without a name": told(queues=[{"entries": 1}]),
    "a queue's name is too long": told(queues=[{"queue": "x" * 61}]),
    "two queues of one name": told(queues=[{"queue": "q"}, {"queue": "q"}]),
    "negative": queue(entries=-1),
    "NaN": told().replace(b"4096", b"NaN"),
    "Infinity": told().replace(b"4096", b"Infinity"),
    "-Infinity": told().replace(b"4096", b"-Infinity"),
    "1e999": told().replace(b"4096", b"1e999"),
    "too large": queue(entries=MOST_VALUE * 2),
    "four thousand digits": told().replace(b"4096", b"9" * 4000),
    "five thousand digits": told().replace(b"4096", b"9" * 5000),
    "a text for a number": queue(entries="12"),
    "true for a number": queue(entries=True),
    "null for a number": queue(entries=None),
    "a list for a number": queue(dropped=[1]),
    "in flight: half": told(in_flight=1.5),
    "in flight: negative": told(in_flight=-1),
    "in flight: text": told(in_flight="3"),
    "pool is a list": told(pool=[1]),
    "a pool is a number": told(pool={"main": 5}),
    "a pool's number is negative": told(pool={"main": {"size": -1}}),
    "a pool without a name": told(pool={"": {}}),
    "too many pools": told(pool={f"p{n}": {} for n in range(MOST_POOLS + 1)}),
    "a token that is no text": told(start=7),
    "a token that is too long": told(start="x" * 41),
    "loggers are a list": told(log=["winston"]),
    "known loggers are a text": told(log={"known": "winston"}),
    "a logger without a name": told(log={"known": [""]}),
    "a logger that is a number": told(log={"unread": [1]}),
    "too many loggers": told(log={"elsewhere": ["x"] * (MOST_LOGGERS + 1)}),
    "exit is a number": told(exit=501),
    "exit is negative": told(exit={"pending": -1}),
    "nested lists": b"[" * MOST_BYTES,
    "nested objects": b'{"a":' * (MOST_BYTES // 5),
    "nested inside": told(queues=0).replace(b'"queues": 0', b'"queues": ' + b"[" * 3000 + b"]" * 3000),
    "one byte too long": b'{"v":1,"pid":1,"name":"a"}'.ljust(MOST_BYTES + 1),
}  # fmt: skip


@pytest.mark.parametrize("data", NO_MESSAGE.values(), ids=NO_MESSAGE.keys())
def test_anything_else_is_refused_whole_with_a_short_reason(data: bytes) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the kind of reason is the point
        parse(data)
    assert str(caught.value)


def test_the_largest_message_is_still_one() -> None:
    assert parse(b'{"v":1,"pid":1,"name":"a"}'.ljust(MOST_BYTES)).pid == 1


@given(st.binary(max_size=300))
@settings(max_examples=200)
def test_no_bytes_are_more_than_a_refusal(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of any kind
        parse(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*FULL, "queue", "entries"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(key=st.sampled_from(sorted(FULL)), value=JSON)
@settings(max_examples=300)
def test_any_value_in_any_place_is_refused_or_believed_and_then_a_sound_number(key: str, value: Any) -> None:
    try:
        message = parse(told(**{key: value}))
    except ValueError:
        return
    numbers = [n for q in message.queues.values() for n in (*q.gauges.values(), *q.totals.values())]
    numbers += [n for pool in message.pools.values() for n in pool.values()]
    assert all(0 <= n <= MOST_VALUE for n in (*numbers, message.in_flight or 0, message.lost or 0))
    assert 0 < len(message.name) <= 40
