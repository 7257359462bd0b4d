"""The database rules: present, absent, unknown, and what looks alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.diagnosis import Engine
from agent.history import History
from agent.report import AgentSelf
from agent.rules import BY_ID
from agent.rules.raising import raise_cpu
from agent.rules.rule import Absent, Judgement, Present, Unknown
from probes.host.platform import Environment
from probes.postgres.probe import PostgresReading
from probes.reading import Code, Unseen
from probes.sockets.connections import ConnectionsReading
from probes.store.round_trip import PARTS
from tests.unit.builders import ALL_COUNT, Cause, FakeClock, Scene

HEALTHY: dict[str, tuple[float, ...]] = {
    "short": (0.2, 0.3, 0.0, 0.2),
    "wait": (0.2, 20.3, 0.0, 0.3),
    "bulk": (0.2, 0.4, 0.1, 1.0),
}
"""Operation -> milliseconds of network, server, suspended, client."""


def reading(target: str = "main", trips: dict[str, tuple[float, ...]] = HEALTHY, **changes: Any) -> PostgresReading:
    parts = {
        f"{part}_seconds": {name: (*values, 0.0)[number] / 1e3 for name, values in trips.items()}
        for number, part in enumerate(PARTS)
    }
    known: dict[str, Any] = {
        "taken": 0.0, "seconds": 10.0, "target": target, "up": True, "failures": {}, "least_round_trip_seconds": 1e-5,
        "round_trip_seconds": {name: sum(values) / 1e3 for name, values in trips.items()},
    }  # fmt: skip
    return PostgresReading(**{**known, **parts, **changes})


def failed(reason: str = "refused", target: str = "main", taken: float = 0.0) -> PostgresReading:
    return PostgresReading(
        taken=taken, seconds=10.0, target=target, up=False, failures={reason: 1.0}, reason=reason, because="nobody is there",
        remedy="look",
    )  # fmt: skip


#: A slot in which nothing was asked.
PAUSED = replace(failed(), failures={})


def history(*readings: PostgresReading, environment: Environment = "none") -> History:
    """One slot each ten seconds."""
    scene = Scene(environment=environment)
    clock = scene.clock
    assert isinstance(clock, FakeClock)
    for each in readings:
        clock.advance(10.0)
        scene.history.add(each)
    return scene.history


def judge(rule: str, *readings: PostgresReading, environment: Environment = "none") -> Judgement:
    return BY_ID[rule].judge(history(*readings, environment=environment))


def shifted(network: float = 0.0, server: float = 0.0, suspended: float = 0.0) -> dict[str, tuple[float, ...]]:
    """A healthy trip with so many milliseconds more in every operation."""
    return {name: (n + network, s + server, w + suspended, c) for name, (n, s, w, c) in HEALTHY.items()}


FROZEN = reading(trips=shifted(suspended=60))
FAR = reading(trips=shifted(network=10), least_round_trip_seconds=0.01)
PROXIED = reading(trips=shifted(network=10))
UNEVEN = tuple(reading(trips=shifted(network=extra)) for extra in (60.0, 0.0, 90.0, 30.0))
SLOW_SERVER = reading(trips=shifted(server=30))
BLIND = reading(trips={name: (0.0, s, 0.0, c, 90.0) for name, (_, s, _, c) in HEALTHY.items()})

ROUND_TRIP_RULES = [
    BY_ID["database_unreachable"], BY_ID["client_suspended_holding_connection"], BY_ID["network_slow"],
    BY_ID["proxy_or_server_starved"],
]  # fmt: skip
SCENES: dict[str, tuple[tuple[PostgresReading, ...], str]] = {
    # letters: unreachable, client suspended, network slow, proxy or server starved
    "healthy": ((reading(),) * 5, "AAAA"),
    "the client is frozen": ((FROZEN,) * 5, "APAA"),
    "the server is far": ((FAR,) * 5, "AAPA"),
    "a slow proxy in between": ((PROXIED,) * 5, "AAPA"),
    "uneven answers": (UNEVEN, "AAAP"),
    "a slow SELECT 1": ((SLOW_SERVER,) * 5, "AAAP"),
    "frozen and far": ((reading(trips=shifted(network=10, suspended=60)),) * 5, "APPA"),
    "nothing can be told apart": ((BLIND,) * 5, "AUAA"),
    "refused": ((failed(),) * 3, "PUUU"),
    "refused once": ((reading(), reading(), reading(), failed()), "UAAA"),
    "refused once, and then a pause": ((reading(), reading(), reading(), failed(), PAUSED, PAUSED), "UAAA"),
    "refused twice with a pause between": ((failed(), PAUSED, failed()), "PUUU"),
    "refused, and a pause since": ((failed(), PAUSED, failed(), PAUSED), "PUUU"),
    "down, up, and refused once": ((failed(), failed(), reading(), failed()), "UUUU"),
    "wrong password, and a pause": (
        (*(failed("authentication"),) * 2, replace(PAUSED, reason="authentication")),
        "UUUU",
    ),
    "back again": ((failed(), failed(), reading()), "AUUU"),
    "wrong password": ((failed("authentication"),) * 3, "UUUU"),
    "no DSN": ((failed("configuration"),) * 3, "UUUU"),
    "nothing yet": ((), "UUUU"),
}
ANSWERS = {"P": Present, "A": Absent, "U": Unknown}


@pytest.mark.parametrize(
    ("scene", "rule", "letter"),
    [
        pytest.param(scene, rule.id, letter, id=f"{rule.id}: {scene}")
        for scene, (_, letters) in SCENES.items()
        for rule, letter in zip(ROUND_TRIP_RULES, letters, strict=True)
    ],
)
def test_each_rule_knows_its_own_scene_from_the_look_alikes(scene: str, rule: str, letter: str) -> None:
    judgement = judge(rule, *SCENES[scene][0])
    assert isinstance(judgement, ANSWERS[letter]), judgement


def test_only_attempts_are_counted() -> None:
    judgement = judge("database_unreachable", failed(), PAUSED, PAUSED, failed())
    assert isinstance(judgement, Present)
    assert "did not answer 2 times in a row" in judgement.evidence[0].text


@pytest.mark.parametrize(
    ("replies", "of", "verdict"), [(3.0, "main", Unknown), (0.0, "main", Present), (3.0, "another", Present)]
)
def test_what_answers_the_app_is_not_unreachable(replies: float, of: str, verdict: type) -> None:
    told = history(failed(taken=1010.0), failed(taken=1020.0))
    told.add(ConnectionsReading(taken=1020.0, seconds=10.0, replies_per_second={of: replies}))
    judgement = BY_ID["database_unreachable"].judge(told)
    assert isinstance(judgement, verdict), judgement
    if isinstance(judgement, Unknown):
        assert "3.0 replies per second" in judgement.because


@pytest.mark.parametrize(
    ("reason", "gap", "verdict"),
    [("timeout", 0.08, Unknown), ("timeout", 0.02, Present), ("refused", 0.08, Present), ("closed", 0.08, Present)],
)
def test_silence_says_nothing_to_an_agent_that_is_stopped_most_of_the_time(
    reason: str, gap: float, verdict: type
) -> None:
    scene = Scene()
    for _ in range(2):
        scene.run(20.0, gap=gap, cause="quota", limit=0.2)
        scene.history.add(failed(reason, taken=scene.clock()))
    judgement = BY_ID["database_unreachable"].judge(scene.history)
    assert isinstance(judgement, verdict), judgement
    if isinstance(judgement, Unknown):
        assert judgement.code is Code.CANNOT_COUNT, "a finding does not stay for it"
        assert "had no CPU" in judgement.because


def test_replies_from_before_the_outage_prove_nothing() -> None:
    told = history(failed(taken=1010.0), failed(taken=1020.0))
    told.add(ConnectionsReading(taken=1012.0, seconds=10.0, replies_per_second={"main": 3.0}))
    assert isinstance(BY_ID["database_unreachable"].judge(told), Present)


def test_an_outage_is_over_with_the_first_answer() -> None:
    clock = FakeClock(1000.0)
    told = History(600.0, clock=clock)
    engine = Engine(told, rules=[BY_ID["database_unreachable"]], clock=clock)
    found = []
    for each in (reading(), *[failed()] * 7, reading(), reading()):
        told.add(each)
        found.append(bool(engine.evaluate(AgentSelf("1", 1.0, 1.0, 1))[0].findings))
        clock.advance(10.0)
    assert found == [False, False, *[True] * 6, False, False]


def test_the_headline_says_what_was_taken_and_what_postgres_worked() -> None:
    judgement = judge("client_suspended_holding_connection", *[FROZEN] * 3)
    assert isinstance(judgement, Present)
    text = judgement.evidence[0].text
    assert "of 203 ms of round trips" in text
    assert "taken away for 180.1 ms" in text
    assert "Postgres worked 21.0 ms" in text
    assert "Postgres is innocent" in judgement.advice.summary


@pytest.mark.parametrize(
    ("counts", "gap", "verdict", "held"),
    [(False, 0.0, Unknown, "0.0% of the time, 0 ms"), (None, 0.0, Unknown, "0.0% of the time, 0 ms"),
     # Stops of 20 ms in a fifth of the time cost a question 2 ms on average, and these lost 60 ms.
     (False, 0.02, Unknown, "% of the time, 20 ms"), (False, 0.09, Present, ""), (True, 0.0, Present, "")],
)  # fmt: skip
def test_where_own_work_cannot_be_told_apart_the_childs_stops_must_account_for_the_loss(
    counts: bool | None, gap: float, verdict: type, held: str
) -> None:
    scene = Scene(trust={**ALL_COUNT, "thread_cpu_time": counts})
    for _ in range(3):
        scene.run(10.0, gap=gap)
        scene.history.add(FROZEN)
    judgement = BY_ID["client_suspended_holding_connection"].judge(scene.history)
    assert isinstance(judgement, verdict), judgement
    if isinstance(judgement, Unknown):
        assert held in judgement.because


@pytest.mark.parametrize("rule", ["network_slow", "proxy_or_server_starved"])
def test_a_route_that_became_longer_is_distance_and_no_starved_peer(rule: str) -> None:
    """From near to far, and near again, at the default slots: what stood before the change is forgotten soon."""
    far = reading(trips=shifted(network=100))
    steps = [reading()] * 6 + [far] * 8 + [reading()] * 8
    told = [isinstance(judge(rule, *steps[:count]), Present) for count in range(6, len(steps) + 1)]
    if rule == "proxy_or_server_starved":
        assert not any(told)
    else:
        first, last = told.index(True), len(told) - 1 - told[::-1].index(True)
        assert first <= 4, "found within four slots"
        assert last <= 8, "and forgotten with the first quick one"
        assert all(told[first : last + 1])


@pytest.mark.parametrize("pooled", [False, True])
def test_a_pooler_without_a_free_connection_looks_like_a_server_without_cpu_and_both_are_said(pooled: bool) -> None:
    queue = [replace(each, pooled=pooled) for each in UNEVEN]
    judgement = judge("proxy_or_server_starved", *queue)
    assert isinstance(judgement, Present)
    advice = judgement.advice
    by_pool = ["cl_waiting" in change for change in advice.changes]
    by_cpu = ["CPU" in change for change in advice.changes]
    assert any(by_pool)
    assert any(by_cpu)
    assert by_pool.index(True) < by_cpu.index(True) if pooled else by_cpu.index(True) < by_pool.index(True)
    assert "fewer connections" not in advice.will_not_help


def test_by_its_own_clock_the_server_alone_is_without_cpu() -> None:
    judgement = judge("proxy_or_server_starved", *[replace(SLOW_SERVER, pooled=True)] * 5)
    assert isinstance(judgement, Present)
    assert not any("cl_waiting" in change for change in judgement.advice.changes)
    assert "larger pool" in judgement.advice.will_not_help


def test_on_cloud_run_the_advice_is_the_billing_mode() -> None:
    judgement = judge("client_suspended_holding_connection", *[FROZEN] * 3, environment="cloud_run_service")
    assert isinstance(judgement, Present)
    assert any("--no-cpu-throttling" in change for change in judgement.advice.changes)


@pytest.mark.parametrize(
    ("cause", "gap", "limit", "raised"),
    [("contention", 0.05, None, False), ("hypervisor", 0.03, None, False), ("limit of the machine", 0.05, None, False), ("quota", 0.05, 0.5, True)],
)  # fmt: skip
@pytest.mark.parametrize("environment", ["docker", "kubernetes", "systemd", "none"])
def test_a_limit_is_raised_only_where_one_takes_the_clients_cpu(
    environment: Environment, cause: Cause, gap: float, limit: float | None, raised: bool
) -> None:
    scene = Scene(environment=environment)
    for _ in range(4):
        scene.run(15.0, gap=gap, cause=cause, limit=limit)
        scene.history.add(replace(FROZEN, taken=scene.clock()))
    judgement = BY_ID["client_suspended_holding_connection"].judge(scene.history)
    assert isinstance(judgement, Present)
    lines = set(judgement.advice.changes)
    assert lines
    assert bool(lines & set(raise_cpu(scene.history))) is raised


def test_a_client_beside_a_host_that_takes_the_cpu_is_not_sold_another_billing_mode() -> None:
    scene = Scene(environment="cloud_run_service")
    for _ in range(4):
        scene.run(15.0, gap=0.03, cause="hypervisor", in_flight=1)
        scene.history.add(replace(FROZEN, taken=scene.clock()))
    judgement = BY_ID["client_suspended_holding_connection"].judge(scene.history)
    assert isinstance(judgement, Present)
    assert not any("throttling" in change for change in judgement.advice.changes)


def test_a_proxy_is_known_by_a_peer_that_is_near_while_the_answer_comes_from_afar() -> None:
    near, far = judge("network_slow", *[PROXIED] * 3), judge("network_slow", *[FAR] * 3)
    assert isinstance(near, Present)
    assert isinstance(far, Present)
    assert "a proxy is in between" in near.evidence[1].text
    assert "proxy" not in far.evidence[1].text


@pytest.mark.parametrize("order", [("main", "replica"), ("replica", "main")])
def test_of_two_databases_the_worse_one_speaks(order: tuple[str, str]) -> None:
    readings = [failed(target="replica") if target == "replica" else reading(target) for target in order for _ in "123"]
    judgement = judge("database_unreachable", *readings)
    assert isinstance(judgement, Present)
    assert "'replica'" in judgement.evidence[0].text


# ---- the app's own connections


def sample(unread: dict[str, float] | None, connections: float = 4.0, because: str = "") -> ConnectionsReading:
    return ConnectionsReading(
        taken=0.0, seconds=10.0, unread_ratio=unread, connections=dict.fromkeys(unread or {}, connections),
        unseen={"unread_ratio": Unseen(because, Code.NOT_PERMITTED)} if because else {},
    )  # fmt: skip


DB, CACHE = "10.0.0.1:5432", "10.0.0.2:6379"


@pytest.mark.parametrize(
    ("samples", "verdict"),
    [
        ([sample({DB: 0.75})] * 4, Present),
        ([sample({DB: 0.0, CACHE: 0.6})] * 4, Present),
        ([sample({DB: 0.05})] * 4, Absent),  # libpq drains in a burst
        ([sample({DB: 1.0})] * 2, Unknown),  # it did not stand for long enough
        ([sample({DB: 1.0})] + [sample({DB: 0.0}, connections=40.0)] * 4, Absent),
        ([sample({})] * 4, Absent),
        ([sample(None, because="netlink is refused here")] * 4, Unknown),
    ],
    ids=["unread", "one of two", "drained", "too short", "one among many", "no connection", "no times"],
)
def test_a_client_that_does_not_read_is_told_from_its_own_sockets(
    samples: list[ConnectionsReading], verdict: type
) -> None:
    clock = FakeClock(1000.0)
    told = History(600.0, clock=clock)
    for each in samples:
        clock.advance(10.0)
        told.add(each)
    judgement = BY_ID["client_not_reading"].judge(told)
    assert isinstance(judgement, verdict), judgement
    if isinstance(judgement, Present):
        assert "lay unread here" in judgement.evidence[0].text
    if isinstance(judgement, Unknown):
        assert "refused" in judgement.because or "half a minute" in judgement.because
