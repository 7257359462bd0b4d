"""The agent as its users meet it: a process, its pages, its signals, and what it survives.

Over 300 lines: nearly all look at the same running agent, and the last ones say what held in all that time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.commands.embedded_postgres import free_port
from agent.rules import RULES
from agent.settings.load import Config
from probes import planned
from probes.registration import Context
from tests.integration.conftest import FAST, ROOT, SECRET, START_SECONDS, RunningAgent, Start, eventually
from tests.lab import builds

PAGES = {
    "/metrics": "text/plain; version=0.0.4; charset=utf-8",
    "/health": "application/health+json",
    "/report.txt": "text/plain; charset=utf-8",
    "/": "text/html; charset=utf-8",
    "/timeline": "application/json",
    "/page.css": "text/css; charset=utf-8",
    "/page.js": "text/javascript; charset=utf-8",
    "/livez": "text/plain; charset=utf-8",
    "/readyz": "text/plain; charset=utf-8",
    "/openapi.json": "application/json",
}
#: Rules whose span is short enough for a test to see their readings run out.
SUSPENSION_RULES = {"cpu_quota_throttled", "cpu_stolen", "cpu_suspended", "cpu_contended"}
NOBODY = 65534
#: What an answer may take on a noisy machine while something else goes wrong.
SOON = 3.0


def rules(report: dict[str, Any], section: str) -> set[str]:
    return {item["rule"] for item in report[section]}


def of_neighbours(undisturbed: RunningAgent) -> set[str]:
    """What may truly be found: the machine is shared, and an agent that nobody disturbs feels it too."""
    return {"cpu_contended"} | rules(undisturbed.get("/health").json, "findings")


def command(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    base = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "stallscope", *arguments],
        capture_output=True, text=True, timeout=60, check=False, cwd=ROOT, env={**base, **environ},
    )  # fmt: skip


# ---- pages


@pytest.mark.core
@pytest.mark.parametrize(("path", "content_type"), PAGES.items())
def test_each_page_is_served_with_its_type(agent: RunningAgent, path: str, content_type: str) -> None:
    answer = agent.get(path)
    assert answer.status == 200
    assert answer.headers["content-type"] == content_type
    assert answer.body


def test_metrics_is_a_plain_route_that_never_redirects(agent: RunningAgent) -> None:
    answers = [agent.get(path) for path in ("/metrics", "/metrics/", "//metrics", "/metrics?x=1")]
    assert [answer.status for answer in answers] == [200, 404, 404, 200]
    assert not any("location" in answer.headers for answer in answers)


def test_the_server_does_not_say_what_it_is_made_of(agent: RunningAgent) -> None:
    assert "server" not in agent.get("/livez").headers


def test_one_connection_serves_many_requests(agent: RunningAgent) -> None:
    with socket.create_connection((agent.host, agent.port), SOON) as client:
        stream = client.makefile("rb")
        for _ in range(20):
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert stream.readline().split()[1] == b"200"
            while stream.readline().strip():
                pass
            assert stream.readline() == b"ok\n"


@pytest.mark.timing(reason="twenty replies that waited for an acknowledgement would take 0.8 s")
def test_metrics_over_one_connection_do_not_wait_for_delayed_acks(agent: RunningAgent) -> None:
    def seconds() -> float:
        start = time.monotonic()
        for _ in range(20):
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            length = 0
            while line := stream.readline().strip():
                name, _, value = line.lower().partition(b": ")
                length = int(value) if name == b"content-length" else length
            assert len(stream.read(length)) == length > 1000
        return time.monotonic() - start

    with socket.create_connection((agent.host, agent.port), SOON) as client:
        stream = client.makefile("rb")
        assert min(seconds() for _ in range(3)) < 20 * 0.040 / 3


@pytest.mark.parametrize("path", [*PAGES][:-1])
def test_head_is_get_without_a_body(agent: RunningAgent, path: str) -> None:
    with socket.create_connection((agent.host, agent.port), SOON) as client:
        client.sendall(f"HEAD {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        head, _, body = client.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.split()[1] == b"200"
    assert f"content-type: {PAGES[path]}".encode() in head
    assert body == b""


def test_a_failing_report_has_the_configured_status_from_the_first_request_on(start: Start) -> None:
    agent = start(*FAST, "--set", "http.fail_status=500", wait=False).wait_for_address()
    answer = agent.get("/health")  # there is a report as soon as there is an address
    assert answer.status == (500 if answer.json["status"] == "fail" else 200)
    assert {"findings", "unknown", "breakdown"} <= answer.json.keys()
    assert agent.get("/report.txt").body.startswith((b"HEALTHY", b"WARNING", b"FAILING", b"UNKNOWN"))
    responses = agent.get("/openapi.json").json["paths"]["/health"]["get"]["responses"]
    assert responses.keys() == {"200", "500"}


#: Runs the agent in this process, looks at every page, pushes a number, and tells which modules were there when.
MODULES = """
import asyncio, json, os, signal, sys, urllib.error, urllib.request
from agent.settings.load import load
from agent.commands.run import serve_until_stopped

