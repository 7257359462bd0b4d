"""The rules about a Redis: guilty by its own count, cleared by its answers, unknown, and what looks alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.diagnosis import Engine
from agent.report import AgentSelf
from agent.rules import BY_ID
from agent.rules.rule import Absent, Judgement, Present, Unknown
from agent.views import connections
from agent.views.stalled import OTHER_SIDE, OWN_PACE, stalled
from probes.reading import Code, Reading, Unseen
from probes.redis.reading import RedisReading
from probes.sockets.services import DEFAULT_PORTS, SERVICES
from probes.store.round_trip import PARTS
from tests.unit.agent.rules.database.test_database import sample, told
from tests.unit.agent.rules.database.test_postgres import reading as postgres
from tests.unit.builders import Scene

CACHE, AT = "cache", "10.0.0.2:6379"


def redis(
    *, network: float = 0.1, server: float = 0.2, suspended: float = 0.0, unknown: float = 0.0, late: int = 0, by: float = 200.0,
    **known: Any,
) -> RedisReading:  # fmt: skip
    """One slot of five PINGs, milliseconds; ``late`` of them came ``by`` later."""
    away = network + server
    trips = {
        "short": (network, server, suspended, 0.2, unknown),
        "slowest": (network, server + by * bool(late), suspended, 0.2, unknown),
    }
    parts = {
        f"{part}_seconds": {name: values[n] / 1e3 for name, values in trips.items()} for n, part in enumerate(PARTS)
    }
    given: dict[str, Any] = {
        "taken": 0.0, "seconds": 10.0, "target": CACHE, "up": True, "failures": {}, "direct": True, "least_round_trip_seconds": network / 1e3,
        "round_trip_seconds": {name: sum(values) / 1e3 for name, values in trips.items()}, "standstill_ratio": 0.0, "busy_ratio": 0.01,
        "answers": tuple((away + unknown + by * (n < late)) / 1e3 for n in range(5)), "blocked_clients": 0.0,
    }  # fmt: skip
    return RedisReading(**{**given, **parts, **known})


def down(reason: str = "refused", **more: Any) -> RedisReading:
    return RedisReading(
        taken=0.0, seconds=10.0, target=CACHE, up=False, failures={reason: 1.0}, reason=reason,
        because=Unseen("nobody is there", Code.UNREACHABLE), remedy="check it", **more,
    )  # fmt: skip


UNTOLD: dict[str, Any] = {"standstill_ratio": None, "unseen": {"standstill_ratio": Unseen("no", Code.NOT_PERMITTED)}}
KEYS = redis(late=1, standstill_ratio=0.3, slowest=(("KEYS", 0.4),))
PAUSED = replace(down(), failures={})

CASES: dict[str, dict[str, tuple[tuple[Reading | tuple[Reading, ...], ...], type]]] = {
    "redis_slow": {
        "quick": ((redis(),) * 4, Absent),
        "slow commands by its own count": ((KEYS,) * 4, Present),
        "slow commands, and no PING met one": ((redis(standstill_ratio=0.2),) * 4, Present),
        "slow commands that are over": ((*(KEYS,) * 3, *(redis(),) * 3), Absent),
        "slow commands now and then": ((KEYS, redis(), KEYS, KEYS, redis(), redis()), Present),
        "few slow commands": ((redis(late=0, standstill_ratio=0.02),) * 4, Absent),
        "far away": ((redis(network=40),) * 4, Absent),
        "the client is stopped": ((redis(suspended=300),) * 4, Absent),
        "late, and the server does not say why": ((redis(late=2, **UNTOLD),) * 4, Unknown),
        "late, and by no command of its own": ((redis(late=2),) * 4, Unknown),
        "busy, with its CPU": ((redis(busy_ratio=0.7, cpu_ratio=0.78),) * 4, Absent),
        "quick, and the server is not asked": ((redis(**UNTOLD),) * 4, Absent),
        "nothing can be told apart, and slow": ((redis(unknown=90.0), redis(unknown=1.0)) * 2, Unknown),
        "down": ((down(),) * 4, Unknown),
        "nothing yet": ((), Unknown),
        "one slot": ((KEYS,), Unknown),
    },
    "redis_unreachable": {
        "quick": ((redis(),) * 4, Absent),
        "refused": ((down(),) * 3, Present),
        "refused once": ((redis(), down()), Unknown),
        "refused, and a pause since": ((down(), PAUSED, down(), PAUSED), Present),
        "loading its data": ((down("starting"),) * 3, Present),
        "a wrong password": ((down("authentication"),) * 3, Unknown),
        "a Postgres is down": ((postgres(),) * 3, Unknown),
        "nothing yet": ((), Unknown),
    },
    "network_slow": {
        "far away": ((redis(network=20, server=0.2),) * 4, Present),
        "quick": ((redis(),) * 4, Absent),
        "a slow server nearby": ((redis(server=90),) * 4, Absent),
        "far, and the client is stopped": ((redis(network=20, suspended=200),) * 4, Present),
    },
    "client_suspended_holding_connection": {
        "stopped": ((redis(suspended=60),) * 4, Present),
        "quick: a PING is too short to clear anybody": ((redis(),) * 4, Unknown),
        "quick, beside a Postgres": (((redis(), postgres()),) * 4, Absent),
        "nothing can be told apart": ((redis(unknown=90),) * 4, Unknown),
    },
    "waiting_for_database": {
        "consumers of a queue": ((sample(AT, waiting_ratio=0.8, waiting_seconds=0.5, waiters=4.0, busy_waiters=4.0),) * 4, Unknown),
        "consumers, and Redis counts them": (((sample(CACHE, waiting_ratio=0.8, waiting_seconds=0.5, waiters=4.0, busy_waiters=4.0), redis(blocked_clients=4.0)),) * 4, Absent),
        "nobody means to wait": (((sample(CACHE, waiting_ratio=0.8, waiting_seconds=0.5, waiters=4.0, busy_waiters=4.0), redis()),) * 4, Present),
        "a long poll": ((sample("10.0.0.3:443", waiting_ratio=0.9, waiting_seconds=5.0, waiters=4.0, busy_waiters=4.0),) * 4, Unknown),
        "a consumer of Kafka": ((sample("10.0.0.3:9092", waiting_ratio=0.9, waiting_seconds=0.4, waiters=4.0, busy_waiters=4.0),) * 4, Unknown),
        "a MySQL": ((sample("10.0.0.3:3306", waiting_ratio=0.8, waiting_seconds=0.1),) * 4, Present),
    },
    "too_many_queries": {
        "a client that shares one connection": ((sample(AT, busiest_round_trips_per_second=3000, min_rtt_seconds=0.0003, waiting_ratio=0.25),) * 4, Unknown),
        "few": ((sample(AT),) * 4, Absent),
    },
}  # fmt: skip


def judge(rule: str, *readings: Reading | tuple[Reading, ...]) -> Judgement:
    return BY_ID[rule].judge(told(*readings))


@pytest.mark.parametrize(
    ("rule", "readings", "verdict"),
    [pytest.param(rule, readings, verdict, id=f"{rule}: {case}") for rule, cases in CASES.items() for case, (readings, verdict) in cases.items()],
)  # fmt: skip
def test_each_rule_knows_its_case_from_the_look_alikes(
    rule: str, readings: tuple[Reading | tuple[Reading, ...], ...], verdict: type
) -> None:
    judgement = judge(rule, *readings)
    assert isinstance(judgement, verdict), judgement


def test_innocent_with_a_number() -> None:
    judgement = judge("redis_slow", *(redis(),) * 4)
    assert isinstance(judgement, Absent)
    assert "Redis 'cache' answered 20 PINGs in 0.3 ms (p50)" in judgement.because
    assert "of which the way takes 0.1" in judgement.because


def test_guilty_with_the_names_of_the_commands() -> None:
    judgement = judge("redis_slow", *(KEYS,) * 4)
    assert isinstance(judgement, Present)
    assert judgement.evidence[0].text == "Redis 'cache' serves nobody for 30% of the time, the longest: KEYS 400 ms"
    assert judgement.severity == "warning"


def test_a_stopped_client_says_that_redis_is_innocent() -> None:
    judgement = judge("client_suspended_holding_connection", *(redis(suspended=60),) * 4)
    assert isinstance(judgement, Present)
    assert "Redis is innocent" in judgement.advice.summary
    assert "Redis worked 0.4 ms" in judgement.evidence[0].text


@pytest.mark.parametrize(
    ("remote", "name"),
    [("10.0.0.3:6379", "Redis at 10.0.0.3:6379"), ("[::1]:3306", "MySQL at [::1]:3306"), ("10.0.0.3:1234", "10.0.0.3:1234"), ("other", "other"),
     ("10.0.0.3:7000", "Redis at 10.0.0.3:7000"), (CACHE, "Redis 'cache'"), ("main", "database 'main'")],
)  # fmt: skip
def test_a_peer_goes_by_the_name_of_its_service(remote: str, name: str) -> None:
    history = told(redis(), postgres(), replace(sample(), services={7000: "redis"}))
    assert connections.called(history, remote) == name


def test_nobody_whose_clients_mean_to_wait_by_the_hundred_is_watched_unasked() -> None:
    asked = {port for service in SERVICES.values() if service.watched for port in service.ports}
    assert set(DEFAULT_PORTS) == asked
    assert asked.isdisjoint({443, 8443, 80, 8080, 9092, 5672})


@pytest.mark.parametrize(("blocked", "part"), [(4.0, OWN_PACE), (0.0, OTHER_SIDE)])
def test_who_means_to_wait_stands_still_for_nobody(blocked: float, part: str) -> None:
    waits = sample(CACHE, waiting_ratio=0.8, waiting_seconds=0.5, waiters=4.0)
    found = stalled(told(*((waits, redis(blocked_clients=blocked)),) * 4)).groups[f"connections to {CACHE}"]
    assert found[part] >= 2.0


@pytest.mark.parametrize(
    ("ends", "state"),
    [((), "cleared"), ((CACHE,), "cleared"), ((AT,), "cleared"), ((CACHE, "10.0.0.1:5432"), "unknown")],
)
def test_a_redis_clears_itself_and_no_other_server(ends: tuple[str, ...], state: str) -> None:
    scene = Scene()
    for slot in range(8):
        scene.run(10)
        scene.history.add(redis())
        if slot >= 6:  # too short for the sockets to say anything
            for end in ends:
                scene.history.add(sample(end))
    report = Engine(scene.history, clock=scene.clock).evaluate(AgentSelf("", 0.0, 0.0, 0))[0]
    suspect = next(each for each in report.suspects if each.name == "database")
    assert (suspect.state, suspect.text) == (state, "Redis 0.2 ms")
