"""The programs that the Python hook's tests run: `python hooked.py NAME ARGUMENT...`. They know nothing of the hook.

Each writes JSON objects, one per line. All but those that talk to a library run on every Python that the hook supports.
Over 300 lines: each program is a few, and a Python of any version starts this one file.
"""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import os
import queue
import statistics
import sys
import threading
import time
from typing import Any


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)


def until_killed() -> None:
    say(waits=True)
    time.sleep(120)


def emit(log: logging.Logger, rate: float, seconds: float) -> list[float]:
    """Log at this rate. Returns when each entry was logged, in seconds since the epoch, by its sequence number."""
    emitted: list[float] = []
    end = time.monotonic() + seconds
    due = time.monotonic()
    while due < end:
        emitted.append(time.time())
        log.info("hello seq=%d", len(emitted) - 1)
        due += 1 / rate
        time.sleep(max(0.0, due - time.monotonic()))
    return emitted


def logger(handler: logging.Handler) -> logging.Logger:
    log = logging.getLogger("app")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    return log


def google(address: str, rate: str, seconds: str, then: str) -> None:
    """The real client; `then` is exit or hold."""
    from tests.lab.cloud_logging import handler

    quiet = logging.getLogger("google")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    log = logger(handler(address))
    say(emitted=emit(log, float(rate), float(seconds)))
    if then == "hold":
        until_killed()


def listener(rate: str, seconds: str, takes: str) -> None:
    """A QueueHandler whose listener's handler takes so many seconds for an entry."""

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            time.sleep(float(takes))
            handled.append((int(record.getMessage().split("=")[1]), time.time()))

    handled: list[tuple[int, float]] = []
    entries: queue.Queue[logging.LogRecord] = queue.Queue()
    listening = logging.handlers.QueueListener(entries, Slow())
    listening.start()
    log = logger(logging.handlers.QueueHandler(entries))
    say(emitted=emit(log, float(rate), float(seconds)), handled=list(handled))


def bounded() -> None:
    """A queue for 5 that nobody empties gets 8 entries."""
    logging.raiseExceptions = False
    log = logger(logging.handlers.QueueHandler(queue.Queue(5)))
    time.sleep(0.6)  # found before
    for _ in range(8):
        log.info("hello")
    until_killed()


def waiting(entries: str) -> None:
    """So many entries that nobody takes."""
    log = logger(logging.handlers.QueueHandler(queue.Queue()))
    for _ in range(int(entries)):
        log.info("hello")
    until_killed()


def fork() -> None:
    """A parent with 3 entries that wait forks as a pre-forking server does; its child logs 2 more, and ends in order."""
    log = logger(logging.handlers.QueueHandler(queue.Queue()))
    for _ in range(3):
        log.info("hello")
    time.sleep(0.6)
    child = os.fork()
    if not child:
        log.info("hello")
        log.info("hello")
        time.sleep(0.6)
        sys.exit(0)
    say(parent=os.getpid(), child=child)
    os.waitpid(child, 0)
    time.sleep(0.6)


def many_forks(count: str) -> None:
    """How long a fork takes, in seconds, and that the parent still looks while it forks again and again."""
    log = logger(logging.handlers.QueueHandler(queue.Queue()))
    log.info("hello")
    took: list[float] = []
    end = time.monotonic() + 3
    while len(took) < int(count) or time.monotonic() < end:
        began = time.perf_counter()
        child = os.fork()
        if not child:
            os._exit(0)
        took.append(time.perf_counter() - began)
        os.waitpid(child, 0)
        time.sleep(0.02)
    say(median=statistics.median(took), threads=threading.active_count())


def opentelemetry() -> None:
    """A processor for 20 records whose exporter hangs with 5 gets 30."""
    import warnings

    warnings.simplefilter("ignore")
    from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler, export
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

    base: Any = getattr(export, "LogRecordExporter", None) or export.LogExporter  # its name before 1.39

    class Hanging(base):  # type: ignore[misc]
        def export(self, batch: object) -> Any:
            taken.set()
            threading.Event().wait()

        def shutdown(self) -> None:
            pass

        def force_flush(self, timeout_millis: int = 0) -> bool:
            return True

    taken = threading.Event()
    logging.getLogger("opentelemetry").propagate = False
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
    provider = LoggerProvider(shutdown_on_exit=False)
    options: dict[str, Any] = {"schedule_delay_millis": 60_000, "max_export_batch_size": 5, "max_queue_size": 20}
    provider.add_log_record_processor(BatchLogRecordProcessor(Hanging(), **options))
    log = logger(LoggingHandler(logger_provider=provider))
    time.sleep(0.6)
    say(first=time.time())
    for number in range(30):
        log.info("hello seq=%d", number)
        if number == 4:
            taken.wait()
    until_killed()


