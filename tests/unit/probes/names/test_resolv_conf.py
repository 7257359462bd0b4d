"""resolv.conf and the order of names by resolver(3): words, bounds, and nonsense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.names import message
from probes.names.resolv_conf import MOST_NAME, MOST_SERVERS, ResolvConf, hosts, is_name, parse

POD = """search shop.svc.cluster.local svc.cluster.local cluster.local
nameserver 10.96.0.10
options ndots:5 timeout:3 attempts:4
"""


def test_a_pods_settings() -> None:
    conf = parse(POD)
    assert conf == ResolvConf(
        ("10.96.0.10",), ("shop.svc.cluster.local", "svc.cluster.local", "cluster.local"), 5, 3.0, 4
    )


@pytest.mark.parametrize(
    ("name", "tried"),
    [
        ("db", ["db.shop.svc.cluster.local", "db.svc.cluster.local", "db.cluster.local", "db"]),
        ("db.example.com", ["db.example.com.shop.svc.cluster.local", "db.example.com.svc.cluster.local",
                            "db.example.com.cluster.local", "db.example.com"]),
        ("db.example.com.", ["db.example.com"]),
        ("a.b.c.d.e.f", ["a.b.c.d.e.f", "a.b.c.d.e.f.shop.svc.cluster.local", "a.b.c.d.e.f.svc.cluster.local",
                         "a.b.c.d.e.f.cluster.local"]),
    ],
)  # fmt: skip
def test_the_search_list_comes_first_below_ndots_and_never_behind_a_final_dot(name: str, tried: list[str]) -> None:
    assert list(parse(POD).tried(name)) == tried


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ResolvConf()),
        ("# nameserver 1.1.1.1\n; search a\n", ResolvConf()),
        ("nameserver 1.1.1.1\nnameserver ::1\nnameserver 3.3.3.3\nnameserver 4.4.4.4\n",
         ResolvConf(("1.1.1.1", "::1", "3.3.3.3"))),
        ("domain a.example\nsearch b.example c.example.\n", ResolvConf(search=("b.example", "c.example"))),
        ("options ndots:99 timeout:99 attempts:99 rotate edns0\n", ResolvConf(ndots=15, timeout=30.0, attempts=5)),
        ("options ndots:x timeout: attempts\noptions timeout:0 attempts:0\n", ResolvConf(timeout=1.0, attempts=1)),
        ("search " + "a" * 64 + " ok.example ../../etc\n", ResolvConf(search=("ok.example",))),
    ],
)  # fmt: skip
def test_words_bounds_and_nonsense(text: str, expected: ResolvConf) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "sound"),
    [("db", True), ("db.example.com.", True), ("_srv.x", True), ("127.0.0.1", False), ("::1", False), ("", False), (".", False),
     ("/var/run", False), ("a..b", False), ("-a", False), ("a" * 300, False), ("ü.de", False), ("a b", False)],
)  # fmt: skip
def test_what_can_be_a_hosts_name(text: str, sound: bool) -> None:
    assert is_name(text) is sound


def test_the_names_of_a_hosts_file() -> None:
    assert hosts("127.0.0.1 localhost LocalHost4 # me\n\n10.0.0.2\n::1 ip6\n") == {"localhost", "localhost4", "ip6"}


@given(st.text(max_size=400))
def test_no_text_breaks_it_and_all_is_bounded(text: str) -> None:
    conf = parse(text)
    assert 1 <= len(conf.servers) <= MOST_SERVERS
    assert 0 <= conf.ndots <= 15
    assert 1 <= conf.timeout <= 30
    assert 1 <= conf.attempts <= 5
    for name in conf.tried("db.example.com"):
        assert len(name) <= MOST_NAME
        assert message.question(1, name)


@given(text=st.binary(max_size=64), number=st.integers(0, 65535))
def test_no_datagram_is_an_answer_by_accident(text: bytes, number: int) -> None:
    asked = message.question(number, "db.example.com")
    assert message.answer(text, asked) is None or text[:2] == asked[:2]


def test_an_answer_is_one_to_this_question() -> None:
    asked = message.question(7, "db.example.com")
    reply = asked[:2] + b"\x81\x80" + asked[4:6] + b"\0\1" + asked[8:]
    assert message.answer(reply, asked) == message.Answer(message.NO_ERROR, 1)
    assert message.answer(reply.replace(b"db", b"DB"), asked) is not None
    assert message.answer(asked, asked) is None, "a question is no answer"
    assert message.answer(b"\0\x08" + reply[2:], asked) is None, "another id"
    assert message.answer(reply.replace(b"example", b"elsewhe"), asked) is None, "about another name"
    assert message.answer(reply[:11], asked) is None
