"""hooks/node/stallscope-hook.js in real Node processes, with the real libraries: what it says is held against the truth.

The programs are in hooked.js and the lab's log client; `make test-tools` installs their packages.

Over 300 lines, as the hook is one file: each library wants a program, and all are read by the same socket and truth.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integration.conftest import eventually, server_programs
from tests.integration.node_hook import HOOK, LATE, LOOK, PIPE, Agent, Message, Program, check, row, surroundings, words
from tests.lab import builds, log_clients
from tests.lab.cloud_logging import CloudLoggingServer, environment, waiting
from tests.lab.postgres import PostgresServer

at_that_moment = pytest.mark.timing(
    reason="holds what a hook told against what waited at that moment, and a host that takes the CPU comes between the two"
)


@pytest.fixture
def agent() -> Iterator[Agent]:
    with closing(Agent()) as made:
        yield made


class Range(NamedTuple):
    low: float
    high: float


class Truth:
    """Emitted and not accepted, from what the app and the server say."""

    def __init__(self, app: Sequence[Mapping[str, Any]], server: CloudLoggingServer) -> None:
        self._entries = server.entries()
        counts = [record["emitted"] for record in app]
        self._emitted = {}
        for number in range(1, counts[-1] + 1):  # evenly between two of its lines, which are a tenth of a second apart
            after = bisect_left(counts, number)
            a, b = app[after - 1], app[after]
            share = (number - a["emitted"]) / (b["emitted"] - a["emitted"])
            self._emitted[number] = a["at"] + share * (b["at"] - a["at"])

    def around(self, at: float) -> tuple[Range, Range]:
        """Depth and age in the time in which the message came about."""
        looks = [waiting(self._emitted, self._entries, at - late) for late in (0.0, LATE / 2, LATE)]
        depths = [look.entries for look in looks]
        ages = [look.oldest_seconds or 0.0 for look in looks]
        return Range(min(depths), max(depths)), Range(min(ages), max(ages))


@at_that_moment
@pytest.mark.gentle
@pytest.mark.parametrize(
    ("settings", "backlog"),
    [
        pytest.param({"delay": 0.0}, False, id="at once"),
        pytest.param({"delay": 0.1}, False, id="100 ms"),
        pytest.param({"delay": 2.0}, True, id="2 s"),
        pytest.param({"hang": True}, True, id="hanging"),
    ],
)
def test_depth_and_age_of_winstons_way_to_cloud_logging_are_true(
    packages: Path, agent: Agent, settings: dict[str, Any], backlog: bool
) -> None:
    pytest.importorskip("google.cloud.logging")
    rate = 60
    command = log_clients.command("node", "cloud", rate=rate, seconds=7, every=0.1, end="exit")
    with CloudLoggingServer(**settings) as server:
        env = surroundings(packages, agent.address, **environment(server))
        with Program(command, env) as app:
            assert app.wait() == 0
        agent.last()
        truth = Truth([record for record in app.records if "emitted" in record], server)
        accepted = server.counts()["accepted"]
    looks = [(at, found) for at, message in agent.came if (found := row(message, "logging-winston"))]
    assert len(looks) >= 3
    for at, found in looks:
        depth, age = truth.around(at)
        # One more is the entry in which the library introduces itself.
        assert depth.low - 1 <= found["entries"] <= depth.high + 1 + rate * LATE / 2, (found, depth)
        assert age.low - LATE <= found.get("oldest_seconds", 0.0) <= age.high + LATE, (found, age)
        assert found["arrived"] == found["entries"] + found["drained"]
        assert found["dropped"] == found["errors"] == 0
    last = looks[-1][1]
    assert last["entries"] == agent.last()["exit"]["pending"]
    assert last["arrived"] == 7 * rate + 1
    assert abs(last["drained"] - accepted) <= 16  # on their way back when it ended
    depths = [found["entries"] for _, found in looks]
    if backlog:
        assert depths == sorted(depths)
        assert depths[-1] > 4 * rate
        assert last["oldest_seconds"] > 2 * LATE
    else:
        assert max(depths) < last["arrived"] / 2


def test_refused_entries_are_lost_and_counted(packages: Path, agent: Agent) -> None:
    pytest.importorskip("google.cloud.logging")
    rate, seconds = 60, 8
    command = log_clients.command("node", "cloud", rate=rate, seconds=seconds, every=0.1)
    with CloudLoggingServer(fail=True) as server:
        with Program(command, surroundings(packages, agent.address, **environment(server))) as app:
            assert app.wait() == 0
        found, counts = row(agent.last(), "logging-winston"), server.counts()
        truth = Truth([record for record in app.records if "emitted" in record], server)
    assert found["drained"] == counts["accepted"] == 0
    assert found["dropped"] == counts["rejected"] > 0
    assert (
        found["errors"] == counts["rpcs"] == app.records[-1]["errors"] or app.said("done")["errors"] <= found["errors"]
    )
    assert found["refused"] == found["errors"]
    # winston leaves entries behind in the transport's buffer after an error: Node ends, and they were never sent.
    assert found["entries"] == found["arrived"] - found["dropped"] == seconds * rate + 1 - counts["rejected"]
    # They are the oldest: all that came after them were refused and are gone.
    (at, _) = agent.came[-1]
    age = truth.around(at)[1]
    assert age.low > 2 * LOOK
    assert age.low - LATE <= found["oldest_seconds"] <= age.high + LATE


@at_that_moment
@pytest.mark.gentle
@pytest.mark.parametrize(("mode", "queue"), [("direct", "google-cloud-logging"), ("bunyan", "logging-bunyan")])
def test_other_ways_to_cloud_logging_are_seen_too(packages: Path, agent: Agent, mode: str, queue: str) -> None:
    pytest.importorskip("google.cloud.logging")
    command = log_clients.command("node", mode, rate=60, seconds=3, every=0.1, end="exit")
    with CloudLoggingServer(delay=1.0) as server:
        with Program(command, surroundings(packages, agent.address, **environment(server))) as app:
            assert app.wait() == 0
        agent.last()
        truth = Truth([record for record in app.records if "emitted" in record], server)
    at, message = next((at, message) for at, message in agent.came if "exit" in message)
    found, (depth, age) = row(message, queue), truth.around(at)
    assert depth.low - 1 <= found["entries"] <= depth.high + 1 + 60 * LATE / 2
    assert age.low - LATE <= found["oldest_seconds"] <= age.high + LATE
    assert found["arrived"] == found["entries"] + found["drained"] >= 3 * 60


def test_bytes_that_a_slow_reader_leaves_in_the_heap_are_true_and_so_is_their_age(packages: Path, agent: Agent) -> None:
    def since(number: int) -> float:
        """How long the last message's oldest byte waits, less the time since the write of this number."""
        at, message = agent.came[-1]
        written = [record["at"] for record in app.records if "written" in record][number]
        return float(float(row(message, "stdout")["oldest_seconds"]) - (at - written))

    def still(waiting: int) -> bool:
        """Three messages in a row say so."""
        return [row(message, "stdout").get("bytes") for _, message in agent.came[-3:]] == [waiting] * 3

    size = 3_000_000
    with Program(words("standard", size), surroundings(packages, agent.address)) as app:
        assert app.said("waiting")["waiting"] >= size - 2 * PIPE
        eventually(lambda: still(app.records[-1]["waiting"]), 30.0, "the true number")
        assert abs(since(0)) < LOOK + LATE
        app.read(size)
        agent.first(lambda message: row(message, "stdout").get("bytes") == 0, "nothing that waits")
        assert "oldest_seconds" not in row(agent.came[-1][1], "stdout")
        eventually(lambda: app.records[-1].get("waiting", 0) > 0, 30.0, "the second write")
        eventually(lambda: still(app.records[-1]["waiting"]), 30.0, "the true number again")
        assert abs(since(1)) < LOOK + LATE