def pool(dsn: str) -> None:
    """Four threads want the two connections of a pool."""
    import psycopg_pool

    def work() -> None:
        with connections.connection() as connection:
            connection.execute("SELECT pg_sleep(3)")

    connections = psycopg_pool.ConnectionPool(dsn, min_size=2, max_size=2, name="orders", open=True)
    connections.wait()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(2.5)
    connections.close()


def pool_load(dsn: str, most: str, threads: str, hold: str) -> None:
    """So many threads take a connection of a pool of `most` again and again, each for so many seconds."""
    import psycopg_pool

    def work() -> None:
        while True:
            with connections.connection() as connection:
                connection.execute("SELECT pg_sleep(%s)", [float(hold)])

    connections = psycopg_pool.ConnectionPool(dsn, min_size=int(most), max_size=int(most), name="main", open=True)
    connections.wait()
    for _ in range(int(threads)):
        threading.Thread(target=work, daemon=True).start()
    until_killed()


def pool_leak(dsn: str, most: str, way: str) -> None:
    """Each connection of a pool of `most` is taken, asked once and never given back; as many threads go on waiting for one."""
    import psycopg_pool

    def work() -> None:
        while True:
            with contextlib.suppress(psycopg_pool.PoolTimeout), connections.connection(timeout=5):
                pass

    settings = {"autocommit": way == "autocommit"}
    connections = psycopg_pool.ConnectionPool(
        dsn, min_size=int(most), max_size=int(most), name="main", open=True, kwargs=settings
    )
    connections.wait()
    kept = [connections.getconn() for _ in range(int(most))]
    for connection in kept:
        connection.execute("SELECT 1")
    for _ in range(int(most)):
        threading.Thread(target=work, daemon=True).start()
    until_killed()


def asgi() -> None:
    """Answers after as many seconds as the path says; says its port."""
    import asyncio

    import stallscope_hook

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        await asyncio.sleep(float(scope["path"][1:]))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"done"})

    _serve_asgi(stallscope_hook.asgi(app))


def _serve_asgi(app: Any) -> None:
    import socket

    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, lifespan="off", log_config=None)
    say(port=listening.getsockname()[1])
    uvicorn.Server(config).run(sockets=[listening])


def background(framework: str) -> None:
    """Apps that go on after their response, and what looks like it: of FastAPI, or of WSGI; says its port."""
    import stallscope_hook

    if framework == "wsgi":
        _serve_wsgi(stallscope_hook.wsgi(_wsgi_background))
    else:
        _serve_asgi(stallscope_hook.asgi(_fastapi()))


def _fastapi() -> Any:
    import asyncio
    import threading

    import fastapi
    import stallscope_hook
    from fastapi.responses import PlainTextResponse, StreamingResponse
    from starlette.background import BackgroundTask

    def seconds(request: Any) -> float:
        return float(request.query_params.get("s", 0))

    async def plain(request: Any) -> Any:
        await asyncio.sleep(seconds(request))
        return PlainTextResponse("plain")

    async def task(request: Any) -> Any:
        return PlainTextResponse("task", background=BackgroundTask(asyncio.sleep, seconds(request)))

    async def thread(request: Any) -> Any:
        return PlainTextResponse("thread", background=BackgroundTask(time.sleep, seconds(request)))

    async def own(request: Any) -> Any:
        def work() -> None:
            with stallscope_hook.after_response():
                time.sleep(seconds(request))

        threading.Thread(target=work, daemon=True).start()
        return PlainTextResponse("own")

    async def stream(request: Any) -> Any:
        return StreamingResponse(_events(seconds(request)), media_type="text/event-stream")

    app = fastapi.FastAPI()
    for handler in (plain, task, thread, own, stream):
        app.add_route(f"/{handler.__name__}", handler)
    return app


async def _events(seconds: float) -> Any:
    import asyncio

    for _ in range(int(10 * seconds)):
        yield "data: x\n\n"
        await asyncio.sleep(0.1)


