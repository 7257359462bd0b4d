"""The whole way from a hook in a real app to a verdict of the real agent: connection pools and requests in flight."""

from __future__ import annotations

import http.client
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import (
    ROOT,
    RunningAgent,
    Start,
    eventually,
    hearing,
    host_takes_the_cpu,
    server_programs,
)
from tests.lab import builds
from tests.lab.log_stage import free_udp_port
from tests.lab.postgres import PostgresServer
from tests.lab.process import Running
from tests.lab.quota import CpuGroup

PROGRAMS = Path(__file__).parent
#: Bursts of CPU as close as `doctor` has them.
CLOSE = ("--set", "suspension.spin_every_seconds=2.5,6,12,25", "--set", "suspension.budget_ratio=0.05", "--set", "budget.cpu_ratio=0.5")  # fmt: skip
QUOTA = 0.05
REQUEST_SECONDS, PAUSE_SECONDS, ROUNDS = 2.5, 6.0, 3

#: Starts a program of hooked.py or hooked.js with its hook, in a CPU group where one is given.
Run = Callable[..., Running]


@pytest.fixture
def port() -> int:
    return free_udp_port()


@pytest.fixture
def run(port: int, stack: ExitStack) -> Run:
    def start(kind: str, *words: object, group: CpuGroup | None = None) -> Running:
        environ = {
            "PATH": os.environ["PATH"],
            "STALLSCOPE_HOOK": f"udp:127.0.0.1:{port}",
            "STALLSCOPE_HOOK_NAME": "orders",
        }
        if kind == "node":
            command = [builds.node(), str(PROGRAMS / "hooked.js"), *map(str, words)]
            environ["NODE_OPTIONS"] = f"--require={ROOT}/hooks/node/stallscope-hook.js"
        else:
            command = [sys.executable, str(PROGRAMS / "hooked.py"), *map(str, words)]
            hooks = [f"{ROOT}/hooks/python/auto", f"{ROOT}/hooks/python"]  # the second for the middleware's import
            environ |= {"PYTHONPATH": os.pathsep.join(hooks), "PYTHONDONTWRITEBYTECODE": "1"}
        return stack.enter_context(Running(command, env=environ, group=group, timeout=300))

    return start


def rules(agent: RunningAgent, part: str) -> dict[str, dict[str, Any]]:
    """The findings, or what is ruled out or unknown, by rule."""
    return {entry["rule"]: entry for entry in agent.get("/health").json[part]}


def judged(agent: RunningAgent) -> set[str]:
    return {rule for part in ("findings", "ruled_out", "unknown") for rule in rules(agent, part)}


# ---- pools


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    with PostgresServer(server_programs()) as server:
        yield server.dsn()


@pytest.mark.core
@pytest.mark.parametrize(
    ("most", "threads", "part"), [(2, 8, "findings"), (8, 2, "ruled_out")], ids=["saturated", "healthy"]
)
def test_a_pool_that_a_hook_reports_is_judged_without_any_metrics_page(
    start: Start, run: Run, port: int, dsn: str, most: int, threads: int, part: str
) -> None:
    agent = start(*hearing(port, "pool.every_seconds=1", seconds=120)).wait_for_report()
    time.sleep(2)  # a look or two
    assert "pool_saturated" not in judged(agent), "nobody can lift an unknown of a pool that nobody tells of"
    run("python", "pool_load", dsn, most, threads, 0.2)
    found = eventually(lambda: rules(agent, part).get("pool_saturated"), 60.0, f"pool_saturated among the {part}")
    shown = f"{found.get('because', '')} {[each['text'] for each in found['evidence']]}"
    assert "pool 'orders/main'" in shown
    page = agent.get("/metrics").body.decode()
    assert f'stallscope_pool_size{{pool="orders/main"}} {float(most)}' in page
    assert 'stallscope_rule_verdict{rule="pool_saturated",verdict="%s"} 1.0' % (
        "present" if part == "findings" else "absent"
    ) in page  # fmt: skip
    if part == "findings":
        assert f"{most} of {most} checked out, {threads - most} waiting" in shown
        assert any("ConnectionPool(max_size=n)" in change for change in found["advice"]["changes"])


# ---- requests in flight

APPS: Mapping[str, tuple[str, str]] = {
    "ASGI": ("python", "asgi"),
    "WSGI": ("python", "wsgi"),
    "Node": ("node", "timed"),
}


def ask(port: int, seconds: float) -> None:
    """One request that takes so long."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", f"/{seconds}")
        assert connection.getresponse().read() == b"done"
    finally:
        connection.close()


def served(app: Running) -> int:
    """The port that the app listens at."""
    return int(next(record for record in app.records() if "port" in record)["port"])


@pytest.mark.timing(reason="a quota, the host and its other guests share out real milliseconds")
@pytest.mark.quota
@pytest.mark.gentle
@pytest.mark.parametrize(
    ("app", "quota"), [("ASGI", QUOTA), ("WSGI", QUOTA), ("Node", QUOTA), ("ASGI", None)],
    ids=["ASGI", "WSGI", "Node", "ASGI, CPU always there"],
)  # fmt: skip
def test_a_cpu_that_is_there_for_requests_alone_is_found_by_what_the_hook_tells(
    start: Start, run: Run, port: int, group: CpuGroup, app: str, quota: float | None
) -> None:
    """The quota is lifted while a request is in flight, as a platform does that bills by request."""
    program = run(*APPS[app], group=group)
    agent = start(*hearing(port, "pool.every_seconds=1", seconds=120), *CLOSE)
    group.add(agent.pid)
    for child in (agent.wait_for_report().child,):
        if child is not None:
            group.add(child.pid)
    http_port, rule, deadline = served(program), "cpu_throttled_between_requests", time.monotonic() + 180
    part, found, rounds = ("ruled_out" if quota is None else "findings"), None, 0
    while (found is None or rounds < ROUNDS) and time.monotonic() < deadline:
        group.set_quota(None)
        ask(http_port, REQUEST_SECONDS)
        group.set_quota(quota)
        time.sleep(PAUSE_SECONDS)
        group.set_quota(None)  # to be asked
        found, rounds = rules(agent, part).get(rule), rounds + 1
        if quota is None and found is None and rounds >= ROUNDS and host_takes_the_cpu(agent):
            assert rule not in rules(agent, "findings")
            return
    assert found is not None, agent.get("/report.txt").body.decode()
    between, during, told = found["evidence"]
    assert between["text"].startswith("between requests")
    assert during["text"].startswith("during requests")
    assert "hook:orders" in told["text"]
    # Shares of the CPU that was there: the host may take some of both, so one is held against the other.
    assert (between["value"] < 0.8 * during["value"]) == (quota is not None)
    assert agent.metric("stallscope_requests_in_flight") == 0
    print(app, quota, between["text"], during["text"])
