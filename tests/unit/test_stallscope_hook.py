"""The Python hook: what it reads in other libraries' objects, also when any part of them is missing.

The libraries' objects are real where no server is needed; where an attribute is to be missing they are stand-ins with
the names that the libraries use. Messages go through a real datagram socket.
"""

from __future__ import annotations

import ast
import asyncio
import collections
import contextlib
import datetime as dt
import gc
import importlib.util
import json
import logging
import logging.handlers
import multiprocessing
import os
import queue
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import psycopg_pool
import pytest
import sqlalchemy
import sqlalchemy.pool

FILE = Path(__file__).resolve().parents[2] / "hooks" / "python" / "stallscope_hook.py"
NOW = 1_800_000_000.0
#: What a message may have, as the agent reads it.
MOST_BYTES, MOST_QUEUES = 8192, 16
TOTALS = {"arrived", "drained", "dropped", "errors", "refused"}


def load(target: str) -> Any:
    """The file as a program's import executes it."""
    os.environ["STALLSCOPE_HOOK"] = target
    spec = importlib.util.spec_from_file_location("stallscope_hook_under_test", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return NOW + self.now

    def monotonic(self) -> float:
        return self.now


class Stage:
    """The hook without its thread: look() is what the thread does every 2 s."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STALLSCOPE_HOOK", "off")
        monkeypatch.setattr(logging, "_handlerList", [])
        self.module = load("off")
        self.clock = Clock()
        monkeypatch.setattr(self.module, "time", self.clock)
        self.woken = threading.Event()
        monkeypatch.setattr(self.module._Hook, "go_on", lambda hook: setattr(hook, "_wake", self.woken))
        self.agent = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.path = f"{directory}/agent"
        self.agent.bind(self.path)
        self.agent.setblocking(False)
        self.hook = self.module._Hook(("AF_UNIX", self.path))
        self.module._hook = self.hook

    def look(self, last: bool = False) -> None:
        self.hook.report(last)

    def told(self) -> dict[str, Any] | None:
        """The next message that the agent got, None when there is none."""
        try:
            data = self.agent.recv(65536)
        except BlockingIOError:
            return None
        assert len(data) <= MOST_BYTES
        message: dict[str, Any] = json.loads(data)
        return message

    def message(self, last: bool = False) -> dict[str, Any]:
        """What a look says that must be told."""
        self.look(last)
        message = self.told()
        assert message is not None
        return message

    def only(self) -> dict[str, Any]:
        """The one queue, without its name."""
        (found,) = self.message()["queues"]
        return {key: value for key, value in found.items() if key != "queue"}


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    stage = Stage(tmp_path, monkeypatch)
    yield stage
    stage.agent.close()


def record(ago: float = 0.0, message: str = "hello") -> logging.LogRecord:
    """A record that was made `ago` seconds before the stage's clock began."""
    made = logging.makeLogRecord({"msg": message, "levelno": logging.INFO})
    made.created = NOW - ago
    return made


# --- where messages go --------------------------------------------------------------------------------------------------


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


# --- when ---------------------------------------------------------------------------------------------------------------


def test_nothing_new_is_told_every_10_s_and_what_waits_at_every_look(stage: Stage) -> None:
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


def test_the_protocol_s_first_keys(stage: Stage) -> None:
    message = stage.message()
    assert (message["v"], message["pid"], message["queues"]) == (1, os.getpid(), [])
    assert not {"in_flight", "pool", "exit"} & message.keys()


# --- logging.handlers.QueueHandler --------------------------------------------------------------------------------------


def test_a_queue_handler_s_depth_limit_and_oldest(stage: Stage) -> None:
    handler = logging.handlers.QueueHandler(queue.Queue(5))
    handler.emit(record(ago=7))
    handler.emit(record(ago=3))
    assert stage.only() == {
        "kind": "queue-handler", "entries": 2, "most_entries": 5, "oldest_seconds": 7.0, "dropped": 0,
    }  # fmt: skip


def test_what_a_full_queue_refuses_is_counted_and_other_errors_are_not(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(queue.Queue[Any]):
        full_up = True

        def put_nowait(self, item: Any) -> None:
            raise queue.Full if self.full_up else OSError("no")

    broken = Broken()
    handler = logging.handlers.QueueHandler(broken)
    stage.only()
    for broken.full_up in (True, True, False):
        handler.handle(record())
    assert stage.only()["dropped"] == 2
    assert capsys.readouterr().err.count("Logging error") == 3  # the program still says what it said before


def test_a_queue_that_is_shared_is_told_once(stage: Stage) -> None:
    shared: queue.Queue[Any] = queue.Queue(1)
    handlers = [logging.handlers.QueueHandler(shared) for _ in range(3)]
    stage.only()
    for handler in handlers:
        handler.raiseExceptions = False  # type: ignore[attr-defined]
        handler.handle(record())
    found = stage.only()
    assert (found["entries"], found["dropped"]) == (1, 2)


def test_a_handler_that_puts_in_its_own_way_may_drop_without_a_word(stage: Stage) -> None:
    class Own(logging.handlers.QueueHandler):
        def enqueue(self, record: logging.LogRecord) -> None:
            pass

    handler = Own(queue.Queue())
    assert stage.only() == {"kind": "queue-handler", "entries": 0}
    assert handler.queue


@pytest.mark.parametrize(
    ("make", "limit"),
    [
        (queue.SimpleQueue, None),
        (lambda: asyncio.Queue(7), 7),
        (multiprocessing.Queue, None),
        (lambda: multiprocessing.Queue(9), 9),
        (lambda: queue.LifoQueue(3), 3),
    ],
)
def test_other_queues_of_the_standard_library(stage: Stage, make: Callable[[], Any], limit: int | None) -> None:
    handler = logging.handlers.QueueHandler(make())
    assert stage.only() == {
        "kind": "queue-handler", "entries": 0, "dropped": 0, **({} if limit is None else {"most_entries": limit}),
    }  # fmt: skip
    assert handler.queue is not None


def test_a_strange_queue_is_not_asked(stage: Stage) -> None:
    class Remote:
        def qsize(self) -> NoReturn:
            raise AssertionError("a question over the network")

    handler = logging.handlers.QueueHandler(Remote())  # type: ignore[arg-type]
    assert stage.message()["queues"] == []
    assert handler.queue


def test_no_code_of_a_strange_handler_is_run(stage: Stage) -> None:
    class Strange(logging.Handler):
        @property
        def transport(self) -> NoReturn:
            raise AssertionError("asked")

        def __getattr__(self, name: str) -> NoReturn:
            raise AssertionError(name)

        def __bool__(self) -> bool:
            raise AssertionError("asked")

    handler = Strange()
    assert stage.message()["queues"] == []
    assert isinstance(handler, Strange)


def test_what_the_program_drops_is_not_kept_alive(stage: Stage) -> None:
    waiting: queue.Queue[Any] = queue.Queue()
    handler = logging.handlers.QueueHandler(waiting)
    stage.only()
    gone = weakref.ref(waiting), weakref.ref(handler)
    del waiting, handler
    gc.collect()
    assert [each() for each in gone] == [None, None]
    assert stage.message()["queues"] == []


def test_a_name_is_kept_while_the_queue_lives_and_used_again_after(stage: Stage) -> None:
    handlers = [logging.handlers.QueueHandler(queue.Queue(size)) for size in (1, 2, 3)]

    def names() -> dict[int, str]:
        return {each["most_entries"]: each["queue"] for each in stage.message()["queues"]}

    assert names() == {1: "queue-handler", 2: "queue-handler-2", 3: "queue-handler-3"}
    del handlers[0]
    gc.collect()
    handlers.append(logging.handlers.QueueHandler(queue.Queue(4)))
    assert names() == {2: "queue-handler-2", 3: "queue-handler-3", 4: "queue-handler"}


# --- libraries whose private attributes are read ------------------------------------------------------------------------


class Thing:
    """An object with these attributes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Batch:
    def __init__(self, *ago: float) -> None:
        self.entries = [Thing(timestamp=_datetime(each)) for each in ago]


def _datetime(ago: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(NOW - ago, dt.UTC)


def _calls(owner: object, name: str) -> Callable[[Any], Any]:
    """A method that does what the test last said."""

    def method(batch: Any) -> Any:
        return getattr(owner, name)(batch)

    return method


def google() -> logging.Handler:
    """As google-cloud-logging's CloudLoggingHandler with BackgroundThreadTransport; two entries wait."""
    waiting: queue.Queue[Any] = queue.Queue()
    for ago in (5, 4):
        waiting.put({"message": "m", "timestamp": _datetime(ago)})
    worker = Thing(_queue=waiting, _max_batch_size=10, commits=lambda _: None)
    worker._safely_commit_batch = _calls(worker, "commits")  # type: ignore[attr-defined]
    handler = logging.Handler()
    handler.transport = Thing(worker=worker)  # type: ignore[attr-defined]
    return handler


def opentelemetry(nested: bool, metrics: bool) -> logging.Handler:
    """As its LoggingHandler; newer ones have a processor inside the processor, and metrics."""
    records = collections.deque(
        [Thing(log_record=Thing(timestamp=int((NOW - ago) * 1e9), observed_timestamp=0)) for ago in (4, 5)], 2048
    )
    exporter = Thing(exports=lambda _: None)
    exporter.export = _calls(exporter, "exports")  # type: ignore[attr-defined]
    inside = Thing(_queue=records, _exporter=exporter)
    if metrics:
        inside._metrics = Thing(drop_items=lambda _: None)  # type: ignore[attr-defined]
    processor = Thing(_batch_processor=inside) if nested else inside
    provider = Thing(_multi_log_record_processor=Thing(_log_record_processors=(processor,)))
    handler = logging.Handler()
    handler._logger_provider = provider  # type: ignore[attr-defined]
    return handler


def queue_handler() -> logging.Handler:
    handler = logging.handlers.QueueHandler(queue.Queue(5))
    for ago in (5, 4):
        handler.emit(record(ago))
    return handler


LIBRARIES: dict[str, Callable[[], logging.Handler]] = {
    "google": google,
    "opentelemetry": lambda: opentelemetry(nested=True, metrics=True),
    "opentelemetry before 1.40": lambda: opentelemetry(nested=True, metrics=False),
    "opentelemetry before 1.33": lambda: opentelemetry(nested=False, metrics=False),
    "queue-handler": queue_handler,
}
WHOLE: dict[str, dict[str, Any]] = {
    "google": {
        "kind": "google-cloud-logging", "entries": 2, "oldest_seconds": 5.0,
        "arrived": 2, "drained": 0, "dropped": 0, "errors": 0,
    },
    "opentelemetry": {
        "kind": "otel-batch", "entries": 2, "most_entries": 2048, "oldest_seconds": 5.0,
        "arrived": 2, "drained": 0, "dropped": 0, "errors": 0,
    },
    "opentelemetry before 1.40": {
        "kind": "otel-batch", "entries": 2, "most_entries": 2048, "oldest_seconds": 5.0, "drained": 0, "errors": 0,
    },
    "opentelemetry before 1.33": {
        "kind": "otel-batch", "entries": 2, "most_entries": 2048, "oldest_seconds": 5.0, "drained": 0, "errors": 0,
    },
    "queue-handler": {
        "kind": "queue-handler", "entries": 2, "most_entries": 5, "oldest_seconds": 5.0, "dropped": 0,
    },
}  # fmt: skip


class Place(NamedTuple):
    """An attribute, or a dictionary's key."""

    owner: Any
    name: str

    def set(self, value: object) -> None:
        self._names()[self.name] = value

    def delete(self) -> None:
        del self._names()[self.name]

    def _names(self) -> dict[str, Any]:
        return self.owner if isinstance(self.owner, dict) else vars(self.owner)


def places(thing: Any, seen: set[int], depth: int = 8) -> Iterator[Place]:
    """Everything that can be reached from a handler."""
    if depth == 0 or id(thing) in seen:
        return
    seen.add(id(thing))
    names = thing if isinstance(thing, dict) else getattr(thing, "__dict__", {})
    for name in list(names):
        yield Place(thing, name)
        yield from places(names[name], seen, depth - 1)
    for each in list(thing) if isinstance(thing, (collections.deque, list, tuple)) else ():
        yield from places(each, seen, depth - 1)


def each_place(library: str) -> Iterator[tuple[logging.Handler, Place]]:
    """A new handler for each place in it."""
    for number in range(len(list(places(LIBRARIES[library](), set())))):
        handler = LIBRARIES[library]()
        yield handler, list(places(handler, set()))[number]


@pytest.mark.parametrize("library", LIBRARIES)
def test_everything_is_read_when_everything_is_there(stage: Stage, library: str) -> None:
    handler = LIBRARIES[library]()
    assert stage.only() == WHOLE[library]
    assert handler


def left_out(stage: Stage, handler: logging.Handler, library: str, place: str) -> set[str]:
    """Keys that are missing in what is told of this handler alone; the others must be as they should."""
    stage.hook.queues.clear()
    stage.hook._said = ""
    logging._handlerList[:] = [weakref.ref(handler)]  # type: ignore[attr-defined]
    found = {key: value for each in stage.message()["queues"] for key, value in each.items() if key != "queue"}
    assert found.items() <= WHOLE[library].items(), f"{place}: {found}"
    return WHOLE[library].keys() - found.keys()


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_missing_is_left_out_and_the_rest_is_still_true(stage: Stage, library: str) -> None:
    missed: set[str] = set()
    for handler, place in each_place(library):
        place.delete()
        missed |= left_out(stage, handler, library, place.name)
    assert missed == WHOLE[library].keys()  # or nothing that matters was taken away


@pytest.mark.parametrize("value", [None, 0, -1.5, 1.8e12, "text", object(), {}], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_of_another_kind_is_left_out(stage: Stage, library: str, value: object) -> None:
    for handler, place in each_place(library):
        if isinstance(place.owner, queue.Queue):  # its own qsize() is then believed
            continue
        place.set(value)
        left_out(stage, handler, library, place.name)


def test_without_logging_s_list_of_handlers_nothing_is_found(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = google()
    monkeypatch.setitem(sys.modules, "logging", Thing())
    assert stage.message()["queues"] == []
    assert handler


def test_a_batch_under_way_waits_still(stage: Stage) -> None:
    handler: Any = google()
    worker = handler.transport.worker
    stage.only()
    seen = []

    def commit(batch: Batch) -> None:
        seen.append(stage.only())
        batch.entries.clear()

    worker.commits = commit
    worker._safely_commit_batch(Batch(9, 8, 7))
    assert [(each["entries"], each["oldest_seconds"], each["drained"]) for each in seen] == [(5, 9.0, 0)]
    assert stage.only() == {**WHOLE["google"], "drained": 3, "arrived": 5}


@pytest.mark.parametrize("raises", [False, True])
def test_a_batch_that_fails_is_dropped(stage: Stage, raises: bool) -> None:
    """google's worker logs the error and goes on; the batch's entries are then still in it."""
    handler: Any = google()
    worker = handler.transport.worker
    stage.only()
    fault = KeyboardInterrupt()

    def commit(_: Batch) -> None:
        if raises:
            raise fault

    worker.commits = commit
    if raises:
        with pytest.raises(KeyboardInterrupt) as caught:
            worker._safely_commit_batch(Batch(9, 8, 7))
        assert caught.value is fault
    else:
        worker._safely_commit_batch(Batch(9, 8, 7))
    assert stage.only() == {**WHOLE["google"], "dropped": 3, "errors": 1, "arrived": 5}


class Refused(Exception):
    """As the libraries' errors: google's and HTTP's have a number, gRPC's a method."""

    def __init__(self, code: object) -> None:
        super().__init__()
        self.code = code


def _raise() -> NoReturn:
    raise ValueError


@pytest.mark.parametrize(
    ("code", "refused"),
    [
        (429, 1), (lambda: Thing(name="RESOURCE_EXHAUSTED"), 1), (503, 0), (lambda: Thing(name="UNAVAILABLE"), 0),
        (None, 0), (_raise, 0),
    ],
)  # fmt: skip
def test_want_of_quota_is_told_apart_from_other_failures(stage: Stage, code: object, refused: int) -> None:
    """google's worker swallows the error, so it is seen where its batch is sent; an exporter's is seen where it is called."""
    handler: Any = google()
    worker = handler.transport.worker
    assert "refused" not in stage.only()
    batch = Batch(9, 8, 7)
    fault = Refused(code)

    def commit() -> None:
        raise fault

    def commits(batch: Any) -> None:
        with contextlib.suppress(Refused):
            batch.commit()

    batch.commit = commit  # type: ignore[attr-defined]
    worker.commits = commits
    worker._safely_commit_batch(batch)
    assert stage.only() == {**WHOLE["google"], "dropped": 3, "errors": 1, "arrived": 5, "refused": refused}
    assert not hasattr(batch, "commit"), "a batch that refers to itself would stay until Python looks for such"

    handler = opentelemetry(nested=True, metrics=True)
    stage.hook.queues.clear()
    stage.message()
    exporter = handler._logger_provider._multi_log_record_processor._log_record_processors[0]._batch_processor._exporter
    exporter.exports = lambda _: commit()
    with pytest.raises(Refused):
        exporter.export([1, 2, 3])
    assert stage.only().get("refused", 0) == refused


@pytest.mark.parametrize("library", [each for each in LIBRARIES if each.startswith("opentelemetry")])
def test_an_exporter_s_failures_and_a_full_queue(stage: Stage, library: str) -> None:
    handler: Any = LIBRARIES[library]()
    (processor,) = handler._logger_provider._multi_log_record_processor._log_record_processors
    inside = getattr(processor, "_batch_processor", processor)
    stage.only()

    def fail(_: list[object]) -> NoReturn:
        raise OSError("no")

    for answer in (lambda _: Thing(name="SUCCESS"), lambda _: Thing(name="FAILURE"), fail):
        inside._exporter.exports = answer
        with contextlib.suppress(OSError):
            inside._exporter.export([1, 2, 3])
    found = stage.only()
    assert (found["drained"], found["errors"]) == (3, 2)
    if library == "opentelemetry":
        inside._metrics.drop_items(4)
        found = stage.only()
        assert (found["dropped"], found["arrived"]) == (6 + 4, 3 + 6 + 4 + 2)
    else:  # a full queue drops its oldest there without a word
        assert not {"dropped", "arrived"} & found.keys()


def test_opentelemetry_s_provider_is_found_without_a_logging_handler(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler: Any = opentelemetry(nested=True, metrics=True)
    monkeypatch.setattr(logging, "_handlerList", [])
    monkeypatch.setitem(sys.modules, "opentelemetry._logs._internal", Thing(_LOGGER_PROVIDER=handler._logger_provider))
    assert stage.only() == WHOLE["opentelemetry"]


def test_what_is_thrown_away_after_the_main_thread_s_end_still_waits(stage: Stage) -> None:
    handler: Any = google()
    worker = handler.transport.worker
    stage.only()
    stage.hook.leave()
    worker._queue.get()  # google's worker takes entries without sending them
    message = stage.message(last=True)
    assert message["exit"] == {"pending": 2}
    assert message["queues"][0]["entries"] == 2
    assert "oldest_seconds" not in message["queues"][0]  # the oldest may be one that was thrown away


def test_what_is_sent_after_the_main_thread_s_end_no_longer_waits(stage: Stage) -> None:
    handler: Any = opentelemetry(nested=True, metrics=True)
    (processor,) = handler._logger_provider._multi_log_record_processor._log_record_processors
    inside = processor._batch_processor
    stage.only()
    stage.hook.leave()
    inside._exporter.export([inside._queue.pop()])
    assert stage.message(last=True)["exit"] == {"pending": 1}


def test_a_program_whose_main_thread_ends_first_goes_on_being_watched(stage: Stage) -> None:
    """Threads that are no daemons keep it running; the numbers are those of the moment, not of the main thread's end."""
    handler: Any = opentelemetry(nested=True, metrics=True)
    (processor,) = handler._logger_provider._multi_log_record_processor._log_record_processors
    inside = processor._batch_processor
    stage.only()
    stage.hook.leave()
    inside._exporter.export([inside._queue.pop(), inside._queue.pop()])
    inside._queue.extendleft(Thing(log_record=Thing(timestamp=int((NOW - ago) * 1e9))) for ago in (3, 2, 1))
    assert stage.only() == {**WHOLE["opentelemetry"], "entries": 3, "oldest_seconds": 3.0, "arrived": 5, "drained": 2}


def test_without_totals_what_waits_at_the_end_is_what_the_queue_holds(stage: Stage) -> None:
    handler: Any = queue_handler()
    stage.only()
    stage.hook.leave()
    handler.queue.get()
    assert stage.message(last=True)["exit"] == {"pending": 1}


def test_the_last_message_is_told_even_if_nothing_is_new(stage: Stage) -> None:
    assert "exit" not in stage.message()
    assert stage.message(last=True)["exit"] == {}


def test_a_child_counts_from_its_own_beginning(stage: Stage) -> None:
    handler: Any = google()
    worker = handler.transport.worker
    stage.hook.counts_requests = True
    stage.only()

    def commit(batch: Batch) -> None:
        batch.entries.clear()
        stage.hook.requests[object()] = None
        stage.hook.begin_child()  # as a fork in the midst of a batch, whose thread the child does not have
        assert stage.hook.queues[id(worker)].sending == {}

    worker.commits = lambda batch: batch.entries.clear()
    worker._safely_commit_batch(Batch(9, 8, 7))
    assert stage.only()["drained"] == 3
    worker.commits = commit
    worker._safely_commit_batch(Batch(6))
    message = stage.message()
    assert (message["queues"][0]["drained"], message["in_flight"]) == (0, 0)
    worker.commits = lambda batch: batch.entries.clear()
    worker._safely_commit_batch(Batch(6))
    assert stage.only()["drained"] == 1


def test_totals_from_many_threads_lose_nothing(stage: Stage) -> None:
    total = stage.module._Total()
    threads = [threading.Thread(target=lambda: [total.add(1) for _ in range(5000)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    seen = [total() for _ in range(100)]
    for thread in threads:
        thread.join()
    assert total() == 40_000
    assert seen == sorted(seen)


# --- requests -----------------------------------------------------------------------------------------------------------


def in_flight(stage: Stage) -> int:
    while stage.told() is not None:
        pass
    stage.clock.now += 10
    found: int = stage.message()["in_flight"]
    return found


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_asgi_requests_are_in_flight_until_they_end_or_fail(stage: Stage, kind: str) -> None:
    seen = []

    async def app(scope: dict[str, str], *_: object) -> None:
        seen.append(in_flight(stage))
        if len(seen) == 2:
            raise LookupError
        await wrapped(scope, None, None)

    wrapped = stage.module.asgi(app)
    assert in_flight(stage) == 0
    with pytest.raises(LookupError):
        asyncio.run(wrapped({"type": kind}, None, object()))
    assert seen == [1, 2]
    assert in_flight(stage) == 0


def test_the_first_request_and_the_end_of_the_last_are_told_at_once_with_what_was_told_last(stage: Stage) -> None:
    handler = queue_handler()
    stage.module.asgi(None)
    (waiting,) = stage.message()["queues"]
    stage.hook.begin("a")
    stage.hook.begin("b")
    first = stage.told()
    assert first is not None
    assert (first["in_flight"], first["queues"], first["pid"]) == (1, [waiting], os.getpid())
    stage.hook.end("a")
    assert stage.told() is None
    stage.hook.end("b")
    last = stage.told()
    assert last is not None
    assert (last["in_flight"], last["queues"]) == (0, [waiting])
    stage.hook.end("b")
    assert stage.told() is None
    assert handler


def test_a_request_ends_with_its_response_and_before_the_platform_knows(stage: Stage) -> None:
    """What the app does after its response is no request for a platform that takes the CPU away then."""
    seen: list[tuple[str, int]] = []

    async def app(_scope: object, _receive: object, send: Any) -> None:
        await send({"type": "http.response.start"})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": b"b"})
        seen.append(("after", len(stage.hook.requests)))

    async def send(message: dict[str, Any]) -> None:
        told = stage.told()
        seen.append((message.get("body", b"").decode(), -1 if told is None else told["in_flight"]))

    asyncio.run(stage.module.asgi(app)({"type": "http"}, None, send))
    assert seen == [("", 1), ("a", -1), ("b", 0), ("after", 0)]
    assert stage.told() is None


@pytest.mark.parametrize("message", [None, "text", {}, {"type": "http.response.body", "more_body": True}])
def test_what_an_app_sends_is_handed_on_whatever_it_is(stage: Stage, message: object) -> None:
    sent = []

    async def app(_scope: object, _receive: object, send: Any) -> None:
        await send(message)

    async def send(message: object) -> None:
        sent.append((message, len(stage.hook.requests)))

    asyncio.run(stage.module.asgi(app)({"type": "http"}, None, send))
    assert sent == [(message, 1)]


def test_requests_that_come_and_go_all_the_time_are_told_twice_a_second(stage: Stage) -> None:
    stage.module.asgi(None)
    for _ in range(1000):
        stage.clock.now += 0.01
        stage.hook.begin("a")
        stage.hook.end("a")
    told = sum(stage.told() is not None for _ in range(2000))
    assert told <= stage.module.AT_ONCE + 10 / stage.module.SOON_SECONDS
    assert stage.woken.is_set()  # the thread says what it is in the end
    stage.hook.turn(late=True)
    last = stage.told()
    assert last is not None
    assert last["in_flight"] == 0


def test_a_file_is_never_written_by_the_thread_that_serves_a_request(stage: Stage, tmp_path: Path) -> None:
    stage.module.asgi(None)
    stage.hook.target = "file", str(tmp_path / "hook")
    stage.hook.begin("a")
    assert list(tmp_path.glob("hook*")) == []
    assert stage.woken.is_set()
    stage.hook.turn(late=True)
    assert json.loads((tmp_path / f"hook.{os.getpid()}").read_text())["in_flight"] == 1


def test_while_the_hook_looks_a_request_does_not_wait_for_it(stage: Stage) -> None:
    stage.module.asgi(None)
    with stage.hook._lock:
        stage.hook.begin("a")
    assert stage.told() is None
    assert stage.woken.is_set()


def test_there_is_no_word_after_the_last_one(stage: Stage) -> None:
    stage.module.asgi(None)
    stage.hook.begin("a")
    stage.told()
    assert stage.message(last=True)["in_flight"] == 1
    stage.hook.end("a")
    stage.hook.begin("b")
    assert stage.told() is None


def test_that_the_last_request_ended_is_told_at_the_next_look_too(stage: Stage) -> None:
    stage.module.asgi(None)
    stage.hook.requests["a"] = None
    assert stage.message()["in_flight"] == 1
    stage.hook.requests.clear()
    stage.clock.now += 2
    assert stage.message()["in_flight"] == 0
    stage.clock.now += 2
    stage.look()
    assert stage.told() is None


def test_asgi_s_lifespan_is_no_request(stage: Stage) -> None:
    seen = []

    async def app(*_: object) -> None:
        seen.append(in_flight(stage))

    asyncio.run(stage.module.asgi(app)({"type": "lifespan"}, None, None))
    assert seen == [0]


def test_a_wsgi_response_that_is_there_at_once_is_handed_on_as_it_is(stage: Stage) -> None:
    body = [b"whole"]
    assert stage.module.wsgi(lambda *_: body)({}, None) is body
    assert in_flight(stage) == 0


def test_a_file_that_the_server_sends_itself_is_handed_on_as_it_is(stage: Stage) -> None:
    class Wrapper:
        pass

    body = Wrapper()
    assert stage.module.wsgi(lambda *_: body)({"wsgi.file_wrapper": Wrapper}, None) is body
    assert in_flight(stage) == 0
    own = stage.module.wsgi(lambda *_: body)(
        {"wsgi.file_wrapper": lambda _: body}, None
    )  # some servers have a function
    assert own is not body
    own.close()


def test_a_wsgi_response_that_is_made_while_it_is_sent_is_in_flight_until_it_is_closed(stage: Stage) -> None:
    closed = []

    def pieces() -> Iterator[bytes]:
        try:
            yield b"a"
            yield b"b"
        finally:
            closed.append(True)

    body = stage.module.wsgi(lambda *_: pieces())({}, None)
    assert in_flight(stage) == 1
    assert list(body) == [b"a", b"b"]
    assert in_flight(stage) == 1
    body.close()
    body.close()
    assert in_flight(stage) == 0
    assert closed == [True]
    unread = stage.module.wsgi(lambda *_: pieces())({}, None)
    unread.close()
    assert in_flight(stage) == 0


def test_a_wsgi_app_that_fails_is_no_longer_in_flight(stage: Stage) -> None:
    def app(*_: object) -> NoReturn:
        raise LookupError

    with pytest.raises(LookupError):
        stage.module.wsgi(app)({}, None)
    assert in_flight(stage) == 0


# --- pools --------------------------------------------------------------------------------------------------------------


def test_a_psycopg_pool(stage: Stage) -> None:
    pool = psycopg_pool.ConnectionPool(open=False, min_size=2, max_size=5)
    pool._stats.update(requests_num=7, requests_wait_ms=1500)
    stage.module.watch_pool("main", pool)
    assert stage.message()["pool"] == {
        "main": {"size": 5, "checked_out": 2, "waiting": 0, "wait_seconds": 1.5, "acquires": 7}
    }


@pytest.mark.parametrize("missing", ["_stats", "_pool", "_waiting"])
def test_a_psycopg_pool_whose_numbers_cannot_be_had_is_left_out(stage: Stage, missing: str) -> None:
    pool = psycopg_pool.ConnectionPool(open=False)
    stage.module.watch_pool("main", pool)
    delattr(pool, missing)
    assert "pool" not in stage.message()


def test_a_sqlalchemy_pool_through_its_engine(stage: Stage) -> None:
    engine = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.pool.QueuePool, pool_size=1, max_overflow=1)
    stage.module.watch_pool("main", engine)
    unused = stage.message()["pool"]["main"]
    assert unused == {"size": 2, "checked_out": 0, "waiting": 0, "wait_seconds": 0, "acquires": 0}
    with engine.connect(), engine.connect():
        waiter = threading.Thread(target=lambda: engine.connect().close())
        waiter.start()
        while not (busy := stage.message()["pool"]["main"])["waiting"]:
            pass
        assert (busy["checked_out"], busy["acquires"]) == (2, 2)
        stage.clock.now += 4
    waiter.join()
    after = stage.message()["pool"]["main"]
    assert (after["checked_out"], after["waiting"], after["acquires"], after["wait_seconds"]) == (0, 0, 3, 4)
    engine.dispose()  # the engine has another pool from here on
    engine.connect().close()
    assert stage.message()["pool"]["main"]["acquires"] == 4
    engine.dispose()


@pytest.mark.parametrize("missing", ["_pool", "_max_overflow", "_overflow", "_timeout"])
def test_a_sqlalchemy_pool_with_something_missing(stage: Stage, missing: str) -> None:
    pool = sqlalchemy.pool.QueuePool(lambda: None, pool_size=3, max_overflow=2)  # type: ignore[arg-type]
    stage.module.watch_pool("main", pool)
    whole = stage.message()["pool"]["main"]
    delattr(pool, missing)
    stage.clock.now += 10
    found = stage.message().get("pool", {}).get("main", {})
    assert found.items() <= whole.items()
    assert ("size" in found) == (missing == "_timeout")


def test_an_unbounded_sqlalchemy_pool_has_no_size(stage: Stage) -> None:
    pool = sqlalchemy.pool.QueuePool(lambda: None, pool_size=3, max_overflow=-1)  # type: ignore[arg-type]
    stage.module.watch_pool("main", pool)
    assert stage.message()["pool"]["main"].keys() == {"checked_out", "waiting", "wait_seconds", "acquires"}


@pytest.mark.parametrize("pool", [None, 5, "text", [], Thing(), sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.pool.NullPool)], ids=repr)  # fmt: skip
def test_what_is_no_pool_of_these_is_left_out(stage: Stage, pool: object) -> None:
    stage.module.watch_pool("main", pool)
    assert "pool" not in stage.message()


def test_a_pool_has_one_name_and_is_not_kept_alive(stage: Stage) -> None:
    pool = psycopg_pool.ConnectionPool(open=False)
    for name in ("pool-1", "main"):
        stage.module.watch_pool(name, pool)
    assert stage.message()["pool"].keys() == {"main"}
    gone = weakref.ref(pool)
    del pool
    gc.collect()
    assert gone() is None
    assert "pool" not in stage.message()


# --- the file -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["stallscope_hook.py", "auto/sitecustomize.py"])
def test_it_is_written_in_the_syntax_of_python_3_8_and_needs_the_standard_library_only(name: str) -> None:
    tree = ast.parse((FILE.parent / name).read_text(), feature_version=(3, 8))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
    assert "logging" not in names  # nothing that is looked at is imported


@pytest.mark.parametrize("own", [True, False], ids=["the app has one", "the app has none"])
@pytest.mark.parametrize(("value", "loaded"), [("", False), ("off", True)])
def test_on_the_path_it_is_loaded_and_the_app_s_own_sitecustomize_is_run(
    tmp_path: Path, value: str, loaded: bool, own: bool
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('own')\n" if own else "")
    program = "import sys; import sitecustomize; print('stallscope_hook' in sys.modules, sitecustomize.__file__)"
    path = os.pathsep.join((str(FILE.parent / "auto"), str(tmp_path)))
    environ = {"PYTHONPATH": path, "STALLSCOPE_HOOK": value, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    own_lines = ["own"] if own else []
    assert done.stdout.splitlines() == [*own_lines, f"{loaded} {tmp_path / 'sitecustomize.py'}"]


@pytest.mark.parametrize(("value", "loads"), [(None, False), ("", False), ("udp:127.0.0.1:9769", True), ("off", True)])
def test_the_pth_file_loads_it_only_where_the_environment_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, value: str | None, loads: bool
) -> None:
    (line,) = FILE.with_suffix(".pth").read_text().splitlines()
    assert line.startswith("import ")  # else site.py takes it for a directory
    monkeypatch.delenv("STALLSCOPE_HOOK", raising=False)
    if value is not None:
        monkeypatch.setenv("STALLSCOPE_HOOK", value)
    stand_in = ModuleType("stallscope_hook")
    monkeypatch.setitem(sys.modules, "stallscope_hook", stand_in)
    names: dict[str, Any] = {}
    assert (eval(line.partition("; ")[2], {"os": os}, names) is stand_in) == loads  # noqa: S307 - as site.py does