@pytest.mark.parametrize("mode", ["redirect", "pino-async", "queue"])
def test_what_a_logger_leaves_before_a_pipe_that_nobody_reads_is_seen(packages: Path, agent: Agent, mode: str) -> None:
    rate, size = 500, 2_000
    queue = "stdout" if mode == "redirect" else "pino"
    command = log_clients.command("node", mode, rate=rate, size=size, seconds=60, every=0.1)
    with Program(command, surroundings(packages, agent.address)) as app:
        agent.first(lambda m: row(m, queue).get("bytes", 0) > 2 * PIPE, "bytes that wait")
        grown = agent.first(lambda m: row(m, queue).get("bytes", 0) > rate * size, "more bytes that wait")
        at = next(at for at, message in agent.came if message is grown)
        # Where the machine is slow the app's own records come late, and then tell of much at once.
        then = eventually(lambda: [record for record in app.records if record["at"] >= at], 30.0, "what was emitted")[0]
        counts = [record["emitted"] for record in app.records if at - 2 * LATE <= record["at"] <= then["at"]]
    low, high = min(counts) * size, max(counts) * size
    # In the pipe, and what pino's worker holds or has been given.
    assert low - 8 * PIPE <= row(grown, queue)["bytes"] <= 1.5 * high
    if mode != "queue":
        assert row(grown, queue)["oldest_seconds"] > LATE / 2
    if mode == "redirect":
        assert row(grown, "winston") == {"queue": "winston", "kind": "winston", "entries": 0}


