"""`python -m tests.lab.loggers.collectors`: what the agent says of real log collectors, whose destination is well, slow or gone.

The OpenTelemetry Collector is built from its modules, once; Fluentd with fluent-plugin-prometheus and Vector are programs of
this machine (``gem install fluentd fluent-plugin-prometheus``), or the commands that are given.  Each row is one collector
with one kind of queue; ten batches of twenty entries of 500 bytes come each second.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from agent.commands.embedded_postgres import free_port
from tests.lab import Unavailable, otelcol
from tests.lab.loggers.__main__ import REPOSITORY, SLOW, said, sink

RULES = ("log_queue_in_memory", "log_entries_dropped")
BATCHES, ENTRIES, TEXT = 10, 20, "x" * 500
DESTINATIONS: Mapping[str, float | None] = {"well": 0.0, "slow": SLOW, "gone": None}


class Ports(NamedTuple):
    """On loopback: where entries come in, the metrics page, and where they should go."""

    entry: int
    page: int
    destination: int


class Collector(NamedTuple):
    """One program with one kind of queue."""

    program: str
    queue: str
    settings: Callable[[Ports, Path], str]
    """Its settings as text."""
    path: str
    """Of its entrance."""
    body: Callable[[], bytes]
    options: tuple[str, ...] = ()
    """The agent's, of the logs."""


def otlp() -> bytes:
    """A batch as OTLP's JSON."""
    records = [{"body": {"stringValue": TEXT}}] * ENTRIES
    return json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}).encode()


def plain() -> bytes:
    """A batch as a list of objects."""
    return json.dumps([{"message": TEXT}] * ENTRIES).encode()


def opentelemetry(sending_queue: str) -> Callable[[Ports, Path], str]:
    """Settings with this sending queue."""

    def settings(ports: Ports, directory: Path) -> str:
        return f"""\
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{ports.entry}"}}}}}}}}
extensions: {{file_storage: {{directory: {directory}}}}}
exporters: {{otlphttp: {{endpoint: "http://127.0.0.1:{ports.destination}", sending_queue: {sending_queue}}}}}
service:
  extensions: [file_storage]
  telemetry: {{metrics: {{readers: [{{pull: {{exporter: {{prometheus: {{host: 127.0.0.1, port: {ports.page}}}}}}}}}]}}}}
  pipelines: {{logs: {{receivers: [otlp], exporters: [otlphttp]}}}}
"""

    return settings


def fluentd(buffer: str) -> Callable[[Ports, Path], str]:
    """Settings with this type of buffer."""

    def settings(ports: Ports, directory: Path) -> str:
        path = f"path {directory}/buffer" if buffer == "file" else ""
        return f"""\
<source>
  @type http
  bind 127.0.0.1
  port {ports.entry}
</source>
<source>
  @type prometheus
  bind 127.0.0.1
  port {ports.page}
</source>
<source>
  @type prometheus_output_monitor
</source>
<match **>
  @type http
  @id out
  endpoint http://127.0.0.1:{ports.destination}/
  <buffer>
    @type {buffer}
    {path}
    flush_interval 1s
  </buffer>
</match>
"""

    return settings


def vector(buffer: str) -> Callable[[Ports, Path], str]:
    """Settings with this buffer."""

    def settings(ports: Ports, directory: Path) -> str:
        return f"""\
data_dir: {directory}
sources:
  in: {{type: http_server, address: "127.0.0.1:{ports.entry}", decoding: {{codec: json}}}}
  own: {{type: internal_metrics, scrape_interval_secs: 1}}
sinks:
  out:
    {{type: http, inputs: [in], uri: "http://127.0.0.1:{ports.destination}/", encoding: {{codec: json}},
     healthcheck: {{enabled: false}}, buffer: {buffer}}}
  page: {{type: prometheus_exporter, inputs: [own], address: "127.0.0.1:{ports.page}"}}
"""

    return settings


