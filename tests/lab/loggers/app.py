"""`python app.py LOGGER URL [RATE] [SECONDS]`: an app that logs by one of many loggers to a server; it knows nothing of any hook.

Prints one JSON object at the end: how many log calls it made.
"""

from __future__ import annotations

import asyncio
import json
import logging
import logging.handlers
import os
import queue
import sys
import threading
import time
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

Emit = Callable[[str], object]


def plain(handler: logging.Handler) -> Emit:
    log = logging.getLogger("app")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    return log.info


def post(url: str, text: str) -> None:
    urllib.request.urlopen(urllib.request.Request(url, text.encode(), method="POST"), timeout=60).read()


class Posting(logging.Handler):
    """Takes as long as its server."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    def emit(self, record: logging.LogRecord) -> None:
        post(self.url, self.format(record))


class OwnQueue(logging.Handler):
    """Somebody's own: a queue and a thread."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.waiting: queue.Queue[str] = queue.Queue()
        self.url = url
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            post(self.url, self.waiting.get())

    def emit(self, record: logging.LogRecord) -> None:
        self.waiting.put(self.format(record))


class OwnAsyncQueue(logging.Handler):
    def __init__(self, url: str) -> None:
        super().__init__()
        self.waiting: asyncio.Queue[str] = asyncio.Queue()
        self.url = url
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_until_complete, args=[self._work()], daemon=True).start()

    async def _work(self) -> None:
        while True:
            await asyncio.to_thread(post, self.url, await self.waiting.get())

    def emit(self, record: logging.LogRecord) -> None:
        self.loop.call_soon_threadsafe(self.waiting.put_nowait, self.format(record))


def stream(url: str) -> Emit:
    return plain(logging.StreamHandler(open("/dev/null", "w")))


def http(url: str) -> Emit:
    parts = urllib.parse.urlsplit(url)
    return plain(logging.handlers.HTTPHandler(parts.netloc, "/", method="POST"))


def posting(url: str) -> Emit:
    return plain(Posting(url))


def listener(url: str) -> Emit:
    entries: queue.Queue[Any] = queue.Queue()
    logging.handlers.QueueListener(entries, Posting(url)).start()
    return plain(logging.handlers.QueueHandler(entries))


def memory(url: str) -> Emit:
    return plain(logging.handlers.MemoryHandler(100, target=Posting(url)))


def own_queue(url: str) -> Emit:
    return plain(OwnQueue(url))


def own_asyncio(url: str) -> Emit:
    return plain(OwnAsyncQueue(url))


def _loguru(sink: Any, **more: Any) -> Emit:
    logger: Any = import_module("loguru").logger

    logger.remove()
    logger.add(sink, format="{message}", **more)
    emit: Emit = logger.info
    return emit


def loguru(url: str) -> Emit:
    return _loguru(open("/dev/null", "w"))


def loguru_function(url: str) -> Emit:
    return _loguru(lambda text: post(url, text))


def loguru_enqueue(url: str) -> Emit:
    return _loguru(Posting(url), enqueue=True)


def loguru_put(url: str) -> Emit:
    waiting: queue.Queue[str] = queue.Queue()

    def work() -> None:
        while True:
            post(url, waiting.get())

    threading.Thread(target=work, daemon=True).start()
    return _loguru(waiting.put)


def structlog(url: str) -> Emit:
    structlog: Any = import_module("structlog")

    structlog.configure(logger_factory=structlog.stdlib.LoggerFactory(), wrapper_class=structlog.stdlib.BoundLogger)
    plain(logging.StreamHandler(open("/dev/null", "w")))
    emit: Emit = structlog.get_logger("app").info
    return emit


def sentry(url: str) -> Emit:
    sentry_sdk: Any = import_module("sentry_sdk")

    sentry_sdk.init(url.replace("//", "//key@") + "/1", traces_sample_rate=0, auto_session_tracking=False)
    plain(logging.StreamHandler(open("/dev/null", "w")))

    def emit(text: str) -> None:
        logging.getLogger("app").info(text)
        sentry_sdk.capture_message(text)

    return emit


def logtail(url: str) -> Emit:
    return plain(import_module("logtail").LogtailHandler(source_token="token", host=url))


def opentelemetry(url: str, *, batch: bool = True) -> Emit:
    warnings.simplefilter("ignore")
    from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler, export

    base: Any = getattr(export, "LogRecordExporter", None) or export.LogExporter

    class Exporter(base):  # type: ignore[misc]
        def export(self, records: Any) -> Any:
            post(url, str(len(records)))
            return getattr(export, "LogRecordExportResult", None) or export.LogExportResult.SUCCESS

        def shutdown(self) -> None:
            pass

        def force_flush(self, timeout_millis: int = 0) -> bool:
            return True

    provider = LoggerProvider(shutdown_on_exit=False)
    kind = export.BatchLogRecordProcessor if batch else export.SimpleLogRecordProcessor
    provider.add_log_record_processor(kind(Exporter()))
    return plain(LoggingHandler(logger_provider=provider))


def opentelemetry_simple(url: str) -> Emit:
    return opentelemetry(url, batch=False)


def main(name: str, url: str, rate: str = "100", seconds: str = "20") -> None:
    emit: Emit = globals()[name](url)
    end, due, calls = time.monotonic() + float(seconds), time.monotonic(), 0
    while (now := time.monotonic()) < end:
        if now < due:
            time.sleep(due - now)
        emit(f"hello {calls}")
        calls += 1
        due = max(due + 1 / float(rate), time.monotonic() - 1)
    print(json.dumps({"calls": calls}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