base = "http://" + sys.argv[1]
seen = {}

def see(name, path, body=None, method=None, **headers):
    request = urllib.request.Request(base + path, body, headers, method=method)
    try:
        urllib.request.urlopen(request, timeout=10).read()
    except urllib.error.HTTPError as error:
        error.read()
    seen[name] = [module for module in ("fastapi", "starlette", "exporters.http") if module in sys.modules]

def look():
    for path in json.loads(sys.argv[2]):
        see("GET " + path, path)
        see("HEAD " + path, path, method="HEAD")
    see("unknown", "/favicon.ico")
    see("OPTIONS", "/metrics", method="OPTIONS")
    see("another host", "/openapi.json", Host="evil.example")
    see("another site", "/requests-in-flight", b'{"in_flight": 1}', Origin="https://evil.example")
    see("POST", "/requests-in-flight", b'{"in_flight": 1}')

async def ready():
    for _ in range(600):
        try:
            return (await asyncio.open_connection(*sys.argv[1].split(":")))[1].close()
        except OSError:
            await asyncio.sleep(0.05)

async def work():
    settings = [("http.listen", sys.argv[1]), ("log.format", "none")]
    serving = asyncio.create_task(serve_until_stopped(load(None, {}, settings), as_json=True))
    await ready()
    try:
        await asyncio.to_thread(look)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await serving

asyncio.run(work())
print(json.dumps(seen))
"""


def test_fastapi_is_not_imported_until_somebody_posts() -> None:
    paths = [path for path in PAGES if path != "/openapi.json"]
    done = subprocess.run(
        [sys.executable, "-c", MODULES, f"127.0.0.1:{free_port()}", json.dumps(paths)],
        capture_output=True, text=True, timeout=60, check=False, cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen.pop("POST") == ["fastapi", "starlette", "exporters.http"]
    others = {"unknown", "OPTIONS", "another host", "another site"}
    assert seen == {key: [] for key in others | {f"{method} {path}" for path in paths for method in ("GET", "HEAD")}}


@pytest.mark.core
def test_health_is_what_the_served_schema_says(agent: RunningAgent) -> None:
    document = agent.get("/openapi.json").json
    answer = agent.get("/health")
    content = document["paths"]["/health"]["get"]["responses"][str(answer.status)]["content"]
    jsonschema.validate(answer.json, content["application/health+json"]["schema"])


def test_every_rule_about_what_is_watched_is_reported_exactly_once(agent: RunningAgent) -> None:
    report = agent.get("/health").json
    told = [item["rule"] for section in ("findings", "ruled_out", "unknown") for item in report[section]]
    watched = {plan.make().reading_type for plan in planned(Context(Config().sections)) if plan.when is None}
    assert sorted(told) == sorted(rule.id for rule in RULES if rule.can_run(watched))


def test_the_breakdown_sums_to_one(agent: RunningAgent) -> None:
    cpu = eventually(lambda: agent.get("/health").json["breakdown"]["cpu"], what="a breakdown")
    assert sum(cpu.values()) == pytest.approx(1.0, abs=0.001)
    assert all(0 <= share <= 1 for share in cpu.values())


@pytest.mark.core
def test_the_agents_own_cost_counts_the_child(agent: RunningAgent) -> None:
    def more_than_itself() -> Any:
        """The agent's size is a sample of some seconds ago; another test may have made it load something since."""
        own = agent.get("/health").json["agent"]
        alone = psutil.Process(agent.pid).memory_info().rss
        return own if own["memory_bytes"] > alone * 1.05 else None

    own = eventually(more_than_itself, seconds=40, what="a sample that counts the child as well")
    assert 0 < own["cpu_seconds"] < own["uptime_seconds"] * 2