def test_what_pino_drops_and_its_limit_are_reported(packages: Path, agent: Agent) -> None:
    with Program(words("dropping", 300_000, 1_000), surroundings(packages, agent.address)) as app:
        truth = app.said("dropped")
        assert app.wait() == 0
    found = row(agent.last(), "pino")
    assert found["bytes"] == truth["waiting"] <= found["most_bytes"] == 300_000
    assert found["dropped"] == truth["dropped"] > 0
    assert agent.last()["exit"] == {}  # bytes are no number of entries


def test_entries_before_any_transport_of_winston_are_counted_once(packages: Path, agent: Agent) -> None:
    with Program(words("winston", 400), surroundings(packages, agent.address)) as app:
        assert app.wait() == 0
    assert row(agent.last(), "winston")["entries"] == agent.last()["exit"]["pending"] == 400


def test_a_message_stays_small_and_true_however_much_waits(packages: Path, agent: Agent) -> None:
    with Program(words("flood", 30_000), surroundings(packages, agent.address)) as app:
        assert app.wait() == 0
    found = row(agent.last(), "google-cloud-logging")
    assert found["entries"] == found["arrived"] == 30_000
    assert found["oldest_seconds"] > 0.2


@pytest.mark.core
def test_requests_in_flight_are_counted_also_when_the_client_leaves(packages: Path, agent: Agent) -> None:
    with Program(words("web"), surroundings(packages, agent.address)) as app:
        port = app.said("port")["port"]
        held = [http.client.HTTPConnection("127.0.0.1", port, timeout=30) for _ in range(3)]
        quick = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        for connection in held:
            connection.request("GET", "/hold")
        for _ in range(5):  # on one connection
            quick.request("GET", "/")
            assert quick.getresponse().read() == b"answer"
        agent.first(lambda m: m.get("in_flight") == 3, "three requests")
        held.pop().close()
        agent.first(lambda m: m.get("in_flight") == 2, "two requests")
        quick.request("GET", "/release")
        assert quick.getresponse().read() == b"answer"
        assert [connection.getresponse().read() for connection in held] == [b"late"] * 2
        agent.first(lambda m: m.get("in_flight") == 0, "no request")
        for connection in (*held, quick):
            connection.close()
    assert max(message.get("in_flight", 0) for _, message in agent.came) == 3
    assert all(row(message, "stdout") == {} for _, message in agent.came)  # nothing opened it, the hook neither


