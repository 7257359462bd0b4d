"""`pool_saturated`: present, absent, unknown, what looks alike, and whose symptom it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.diagnosis import Engine
from agent.history import History
from agent.report import AgentSelf
from agent.rules import BY_ID
from agent.rules.causal_graph import CPU_TAKERS, GRAPH
from agent.rules.confidence import Confidence
from agent.rules.database.pool_saturated import BY_FULLNESS, BY_WAIT, BY_WAITERS, COMMON, SETTINGS
from agent.rules.rule import Absent, Judgement, Present, Unknown
from probes.app.pool import PoolReading
from probes.app.pool_names import LIBRARIES
from probes.reading import Code, NoData, Unseen
from probes.sockets.connections import ConnectionsReading
from tests.unit.agent.rules.database.test_database import MAIN, beside_one_that_is_down, unix
from tests.unit.agent.rules.database.test_database import sample as connections
from tests.unit.builders import FakeClock, Scene

RULE = BY_ID["pool_saturated"]
DB = "10.0.0.1:5432"
#: What a sample adds beside these is named by the test.
FIELDS = ("size", "checked_out", "waiting", "acquires", "waits", "wait_seconds", "timeouts")


def sample(library: str = "hikaricp", pool: str = "main", page_seconds: float = 0.004, **numbers: float) -> PoolReading:
    """Ten seconds of one pool."""
    told: dict[str, Any] = {field: {pool: numbers[field]} for field in FIELDS if field in numbers}
    return PoolReading(taken=0.0, seconds=10.0, page_seconds=page_seconds, libraries={pool: library}, **told)


def history(*samples: PoolReading | ConnectionsReading) -> History:
    """One sample each ten seconds."""
    clock = FakeClock()
    told = History(600.0, clock=clock)
    for each in samples:
        clock.advance(10.0 if isinstance(each, PoolReading) else 0.0)
        told.add(each)
    return told


def judge(*samples: PoolReading | ConnectionsReading) -> Judgement:
    return RULE.judge(history(*samples))


QUEUE = sample(size=4, checked_out=4, waiting=12, acquires=500, wait_seconds=90.0)
CALM = sample(size=10, checked_out=3, waiting=0, acquires=500, wait_seconds=0.05)
BUSY = sample(size=10, checked_out=10, waiting=0, acquires=500, wait_seconds=0.5)
BURST = sample(size=10, checked_out=10, waiting=4, acquires=500, wait_seconds=2.0)
STUCK = sample(size=4, checked_out=4, waiting=12, acquires=0, wait_seconds=0.0)
#: All that pgxpool tells, and of database/sql only those that waited.
PGX = sample("pgxpool", size=4, checked_out=4, acquires=500, waits=490, wait_seconds=20.0)
PGX_STUCK = sample("pgxpool", size=4, checked_out=4, acquires=0, waits=0, wait_seconds=0.0)
SQL = sample("database_sql", size=4, checked_out=4, waits=100, wait_seconds=20.0)
#: database/sql counts a wait as it begins and its time when it is over.
SQL_STUCK = sample("database_sql", size=4, checked_out=4, waits=50, wait_seconds=0.0)
SQL_SHORT = sample("database_sql", size=4, checked_out=2, waits=50, wait_seconds=0.0)
SQL_CALM = sample("database_sql", size=4, checked_out=4, waits=0, wait_seconds=0.0)
PRISMA = sample("prisma", checked_out=3, waiting=8, acquires=80, wait_seconds=8.0)
NODE = sample("node_postgres", checked_out=10, waiting=31)
FULL_NODE = sample("node_postgres", size=2, checked_out=2, waiting=0)
#: The page of an event loop that computes.
LATE_NODE = sample("node_postgres", size=2, checked_out=2, waiting=0, page_seconds=0.18)
LATE_ROOM = sample("node_postgres", size=20, checked_out=2, waiting=0, page_seconds=0.18)
LATE_TOLD = sample(size=10, checked_out=10, waiting=0, acquires=500, wait_seconds=0.5, page_seconds=0.18)
SOMETIMES = sample("node_postgres", size=2, checked_out=2, waiting=1)
JDBC = sample("jdbc", size=10, checked_out=10)
#: A worker that keeps its one connection.
ONE = sample(size=1, checked_out=1, waiting=0, acquires=0, wait_seconds=0.0)
ONE_QUEUE = sample(size=1, checked_out=1, waiting=7, acquires=50, wait_seconds=40.0)
ONE_BLIND = sample("jdbc", size=1, checked_out=1)
LARGE = sample(size=200, checked_out=191, waiting=0, acquires=900, wait_seconds=45.0)

SCENES: dict[str, tuple[Sequence[PoolReading], type]] = {
    "a queue": ([QUEUE] * 6, Present),
    "a queue before pgxpool, which has no gauge of it": ([PGX] * 6, Present),
    "a queue before database/sql, which counts those that waited": ([SQL] * 6, Present),
    "a queue before a pool of unknown size": ([PRISMA] * 6, Present),
    "a queue and no times": ([NODE] * 6, Present),
    "nobody gets a connection any more: no counter moves": ([STUCK] * 6, Present),
    "the same, and no gauge of who waits": ([PGX_STUCK] * 6, Present),
    "the same before database/sql, and ever more requests wait": ([SQL_STUCK] * 6, Present),
    "full, and nobody tells who waits": ([JDBC] * 6, Present),
    "95 % of a large pool": ([LARGE] * 6, Present),
    "a queue in four of six samples": ([QUEUE, CALM, QUEUE, QUEUE, CALM, QUEUE], Present),
    "a queue before a pool of one": ([ONE_QUEUE] * 6, Present),
    "room": ([CALM] * 6, Absent),
    "without a limit": ([sample("database_sql", checked_out=80, waiting=0)] * 6, Absent),
    "room, and waits too short for the page's digits": ([SQL_SHORT] * 6, Absent),
    # sample-alikes
    "full in one sample": ([CALM, CALM, BURST, CALM, CALM, CALM], Absent),
    "full in half of the samples": ([QUEUE, CALM] * 3, Absent),
    "full, and everybody gets a connection at once": ([BUSY] * 6, Absent),
    "full by design, as many workers as connections": ([SQL_CALM] * 2 + [sample("node_postgres", size=4, checked_out=4, waiting=0)] * 4, Absent),
    "a pool of one, in use by design": ([ONE] * 6, Absent),
    "slow to connect, never full": ([sample(size=10, checked_out=1, waiting=0, acquires=2, wait_seconds=0.2)] * 6, Absent),
    "many short waits": ([sample(size=9, checked_out=9, waiting=1, acquires=9000, wait_seconds=9.0)] * 6, Absent),
    "full by design, and one burst": ([SOMETIMES, *[FULL_NODE] * 5], Absent),
    "full, one page was late": ([LATE_NODE, *[FULL_NODE] * 5], Absent),
    "room, on pages that come late": ([LATE_ROOM] * 6, Absent),
    "full, on pages that come late, and all waits are counted": ([LATE_TOLD] * 6, Absent),
    # unknown
    "full, on pages that come late, and how long who waits is not counted": ([LATE_NODE] * 6, Unknown),
    "full, and somebody waits in a third of the samples, nobody tells how long": ([SOMETIMES, FULL_NODE, FULL_NODE] * 2, Unknown),
    "a pool of one, and nobody tells who waits": ([ONE_BLIND] * 6, Unknown),
    "neither size nor waiters": ([sample("sqlalchemy", checked_out=12)] * 6, Unknown),
    "two samples": ([QUEUE] * 2, Unknown),
    "nothing yet": ([], Unknown),
}  # fmt: skip


@pytest.mark.parametrize("scene", SCENES)
def test_a_saturated_pool_is_told_from_what_looks_alike(scene: str) -> None:
    samples, verdict = SCENES[scene]
    judgement = judge(*samples)
    assert isinstance(judgement, verdict), judgement
    if isinstance(judgement, Absent):
        assert judgement.evidence[0].value is not None
        assert "samples pool 'main'" in judgement.because
    if isinstance(judgement, Unknown):
        assert judgement.because


def present(*samples: PoolReading | ConnectionsReading) -> Present:
    judgement = judge(*samples)
    assert isinstance(judgement, Present), judgement
    return judgement


def test_the_headline_has_the_numbers() -> None:
    assert present(*[QUEUE] * 6).evidence[0].text == (
        "in 6 of 6 samples pool 'main' had no connection left (4 of 4 checked out, 12 waiting, 180 ms mean wait)"
    )
    assert "(4 of 4 checked out, 200 ms mean wait of those that waited)" in present(*[SQL] * 6).evidence[0].text
    assert "(3 checked out, 8 waiting, 1000 ms mean wait)" in present(*[PRISMA] * 6).evidence[0].text


@pytest.mark.parametrize(
    ("samples", "severity", "sure"),
    [
        ([QUEUE] * 6, "critical", BY_WAIT),
        ([PGX] * 6, "warning", BY_WAIT),  # 40 ms
        ([NODE] * 6, "warning", BY_WAITERS),
        ([JDBC] * 6, "warning", BY_FULLNESS),
        ([PGX_STUCK] * 6, "warning", BY_FULLNESS),
        ([SQL_STUCK] * 6, "warning", BY_FULLNESS),
        ([ONE_QUEUE] * 6, "critical", BY_WAIT),
        ([*[PGX] * 5, sample("pgxpool", size=4, checked_out=4, timeouts=3)], "critical", BY_WAIT),
    ],
    ids=["180 ms", "40 ms", "who waits", "full alone", "stuck", "stuck, and more come", "a pool of one", "gave up"],
)
def test_severity_is_the_harm_that_is_known(samples: list[PoolReading], severity: str, sure: Confidence) -> None:
    judgement = present(*samples)
    assert (judgement.severity, judgement.confidence) == (severity, sure)


def test_who_still_waits_counts_while_no_wait_ends() -> None:
    """psycopg_pool counts a request when it comes and its wait when it is over: by Little's law 12 x 60 s / 60."""
    waiting = sample("psycopg_pool", size=4, checked_out=4, waiting=12, acquires=10, wait_seconds=0.0)
    assert "12000 ms mean wait" in present(*[waiting] * 6).evidence[0].text


