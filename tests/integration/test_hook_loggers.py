"""What the Node hook knows of the loggers in an app, however the app came to be: in a bundle, under tsx, in pino's worker.

What waits is told, or that it is not known and why; nothing is made up.  The programs are in hooked.js and the lab's log client.
"""

from __future__ import annotations

import asyncio
import http.server
import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from agent.history import History
from agent.rules import BY_ID
from agent.rules.rule import Absent, Judgement, Unknown
from probes.hooks.listener import parse_place
from probes.hooks.probe import HooksProbe
from probes.reading import NoData
from tests.integration.conftest import eventually
from tests.integration.node_hook import LATE, LOOK, PIPE, Agent, Program, row, surroundings, words
from tests.lab import builds
from tests.lab.cloud_logging import CloudLoggingServer, environment

#: A module of ES has no require().
AS_MODULE = "import {{ createRequire }} from 'node:module'; const require = createRequire(import.meta.url);\n{}"
#: What makes one file of an app.
BUNDLES: Mapping[str, tuple[str, ...]] = {
    "bundle.js": (),
    "small.js": ("--minify",),
    "bundle.mjs": (
        "--format=esm",
        f"--banner:js={AS_MODULE.format('const __dirname = import.meta.dirname, __filename = import.meta.filename;')}",
    ),
}


@pytest.fixture
def agent() -> Iterator[Agent]:
    with closing(Agent()) as made:
        yield made


