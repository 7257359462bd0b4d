"""A service that logs; what its modes do and what it prints stands in the package's docstring."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import queue
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from logging.handlers import QueueHandler, QueueListener
from typing import Any

from tests.lab.cloud_logging import ADDRESS, PROJECT, handler
from tests.lab.log_clients import CLIENTS, FILE, OPTIONS

STEP_SECONDS = 0.02
_PAGE = os.sysconf("SC_PAGE_SIZE")

#: Returns when nothing waits any more.
Drain = Callable[[], object]


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps({"severity": record.levelname, **record.__dict__["json_fields"], "message": record.msg})


def _cloud() -> tuple[logging.Handler, Drain]:
    made = handler(os.environ[ADDRESS])
    return made, made.transport.flush


def _redirect() -> tuple[logging.Handler, Drain]:
    from google.cloud.logging_v2.handlers import StructuredLogHandler  # noqa: PLC0415 - 60 MB

    made = StructuredLogHandler(stream=sys.stdout, project_id=PROJECT)
    return made, made.flush


def _stdout() -> tuple[logging.Handler, Drain]:
    made = logging.StreamHandler(sys.stdout)
    made.setFormatter(_Json())
    return made, made.flush


def _queue() -> tuple[logging.Handler, Drain]:
    made = QueueHandler(queue.SimpleQueue())
    listener = QueueListener(made.queue, _stdout()[0])
    listener.start()
    return made, listener.stop


def _file() -> tuple[logging.Handler, Drain]:
    made = logging.FileHandler(os.environ[FILE])
    made.setFormatter(_Json())
    return made, made.flush


_MODES: dict[str, Callable[[], tuple[logging.Handler, Drain]]] = {
    "cloud": _cloud,
    "redirect": _redirect,
    "queue": _queue,
    "stdout": _stdout,
    "file": _file,
}


class _Status:
    def __init__(self, path: str) -> None:
        self._out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) if path else 2
        self.waits: list[float] = []
        """Of requests since the last line, seconds."""

    def say(self, emitted: int, **more: Any) -> None:
        """One line, one write; it is left out when nobody reads."""
        with open("/proc/self/statm", encoding="ascii") as statm:
            rss = int(statm.read().split()[1]) * _PAGE
        waits, self.waits = sorted(self.waits), []
        record = {
            "at": time.time(), "emitted": emitted, "errors": None, "heap_bytes": None, "rss_bytes": rss,
            "cpu_seconds": time.process_time(),
            "p95_ms": waits[math.ceil(len(waits) * 0.95) - 1] * 1e3 if waits else None, **more,
        }  # fmt: skip
        with suppress(BlockingIOError):
            os.write(self._out, json.dumps(record).encode() + b"\n")


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=CLIENTS["python"], required=True)
    for name, default in OPTIONS.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = parser.parse_args(words)
    made, drain = _MODES[options.mode]()
    logger = logging.getLogger("lab-app")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(made)
    status = _Status(options.status)
    status.say(0, options=vars(options))
    emitted, told, due, began = 0, 0.0, STEP_SECONDS, time.monotonic()
    while due - STEP_SECONDS < options.seconds:
        time.sleep(max(0.0, began + due - time.monotonic()))
        for _ in range(emitted, int(min(due, options.seconds) * options.rate)):
            emitted += 1
            logger.info("x" * options.size, extra={"json_fields": {"seq": emitted}})
        status.waits.append(time.monotonic() - began - due)
        if due >= told + options.every:
            told = due
            status.say(emitted)
        due += STEP_SECONDS
    status.say(emitted, done=1)
    if options.end == "drain":
        drain()
    elif options.end == "crash":
        raise RuntimeError("the end was to be a crash")


if __name__ == "__main__":
    main(sys.argv[1:])