def test_a_wait_that_has_not_ended_has_no_length() -> None:
    assert "(4 of 4 checked out)" in present(*[SQL_STUCK] * 6).evidence[0].text


def test_while_nobody_is_served_the_wait_is_as_long_as_the_samples() -> None:
    judgement = present(*[STUCK] * 6)
    assert "12 waiting, 60000 ms mean wait" in judgement.evidence[0].text
    assert judgement.severity == "critical"


def test_requests_that_gave_up_are_counted() -> None:
    gave_up = sample(size=4, checked_out=4, waiting=12, acquires=500, wait_seconds=90.0, timeouts=2)
    assert present(*[gave_up] * 6).evidence[1].text == "12 requests gave up waiting"


# ---- what holds the connections


def sockets(waiting: float, unread: float, remote: str = DB, number: float = 4.0) -> ConnectionsReading:
    """What the kernel saw of the connections to one endpoint, beside a single one to a cache."""
    there, cache = {remote: number, "cache": 1.0}, {"cache": 0.0}
    return ConnectionsReading(
        taken=0.0, connections=there, waiting_ratio={remote: waiting, **cache}, unread_ratio={remote: unread, **cache},
        idle_ratio={remote: 1 - waiting - unread, "cache": 1.0},
    )  # fmt: skip