# ---- metrics


@pytest.mark.core
def test_the_metrics_page_is_understood_and_its_names_are_clean(agent: RunningAgent) -> None:
    text = agent.get("/metrics").body.decode()
    families = list(text_string_to_metric_families(text))
    assert len(families) > 30
    reserved = {"job", "instance", "service", "region", "env", "cluster", "namespace", "pod", "container"}
    for family in families:
        assert family.name.startswith("stallscope_")
        assert family.documentation
        assert family.type in ("counter", "gauge", "histogram", "info")
        assert not re.search(r"_(ms|us|ns|milliseconds|percent|kb|mb|mib)(_|$)", family.name)
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
            assert not reserved & sample.labels.keys()
            assert sample.value == sample.value, "NaN"


@pytest.mark.core
def test_promtool_finds_nothing_to_say_about_the_metrics(agent: RunningAgent) -> None:
    done = subprocess.run(
        [builds.promtool(), "check", "metrics"],
        input=agent.get("/metrics").body,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_counters_grow_between_two_scrapes_and_never_shrink(agent: RunningAgent) -> None:
    def counters() -> dict[str, float]:
        lines = agent.get("/metrics").body.decode().splitlines()
        return {name: float(x) for name, _, x in (line.rpartition(" ") for line in lines) if "_total" in name
                and not name.startswith("#")}  # fmt: skip

    first = counters()
    beats = "stallscope_suspension_heartbeats_total"
    eventually(lambda: counters()[beats] > first[beats], what="a further heartbeat")
    second = counters()
    assert all(second[name] >= number for name, number in first.items() if name in second)


# ---- requests in flight


@pytest.mark.core
def test_a_number_of_requests_in_flight_shows_on_the_metrics_page(agent: RunningAgent) -> None:
    assert agent.request("POST", "/requests-in-flight", b'{"in_flight": 7, "source": "proxy"}').status == 204
    eventually(lambda: agent.metric("stallscope_requests_in_flight") == 7, what="7 requests in flight")
    assert agent.request("POST", "/requests-in-flight", b'{"in_flight": 0, "source": "proxy"}').status == 204
    eventually(lambda: agent.metric("stallscope_requests_in_flight") == 0, what="no requests in flight")


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 422), (b"{", 422), (b'{"in_flight": -1}', 422), (b"[" * 1000, 422), (b"x" * 2000, 413), (b"[" * 1_000_000, 413)],
    ids=["empty", "cut", "-1", "1000 brackets", "2 kB", "1 MB"],
)  # fmt: skip
def test_a_body_that_cannot_be_meant_is_refused_and_the_connection_ends_well(
    agent: RunningAgent, body: bytes, status: int
) -> None:
    try:
        answer = agent.request("POST", "/requests-in-flight", body)
    except (ConnectionError, BrokenPipeError):
        assert len(body) > 100_000  # it may hang up on somebody who goes on sending
    else:
        assert answer.status == status
        assert answer.json["detail"]
    assert agent.get("/livez").status == 200


def test_many_numbers_are_all_taken_and_the_last_one_holds(agent: RunningAgent) -> None:
    for number in range(200):
        assert agent.request("POST", "/requests-in-flight", b'{"in_flight": %d}' % number).status == 204
    eventually(lambda: agent.metric("stallscope_requests_in_flight") == 199, what="the last number")
    assert agent.request("POST", "/requests-in-flight", b'{"in_flight": 0}').status == 204


# ---- clients that misbehave


@contextlib.contextmanager
def clients(agent: RunningAgent, number: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection((agent.host, agent.port), SOON)) for _ in range(number)]


def test_idle_connections_below_the_limit_do_not_disturb_others(agent: RunningAgent) -> None:
    with clients(agent, 25):
        assert [agent.get("/livez", timeout=SOON).status for _ in range(20)] == [200] * 20


def test_a_hundred_idle_connections_keep_nobody_out_and_are_reported_in_one_line(spare: RunningAgent) -> None:
    before = spare.stderr
    with clients(spare, 100):
        assert {spare.get("/livez", timeout=SOON).status for _ in range(20)} == {200}
    (line,) = eventually(lambda: spare.stderr.removeprefix(before).splitlines(), what="the line")
    assert "idle connections closed" in json.loads(line)["message"]


