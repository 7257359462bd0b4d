"""`python -m tests.lab.hostile`: an agent that is open to hostile clients, and what they do to it and to what it measures.

Eight minutes, as root on a machine with nothing else to do; writes docs/evidence/exposed.md, whose notes stay.  Beside the agent an app is held by a
real CPU quota, and a PostgreSQL stands behind a proxy with a known delay: what the agent says of both while nobody asks it and
while RATE requests a second come is held against the truth.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from prometheus_client.parser import text_string_to_metric_families

from agent.commands.embedded_postgres import free_port
from tests.bench.scrape import Client
from tests.lab import loads
from tests.lab.hostile_clients import CONNECTIONS, FEW_IDLE, HOOKS, HOST, IDLE, LOGINS_PER_SECOND, RATE, SCRAPERS, SLOW
from tests.lab.postgres import PostgresServer
from tests.lab.process import Running
from tests.lab.quota import CpuGroup
from tests.lab.tcp_proxy import TcpProxy
from tests.unit.exporters.web import certificate, web_config

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "evidence" / "exposed.md"
#: What a person wrote starts here, and stays.
NOTES = "\n## What it found, and what became of it\n"
QUOTA, DELAY_SECONDS = 0.2, 0.005
SETTLE_SECONDS, PAIR_SECONDS, SHORT_SECONDS, IDLE_SECONDS = 20.0, 65.0, 20.0, 30.0
PAIR = 'cert_file = "tls.crt"\nkey_file = "tls.key"\n'


class Watched(NamedTuple):
    """What was seen of the agent during one attack."""

    name: str
    seconds: float
    cpu_ratio: float
    most_mb: float
    most_files: int
    lives: list[float]
    silent: int
    lines: int
    """That the agent wrote."""
    pace: float
    """How many times as far apart as asked for its slots came afterwards."""
    told: Mapping[str, Any]

    def row(self) -> str:
        """For the table."""
        lives = [1e3 * each for each in sorted(self.lives)]
        half, most = lives[len(lives) // 2], lives[min(len(lives) - 1, int(0.99 * len(lives)))]
        return (
            f"| {self.name} | {self.seconds:.0f} | {self.cpu_ratio:.1%} | {self.most_mb:.1f} | {self.most_files} | "
            f"{len(lives)} of {len(lives) + self.silent} | {half:.1f} / {most:.1f} / {lives[-1]:.0f} | {self.lines} | {self.pace:.2f} |"
        )


class Agent:
    """The agent under attack, watched from outside."""

    def __init__(self, running: Running, port: int, scheme: str = "http") -> None:
        self.running, self.process, self.port, self.scheme = running, psutil.Process(running.pid), port, scheme
        self.written()

    def written(self) -> list[str]:
        """The lines that it wrote since this was asked last."""
        before = len(self.running.seen)
        with suppress(TimeoutError):
            for _ in self.running.lines(0.1):
                pass
        return [line.text for line in self.running.seen[before:]]

    def family(self) -> list[psutil.Process]:
        """The agent and its child."""
        return [self.process, *self.process.children(recursive=True)]

    def cpu_seconds(self) -> float:
        return sum(sum(each.cpu_times()[:2]) for each in self.family())

    def lives(self) -> float:
        """Seconds until /livez answers on a connection of its own.  Raises OSError."""
        begin = time.monotonic()
        if self.scheme == "http":
            client = Client(self.port, 10.0)
            status = client.get("/livez").status
            client.close()
        else:
            done = subprocess.run(
                ["curl", "-sk", "-m", "10", "-o", "/dev/null", "-w", "%{http_code}", f"https://{HOST}:{self.port}/livez"],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            status = int(done.stdout or 0)
        if status != 200:
            raise OSError(status)
        return time.monotonic() - begin

    def during(self, name: str, attack: Callable[[], Mapping[str, Any]]) -> Watched:
        """What is seen while the attack goes on."""
        over = threading.Event()
        lives: list[float] = []
        most = [0.0, 0, 0]  # memory, files, times that /livez was silent

        def watch() -> None:
            while not over.is_set():
                try:
                    lives.append(self.lives())
                except OSError:
                    most[2] += 1
                most[0] = max(most[0], sum(each.memory_info().rss for each in self.family()) / 1e6)
                most[1] = max(most[1], self.process.num_fds())
                over.wait(0.25)

        watcher = threading.Thread(target=watch)
        begin, before = time.monotonic(), self.cpu_seconds()
        watcher.start()
        told = attack()
        passed = time.monotonic() - begin
        used = (self.cpu_seconds() - before) / passed
        over.set()
        watcher.join()
        print(f"{name}: {json.dumps(told)[:400]}", file=sys.stderr, flush=True)
        lines = len(self.written())
        pace = self.health()["agent"]["pace"] if self.scheme == "http" else 1.0
        return Watched(name, passed, used, most[0], int(most[1]), lives or [99.0], int(most[2]), lines, pace, told)

    def page(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://{HOST}:{self.port}{path}", timeout=30) as answer:
            return bytes(answer.read())

    def health(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.page("/health"))
        return found

    def numbers(self) -> dict[str, float]:
        """Counters by name; of the app's group where there are several."""
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(self.page("/metrics").decode()):
            for sample in family.samples:
                if sample.labels.get("target", "app") == "app":
                    found[sample.name] = found.get(sample.name, 0.0) + sample.value
        return found