def test_what_holds_them_is_said_where_the_kernel_saw_it() -> None:
    told = present(*[QUEUE] * 6, sockets(0.5, 0.25), sockets(0.0, 0.25)).evidence[-1]
    assert told.text.startswith(
        f"meanwhile at least 25% of its connections to {DB} waited for the other side, 25% held"
    )
    assert (told.value, told.unit) == (0.25, "ratio")


def test_a_connection_that_looks_idle_is_not_laid_at_the_apps_door() -> None:
    """Measured: of seven connections three asked again at once after each reply, and 97 % looked idle."""
    told = present(*[QUEUE] * 6, sockets(0.03, 0.0)).evidence[-1]
    assert told.text.endswith("of the rest the wire does not say whether the app holds them")


@pytest.mark.parametrize(
    "seen",
    [
        [],
        [ConnectionsReading(taken=0.0, connections={}, unread_ratio={})],
        [
            ConnectionsReading(
                taken=0.0,
                connections={DB: 4.0},
                unseen={"unread_ratio": Unseen("netlink is refused here", Code.NOT_PERMITTED)},
            )
        ],
        [sockets(0.5, 0.5, number=0.0)],
    ],
    ids=["not looked at", "no connection", "no times", "none of them open"],
)
def test_nothing_is_said_of_what_the_kernel_did_not_see(seen: list[ConnectionsReading]) -> None:
    told = [evidence.text for evidence in present(*[QUEUE] * 6, *seen).evidence]
    assert not [text for text in told if DB in text]


