"""Redis URLs: what the usual clients take, and what is refused before anything is looked up."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.settings.load import ConfigError, load
from probes.redis.address import address_from, parse
from probes.store.failures import LinkFailed

SECRET = "S3cr3t-0f-the-test"  # noqa: S105


@pytest.mark.parametrize(
    ("url", "known"),
    [
        ("redis://cache", {"host": "cache", "port": 6379, "user": "", "password": "", "tls": False}),
        ("redis://:p%40ss@10.0.0.3:7000/2", {"host": "10.0.0.3", "port": 7000, "password": "p@ss"}),
        ("redis://app:pw@cache", {"user": "app", "password": "pw"}),
        ("rediss://cache:6378?ssl_ca_certs=/ca.pem&ssl_check_hostname=false", {"tls": True, "verify": True, "check_host": False, "authorities": "/ca.pem"}),
        ("rediss://cache?ssl_cert_reqs=none", {"verify": False}),
        ("unix:///run/redis.sock?password=pw", {"path": "/run/redis.sock", "password": "pw", "host": ""}),
        ("redis://[::1]:6380", {"host": "::1", "port": 6380}),
    ],
)  # fmt: skip
def test_the_forms_of_the_usual_clients(url: str, known: dict[str, object]) -> None:
    found = parse(url)
    assert {name: getattr(found, name) for name in known} == known


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@x@host", f"redis://:{SECRET}/@host", f"redis://:{SECRET}#@host", f"redis://:{SECRET}@host:port",
        f"redis+sentinel://:{SECRET}@host", f"redis://:{SECRET}@a:1,b:2", f"redis://:{SECRET}@", "unix://", "", "cache:6379",
        "redis://:${REDIS_PASSWORD}@host", f"postgresql://u:{SECRET}@host/d",
    ],
)  # fmt: skip
def test_what_can_be_read_in_two_ways_is_refused_without_a_word_of_it(url: str) -> None:
    with pytest.raises(LinkFailed) as failed:
        parse(url)
    assert failed.value.reason == "configuration"
    assert SECRET not in f"{failed.value} {failed.value.remedy}"


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    reasons = set()
    for url in (text, f"redis://{text}", f"rediss://u:{text}@h"):
        try:
            parse(url)
        except LinkFailed as failed:
            reasons.add(failed.reason)
    assert reasons <= {"configuration"}


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).map(str.strip).filter(bool))
@example("%00")
def test_a_password_of_its_own_place_comes_out_as_it_is(password: str) -> None:
    for url, user in (("redis://cache:1/2?x=1", ""), ("redis://app@cache", "app"), ("unix:///run/r.sock", "")):
        found = parse(address_from(url, "env:PASSWORD", {"PASSWORD": password})())
        assert (found.password, found.user) == (password, user)


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        ([("redis.targets", f"cache=redis://:{SECRET}@host")], "redis.targets"),
        ([("redis.targets", f"cache={SECRET}")], "redis.targets"),
        ([("redis.targets", "cache=redis://host"), ("redis.passwords", f"cache={SECRET}")], "redis.passwords"),
        ([("redis.passwords", "cache=env:P")], "no name of redis.targets"),
        ([("redis.targets", "main=redis://host"), ("postgres.targets", "main=env:DSN")], "stands in postgres.targets too"),
        ([("redis.targets", "Cache=redis://host")], "is no name"),
        ([("redis.targets", "cache=redis://host"), ("redis.timeout_seconds", "20")], "must be below every_seconds"),
        ([("connections.services", "70000=redis")], "is no port"),
        ([("connections.services", "7000=rediss")], "is no known service"),
    ],
)  # fmt: skip
def test_faults_of_the_settings_name_the_field_and_show_no_secret(flags: list[tuple[str, str]], fault: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(flags=flags)
    assert fault in str(refused.value)
    assert SECRET not in str(refused.value)


def test_settings_that_are_right() -> None:
    config = load(flags=[("redis.targets", "cache=rediss://host:6378?ssl_ca_certs=/ca.pem,jobs=env:JOBS"), ("connections.services", "16379=redis")])  # fmt: skip
    assert config.redis.targets == {"cache": "rediss://host:6378?ssl_ca_certs=/ca.pem", "jobs": "env:JOBS"}
    assert config.connections.services == {"16379": "redis"}