OTEL, FLUENTD, VECTOR = "collector", "fluentd", "vector"
IN_MEMORY = ("--set=logs.medium=memory",)
COLLECTORS: Sequence[Collector] = (
    Collector(OTEL, "queue in memory", opentelemetry("{}"), "/v1/logs", otlp),
    Collector(OTEL, "the same, logs.medium = memory", opentelemetry("{}"), "/v1/logs", otlp, IN_MEMORY),
    Collector(OTEL, "of 200 batches", opentelemetry("{queue_size: 200}"), "/v1/logs", otlp),
    Collector(OTEL, "sizer: items", opentelemetry("{sizer: items, queue_size: 20000}"), "/v1/logs", otlp),
    Collector(OTEL, "storage: file_storage", opentelemetry("{storage: file_storage}"), "/v1/logs", otlp),
    Collector(FLUENTD, "buffer in memory", fluentd("memory"), "/app.log", plain),
    Collector(FLUENTD, "the same, logs.medium = memory", fluentd("memory"), "/app.log", plain, IN_MEMORY),
    Collector(FLUENTD, "buffer in files", fluentd("file"), "/app.log", plain),
    Collector(VECTOR, "buffer in memory, blocks", vector("{type: memory, max_events: 500}"), "/", plain),
    Collector(
        VECTOR, "drops the newest", vector("{type: memory, max_events: 500, when_full: drop_newest}"), "/", plain
    ),
    Collector(VECTOR, "buffer on disk", vector("{type: disk, max_size: 268435488}"), "/", plain),
)


def command(program: str, given: Mapping[str, str], file: Path) -> list[str]:
    """Its command line.  Raises Unavailable."""
    words = shlex.split(given.get(program) or (str(otelcol.program()) if program == OTEL else program))
    if shutil.which(words[0]) is None:
        raise Unavailable(f"{words[0]} is not here: name its command with --{program}")
    options = {OTEL: ["--config"], FLUENTD: ["--no-supervisor", "-c"], VECTOR: ["--quiet", "--config"]}
    return [*words, *options[program], str(file)]


def verdicts(collector: Collector, delay: float | None, given: Mapping[str, str], seconds: float) -> dict[str, str]:
    """What the agent says at the end.  Raises Unavailable and OSError."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        destination = free_port() if delay is None else stack.enter_context(sink(delay))
        ports = Ports(free_port(), free_port(), destination)
        # Fluentd reads a name that ends in yaml as its other form
        file = directory / ("settings.conf" if collector.program == FLUENTD else "settings.yaml")
        file.write_text(collector.settings(ports, directory))
        log = stack.enter_context((directory / "log").open("w"))
        words = command(collector.program, given, file)
        program = stack.enter_context(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        stack.callback(program.kill)
        report = free_port()
        agent = stack.enter_context(subprocess.Popen(
            [sys.executable, "-m", "stallscope", "run", f"--set=http.listen=127.0.0.1:{report}", "--set=logs.hook_listen=",
             f"--set=logs.metrics_urls=shipper=http://127.0.0.1:{ports.page}/metrics", "--set=logs.every_seconds=5", *collector.options],
            cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))  # fmt: skip
        stack.callback(agent.kill)
        feed(f"http://127.0.0.1:{ports.entry}{collector.path}", collector.body(), seconds)
        if program.poll() is not None:
            raise Unavailable(f"{collector.program} ended: {(directory / 'log').read_text()[-300:]}")
        return said(report)


def feed(url: str, body: bytes, seconds: float) -> None:
    """Ten batches a second; what is refused or not answered in time is not sent again."""
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        request = urllib.request.Request(url, body, {"content-type": "application/json"})
        with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(request, timeout=1) as answer:
            answer.read()
        time.sleep(max(now + 1 / BATCHES - time.monotonic(), 0.0))


def main(arguments: Sequence[str] | None = None) -> int:
    """The table on standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows that contain this, such as 'fluentd' or 'gone'")
    parser.add_argument("--seconds", type=float, default=90.0)
    for program in (FLUENTD, VECTOR):
        parser.add_argument(f"--{program}", default="", metavar="COMMAND", help="where it is not in the PATH")
    parser.add_argument("--at-once", type=int, default=4, help="rows that run beside each other (%(default)s)")
    told = parser.parse_args(arguments)
    print(f"| collector | queue | destination | {' | '.join(RULES)} |\n|---|---|---|---|---|")

    def row(each: Collector, name: str) -> str:
        try:
            found = verdicts(each, DESTINATIONS[name], vars(told), told.seconds)
        except (Unavailable, OSError, KeyError, ValueError) as error:
            found = dict.fromkeys(RULES, f"not run: {error}")
        return f"{_title(each, name)} {' | '.join(found.get(rule, '-') for rule in RULES)} |"

    rows = [(each, name) for each in COLLECTORS for name in DESTINATIONS if told.only in _title(each, name)]
    with ThreadPoolExecutor(told.at_once) as pool:
        for line in pool.map(lambda pair: row(*pair), rows):
            print(line, flush=True)
    return 0


def _title(each: Collector, destination: str) -> str:
    return f"| {each.program} | {each.queue} | {destination} |"


if __name__ == "__main__":
    sys.exit(main())