# ---- several pools


def several(**pools: Mapping[str, float]) -> PoolReading:
    told: dict[str, Any] = {f: {name: n[f] for name, n in pools.items() if f in n} or None for f in FIELDS}
    return PoolReading(taken=0.0, seconds=10.0, libraries=dict.fromkeys(pools, "hikaricp"), **told)


FULL = {"size": 4, "checked_out": 4, "waiting": 2, "acquires": 500, "wait_seconds": 15.0}
WORSE = {**FULL, "wait_seconds": 80.0}
FINE = {"size": 4, "checked_out": 0, "waiting": 0, "acquires": 1, "wait_seconds": 0.0}


@pytest.mark.parametrize("pools", [{"a": FULL, "b": WORSE, "c": FINE}, {"c": FINE, "b": WORSE, "a": FULL}])
def test_of_several_pools_the_worst_one_speaks(pools: dict[str, Mapping[str, float]]) -> None:
    assert "pool 'b'" in present(*[several(**pools)] * 6).evidence[0].text


def test_a_pool_of_which_nothing_is_known_does_not_hide_behind_a_clean_one() -> None:
    assert isinstance(judge(*[several(a=FINE, b={"checked_out": 3})] * 6), Unknown)
    assert isinstance(judge(*[several(a=FULL, b={"checked_out": 3})] * 6), Present)


def test_a_pool_that_is_gone_is_not_judged() -> None:
    assert isinstance(judge(*[several(a=WORSE, b=FINE)] * 5, *[several(b=FINE)] * 3), Absent)


# ---- advice


@pytest.mark.parametrize("library", [*LIBRARIES, ""])
def test_the_advice_names_the_setting_of_the_library_last(library: str) -> None:
    judgement = present(*[sample(library, size=4, checked_out=4, waiting=12)] * 6)
    said = [SETTINGS[library]] if library in SETTINGS else COMMON
    assert [change for change in judgement.advice.changes if "a larger pool (" in change] == [
        f"only then a larger pool ({setting})" for setting in said
    ]
    assert "explains" in judgement.advice.changes[0]
    assert "max_connections" in judgement.advice.cost
    for innocent in ("asleep", "lock", "starved"):
        assert innocent in judgement.advice.will_not_help


# ---- it is a symptom


def test_whatever_takes_the_cpu_or_slows_the_route_explains_it() -> None:
    causes = set(GRAPH.causes("pool_saturated"))
    assert causes >= set(CPU_TAKERS)
    assert causes >= {
        "database_unreachable", "client_suspended_holding_connection", "client_not_reading", "network_slow",
        "proxy_or_server_starved",
    }  # fmt: skip
    assert not GRAPH.effects("pool_saturated")


def test_under_a_quota_it_is_the_mechanism_and_the_quota_is_the_cause() -> None:
    scene = Scene().run(60, gap=0.095, cause="quota", limit=0.05)
    for _ in range(6):
        scene.history.add(QUEUE)
    report, _ = Engine(scene.history, clock=scene.clock, wall=lambda: 0.0).evaluate(AgentSelf("1", 1.0, 0.0, 0, 0))
    found = {finding.rule: finding.explained_by for finding in report.findings}
    assert found["pool_saturated"] == "cpu_quota_throttled"
    assert report.verdict.startswith("A CPU limit")


