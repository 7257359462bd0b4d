"""The Python hook without its thread, and an agent that hears it through a real datagram socket."""

from __future__ import annotations

import importlib.util
import json
import logging
import logging.handlers
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[4] / "hooks" / "python" / "stallscope_hook.py"
NOW = 1_800_000_000.0
#: What a message may have, as the agent reads it.
MOST_BYTES, MOST_QUEUES = 8192, 16


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
        monkeypatch.setattr(self.module._Hook, "_start", lambda hook: setattr(hook, "_wake", self.woken))
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


class Thing:
    """An object with these attributes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)