def test_the_first_request_and_the_end_of_the_last_are_reported_at_once(packages: Path, agent: Agent) -> None:
    """In half a second where looks are two apart, and once each; many more that come and go are told less often."""
    with ExitStack() as stack, Program(words("web"), surroundings(packages, agent.address)) as app:
        port = app.said("port")["port"]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        stack.callback(connection.close)

        def ask(path: str) -> list[int]:
            connection.request("GET", path)
            assert connection.getresponse().read() == b"answer"
            return [message["in_flight"] for _, message in agent.came if "in_flight" in message]

        eventually(lambda: agent.came, 30.0, "the first message")
        before = len(agent.came)
        began = time.monotonic()
        eventually(lambda: ask("/")[-2:] == [1, 0], 30.0, "both")
        told = [message for _, message in agent.came[before:]]
        assert len(told) / (time.monotonic() - began) > 1 / LOOK  # or it was a look that told it
        assert all(message["pid"] == app.pid and message["name"] == "hooked.js" for message in told)
        count, began = len(agent.came), time.monotonic()
        while time.monotonic() - began < 5:
            ask("/")
        assert len(agent.came) - count <= 10 + 5 * 2 + 5 / LOOK + 2
        eventually(lambda: agent.came[-1][1]["in_flight"] == 0, 30.0, "the end")


@pytest.mark.core
def test_a_failure_is_a_refusal_only_for_want_of_quota(packages: Path, agent: Agent) -> None:
    with Program(words("failing", 8, 14, 429, 500, "none"), surroundings(packages, agent.address)) as app:
        assert app.wait() == 0
    found = row(agent.last(), "google-cloud-logging")
    assert (found["errors"], found["dropped"], found["refused"], found["drained"]) == (10, 10, 4, 0)


@pytest.mark.core
def test_the_pools_numbers_are_true_and_its_answers_those_of_the_pool(packages: Path, agent: Agent) -> None:
    most, asks, hold = 2, 8, 1.5
    with PostgresServer(server_programs()) as server:
        env = surroundings(packages, agent.address, LAB_DSN=server.dsn())
        with Program(words("pool", most, asks, 1000 * hold), env) as app:
            busy = agent.first(lambda m: m.get("pool", {}).get("main", {}).get("waiting"), "callers that wait")
            said = app.said("answers")
            assert app.wait() == 0
            assert "after calling end" in app.said("refused")["refused"]
    assert said["answers"] == list(range(asks))
    assert (said["called"], said["queried"]) == ("function", 1)
    pool = busy["pool"]["main"]
    assert pool["size"] == pool["checked_out"] == most
    assert pool["acquires"] + pool["checked_out"] + pool["waiting"] >= asks
    totals = [message["pool"]["main"] for _, message in agent.came if "pool" in message]
    # Two go at once, two wait for one round, two for two, two for three.
    assert totals[-1]["wait_seconds"] >= 0.9 * 2 * (1 + 2) * hold
    assert [each["acquires"] for each in totals] == sorted(each["acquires"] for each in totals)


@pytest.mark.core
def test_a_limit_that_is_a_text_is_its_number_and_one_without_end_is_not_known(packages: Path, agent: Agent) -> None:
    with Program(words("limits", "20", "Infinity", "many", "1e99"), surroundings(packages, agent.address)) as app:
        assert app.wait() == 6
    pools = agent.last()["pool"]
    assert [pool.get("size") for pool in pools.values()] == [20, None, None, None]
    assert [pool["checked_out"] for pool in pools.values()] == [1, 1, 1, 1]
    assert row(agent.last(), "pino")["most_bytes"] == 600_000