def test_clients_that_drip_byte_by_byte_do_not_slow_others_down(agent: RunningAgent) -> None:
    with clients(agent, 20) as dripping:
        for byte in b"GET /health HTTP/1.1\r\n":
            for client in dripping:
                client.sendall(bytes([byte]))
            start = time.monotonic()
            assert agent.get("/livez", timeout=SOON).status == 200
            assert time.monotonic() - start < SOON


#: What a client may send, and then it hangs up.
FAULTY = {
    "no HTTP": b"\x16\x03\x01\x02\r\n\r\n",
    "a body that is cut": b"POST /requests-in-flight HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
    "a websocket": b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
}


def hang_up_after(agent: RunningAgent, sent: bytes) -> None:
    with socket.create_connection((agent.host, agent.port), SOON) as client:
        client.sendall(sent)
        client.settimeout(0.1)
        with contextlib.suppress(TimeoutError, ConnectionError):
            client.recv(1)


@pytest.mark.parametrize("sent", FAULTY)
def test_a_clients_fault_is_not_logged_as_the_agents(sent: str, spare: RunningAgent) -> None:
    before = spare.stderr
    hang_up_after(spare, FAULTY[sent])
    assert spare.get("/livez").status == 200
    assert spare.stderr == before


@pytest.fixture(scope="module")
def spare(start_shared: Start, agent: RunningAgent) -> RunningAgent:
    """An agent to be treated badly."""
    assert agent
    return start_shared(*FAST).wait_for_report()


def test_a_stderr_that_nobody_reads_does_not_stop_the_agent(start: Start) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    agent = start(wait=False, stderr=writer)
    os.close(writer)
    try:
        agent.wait_for_address(read=lambda: os.read(reader, 4096).decode())
        for _ in range(300):
            with contextlib.suppress(OSError):
                hang_up_after(agent, FAULTY["no HTTP"])
            if not answers(agent):
                break
        eventually(lambda: answers(agent), what="an answer")
    finally:
        os.close(reader)


def answers(agent: RunningAgent) -> bool:
    try:
        return agent.get("/livez", timeout=1.0).status == 200
    except OSError:
        return False


# ---- the end


@pytest.mark.core
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_it_with_exit_0_and_one_last_report(start: Start, number: signal.Signals) -> None:
    agent = start(*FAST).wait_for_report()
    child = agent.child
    schema = agent.get("/openapi.json").json["paths"]["/health"]["get"]["responses"]["200"]["content"]
    start_of_end = time.monotonic()
    assert agent.end(number) == 0
    assert time.monotonic() - start_of_end < 8  # Cloud Run gives ten seconds
    lines = [json.loads(line) for line in agent.stdout.splitlines()]
    assert lines[-1]["event"] == "final_report"
    assert [line["event"] for line in lines].count("final_report") == 1
    assert {"time", "severity", "message"} <= lines[-1].keys()
    jsonschema.validate(lines[-1]["report"], schema["application/health+json"]["schema"])
    assert child
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert "Traceback" not in agent.stderr
    assert len(agent.stderr.splitlines()) == 1


def test_a_signal_right_after_the_address_ends_it_with_exit_0(start: Start) -> None:
    agent = start()
    assert agent.end() == 0
    assert "Traceback" not in agent.stderr


def test_an_open_connection_does_not_delay_the_end(start: Start) -> None:
    agent = start("--set", "log.format=none")
    with clients(agent, 5) as idle:
        idle[0].sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        idle[1].sendall(b"GET /li")
        assert agent.end(seconds=8) == 0
    assert agent.stdout == ""


@pytest.mark.core
def test_a_taken_port_is_exit_69_and_one_clear_line(agent: RunningAgent) -> None:
    done = command("run", "--listen", f"127.0.0.1:{agent.port}")
    assert (done.returncode, done.stdout) == (69, "")
    (line,) = done.stderr.splitlines()
    assert str(agent.port) in line
    assert "in use" in line
    assert "--listen" in line