def client(kind: str, port: int, seconds: float) -> Callable[[], Mapping[str, Any]]:
    """An attack by a process of its own."""

    def attack() -> Mapping[str, Any]:
        words = [sys.executable, "-m", "tests.lab.hostile_clients", kind, str(port), str(seconds)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds + 120, check=True, cwd=ROOT)
        found: Mapping[str, Any] = json.loads(done.stdout)
        return found

    return attack


def waiting(seconds: float) -> Callable[[], Mapping[str, Any]]:
    """No attack."""

    def attack() -> Mapping[str, Any]:
        time.sleep(seconds)
        return {}

    return attack


def schemathesis(port: int) -> Mapping[str, Any]:
    """Generated requests from the OpenAPI document; its own summary."""
    uv = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
    words = [
        uv,
        "tool",
        "run",
        "schemathesis",
        "run",
        f"http://{HOST}:{port}/openapi.json",
        "--max-examples",
        "200",
        "--no-color",
    ]
    with tempfile.TemporaryDirectory() as place:
        done = subprocess.run(words, capture_output=True, text=True, timeout=150, check=False, cwd=place)
    lines = [line.strip() for line in done.stdout.splitlines()]
    said = [
        line
        for line in lines
        if "generated" in line or "failures" in line or "No issues" in line or line.startswith("Schemathesis v")
    ]
    return {"code": done.returncode, "said": said[-3:], "all": done.stdout[-4000:] if done.returncode else ""}


class Truth(NamedTuple):
    """What is true, and what the agent says of it."""

    throttled: float
    told_throttled: float
    network: float
    heartbeats_late: float
    skipped: float
    findings: list[str]