def test_each_process_of_a_cluster_reports_for_itself(packages: Path, agent: Agent) -> None:
    with Program(words("cluster"), surroundings(packages, agent.address, STALLSCOPE_HOOK_NAME="shop")) as app:
        eventually(lambda: len({record.get("pid") for record in app.records} - {None}) == 3, 30.0, "three processes")
        pids = {record["pid"] for record in app.records if "pid" in record}
        eventually(lambda: {message["pid"] for _, message in agent.came} == pids, 30.0, "three reports")
        worker = max(pids - {app.pid})
        os.kill(worker, signal.SIGSTOP)
        stopped = time.time()
        eventually(
            lambda: {m["pid"] for at, m in agent.came if at > stopped + LATE} == pids - {worker}, 30.0, "the others"
        )
        os.kill(worker, signal.SIGCONT)
        went_on = time.time()
        eventually(lambda: any(m["pid"] == worker for at, m in agent.came if at > went_on), 30.0, "its word")
    assert {message["name"] for _, message in agent.came} == {"shop"}


def test_a_thread_is_silent_and_its_output_is_its_processs(packages: Path, agent: Agent) -> None:
    with Program(words("thread"), surroundings(packages, agent.address)) as app:
        agent.first(lambda m: row(m, "stdout"), "the output of the thread")
        agent.first(lambda _: len(agent.came) >= 2, "two messages")
        assert {message["pid"] for _, message in agent.came} == {app.pid}
        assert {message["name"] for _, message in agent.came} == {"hooked.js"}


class Shown(NamedTuple):
    text: list[str]
    stack: list[str]


def place(line: str) -> str:
    """Without the function's name, which is that of the property it was found in."""
    return line.rsplit(maxsplit=1)[-1]


def split(lines: Sequence[str]) -> Shown:
    stack = [line for line in lines if line.startswith("    at ")]
    return Shown([line for line in lines if line not in stack], stack)


