"""The hook's messages: where they go, when, and what each has."""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import queue
import sys
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg_pool
import pytest

from probes.hooks.message import parse
from tests.unit.hooks.python.conftest import MOST_QUEUES, Stage, Thing, load, record


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("udp:127.0.0.1:9769", ("AF_INET", ("127.0.0.1", 9769))),
        ("udp:127.9.8.7:1", ("AF_INET", ("127.9.8.7", 1))),
        ("udp:localhost:65535", ("AF_INET", ("127.0.0.1", 65535))),
        ("udp:[::1]:9769", ("AF_INET6", ("::1", 9769))),
        ("unix:/run/stallscope.sock", ("AF_UNIX", "/run/stallscope.sock")),
        ("file:/tmp/hook", ("file", "/tmp/hook")),
    ],
)
def test_a_target_on_this_machine_is_taken(
    stage: Stage, text: str, target: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stage.module._target(text) == target
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "text",
    [
        "udp:10.0.0.1:9769", "udp:example.com:9769", "udp:127.0.0.1:0", "udp:127.0.0.1:65536", "udp:127.0.0.1",
        "unix:relative.sock", "file:", "on", "tcp:127.0.0.1:9769", "udp:127.0.0.1:9769 ",
    ],
)  # fmt: skip
def test_any_other_target_is_refused_with_the_name_and_what_is_allowed(
    stage: Stage, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stage.module._target(text) is None
    said = capsys.readouterr().err
    assert f"STALLSCOPE_HOOK={text!r}" in said
    assert "udp:127.0.0.1:PORT, unix:/PATH, file:/PATH, off" in said


def test_off_says_nothing_starts_nothing_and_leaves_apps_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STALLSCOPE_HOOK", "off")
    threads = threading.enumerate()
    module = load("off")
    app = object()
    assert (module._hook, module.asgi(app), module.wsgi(app)) == (None, app, app)
    module.watch_pool("main", app)
    assert threading.enumerate() == threads
    assert capsys.readouterr().err == ""


def test_a_file_is_replaced_whole_and_has_the_process_number(stage: Stage, tmp_path: Path) -> None:
    stage.hook.target = "file", f"{tmp_path}/hook"
    stage.look()
    (path,) = tmp_path.glob("hook.*")
    assert path.name == f"hook.{os.getpid()}"
    assert json.loads(path.read_bytes())["pid"] == os.getpid()


def test_a_file_does_not_follow_a_link_that_somebody_laid(stage: Stage, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f"hook.{os.getpid()}.tmp").symlink_to(victim)
    stage.hook.target = "file", f"{tmp_path}/hook"
    stage.module._quiet(stage.look)
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("fault", ["nobody", "full"])
def test_nobody_who_listens_and_a_full_socket_are_silence(stage: Stage, tmp_path: Path, fault: str) -> None:
    if fault == "nobody":
        stage.hook.target = "AF_UNIX", f"{tmp_path}/nobody"
        stage.module._quiet(stage.look)
        return
    for _ in range(1000):  # the kernel queues a few hundred datagrams at most
        stage.clock.now += 10
        stage.module._quiet(stage.look)
    assert stage.hook._lock.acquire(blocking=False)


@pytest.mark.parametrize(
    ("argv", "named", "name"),
    [
        (["/srv/orders.py", "--x"], None, "orders.py"),
        (["/usr/lib/gunicorn/__main__.py"], None, "gunicorn"),
        (["shop/"], None, "shop"),
        (["__main__.py"], None, "python"),
        (["/"], None, "python"),
        ([], None, "python"),
        (["x"], "orders", "orders"),
        (["x"], "o" * 99, "o" * 40),
    ],
)
def test_the_name_is_the_settings_else_the_programs(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, argv: list[str], named: str | None, name: str
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    if named:
        monkeypatch.setenv("STALLSCOPE_HOOK_NAME", named)
    assert stage.message()["name"] == name


def test_a_frozen_interpreter_without_argv_has_a_name_too(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "argv")
    assert stage.message()["name"] == "python"


def test_nothing_new_is_reported_every_10_s_and_what_waits_at_every_message(stage: Stage) -> None:
    waiting: queue.Queue[Any] = queue.Queue()
    handler = logging.handlers.QueueHandler(waiting)

    def looks(count: int) -> list[bool]:
        told = []
        for _ in range(count):
            stage.clock.now += 2
            stage.look()
            told.append(stage.told() is not None)
        return told

    assert looks(6) == [True, False, False, False, False, True]
    handler.emit(record())
    assert looks(3) == [True, True, True]
    waiting.get()
    assert looks(3) == [True, False, False]
    handler.close()


def test_a_message_is_small_however_much_there_is(stage: Stage) -> None:
    handlers = [logging.handlers.QueueHandler(queue.Queue(10**9)) for _ in range(3 * MOST_QUEUES)]
    for handler in handlers:
        handler.queue.put(record(ago=1e9))  # type: ignore[attr-defined]
    pools = [psycopg_pool.ConnectionPool(open=False, max_size=10**9) for _ in range(20)]
    for number, pool in enumerate(pools):
        stage.module.watch_pool(f"{number}" + "\x01" * 100, pool)
    message = stage.message()
    assert len(message["queues"]) == MOST_QUEUES
    assert len({each["queue"] for each in message["queues"]}) == MOST_QUEUES
    assert all(len(name) <= 60 for name in message["pool"])


@pytest.mark.parametrize(
    ("most", "size"),
    [
        (20, 20),
        ("20", 20),
        (Decimal(20), 20),
        (float("inf"), None),
        (float("nan"), None),
        (-1, None),
        (1e99, None),
        (10**16, None),
        (True, None),
        ("many", None),
    ],
)
def test_one_odd_number_is_left_out_and_the_rest_is_taken(stage: Stage, most: object, size: object) -> None:
    stats = {"pool_max": most, "pool_size": 4, "pool_available": 1, "requests_waiting": 2}
    pool = Thing(get_stats=lambda: stats)
    stage.module.watch_pool("", pool)
    stage.hook.counts_requests = True
    stage.hook.requests[object()] = None
    message = parse(json.dumps(stage.message(last=True)).encode())
    assert message.pools == {
        "?": {**({"size": size} if size else {}), "checked_out": 3, "waiting": 2, "acquires": 0, "wait_seconds": 0}
    }
    assert (message.in_flight, message.lost) == (1, 0)


def test_the_protocol_s_first_keys(stage: Stage) -> None:
    message = stage.message()
    assert (message["v"], message["pid"], message["queues"]) == (1, os.getpid(), [])
    assert not {"in_flight", "pool", "exit"} & message.keys()
