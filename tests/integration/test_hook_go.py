"""hooks/go/stallscopehook.go in real Go programs: what it says is held against what they do, and whether it harms them."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from probes.hooks.message import parse
from tests.integration.conftest import eventually
from tests.integration.go_hook import HOOK, build, go, surroundings
from tests.integration.heard import LOOK, Agent, Client
from tests.lab.process import Running


@pytest.fixture(scope="session")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("go"))


@pytest.fixture
def agent() -> Iterator[Agent]:
    with closing(Agent()) as made:
        yield made


Run = Callable[..., Running]


@pytest.fixture
def run(hooked: Path, agent: Agent, stack: ExitStack) -> Run:
    def start(*words: str, hook: str | None = None, **more: str) -> Running:
        environ = surroundings(hook or f"udp:127.0.0.1:{agent.port}", **more)
        return stack.enter_context(Running([str(hooked), *words], env=environ, timeout=120))

    return start


Served = Callable[[Running], Client]


@pytest.fixture
def served(stack: ExitStack) -> Served:
    """A client of a program that says its port."""
    return lambda app: Client(next(record for record in app.records() if "port" in record)["port"], stack)


def test_it_is_vetted_and_formatted_and_its_own_tests_pass() -> None:
    go("vet", "./...", at=HOOK)
    go("vet", ".")
    go("test", "-count=1", ".", STALLSCOPE_HOOK="udp:127.0.0.1:9")
    gofmt = Path(go("env", "GOROOT").strip()) / "bin" / "gofmt"
    assert subprocess.run([gofmt, "-l", HOOK], capture_output=True, text=True, check=True).stdout == ""
    imports = go("list", "-f", '{{join .Imports "\\n"}}', at=HOOK).split()
    assert [name for name in imports if "." in name.split("/")[0]] == []


def test_what_is_watched_is_told_and_nothing_is_made_up(run: Run, agent: Agent) -> None:
    run("watch")
    last = agent.last()
    assert {name: dict(pool) for name, pool in last.pools.items()} == {
        "sql": {"size": 2, "checked_out": 1, "waits": 0, "wait_seconds": 0},
        "pgx": {"size": 4, "checked_out": 3, "acquires": 1500, "waits": 30, "wait_seconds": 2.5},
        "own": {"size": 3, "checked_out": 3, "waiting": 7, "waits": 0, "wait_seconds": 0},
    }
    assert {name: dict(queue.gauges) for name, queue in last.queues.items()} == {
        "channel": {"entries": 2, "most_entries": 8},
        "channel-2": {"entries": 2, "most_entries": 8},
        "é" * 60: {"entries": 0, "oldest_seconds": 3},
    }
    assert last.queues["é" * 60].totals == {"dropped": 5}
    assert last.lost == 4
    assert last.runtime is not None
    assert last.runtime.name == "go"
    assert last.runtime.version == go("env", "GOVERSION").strip()
    assert last.runtime.machine_cpus == len(os.sched_getaffinity(0))
    assert last.loggers is not None
    assert last.loggers == ("go", (), (), ("goroutines of its own",))
    assert not [m for m in agent.came if m.in_flight is not None], "nothing counts requests here"


@pytest.mark.parametrize("how", ["WatchLogs", "environment"])
def test_who_vouches_for_the_loggers_is_believed(run: Run, agent: Agent, how: str) -> None:
    run("watch", "vouch") if how == "WatchLogs" else run("watch", STALLSCOPE_HOOK_LOGS="stdout")
    loggers = agent.last().loggers
    assert loggers is not None
    assert loggers == ("go", ("standard output",), (), ())


def test_gomaxprocs_is_told_as_it_is(run: Run, agent: Agent) -> None:
    run("watch", GOMAXPROCS="7")
    runtime = agent.last().runtime
    assert runtime is not None
    assert runtime.cpus == 7


def test_a_buffer_that_tells_nothing_is_known_by_what_goes_in_and_out(run: Run, agent: Agent) -> None:
    run("buffer")
    (queue,) = agent.last().queues.values()
    assert queue.gauges == {"waiting_bytes": 600}


@pytest.mark.core
def test_work_after_the_response_is_told_apart_from_work_in_it(run: Run, agent: Agent, served: Served) -> None:
    """Early answers, goroutines, and all that looks like them; every connection is kept alive."""
    client = served(run("serve"))
    agent.look(lambda m: m.in_flight == 0, "the first look")
    for path in ("/plain", "/flushed", "/file", "/within?s=0.1", "/nothing"):
        client.ask(path)
    in_it = [client.begin(f"{path}?s=5") for path in ("/plain", "/stream", "/slowly", "/hijack")]
    quiet = agent.look(lambda m: m.in_flight == 4, "four requests")
    time.sleep(2 * LOOK)
    assert all(m.after_response["now"] == 0 for m in agent.came if m.after_response), (
        "none of these is after its response"
    )
    assert quiet.after_response["pieces"] == 0
    for connection in in_it:
        connection.close()
    agent.look(lambda m: m.in_flight == 0, "the end of all")
    early = [client.ask(path)[0] for path in ("/after?s=7",)]
    early += [client.another().ask(path)[0] for path in ("/early?s=7", "/nothing?s=7")]
    assert max(early) < 3, "the client has its answer at once"
    found = agent.look(lambda m: m.after_response.get("now") == 3, "three pieces of work")
    assert found.in_flight == 0
    over = agent.look(lambda m: m.after_response.get("now") == 0, "the end of the work")
    assert over.after_response["pieces"] == 3
    assert 0.8 * 21 < over.after_response["seconds"] < 1.5 * 21


def test_a_handler_that_panics_is_no_longer_in_flight(run: Run, agent: Agent, served: Served) -> None:
    client = served(run("serve"))
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        client.ask("/panics")
    assert eventually(lambda: [m for m in agent.came if m.in_flight is not None], what="messages")[-1].in_flight == 0


def test_what_a_handler_sees_and_what_a_client_gets_is_the_same_with_the_hook(
    run: Run, hooked: Path, served: Served
) -> None:
    answers = []
    for hook in (None, "off"):
        client = served(run("serve", hook=hook))
        answers.append([client.ask(path)[1] for path in ("/face", "/file", "/early?s=0", "/plain", "/stream?s=0.1")])
        assert client.ask("/plain", "HEAD")[1] == b""
    assert answers[0] == answers[1]
    assert answers[0][0] == b"true true true false true true"
    assert answers[0][1] == hooked.read_bytes()


def test_it_takes_leave_and_leaves_no_goroutine(run: Run, agent: Agent) -> None:
    (record,) = run("leak").records()
    assert record["before"] < record["during"]
    assert record["after"] <= record["before"], "the goroutine has ended"
    assert agent.last()
    assert agent.came[-1].lost is not None, "there is no word after the last one"


@pytest.mark.parametrize(
    "hook",
    ["unix:/nonexistent/socket", "udp:127.0.0.1:9", "file:/nonexistent/x", "off", "nonsense", "udp:10.0.0.1:9769"],
)
def test_wherever_it_is_to_report_the_program_runs(run: Run, hook: str) -> None:
    (record,) = run("leak", hook=hook).records()
    assert (record["during"] == record["before"]) == (hook in {"off", "nonsense", "udp:10.0.0.1:9769"})


def test_a_unix_socket_that_nobody_reads_holds_nobody_up(run: Run, tmp_path: Path) -> None:
    """A full one: whatever waited until there is room would still be there at the end."""
    where = str(tmp_path / "agent")
    with (
        closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as deaf,
        closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as other,
    ):
        deaf.bind(where)
        deaf.setblocking(False)
        other.setblocking(False)
        with suppress(BlockingIOError):
            while other.sendto(b"full", where):
                pass
        (record,) = run("leak", hook=f"unix:{where}").records()
        assert record["after"] <= record["before"]
        assert set(iter(partial(received, deaf), b"")) == {b"full"}
        assert list(run("leak", hook=f"unix:{where}").records())
        assert parse(received(deaf)).name == "orders"


def received(deaf: socket.socket) -> bytes:
    """The next message; nothing where there is none."""
    try:
        return deaf.recv(65536)
    except BlockingIOError:
        return b""


def test_a_file_is_written_whole_and_no_link_is_followed(run: Run, tmp_path: Path, served: Served) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    program = run("serve", hook=f"file:{tmp_path}/hook")
    (tmp_path / f"hook.{program.pid}.tmp").symlink_to(victim)
    served(program).ask("/plain")
    path = tmp_path / f"hook.{program.pid}"
    assert eventually(lambda: path.exists() and parse(path.read_bytes()).in_flight == 0, what="the file")
    assert victim.read_text() == "untouched"


def test_sigterm_ends_it_with_a_last_word_and_sigkill_without(run: Run, agent: Agent, served: Served) -> None:
    program = run("serve")
    served(program)
    os.kill(program.pid, signal.SIGTERM)
    assert agent.last().lost == 0


@pytest.mark.timing(reason="compares times of requests with and without the hook, in turns")
def test_it_costs_a_request_next_to_nothing(run: Run, served: Served) -> None:
    benchmark = go(
        "test", "-run", "^$", "-bench", "Hooked", "-benchtime", "100ms", ".", STALLSCOPE_HOOK="udp:127.0.0.1:9"
    )
    found = [float(each) for each in re.findall(r"([\d.]+) ns/op", benchmark)]
    assert max(found) < 20_000, benchmark
    clients = {hook: served(run("serve", hook=hook)) for hook in ("udp:127.0.0.1:9", "off")}
    ratios = []
    for turn in range(80):
        order = list(clients.items())[:: 1 if turn % 2 else -1]
        taken = {hook: min(client.ask("/plain")[0] for _ in range(15)) for hook, client in order}
        ratios.append(taken["udp:127.0.0.1:9"] / taken["off"])
    print("ns a request:", found, "times as long, median:", statistics.median(ratios))
    assert statistics.median(ratios) < 1.2


def test_the_agent_may_come_and_go(run: Run, served: Served) -> None:
    """Who is refused at first is heard as soon as somebody listens."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    client = served(run("serve", hook=f"udp:127.0.0.1:{port}"))
    client.ask("/plain")
    time.sleep(1)
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as agent:
        agent.bind(("127.0.0.1", port))
        agent.settimeout(LOOK * 6)
        heard: Any = parse(agent.recv(65536))
        assert heard.name == "orders"
