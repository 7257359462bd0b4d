"""The agent and a real OpenTelemetry Collector, and a real Alertmanager: what arrives, after an outage, and at the end under a quota.

    .venv/bin/python -m tests.lab.push                  # the collector is built on the first run, a minute or two (needs Go)
    .venv/bin/python -m tests.lab.push --outage 20      # instead of five minutes

The collector is made of its OTLP receiver and the exporter that prints what it got; Alertmanager is Debian's package.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from agent.commands.embedded_postgres import free_port
from tests.lab import Unavailable, loads, otelcol
from tests.lab.quota import CpuGroup

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
exporters: {{debug: {{verbosity: detailed}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    metrics: {{receivers: [otlp], exporters: [debug]}}
    logs: {{receivers: [otlp], exporters: [debug]}}
"""
#: How often the agent makes a report, at most; metrics are sent with one.
REPORT_SECONDS = 15.0
#: Of one series, each report of metrics has one point.
SERIES = re.compile(r"-> Name: stallscope_agent_cpu_seconds\n(?:(?!-> Name)[\s\S])*?\nTimestamp: (\S+ \S+)")
EVENTS = re.compile(r"^EventName: (\S+)$", re.MULTILINE)


@contextmanager
def running(words: list[str], out: Path, **popen: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Its output is added to ``out``; it is told to end on leaving, and ended."""
    with (
        out.open("ab") as file,
        subprocess.Popen(words, stdout=file, stderr=file, stdin=subprocess.DEVNULL, **popen) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def agent(scratch: Path, port: int, *settings: str, **environ: str) -> Any:
    words = [sys.executable, "-m", "stallscope", "run", "--listen", "127.0.0.1:0", "--set", "otlp.enabled=true"]
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_SERVICE_NAME": "shop", **environ}
    words += [word for each in settings for word in ("--set", each)]
    return running(words, scratch / "agent.log", cwd=ROOT, env={**os.environ, **variables})


def wait(look: Any, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not (found := look()) and time.monotonic() < end:
        time.sleep(0.05)
    return bool(found)


def stamps_of(log: Path) -> list[float]:
    """When each report of metrics that the collector printed was made, seconds since the epoch."""
    return [datetime.fromisoformat(f"{each[:26]}+00:00").timestamp() for each in SERIES.findall(log.read_text())]


def outage(scratch: Path, seconds: float, interval: float) -> dict[str, Any]:
    """The collector is away for so long: how many reports of metrics arrived, and the longest time that none of them tells of."""
    port, log = free_port(), scratch / "collector.log"
    config = scratch / "collector.yaml"
    config.write_text(CONFIG.format(port=port))
    words = [str(otelcol.program()), "--config", f"file:{config}"]
    with agent(scratch, port, OTEL_METRIC_EXPORT_INTERVAL=str(int(interval * 1000))) as running_agent:
        with running(words, log):
            wait(lambda: SERIES.search(log.read_text()), 60)
            time.sleep(interval * 1.5)
        time.sleep(seconds)
        with running(words, log):
            recovered = time.time()
            backlog = wait(lambda: max(stamps_of(log), default=0.0) > recovered - REPORT_SECONDS, 120)
            caught_up = time.time() - recovered
            time.sleep(interval)
            running_agent.send_signal(signal.SIGTERM)
            running_agent.wait(30)
            time.sleep(0.5)
    stamps = sorted(set(stamps_of(log)))
    gaps = [later - earlier for earlier, later in pairwise(stamps)]
    return {
        "outage_seconds": seconds, "interval_seconds": interval, "longest_gap_seconds": round(max(gaps, default=0.0), 1), "arrived": len(stamps),
        "twice": len(stamps_of(log)) - len(stamps), "all_after_seconds": round(caught_up, 1) if backlog else None,
        "events": EVENTS.findall(log.read_text()), "told": [json.loads(line)["message"] for line in (scratch / "agent.log").read_text().splitlines() if '"stallscope.push"' in line],
    }  # fmt: skip


def end_under_quota(scratch: Path, quota: float) -> dict[str, Any]:
    """An agent beside a busy app, both at this limit, is told to end: when its last report was there, and when it was gone."""
    port, log = free_port(), scratch / "collector.log"
    config = scratch / "collector.yaml"
    config.write_text(CONFIG.format(port=port))
    log.write_text("")
    collecting = running([str(otelcol.program()), "--config", f"file:{config}"], log)
    watching = agent(scratch, port, OTEL_METRIC_EXPORT_INTERVAL="3600000")
    with CpuGroup("push") as group, collecting, watching as running_agent:
        wait(lambda: SERIES.search(log.read_text()), 60)
        time.sleep(10)
        children = Path(f"/proc/{running_agent.pid}/task/{running_agent.pid}/children").read_text().split()
        for pid in (running_agent.pid, *map(int, children)):
            group.add(pid)
        group.set_quota(quota)
        with running([*group.preexec(), *loads.command("busy", seconds=60)], scratch / "busy.log"):
            time.sleep(5)
            told = time.monotonic()
            running_agent.send_signal(signal.SIGTERM)
            arrived = wait(lambda: "EventName: stallscope.report" in log.read_text(), 60)
            report = time.monotonic() - told
            running_agent.wait(60)
            gone = time.monotonic() - told
    return {
        "quota": quota, "last_report_seconds": round(report, 2) if arrived else None, "gone_seconds": round(gone, 2),
        "metrics": len(SERIES.findall(log.read_text())),
    }  # fmt: skip


def alerts(scratch: Path) -> dict[str, Any]:
    """A really throttled app, and Alertmanager: when the alert was there, its labels, and when it was over."""
    program, port = shutil.which("prometheus-alertmanager"), free_port()
    if program is None:
        raise Unavailable("apt-get install prometheus-alertmanager")
    config = scratch / "alertmanager.yml"
    config.write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    words = [program, f"--config.file={config}", f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=", f"--storage.path={scratch}/am"]  # fmt: skip

    def active() -> list[Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v2/alerts", timeout=10) as answer:
            return [each["labels"] for each in json.load(answer)]

    with running(words, scratch / "alertmanager.log"), CpuGroup("push", 0.3) as group:
        wait(lambda: _answers(port), 30)
        settings = [f"alertmanager.urls=http://127.0.0.1:{port}", "suspension.every_seconds=2", "budget.cpu_ratio=0.1"]
        words = [*group.preexec(), sys.executable, "-m", "stallscope", "run", "--listen", "127.0.0.1:0"]
        words += [word for each in settings for word in ("--set", each)]
        began = time.monotonic()
        with running(words, scratch / "agent.log", cwd=ROOT):
            with running([*group.preexec(), *loads.command("busy", seconds=200)], scratch / "busy.log"):
                fired = wait(active, 150)
                fired_after, labels = time.monotonic() - began, active()
                time.sleep(70)  # so that it is told again
                lasting = len(active())
            group.set_quota(None)
            eased = time.monotonic()
            over = wait(lambda: not active(), 200)
    return {
        "fired_after_seconds": round(fired_after, 1) if fired else None, "labels": labels, "after_70_s": lasting,
        "over_after_seconds": round(time.monotonic() - eased, 1) if over else None,
    }  # fmt: skip


def _answers(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def main() -> None:
    """Run what is asked for; one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outage", type=float, default=300.0)
    parser.add_argument("--interval", type=float, default=15.0)
    parser.add_argument("--only", choices=("outage", "end", "alerts"))
    arguments = parser.parse_args()
    parts = {
        "outage": lambda place: outage(place, arguments.outage, arguments.interval),
        "end": lambda place: end_under_quota(place, 0.05),
        "alerts": alerts,
    }
    for name, part in parts.items():
        if arguments.only in (None, name):
            with tempfile.TemporaryDirectory(prefix="st-push-") as scratch:
                print(json.dumps({name: part(Path(scratch))}), flush=True)


if __name__ == "__main__":
    main()
