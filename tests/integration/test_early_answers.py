"""A real quota between requests, and a real Go app that acknowledges early and works on: the whole way from its hook to the finding."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import RunningAgent, Start, hearing, host_takes_the_cpu
from tests.integration.go_hook import build, surroundings
from tests.integration.heard import Client
from tests.lab.log_stage import free_udp_port
from tests.lab.process import Running
from tests.lab.quota import CpuGroup

#: Bursts of CPU as close as `doctor` has them.
CLOSE = ("--set", "suspension.spin_every_seconds=2.5,6,12,25", "--set", "suspension.budget_ratio=0.05", "--set", "budget.cpu_ratio=0.5")  # fmt: skip
QUOTA = 0.05
REQUEST_SECONDS, PAUSE_SECONDS, ROUNDS = 2.5, 8.0, 4
BILLING, STARVED = "cpu_throttled_between_requests", "background_refresh_starved"


def rules(agent: RunningAgent, part: str) -> dict[str, dict[str, Any]]:
    return {entry["rule"]: entry for entry in agent.get("/health").json[part]}


@pytest.mark.timing(reason="a quota, the host and its other guests share out real milliseconds")
@pytest.mark.quota
@pytest.mark.gentle
@pytest.mark.parametrize("quota", [QUOTA, None], ids=["5 % between requests", "CPU always there"])
def test_work_after_an_early_answer_is_named_by_the_finding_about_the_billing_mode(
    start: Start, stack: ExitStack, group: CpuGroup, tmp_path: Path, quota: float | None
) -> None:
    """The quota is lifted while a request is in flight, as a platform does that bills by request."""
    port = free_udp_port()
    environ = surroundings(f"udp:127.0.0.1:{port}", GOMAXPROCS="2")
    app = stack.enter_context(Running([str(build(tmp_path)), "burn"], env=environ, group=group, timeout=300))
    agent = start(*hearing(port, seconds=300), *CLOSE)
    group.add(agent.pid)
    if (child := agent.wait_for_report().child) is not None:
        group.add(child.pid)
    client = Client(next(record for record in app.records() if "port" in record)["port"], stack)
    part, found, answered, rounds = ("ruled_out" if quota is None else "findings"), {}, [], 0
    deadline = time.monotonic() + 200
    while (BILLING not in found or rounds < ROUNDS) and time.monotonic() < deadline:
        group.set_quota(None)
        client.ask(f"/plain?s={REQUEST_SECONDS}")
        answered.append(client.ask("/early?s=0.25&n=4")[0])  # a second of CPU: twenty under the quota
        group.set_quota(quota)
        client = client.another()  # the connection is its handler's until that returns
        time.sleep(PAUSE_SECONDS)
        group.set_quota(None)  # to be asked
        found, rounds = rules(agent, part), rounds + 1
        if quota is None and BILLING not in found and rounds >= ROUNDS and host_takes_the_cpu(agent):
            assert not {BILLING, STARVED} & rules(agent, "findings").keys()
            return
    assert BILLING in found, agent.get("/report.txt").body.decode()
    assert max(answered) < 2, "it answers at once"
    page = agent.get("/metrics").body.decode()
    starved = rules(agent, "findings").get(STARVED)
    print(quota, found[BILLING], starved, [line for line in page.splitlines() if line.startswith("stallscope_hooks_")])
    named = [e for e in found[BILLING]["evidence"] if "after the response was sent" in e["text"]]
    if quota is None:
        assert starved is None
        return
    assert len(named) == 1
    assert named[0]["value"] >= 1
    assert any("Cloud Tasks" in change for change in found[BILLING]["advice"]["changes"])
    assert starved is None or starved["explained_by"] == BILLING, starved
    assert (agent.metric("stallscope_hooks_after_response_seconds_total") or 0) > PAUSE_SECONDS / 2
