"""Work that goes on when its response is sent, in real FastAPI, WSGI, Node and Express apps: counted right, and nothing else is."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.integration.conftest import ROOT
from tests.integration.heard import Agent, Client
from tests.lab import builds
from tests.lab.process import Running

PROGRAMS = Path(__file__).parent


class App(NamedTuple):
    words: tuple[str, ...]
    after: tuple[str, ...]
    """Paths whose handlers go on for so many seconds after their response."""
    within: tuple[str, ...]
    """Paths whose responses take so long."""
    short: tuple[str, ...] = ("plain",)


APPS: Mapping[str, App] = {
    "FastAPI": App(("python", "background", "asgi"), ("task?s=", "thread?s=", "own?s="), ("plain?s=", "stream?s=")),
    "WSGI": App(("python", "background", "wsgi"), ("task?s=",), ("plain?s=",)),
    "Node": App(
        ("node", "after", "http"), ("early?", "given?"), ("plain?", "async?", "stream?"), ("plain", "lazy", "never")
    ),
    "Express 4": App(
        ("4", "after", "express"), ("early?", "given?"), ("plain?", "async?", "stream?"), ("plain", "lazy")
    ),
    "Express 5": App(
        ("5", "after", "express"), ("early?", "given?"), ("plain?", "async?", "stream?"), ("plain", "lazy", "fails")
    ),
}


@pytest.fixture
def agent() -> Iterator[Agent]:
    with closing(Agent()) as made:
        yield made


def command(kind: str, *words: str, hook: str) -> tuple[list[str], dict[str, str]]:
    environ = {"PATH": os.environ["PATH"], "STALLSCOPE_HOOK": hook, "STALLSCOPE_HOOK_NAME": "orders"}
    if kind == "python":
        path = f"{ROOT}/hooks/python"
        return [sys.executable, str(PROGRAMS / "hooked.py"), *words], {
            **environ,
            "PYTHONPATH": path,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
    packages = {} if kind == "node" else {"NODE_PATH": str(builds.express(kind) / "node_modules")}
    environ |= {"NODE_OPTIONS": f"--require={ROOT}/hooks/node/stallscope-hook.js --expose-gc", **packages}
    return [builds.node(), str(PROGRAMS / "hooked.js"), *words], environ


@pytest.mark.timing(
    reason="the seconds of work are held against the clock, and an app that gets no CPU works for longer"
)
@pytest.mark.gentle
@pytest.mark.parametrize(
    "app",
    [pytest.param(app, id=name, marks=[pytest.mark.core] if name == "FastAPI" else []) for name, app in APPS.items()],
)
def test_work_after_the_response_is_counted_and_work_in_it_is_not(app: App, agent: Agent, stack: ExitStack) -> None:
    words, environ = command(*app.words, hook=f"udp:127.0.0.1:{agent.port}")
    program = stack.enter_context(Running(words, env=environ, timeout=120))
    records = program.records()
    port = next(record for record in records if "port" in record)["port"]
    client = Client(port, stack)
    for path in app.short:
        client.ask(f"/{path}")
    agent.look(lambda m: m.in_flight == 0, "the first look")
    for path in app.within:
        client.begin(f"/{path}5")
    agent.look(lambda m: m.in_flight == len(app.within), "requests")
    agent.look(lambda m: m.in_flight == 0, "the end of the requests")
    assert all(m.after_response.get("pieces", 0) == 0 for m in agent.came), "none of these worked on"
    waited = [client.another().ask(f"/{path}7")[0] for path in app.after]
    assert max(waited) < 7, "the answer does not wait for the work"
    found = agent.look(lambda m: m.after_response.get("now") == len(app.after), "the work")
    assert found.in_flight == 0
    over = agent.look(lambda m: m.after_response.get("now") == 0, "the end of the work")
    assert over.after_response["pieces"] == len(app.after)
    assert 0.8 * 7 * len(app.after) < over.after_response["seconds"] < 1.6 * 7 * len(app.after)


def test_node_s_server_has_its_listeners_as_without_the_hook(agent: Agent, stack: ExitStack) -> None:
    seen: list[list[dict[str, Any]]] = []
    for hook in (f"udp:127.0.0.1:{agent.port}", "off"):
        words, environ = command("node", "after", "http", hook=hook)
        program = stack.enter_context(Running(words, env=environ, timeout=60))
        records = program.records()
        found = [next(records), next(records)]
        client = Client(found.pop()["port"], stack)
        assert [client.ask("/lazy")[1] for _ in range(2)] == [b"lazy", b"lazy"]
        answered = [{key: value for key, value in each.items() if key != "at"} for each in (*found, next(records))]
        seen.append(answered)
    assert seen[0] == seen[1] == [{"found": True, "once": True}, {"once": True}]


@pytest.mark.timing(reason="compares times with and without the hook, in turns")
def test_following_an_async_handler_costs_less_than_two_microseconds() -> None:
    costs: dict[str, list[float]] = {"udp:127.0.0.1:9": [], "off": []}
    for _ in range(5):
        for hook, found in costs.items():
            words, environ = command("node", "handled", "200000", hook=hook)
            with Running(words, env=environ, timeout=60) as program:
                found.append(next(iter(program.records()))["ns"])
    more = min(costs["udp:127.0.0.1:9"]) - min(costs["off"])
    print("nanoseconds more:", more, costs)
    assert more < 2000