@pytest.mark.parametrize("program", ["ordinary", "exits", "throws", "rejects", "misses", "wraps", "unhandled", "faces"])
def test_a_program_is_the_same_with_the_hook(packages: Path, program: str) -> None:
    def run(hook: str | None) -> tuple[int, str, list[str]]:
        command = [builds.node(), "--pending-deprecation", *words(program, "an argument")[1:]]
        done = subprocess.run(
            command,
            env=surroundings(packages, hook),
            input="input",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        said = re.sub(r"\(node:\d+\)", "(node)", done.stderr)
        return done.returncode, done.stdout, [line.rstrip(" {") for line in said.splitlines()]

    code, out, errors = run(None)
    with_code, with_out, with_errors = run("udp:127.0.0.1:9")
    assert (with_code, with_out) == (code, out)
    assert {"ordinary": 0, "exits": 7, "wraps": 0, "faces": 0}.get(program, 1) == code
    # A stack has a line more for each require() in it, and one less at its end: it has ten at most.
    shown, with_shown = (split(lines) for lines in (errors, with_errors))
    assert with_shown.text == shown.text
    stack = [line for line in with_shown.stack if HOOK.name not in line]
    assert list(map(place, stack)) == list(map(place, shown.stack[: len(stack)]))
    assert len(shown.stack) <= len(with_shown.stack) <= len(shown.stack) + 1


#: Makes the hook look twenty times a second.
FAST_LOOKS = "const real = setInterval; globalThis.setInterval = (work, ms, ...more) => real(work, ms === 2000 ? 50 : ms, ...more);"
#: What the hook reads of each library's objects: nothing of it is promised to anybody.
READ = {
    "stdout": ("writableLength", "_bytesDispatched", "_writableState", "writelen"),
    "winston": ("transports", "writableLength", "readableLength", "_writableState", "writing", "parent"),
    "logging-winston": ("transports", "writableLength", "readableLength", "_writableState", "writing", "parent", "common", "cloudLog"),
    "bunyan": ("cloudLog", "writableLength", "readableLength"),
    "sonic": ("_len", "maxLength", "sync"),
    "thread": ("kImpl", "buf", "state"),
    "pool": ("options", "ended", "totalCount", "idleCount", "waitingCount"),
}  # fmt: skip


def waits(message: Message) -> str:
    """What of it stays as long as nothing happens in the program."""
    queues = [{key: value for key, value in each.items() if key != "oldest_seconds"} for each in message["queues"]]
    pools = [
        {key: value for key, value in each.items() if key != "wait_seconds"}
        for each in message.get("pool", {}).values()
    ]
    return json.dumps([queues, pools])


def settled(came: Sequence[tuple[float, Message]], since: float) -> bool:
    """Whether the last five messages, all of them after that moment, say the same."""
    last = [waits(message) for at, message in came if at > since][-5:]
    return len(last) == 5 and len(set(last)) == 1


@pytest.mark.parametrize(("kind", "attribute"), [(kind, each) for kind in READ for each in READ[kind]])
def test_an_attribute_that_is_missing_is_left_out_and_the_rest_is_still_true(
    packages: Path, agent: Agent, tmp_path: Path, kind: str, attribute: str
) -> None:
    (tmp_path / "fast.js").write_text(FAST_LOOKS)
    env = surroundings(packages, agent.address)
    env["NODE_OPTIONS"] = f"--require={tmp_path}/fast.js --require={HOOK}"
    with Program(words("missing", kind, attribute), env) as app:
        made = app.said("made")["at"]
        eventually(lambda: settled(agent.came, made), 30.0, "five times the same")
        app.process.send_signal(signal.SIGUSR2)
        at = app.said("missing")["at"]
        # What waits is told at each look, what is gone once.
        eventually(lambda: any(came > at for came, _ in agent.came), 30.0, "a hook that speaks without the attribute")
        time.sleep(0.5)  # some looks more
        assert app.process.poll() is None
    assert not [line for line in app.lines if not line.startswith("{") and "Warning" not in line]
    whole = next(message for came, message in reversed(agent.came) if came < at)
    _, left = agent.came[-1]
    rows = {each["queue"]: each for each in whole["queues"]}
    for each in left["queues"]:
        if each["queue"] not in rows:  # what is not known to go to Cloud Logging is winston's own
            assert (kind, each["queue"], attribute in ("common", "cloudLog")) == ("logging-winston", "winston", True)
            both = each["entries"] + row(left, "logging-winston")["entries"]
            assert both in (rows["logging-winston"]["entries"], rows["logging-winston"]["entries"] + 1)
            continue
        one = int(attribute in ("_writableState", "writing"))  # the entry that is being handed over counts twice then
        for key in ("entries", "bytes", "most_entries", "most_bytes", "dropped", "drained", "errors", "arrived"):
            true = rows[each["queue"]].get(key)
            if key == "entries" and row(left, "winston") and kind == "logging-winston":
                continue  # seen above
            assert each.get(key) is None or true <= each[key] <= true + one, (key, each, rows)
    for name, pool in left.get("pool", {}).items():
        assert pool.items() <= whole["pool"][name].items(), (pool, whole)


SHAPES = (
    "{}", "null", "5", "'text'", "[]", "function () {}", "class {}", "Object.freeze(class { write() {} on() {} log() {} connect() {} })",
    "{ Logger: null, Log: null, LoggingWinston: null, LoggingBunyan: null }",
    "{ Logger: class {}, Log: class {}, LoggingWinston: class {}, LoggingBunyan: class {} }",
    "{ Logger: { prototype: 7 }, Log: 'text', LoggingWinston: [], LoggingBunyan: Symbol('x') }",
    "new Proxy(class {}, { get() { throw new Error('touched'); } })",
    "{ get Logger() { throw new Error('touched'); }, get Log() { throw new Error('touched'); } }",
)  # fmt: skip


def test_packages_of_the_known_names_may_export_anything(agent: Agent, tmp_path: Path) -> None:
    """Another version, a stand-in of a test, a mock: the program gets what the package gives."""
    builds_of = ("winston", "@google-cloud/logging", "@google-cloud/logging-winston", "@google-cloud/logging-bunyan", "sonic-boom", "thread-stream", "pg-pool")  # fmt: skip
    for name in builds_of:
        for number, shape in enumerate(SHAPES):
            file = tmp_path / "node_modules" / name / f"shape{number}.js"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"module.exports = globalThis.given = {shape};")
    files = [f"{name}/shape{number}.js" for name in builds_of for number in range(len(SHAPES))]
    program = tmp_path / "app.js"
    program.write_text(f"for (const f of {json.dumps(files)}) {{ if (require(f) !== given) throw new Error(f); }} console.log('fine');")  # fmt: skip
    command = [builds.node(), str(program)]
    env = {"PATH": os.environ["PATH"], "NODE_OPTIONS": f"--require={HOOK}", "STALLSCOPE_HOOK": agent.address}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