@pytest.fixture(scope="module")
def made(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lab's log client as one file of a bundler, whole, minified and as a module, and as TypeScript."""
    place = tmp_path_factory.mktemp("made")
    (place / "node_modules").symlink_to(packages / "node_modules")
    bundle = [str(packages / "node_modules/.bin/esbuild"), str(packages / "app.js"), "--bundle", "--platform=node"]
    for name, more in BUNDLES.items():
        command = [*bundle, "--external:dtrace-provider", "--log-level=error", f"--outfile={place / name}", *more]
        subprocess.run(command, check=True, timeout=120)
    shutil.copy(packages / "app.js", place / "app.ts")
    (place / "app.mts").write_text(AS_MODULE.format((packages / "app.js").read_text().replace("'use strict';", "")))
    return place


def command(made: Path, name: str, **options: object) -> list[str]:
    start = [] if name.endswith("js") else [str(made / "node_modules/.bin/tsx")]
    return [builds.node(), *start, str(made / name), *(word for key, value in options.items() for word in (f"--{key}", str(value)))]  # fmt: skip


def judged(agent: Agent) -> Judgement:
    """What the rule says when the agent hears what came, as it came; while the program runs, for of the dead nothing waits."""
    heard = list(agent.came)
    now = heard[0][0]
    history = History(900.0, clock=lambda: now)

    async def hear() -> None:
        nonlocal now
        async with aclosing(HooksProbe([parse_place("udp:127.0.0.1:0")], clock=lambda: now)) as probe:
            with pytest.raises(NoData):
                await probe.read()
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                for now, message in heard:  # noqa: B007 - the clocks look at it
                    sender.sendto(json.dumps(message).encode(), ("127.0.0.1", probe.sockets.ports[0]))
                    history.add(await probe.read())

    asyncio.run(hear())
    return BY_ID["log_queue_in_memory"].judge(history)


@pytest.mark.parametrize("name", [*BUNDLES, "app.ts", "app.mts"])
def test_winston_is_met_in_a_bundle_and_under_tsx(made: Path, agent: Agent, name: str) -> None:
    """It was told that nothing waits: the classes were looked for in node_modules, by Node's own loader."""
    pytest.importorskip("google.cloud.logging")
    rate, seconds = 60, 5
    start = command(made, name, mode="cloud", rate=rate, seconds=seconds, every=0.5, end="exit")
    with CloudLoggingServer(delay=2.0) as server:
        env = surroundings(made, agent.address, **environment(server))
        with Program(start, env) as app:
            assert app.wait() == 0
        message = agent.last()
        accepted = server.counts()["accepted"]
    found = row(message, "logging-winston")
    assert found["arrived"] == seconds * rate + 1  # one more is the entry in which the library introduces itself
    assert found["entries"] == found["arrived"] - found["drained"] == message["exit"]["pending"] > 2 * rate
    assert abs(found["drained"] - accepted) <= 16  # on their way back when it ended
    assert found["oldest_seconds"] > 2
    assert "logging-winston" in message["log"]["known"]
    assert message["log"]["unread"] == []


@pytest.mark.parametrize("mode", ["direct", "bunyan"])
def test_other_clients_of_cloud_logging_are_met_in_a_bundle_too(made: Path, agent: Agent, mode: str) -> None:
    """Of `direct` only HTTP/2 is seen: what gRPC has not begun to send is missing there."""
    pytest.importorskip("google.cloud.logging")
    queue = {"direct": "google-cloud-logging", "bunyan": "logging-bunyan"}[mode]
    rate = 60
    start = command(made, "small.js", mode=mode, rate=rate, seconds=5, every=0.5, end="exit")
    with CloudLoggingServer(delay=2.0) as server:
        with Program(start, surroundings(made, agent.address, **environment(server))) as app:
            assert app.wait() == 0
        found = row(agent.last(), queue)
    assert rate * 2.0 / 2 < found["entries"] <= found["arrived"] <= 5 * rate + 1
    assert found["entries"] == found["arrived"] - found["drained"]


def test_refusals_are_counted_in_a_bundle_too(made: Path, agent: Agent) -> None:
    pytest.importorskip("google.cloud.logging")
    start = command(made, "small.js", mode="direct", rate=30, seconds=3, every=0.5, end="exit")
    with CloudLoggingServer(fail=True) as server:
        with Program(start, surroundings(made, agent.address, **environment(server))) as app:
            assert app.wait() == 0
        found, counts = row(agent.last(), "google-cloud-logging"), server.counts()
    assert found["drained"] == counts["accepted"] == 0
    assert found["dropped"] == found["errors"] == found["refused"] > 30


@pytest.mark.parametrize("start", ["small.js", "bundle.mjs"])
def test_pino_is_met_in_a_bundle(made: Path, agent: Agent, start: str) -> None:
    with Program(
        command(made, start, mode="pino-async", rate=500, size=2000, seconds=60), surroundings(made, agent.address)
    ):
        waiting = agent.first(lambda m: row(m, "pino").get("bytes", 0) > 2_000_000, "bytes that wait")
    assert waiting["log"]["known"] == ["pino"]


# ---- pino's worker


def test_what_waits_in_pinos_worker_is_told_with_its_age(packages: Path, agent: Agent) -> None:
    """With two targets the worker takes all that comes and keeps it; the main thread has nothing."""
    with Program(words("targets", 20, "pino/file", "pino/file"), surroundings(packages, agent.address)) as app:
        app.said("emitted")
        waiting = agent.first(lambda m: row(m, "pino").get("bytes", 0) > 20_000_000, "bytes that wait")
        at = next(at for at, message in agent.came if message is waiting)
        counts = [record["emitted"] for record in app.records if at - LOOK - LATE <= record["at"] <= at + LATE]
    found = row(waiting, "pino")
    assert 2 * 1000 * min(counts) - 8 * PIPE <= found["bytes"] <= 2 * 1200 * max(counts)
    assert found["oldest_seconds"] > LATE
    assert waiting["log"] == {"hook": "node", "known": ["pino"], "unread": [], "elsewhere": []}


def test_a_target_of_pino_that_keeps_to_itself_is_named_and_never_cleared(
    packages: Path, agent: Agent, tmp_path: Path
) -> None:
    target = tmp_path / "node_modules/pino-shipping/index.js"
    target.parent.mkdir(parents=True)
    build = str(packages / "node_modules/pino-abstract-transport")
    target.write_text(
        f"module.exports = () => require({build!r})(async (source) => {{ const kept = [];"
        "for await (const each of source) kept.push(each); });"
    )
    with Program(words("targets", 1, str(target)), surroundings(packages, agent.address)):
        told = agent.first(lambda m: m["log"]["unread"], "what is not read")
        judgement = judged(agent)
    assert told["log"]["unread"] == ["pino's target pino-shipping"]
    assert isinstance(judgement, Unknown)
    assert "pino's target pino-shipping in process 'hooked.js'" in judgement.because
    assert "its hook knows winston" in judgement.remedy


def test_a_worker_of_pino_without_the_hook_is_said_and_never_cleared(packages: Path, agent: Agent) -> None:
    """An app may start it with options of its own."""
    env = surroundings(packages, agent.address)
    hook = env.pop("NODE_OPTIONS").removeprefix("--require=")
    start = words("targets", 1, "pino/file")
    with Program([start[0], "--require", hook, *start[1:]], {**env, "LAB_WORKER_OPTIONS": "none"}):
        agent.first(
            lambda m: "pino's worker, which does not load this hook" in m["log"]["unread"], "that it is not heard"
        )


# ---- OpenTelemetry's batch processor

#: As @opentelemetry/sdk-logs keeps its records, and what counts the dropped ones where it has metrics of its own.
BATCHES = """
class BatchLogRecordProcessor {
  constructor() {
    this._finishedLogRecords = [];
    this._maxQueueSize = 5;
    this._exporter = { export(records, done) { done({ code: 0 }); } };
    if (METRICS) this._metrics = { dropLogs() {} };
  }
  onEmit(record) {
    if (this._finishedLogRecords.length < this._maxQueueSize) this._finishedLogRecords.push(record);
    else if (this._metrics) this._metrics.dropLogs(1);
  }
}
module.exports = { BatchLogRecordProcessor };
"""
EMITS = """
const { BatchLogRecordProcessor } = require('@opentelemetry/sdk-logs');
const processor = new BatchLogRecordProcessor();
const record = () => ({ hrTime: [Math.floor(Date.now() / 1000), 0] });
processor.onEmit(record());
processor._exporter.export([record()], () => {});
setInterval(() => processor.onEmit(record()), 50);
"""


@pytest.mark.parametrize("metrics", ["true", "false"])
def test_records_that_a_processor_drops_in_silence_are_not_told_to_be_none(
    packages: Path, agent: Agent, tmp_path: Path, metrics: str
) -> None:
    library = tmp_path / "node_modules/@opentelemetry/sdk-logs/index.js"
    library.parent.mkdir(parents=True)
    library.write_text(BATCHES.replace("METRICS", metrics))
    (tmp_path / "emits.js").write_text(EMITS)
    with Program(["node", str(tmp_path / "emits.js")], surroundings(packages, agent.address)):
        found = row(agent.first(lambda m: row(m, "otel-batch").get("entries") == 5, "a full queue"), "otel-batch")
    assert (found["most_entries"], found["drained"], found["errors"]) == (5, 1, 0)
    assert ("dropped" in found) is (metrics == "true")


# ---- winston's transports


class Deaf(http.server.BaseHTTPRequestHandler):
    """Answers nobody, or all with this status."""

    status = 0
    port = 0
    go_on = threading.Event()

    def do_POST(self) -> None:
        if not self.status:
            self.go_on.wait(60)
            return
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def service() -> Iterator[type[Deaf]]:
    """A log service; its ``port`` is said by the class."""

    class handler(Deaf):  # noqa: N801 - it is one
        go_on = threading.Event()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        handler.port = server.server_port
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield handler
        handler.go_on.set()
        server.shutdown()


@pytest.mark.parametrize("batch", [1, 7])
def test_entries_that_winston_posts_and_nobody_answers_wait(
    packages: Path, agent: Agent, service: type[Deaf], batch: int
) -> None:
    """It was told that nothing waits: winston's streams are empty, and its requests are not answered."""
    entries = 200
    with Program(words("http", service.port, batch, entries), surroundings(packages, agent.address)):
        told = agent.first(lambda m: row(m, "winston-http").get("entries") == entries, "entries that wait")
        agent.first(lambda m: row(m, "winston-http").get("oldest_seconds", 0) > LOOK, "their age")
    assert row(told, "winston-http")["drained"] == 0
    assert told["log"]["known"] == ["winston"]
    assert told["log"]["unread"] == []


@pytest.mark.parametrize(("status", "counted"), [(200, "drained"), (500, "dropped"), (429, "refused")])
def test_what_became_of_the_entries_that_winston_posts_is_counted(
    packages: Path, agent: Agent, service: type[Deaf], status: int, counted: str
) -> None:
    service.status = status
    with Program(words("http", service.port, 1, 50), surroundings(packages, agent.address)):
        found = row(agent.first(lambda m: row(m, "winston-http").get(counted) == 50, counted), "winston-http")
    assert found["entries"] == 0
    assert found["drained"] + found["dropped"] == found["arrived"] == 50


@pytest.mark.parametrize("program", ["keeping", "bunyan"])
@pytest.mark.parametrize("own", [False, True], ids=["streams that are known", "one of its own"])
def test_a_stream_that_keeps_to_itself_is_named_and_never_cleared(
    packages: Path, agent: Agent, program: str, own: bool
) -> None:
    def unread() -> list[str]:
        found: list[str] = agent.came[-1][1]["log"]["unread"]
        return found

    with Program([*words(program), *(["own"] if own else [])], surroundings(packages, agent.address)):
        # A first message may leave before the app has made its logger.
        eventually(lambda: len(agent.came) >= 2 and (unread() or not own), 30.0, "two messages, and the stream's name")
        judgement = judged(agent)
    log = agent.came[-1][1]["log"]
    name = "winston" if program == "keeping" else "bunyan"
    assert (log["known"], log["unread"]) == ([name], [f"{name}'s Keeping"] if own else [])
    assert isinstance(judgement, Unknown if own else Absent)


# ---- an app without a logger that is known


@pytest.mark.parametrize(
    ("way", "elsewhere"),
    [("nothing", []), ("get", []), ("http", ["http"]), ("fetch", ["fetch"]), ("tcp", ["tcp"]), ("worker", ["worker"])],
)
def test_who_only_writes_to_standard_output_is_cleared_when_nothing_is_sent_elsewhere(
    packages: Path, agent: Agent, service: type[Deaf], way: str, elsewhere: list[str]
) -> None:
    with Program(words("console", way, service.port), surroundings(packages, agent.address)):
        eventually(lambda: len(agent.came) >= 2, 30.0, "two messages")
        judgement = judged(agent)
    assert agent.came[-1][1]["log"] == {"hook": "node", "known": [], "unread": [], "elsewhere": elsewhere}
    assert isinstance(judgement, Unknown if elsewhere else Absent)


def test_who_sends_and_logs_to_standard_output_alone_can_say_so(
    packages: Path, agent: Agent, service: type[Deaf]
) -> None:
    env = surroundings(packages, agent.address, STALLSCOPE_HOOK_LOGS="stdout")
    with Program(words("console", "http", service.port), env):
        eventually(lambda: agent.came, 30.0, "a message")
        assert isinstance(judged(agent), Absent)