def paired(agent: Agent, group: CpuGroup, work: Callable[[], Watched]) -> tuple[Watched, Truth]:
    """Watch this, and compare what the agent said of that time with the truth."""
    before, kernel = agent.numbers(), group.stat()
    seen = work()
    after, then = agent.numbers(), group.stat()
    report = agent.health()

    def grown(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    periods = then["nr_periods"] - kernel["nr_periods"]
    throttled = (then["nr_throttled"] - kernel["nr_throttled"]) / max(1, periods)
    told = grown("stallscope_cgroup_throttled_periods_total") / max(1.0, grown("stallscope_cgroup_periods_total"))
    network = report["breakdown"]["postgres"]["database"]["short"]["network"]
    beats = grown("stallscope_suspension_heartbeats_late_total") / max(
        1.0, grown("stallscope_suspension_heartbeats_total")
    )
    rules = sorted(each["rule"] for each in report["findings"])
    return seen, Truth(throttled, told, network, beats, float(report["agent"]["slots_skipped"]), rules)


def main() -> int:
    """Attack, and write the page."""
    rows: list[Watched] = []
    with ExitStack() as stack:
        group = stack.enter_context(CpuGroup("hostile", QUOTA))
        server = stack.enter_context(PostgresServer())
        proxy = stack.enter_context(TcpProxy(HOST, server.port))
        proxy.delay(DELAY_SECONDS)
        app = stack.enter_context(Running(loads.command("busy", seconds=600), group=group, timeout=700))
        port = free_port()
        words = [
            sys.executable,
            "-m",
            "stallscope",
            "run",
            "--json",
            "--listen",
            f"{HOST}:{port}",
            "--set",
            f"app.pid={app.pid}",
        ]
        words += ["--set", "postgres.targets=database=env:HOSTILE_DSN"]
        environ = {**os.environ, "HOSTILE_DSN": server.dsn(port=proxy.port)}
        run = stack.enter_context(Running(words, env=environ, timeout=700, cwd=ROOT))
        run.wait_for("metrics http", 30)
        agent = Agent(run, port)
        time.sleep(SETTLE_SECONDS)

        quiet, true_quiet = paired(agent, group, lambda: agent.during("nobody asks", waiting(PAIR_SECONDS)))
        name = f"{RATE:,} requests/s over {CONNECTIONS} connections"
        flooded, true_flood = paired(agent, group, lambda: agent.during(name, client("flood", port, 60.0)))
        rows += [quiet, flooded]
        rows.append(agent.during(f"{SLOW} clients that drip", client("slow", port, SHORT_SECONDS)))
        rows.append(agent.during(f"{IDLE:,} idle connections", client("idle", port, IDLE_SECONDS)))
        rows.append(agent.during(f"{FEW_IDLE:,} idle connections", client("few-idle", port, IDLE_SECONDS)))
        rows.append(agent.during(f"{SCRAPERS} scrapers at once, each second", client("scrapers", port, SHORT_SECONDS)))
        rows.append(
            agent.during(f"{HOOKS} processes with the hook, one after the other", client("hooks", port, PAIR_SECONDS))
        )
        rows.append(agent.during("bodies of 1 GB", client("bodies", port, SHORT_SECONDS)))
        rows.append(agent.during("schemathesis", lambda: schemathesis(port)))
        rows.append(agent.during("nobody asks, afterwards", waiting(15)))
        numbers = agent.numbers()
        failures = numbers.get("stallscope_agent_report_failures_total", -1.0)
        restarts = numbers.get("stallscope_suspension_child_restarts_total", -1.0)
        log = [line.text for line in run.seen if "request_failed" in line.text or "Traceback" in line.text]
        rows.append(_with_login(stack))
    evidence = page(rows, true_quiet, true_flood, failures, restarts, len(log))
    PAGE.write_text(with_notes(evidence, PAGE.read_text("utf-8")), "utf-8")
    print(evidence)
    return 0


def _with_login(stack: ExitStack) -> Watched:
    """Another agent, over TLS and with users: wrong passwords."""
    place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    certificate(place)
    port = free_port()
    words = [sys.executable, "-m", "stallscope", "run", "--json", "--listen", f"{HOST}:{port}"]
    words += ["--web-config", str(web_config(place, tls=PAIR))]
    run = stack.enter_context(Running(words, timeout=120, cwd=ROOT))
    run.wait_for("metrics https", 30)
    time.sleep(10)
    agent = Agent(run, port, "https")
    return agent.during(f"{LOGINS_PER_SECOND} wrong passwords/s over TLS", client("logins", port, SHORT_SECONDS))


def page(rows: list[Watched], quiet: Truth, flood: Truth, failures: float, restarts: float, faults: int) -> str:
    """The evidence."""
    flooded = rows[1].told
    lines = [
        "# Open to hostile clients", "",
        "<!-- Written by `python -m tests.lab.hostile`. -->", "",
        f"One agent at its default settings (32 connections) on a machine of {os.cpu_count()} CPUs, all clients on the same machine, beside a busy app",
        f"under a quota of {QUOTA:g} cores and a PostgreSQL behind {2e3 * DELAY_SECONDS:g} ms of delay. Memory is that of agent and child (resident); /livez is asked on a",
        "connection of its own four times a second, and has ten seconds to answer.", "",
        "| attack | seconds | CPU of the agent, of a core | most memory, MB | most open files | /livez answered | its time, ms: p50 / p99 / longest | lines written | slots apart, x |",
        "|---|---|---|---|---|---|---|---|---|",
        *(each.row() for each in rows), "",
        f"No process ended; the measuring child was started again {restarts:.0f} times, {failures:.0f} reports failed, {faults} requests failed by a fault of the agent's.", "",
        "## What the clients were told", "",
        f"- Flood: {flooded['requests']:,} requests, {flooded['per_second']:.0f} a second, answered in {1e3 * flooded['p50']:.1f} ms (p50), {1e3 * flooded['p99']:.1f} ms (p99); statuses {_counts(flooded['statuses'])}.",
        *(f"- {each.name}: {_counts(each.told)}." for each in rows if each.told and not {"statuses", "code"} & each.told.keys()),
        *(f"- {each.name}: {_counts(each.told['statuses'])}; p50 {1e3 * each.told['p50']:.1f} ms, p99 {1e3 * each.told['p99']:.1f} ms."
          for each in rows[2:] if "p50" in each.told),
        *(f"- schemathesis: exit code {each.told['code']}; {'; '.join(each.told['said'])}." for each in rows if "code" in each.told),
        f"- {rows[-1].name}: {_counts(rows[-1].told['statuses'])} (429: not even checked).", "",
        "## What the agent measured meanwhile", "",
        "| | truth | nobody asks | flooded |", "|---|---|---|---|",
        f"| periods of the app's quota that were throttled | {quiet.throttled:.1%}, {flood.throttled:.1%} (kernel) | {quiet.told_throttled:.1%} | {flood.told_throttled:.1%} |",
        f"| network's part of a round trip, ms | {2e3 * DELAY_SECONDS:g} and the proxy's own | {1e3 * quiet.network:.1f} | {1e3 * flood.network:.1f} |",
        f"| late heartbeats | none without a stall of the CPUs | {quiet.heartbeats_late:.1%} | {flood.heartbeats_late:.1%} |",
        f"| slots skipped, since the start | | {quiet.skipped:.0f} | {flood.skipped:.0f} |",
        f"| findings | | {', '.join(quiet.findings) or 'none'} | {', '.join(flood.findings) or 'none'} |",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def with_notes(evidence: str, before: str) -> str:
    """The page, with what a person had written at the end of the one before."""
    return evidence + "".join(before.partition(NOTES)[1:])


def _counts(told: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:,.0f}" for name, value in told.items())


if __name__ == "__main__":
    sys.exit(main())