@pytest.mark.core
def test_an_es_module_is_hooked_too(packages: Path, agent: Agent, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(packages / "node_modules")
    source = """
        import { Logging } from '@google-cloud/logging';
        import winston, { createLogger } from 'winston';
        import { LoggingWinston } from '@google-cloud/logging-winston';
        const transport = new LoggingWinston({ projectId: 'lab', resource: { type: 'global', labels: {} } });
        transport.common.cloudLog.logging.loggingService = { writeLogEntries: () => new Promise(() => {}) };
        const logger = createLogger({ transports: [transport] });
        for (let seq = 1; seq <= 40; seq += 1) logger.info('hello', { seq });
        setTimeout(() => process.exit(0), 300);
    """
    (tmp_path / "app.mjs").write_text(source)
    env = surroundings(packages, agent.address)
    with Program([builds.node(), str(tmp_path / "app.mjs")], env) as app:
        assert app.wait() == 0
    found = row(agent.last(), "logging-winston")
    assert found["entries"] == found["arrived"] == 41
    assert agent.last()["name"] == "app.mjs"


@pytest.mark.parametrize(("program", "code"), [("throws", 1), ("ordinary", 0)])
def test_a_short_run_that_leaves_nothing_behind_says_nothing(
    packages: Path, agent: Agent, program: str, code: int
) -> None:
    with Program(words(program), surroundings(packages, agent.address)) as app:
        assert app.wait() == code
    with Program(words("winston", 1), surroundings(packages, agent.address)) as app:
        assert app.wait() == 0
    assert agent.last()["pid"] == app.pid
    assert {message["pid"] for _, message in agent.came} == {app.pid}


def test_a_file_is_rewritten_and_ends_with_the_last_message(packages: Path, tmp_path: Path) -> None:
    where = tmp_path / "hook"
    with Program(words("web"), surroundings(packages, f"file:{where}")) as app:
        target = Path(f"{where}.{app.pid}")
        eventually(target.exists, 30.0, "the file")
        assert check(target.read_bytes())["pid"] == app.pid
        assert "exit" not in json.loads(target.read_bytes())
    with Program(words("winston", 5), surroundings(packages, f"file:{where}")) as app:
        assert app.wait() == 0
    assert check(Path(f"{where}.{app.pid}").read_bytes())["exit"] == {"pending": 5}
    assert [path.name for path in tmp_path.iterdir() if path.suffix in {".new", ".last"}] == []


@pytest.mark.parametrize(
    "address",
    [
        "off",
        "unix:/tmp/x.sock",
        "udp:192.0.2.1:9769",
        "udp:localhost",
        "udp:127.0.0.1:70000",
        "file:/no/such/place",
        "?",
    ],
)
def test_where_nothing_can_be_sent_the_program_runs_as_ever(packages: Path, address: str) -> None:
    done = subprocess.run(
        words("winston", 5), env=surroundings(packages, address), capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_it_says_what_it_found_when_asked(packages: Path) -> None:
    env = surroundings(packages, "unix:/tmp/x.sock", NODE_DEBUG="stallscope-hook")
    done = subprocess.run(words("winston", 1), env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "STALLSCOPE_HOOK=unix:/tmp/x.sock: nothing is sent" in done.stderr
    env = surroundings(packages, "udp:127.0.0.1:9", NODE_DEBUG="stallscope-hook")
    done = subprocess.run(words("winston", 1), env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "found write" in done.stderr