def test_a_queue_outlives_late_pages_by_a_minute() -> None:
    """A Node that computes answered for its page now when somebody waited and now when nobody did: the finding came and went."""
    clock = FakeClock(1000.0)
    told = History(600.0, clock=clock)
    engine = Engine(told, rules=[RULE], clock=clock, wall=lambda: 0.0)
    verdicts = []
    queue = dataclasses.replace(NODE, page_seconds=0.18)
    for reading in (*[queue] * 6, *[LATE_NODE] * 18):
        clock.advance(10.0)
        told.add(reading)
        engine.evaluate(AgentSelf("1", 1.0, 0.0, 0, 0))
        verdicts.append(engine.verdicts()[RULE.id])
    judged = [isinstance(judge(*[queue] * (6 - n), *[LATE_NODE] * n), Present) for n in range(7)]
    ends = judged.index(False)
    assert verdicts[5 : 5 + ends + 6] == ["present"] * (ends + 6)
    assert verdicts[-1] == "unknown"


def test_a_page_without_a_pool_is_unknown_with_the_names_that_were_looked_for() -> None:
    told = history()
    for _ in range(3):
        told.miss(PoolReading, "", NoData("no metric of a connection pool is on the page; looked for a, b", "publish"))
    clock = told.clock
    report, _ = Engine(told, rules=[RULE], clock=clock, wall=lambda: 0.0).evaluate(AgentSelf("1", 1.0, 0.0, 0, 0))
    (unknown,) = report.unknown
    assert "looked for a, b" in unknown.because
    assert unknown.remedy == "publish"


# ---- whatever comes

NUMBER = st.none() | st.floats(0, 1e6)


@st.composite
def any_samples(draw: st.DrawFn) -> list[PoolReading]:
    found = []
    for _ in range(draw(st.integers(0, 6))):
        names = draw(st.sets(st.sampled_from("ab"), min_size=1))
        told: dict[str, Any] = {}
        for field in FIELDS:
            numbers = {name: number for name in names if (number := draw(NUMBER)) is not None}
            told[field] = numbers or None
        seconds = draw(st.sampled_from([0.0, 10.0]))
        found.append(PoolReading(taken=0.0, seconds=seconds, libraries=dict.fromkeys(names, "prisma"), **told))
    return found


@given(samples=any_samples())
@settings(max_examples=150)
def test_it_never_raises_and_its_share_is_a_share(samples: list[PoolReading]) -> None:
    judgement = judge(*samples)
    if not isinstance(judgement, Unknown):
        share = judgement.evidence[0]
        assert share.unit == "ratio"
        assert share.value is not None
        assert 0 <= share.value <= 1
        assert isinstance(judgement, Absent) or share.value > 0.5


# ---- what a hook tells, and a page that cannot be had


@pytest.mark.parametrize(("hooked", "kind"), [(QUEUE, Present), (CALM, Unknown)])
def test_a_page_that_is_missing_does_not_hide_behind_a_hook_s_calm_pool(hooked: PoolReading, kind: type) -> None:
    reason = Unseen("pool.metrics_url: answered 503, not 200", Code.MALFORMED)
    samples = [dataclasses.replace(hooked, unseen={"checked_out": reason})] * 6
    found = judge(*samples)
    assert isinstance(found, kind)
    if isinstance(found, Unknown):
        assert "503" in found.because
        assert found.remedy


def test_for_a_pool_of_unknown_library_all_usual_settings_are_named() -> None:
    found = judge(*[dataclasses.replace(QUEUE, libraries={"main": ""})] * 6)
    assert isinstance(found, Present)
    assert all(any(setting in change for change in found.advice.changes) for setting in COMMON)


@pytest.mark.parametrize("way", ["wire", "unix sockets", "nothing seen"])
def test_a_server_to_which_no_connection_goes_does_not_use_up_a_pool_whose_connections_are_seen(way: str) -> None:
    """`archive` is down, and what the pool has given out waits for `main`."""
    seen = connections(MAIN, waiting_ratio=0.9, idle_ratio=0.1, waiting_seconds=0.2)
    beside = {"wire": (seen,), "unix sockets": (seen, unix()), "nothing seen": ()}[way]
    report = beside_one_that_is_down(sample(size=4, checked_out=4, waiting=6, acquires=0, wait_seconds=0.0), *beside)
    above = {finding.rule: finding.explained_by for finding in report.findings}
    assert above["pool_saturated"] == ("waiting_for_database" if way == "wire" else "database_unreachable")