def test_a_broken_configuration_is_exit_78_and_every_fault(tmp_path: Path) -> None:
    file = tmp_path / "stallscope.toml"
    file.write_text('[http]\nlisten = "nowhere"\n[suspension]\nevery = 1\n')
    done = command(
        "run", "--config", str(file), "--set", "log.format=yaml",
        STALLSCOPE_HISTORY__SECONDS="1", STALLSCOPE_DSN=f"postgres://a:{SECRET}@b/c",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (78, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 5
    assert all(line.startswith("stallscope: ") for line in lines)
    for path in ("http.listen", "suspension.every", "log.format", "history.seconds", "STALLSCOPE_DSN"):
        assert path in done.stderr
    assert SECRET not in done.stderr


@pytest.mark.core
def test_an_agent_that_is_killed_leaves_no_child_behind(start: Start) -> None:
    agent = start(*FAST).wait_for_report()
    child = agent.child
    assert child
    assert agent.end(signal.SIGKILL) == -signal.SIGKILL
    eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 10, "the child's own end")


# ---- standard output


@pytest.mark.core
def test_a_stdout_that_nobody_reads_does_not_stop_the_agent(start: Start) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writer, b"x" * 4096)
    agent = start(*FAST, stdout=writer)
    os.close(writer)
    try:
        agent.wait_for_report()
        assert agent.get("/health").status == 200
        assert agent.end() == 0
        assert os.read(reader, 8192) == b"x" * 4096
    finally:
        os.close(reader)
    assert "Traceback" not in agent.stderr


def test_a_stdout_whose_reader_is_gone_does_not_stop_the_agent(start: Start) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    agent = start(*FAST, stdout=writer)
    os.close(writer)
    agent.wait_for_report()
    assert agent.end() == 0
    assert len(agent.stderr.splitlines()) == 1


def test_a_stderr_whose_reader_is_gone_does_not_stop_the_agent(start: Start) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    agent = start(wait=False, stderr=writer, port=free_port())
    os.close(writer)
    with pytest.raises(subprocess.TimeoutExpired):
        agent.process.wait(SOON)


def test_without_standard_streams_no_socket_takes_their_place(start: Start) -> None:
    agent = start(wait=False, preexec_fn=lambda: os.closerange(0, 3), port=free_port())
    eventually(lambda: answers(agent), START_SECONDS, "the page")
    for number in range(3):
        assert os.readlink(f"/proc/{agent.pid}/fd/{number}") == os.devnull
    assert agent.end() == 0


# ---- the child


@pytest.mark.core
def test_a_child_that_is_killed_is_replaced_and_nothing_false_is_found(
    spare: RunningAgent, agent: RunningAgent
) -> None:
    before = rules(spare.get("/health").json, "findings")
    restarts = spare.metric("stallscope_suspension_child_restarts_total")
    first = spare.child
    assert first
    first.kill()
    eventually(lambda: (child := spare.child) and child.pid != first.pid, what="a new child")
    eventually(lambda: spare.metric("stallscope_suspension_child_restarts_total") == (restarts or 0) + 1)
    eventually(lambda: spare.get("/readyz").status == 200, what="readiness")
    assert spare.get("/livez").status == 200
    assert rules(spare.get("/health").json, "findings") - before <= of_neighbours(agent)


def test_readiness_ends_while_the_child_is_gone(spare: RunningAgent) -> None:
    def is_lost() -> bool:
        """The first pause before a new child is short, and a look on a busy machine may miss it; each further one is longer."""
        with contextlib.suppress(psutil.NoSuchProcess):
            if child := spare.child:
                child.kill()
        return spare.get("/readyz").status == 503

    eventually(is_lost, what="the loss of readiness")
    assert spare.get("/livez").status == 200
    eventually(lambda: spare.get("/readyz").status == 200, 60.0, what="readiness")


def test_the_child_knows_nothing_of_the_environment(agent: RunningAgent) -> None:
    child = agent.child
    assert child
    assert child.environ() == {}
    assert SECRET not in " ".join(child.cmdline())


# ---- another user, no privileges