class _Closing:
    """A WSGI response whose close() works on, as Werkzeug's call_on_close and Django's response closers do."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._parts = seconds, iter([b"task"])

    def __iter__(self) -> Any:
        return self._parts

    def close(self) -> None:
        time.sleep(self._seconds)


def _wsgi_background(environ: Any, start_response: Any) -> Any:
    name, seconds = environ["PATH_INFO"][1:], float(environ["QUERY_STRING"].partition("=")[2] or 0)
    if name == "plain":
        time.sleep(seconds)
    start_response("200 OK", [("Content-Length", str(len(name)))])
    return _Closing(seconds) if name == "task" else [name.encode()]


def wsgi() -> None:
    """The same for WSGI, with a thread for each request."""
    import stallscope_hook

    def app(environ: Any, start_response: Any) -> list[bytes]:
        time.sleep(float(environ["PATH_INFO"][1:]))
        start_response("200 OK", [("Content-Length", "4")])
        return [b"done"]

    _serve_wsgi(stallscope_hook.wsgi(app))


def _serve_wsgi(app: Any) -> None:
    import socketserver
    import wsgiref.simple_server

    class Server(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
        daemon_threads = True

    class Quiet(wsgiref.simple_server.WSGIRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = wsgiref.simple_server.make_server("127.0.0.1", 0, app, Server, Quiet)
    say(port=server.server_address[1])
    server.serve_forever()


def overhead(repeats: str, calls: str) -> None:
    """CPU nanoseconds of a log call through a QueueHandler without and with the hook, in turns: medians of each, and ratios."""
    import stallscope_hook

    hook: Any = stallscope_hook._hook
    queues: list[queue.Queue[Any]] = [queue.Queue(), queue.Queue()]
    handlers = [logging.handlers.QueueHandler(each) for each in queues]
    known: Any = logging
    known._handlerList[:] = [ref for ref in known._handlerList if ref() is not handlers[0]]  # not to be found
    hook.report()
    assert len(hook.queues) == 1
    log = logger(handlers[0])
    took: list[list[float]] = [[], []]
    for turn in range(2 * int(repeats)):
        hooked = (turn + 1) // 2 % 2  # 0 1 1 0
        log.handlers[:] = [handlers[hooked]]
        (hook.go_on if hooked else hook.pause)()
        began = time.process_time_ns()
        for _ in range(int(calls)):
            log.info("hello %d", turn)
        took[hooked].append((time.process_time_ns() - began) / int(calls))
        queues[hooked].queue.clear()
    ratios = [with_ / without for without, with_ in zip(*took)]
    say(without=statistics.median(took[0]), hooked=statistics.median(took[1]), ratio=statistics.median(ratios))


def steady(rate: str, seconds: str) -> None:
    """CPU seconds per second of a program that logs at this rate through a queue, a second after its start."""
    entries: queue.Queue[logging.LogRecord] = queue.Queue()
    listening = logging.handlers.QueueListener(entries, logging.NullHandler())
    listening.start()
    log = logger(logging.handlers.QueueHandler(entries))
    time.sleep(1.5)
    began, used = time.monotonic(), time.process_time()
    emit(log, float(rate), float(seconds))
    say(cpu=(time.process_time() - used) / (time.monotonic() - began))
    listening.stop()


def requests(count: str) -> None:
    """CPU seconds of a request of an ASGI app that answers at once, with the middleware where the hook is loaded."""
    import asyncio

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async def send(_: Any) -> None: ...

    async def serve(called: Any) -> None:
        for _ in range(int(count)):
            await called({"type": "http"}, None, send)

    hook = sys.modules.get("stallscope_hook")
    called = hook.asgi(app) if hook else app
    asyncio.run(serve(called))
    used = time.process_time()
    asyncio.run(serve(called))
    say(cpu=(time.process_time() - used) / int(count))


def calls(kind: str, count: str) -> None:
    """CPU seconds of a log call that writes to /dev/null, or into a queue that a listener empties there."""
    handler: logging.Handler = logging.FileHandler("/dev/null")
    if kind == "queue":
        entries: queue.Queue[Any] = queue.Queue()
        listening = logging.handlers.QueueListener(entries, handler)
        handler = logging.handlers.QueueHandler(entries)
    log = logger(handler)
    time.sleep(0.6)  # found before
    for number in range(1000):
        log.info("hello seq=%d", number)
    used = time.thread_time()
    for number in range(int(count)):
        log.info("hello seq=%d", number)
    say(cpu=(time.thread_time() - used) / int(count))
    if kind == "queue":
        listening.start()
        listening.stop()


def idle_loop(seconds: str) -> None:
    """CPU seconds per second of an asyncio loop that has nothing to do."""
    import asyncio

    async def wait() -> None:
        await asyncio.sleep(3)  # found before
        used = time.process_time()
        await asyncio.sleep(float(seconds))
        say(cpu=(time.process_time() - used) / float(seconds))

    asyncio.run(wait())


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