def interpreter_for_everybody() -> str:
    """A Python of this version that another uid can run; this one may stand in root's home."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        with contextlib.suppress(OSError):
            test = [candidate, "-c", "import sys, encodings"]
            if not subprocess.run(test, user=NOBODY, check=False, capture_output=True, timeout=10).returncode:
                return candidate
    pytest.skip(f"no {version} that uid {NOBODY} may run")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_another_user_without_privileges_can_run_it(start: Start) -> None:
    import pydantic  # noqa: PLC0415 - only to find the packages

    packages = Path(pydantic.__file__).parents[1]
    agent = start(
        *FAST, python=interpreter_for_everybody(), user=NOBODY, group=NOBODY, extra_groups=[],
        environ={"PYTHONPATH": f"{ROOT}:{packages}"},
    ).wait_for_report()  # fmt: skip
    report = agent.get("/health").json
    assert report["platform"]["own_uid"] == NOBODY
    eventually(lambda: (agent.metric("stallscope_suspension_heartbeats_total") or 0) > 0, what="a heartbeat")
    assert 'outcome="failed",probe="suspension",target="own"} 0.0' in agent.get("/metrics").body.decode()
    assert agent.end() == 0
    assert len(agent.stderr.splitlines()) == 1


# ---- doctor and report


@pytest.mark.core
def test_doctor_measures_and_prints_one_report(agent: RunningAgent) -> None:
    done = command("doctor", "--for", "3s", "--json")
    report = json.loads(done.stdout)
    responses = agent.get("/openapi.json").json["paths"]["/health"]["get"]["responses"]
    jsonschema.validate(report, responses["200"]["content"]["application/health+json"]["schema"])
    wanted = 1 if report["findings"] else 0 if report["conclusive"] else 2
    assert done.returncode == wanted
    assert done.stderr.startswith("measuring: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "text"])
def test_report_shows_what_the_running_agent_says(agent: RunningAgent, as_json: bool) -> None:
    done = command("report", f"127.0.0.1:{agent.port}", *(["--json"] if as_json else []))
    assert done.returncode in (0, 1, 2)
    assert done.stderr == ""
    if as_json:
        assert json.loads(done.stdout).keys() == agent.get("/health").json.keys()
    else:
        assert done.stdout.startswith(("HEALTHY", "WARNING", "FAILING", "UNKNOWN"))
        assert "\x1b" not in done.stdout


def test_report_writes_the_page_of_the_running_agent_with_its_hour(agent: RunningAgent, tmp_path: Path) -> None:
    done = command("report", f"127.0.0.1:{agent.port}", "--html", str(tmp_path / "report.html"))
    assert done.stderr == ""
    page = (tmp_path / "report.html").read_text("utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "CPU taken away from" in page
    assert agent.get("/timeline").json["steps"] >= 1


# ---- at the end: what needed time, and what must hold for the whole run


def test_while_the_child_is_stopped_the_rules_are_unknown_with_the_reason(
    agent: RunningAgent, held: RunningAgent
) -> None:
    assert agent

    def silent() -> dict[str, Any] | None:
        report: dict[str, Any] = held.get("/health").json
        return report if rules(report, "unknown") >= SUSPENSION_RULES else None

    report = eventually(silent, 45, "unknown for every rule that needs the child")
    assert held.get("/livez").status == 200
    assert rules(report, "findings") == set()
    assert report["status"] == "warn"
    assert not report["conclusive"]
    for item in report["unknown"]:
        if item["rule"] in SUSPENSION_RULES:
            assert item["code"] == "timed_out"
            assert "silent" in item["because"]
            assert "kill -CONT" in item["remedy"]


def test_a_child_that_was_stopped_and_goes_on_is_no_frozen_instance(held: RunningAgent, agent: RunningAgent) -> None:
    child = held.child
    assert child
    beats = held.metric("stallscope_suspension_heartbeats_total") or 0
    child.resume()
    eventually(lambda: (held.metric("stallscope_suspension_child_stops_total") or 0) >= 1, what="the dropped gap")
    eventually(lambda: (held.metric("stallscope_suspension_heartbeats_total") or 0) > beats, what="a heartbeat")
    slots = held.metric("stallscope_suspension_heartbeats_total") or 0
    eventually(lambda: (held.metric("stallscope_suspension_heartbeats_total") or 0) > slots, what="a further slot")
    report = held.get("/health").json
    assert "instance_frozen" not in rules(report, "findings")
    assert rules(report, "findings") <= of_neighbours(agent)
    assert held.end() == 0
    assert '"instance_frozen", "before"' not in held.stdout
    assert "Traceback" not in held.stderr


@pytest.mark.core
def test_no_secret_of_the_environment_is_in_any_output(agent: RunningAgent) -> None:
    shown = [agent.get(path).body.decode() for path in PAGES]
    assert agent.end() == 0
    shown += [agent.stdout, agent.stderr]
    assert all(shown)
    for text in shown:
        assert SECRET not in text


def test_in_all_this_time_only_the_address_was_on_stderr(agent: RunningAgent) -> None:
    assert "Traceback" not in agent.stderr
