"""`python -m tests.lab.loggers`: which loggers and event loops the hooks see, with the current release of each and the real agent.

An environment for Python and one for Node are made in the cache directory, once, from the package registries' ordinary
clients.  Each row is an app of this directory under its hook, beside an agent of its own: its server answers after
``delay`` seconds, or it runs under a CPU quota.  What the agent says at the end is the row.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from tests.lab import Unavailable, builds
from tests.lab.debian import cache_directory
from tests.lab.log_stage import free_udp_port
from tests.lab.quota import CpuGroup

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
PYTHON = (
    "loguru",
    "sentry-sdk",
    "logtail-python",
    "structlog",
    "opentelemetry-sdk",
    "opentelemetry-distro",
    "gunicorn",
    "gevent",
    "uvloop",
)
NODE = (
    "winston", "winston-transport", "pino", "pino-loki", "bunyan", "log4js", "@logtail/node", "@sentry/node",
    "@opentelemetry/sdk-logs", "@opentelemetry/api-logs", "@opentelemetry/winston-transport",
)  # fmt: skip
RULES = ("log_queue_in_memory", "log_call_slow", "event_loop_blocked")
#: A server that is slow takes so many seconds; an app logs so often in a second.
SLOW, RATE = 0.5, "200"


class Case(NamedTuple):
    """One app: its file, what it does, the library whose version is told, its server's delay in seconds, and its quota in cores."""

    file: str
    what: str
    library: str = ""
    delay: float = 0.0
    quota: float | None = None


def _both(file: str, *apps: tuple[str, str]) -> Iterator[Case]:
    for what, library in apps:
        yield Case(file, what, library, SLOW)
        yield Case(file, what, library)


CASES: Sequence[Case] = (
    *_both(
        "app.py", ("stream", ""), ("http", ""), ("posting", ""), ("listener", ""), ("memory", ""), ("own_queue", ""), ("own_asyncio", ""),
        ("loguru", "loguru"), ("loguru_function", "loguru"), ("loguru_enqueue", "loguru"), ("loguru_put", "loguru"),
        ("structlog", "structlog"), ("sentry", "sentry-sdk"), ("logtail", "logtail-python"),
        ("opentelemetry", "opentelemetry-sdk"), ("opentelemetry_simple", "opentelemetry-sdk"),
    ),
    *_both(
        "app.js", ("console", ""), ("winston", "winston"), ("winston-blocking", "winston"), ("winston-http", "winston"),
        ("winston-opentelemetry", "@opentelemetry/winston-transport"), ("opentelemetry", "@opentelemetry/sdk-logs"), ("pino", "pino"),
        ("pino-loki", "pino-loki"), ("bunyan", "bunyan"), ("log4js", "log4js"), ("logtail", "@logtail/node"), ("sentry", "@sentry/node"),
    ),
    *(Case("loop.py", what) for what in ("idle", "computes", "sleeps", "pieces", "threads")),
    *(Case("loop.py", what, "uvloop") for what in ("uvloop-idle", "uvloop-computes")),
    *(Case("loop.js", what) for what in ("idle", "computes", "sleeps", "pieces", "workers", "collects")),
    *(Case(file, what, quota=0.2) for file in ("loop.py", "loop.js") for what in ("pieces", "computes")),
    Case("app.py", "stream", quota=0.1), Case("app.js", "winston", "winston", quota=0.1), Case("app.py", "http", delay=SLOW, quota=0.1),
)  # fmt: skip


class Sink(http.server.BaseHTTPRequestHandler):
    """Takes what is posted, after its server's delay."""

    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        with suppress(OSError):
            super().handle()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        time.sleep(self.server.delay)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def sink(delay: float) -> Iterator[int]:
    """The port of a server that takes all that is posted, after so many seconds."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sink) as server:
        server.delay, server.daemon_threads = delay, True  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


def interpreters() -> tuple[Path, Path]:
    """The Python and the directory of Node's packages.  Raises Unavailable."""
    place = cache_directory() / "loggers"
    if not (place / "ready").exists():
        place.mkdir(parents=True, exist_ok=True)
        builds.run([sys.executable, "-m", "venv", str(place / "python")], REPOSITORY, os.environ)
        builds.run([str(place / "python/bin/pip"), "install", "-q", *PYTHON], REPOSITORY, os.environ)
        npm = builds.program("npm", "apt-get install npm")
        builds.run([npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", *NODE], place, os.environ)
        (place / "ready").touch()
    return place / "python/bin/python", place / "node_modules"


def version(library: str, python: Path, modules: Path) -> str:
    """Of the current release that was installed; of what comes with the language that of the language."""
    if (package := modules / library / "package.json").exists() and library:
        return str(json.loads(package.read_text())["version"])
    if not library:
        return ""
    place = next(python.parents[1].glob("lib/*/site-packages"))
    found = next(iter(metadata.distributions(name=library, path=[str(place)])), None)
    return found.version if found else ""


def verdicts(case: Case, seconds: float) -> dict[str, str]:
    """What the agent says of each rule at the end."""
    python, modules = interpreters()
    port, page = free_udp_port(), free_udp_port()
    with ExitStack() as stack:
        server = stack.enter_context(sink(case.delay))
        words = [
            f"--set=logs.hook_listen=udp:127.0.0.1:{port}",
            f"--set=http.listen=127.0.0.1:{page}",
            "--set=logs.every_seconds=5",
        ]
        group = stack.enter_context(CpuGroup(f"loggers{port}", case.quota)) if case.quota else None
        env = {
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "STALLSCOPE_HOOK": f"udp:127.0.0.1:{port}",
            "STALLSCOPE_HOOK_NAME": "app",
        }
        arguments = [
            str(HERE / case.file),
            case.what,
            f"http://127.0.0.1:{server}",
            RATE,
            str(seconds + 60),
        ]
        if case.file.endswith("py"):
            command, more = [str(python), *arguments], {"PYTHONPATH": str(REPOSITORY / "hooks/python/auto")}
        else:
            command = [builds.node(), "--expose-gc", *arguments]
            more = {"NODE_OPTIONS": f"--require={REPOSITORY}/hooks/node/stallscope-hook.js", "NODE_PATH": str(modules)}
        quiet: Mapping[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        }
        before = group.preexec() if group else []
        agent = stack.enter_context(subprocess.Popen(
            [*before, sys.executable, "-m", "stallscope", "run", *words], cwd=REPOSITORY, **quiet))  # fmt: skip
        stack.callback(agent.kill)
        app = stack.enter_context(subprocess.Popen([*before, *command], env={**env, **more}, **quiet))
        stack.callback(app.kill)
        time.sleep(seconds)
        return said(page)


def said(page: int) -> dict[str, str]:
    """What the agent at this port says of each rule.  Raises OSError."""
    with urllib.request.urlopen(f"http://127.0.0.1:{page}/health", timeout=20) as answer:
        report = json.load(answer)
    found = {}
    for name, key in (("PRESENT", "findings"), ("absent", "ruled_out"), ("unknown", "unknown")):
        for each in report[key]:
            text = each["evidence"][0]["text"] if key == "findings" else each["because"]
            by = f" (explained by {each['explained_by']})" if each.get("explained_by") else ""
            found[each["rule"]] = f"{name}{by}: {text}"
    return found


def line(case: Case, seconds: float) -> str:
    """The row of the table."""
    python, modules = interpreters()
    try:
        found = verdicts(case, seconds)
    except (Unavailable, OSError, KeyError, ValueError) as error:
        return f"| {case.file} {case.what} | not run: {error!r} | | | | |"
    where = f"{case.delay:g} s" if case.delay else "at once"
    where = f"{where}, {case.quota:g} cores" if case.quota else where
    told = " | ".join(found.get(rule, "-") for rule in RULES)
    return f"| {case.file} {case.what} | {case.library} {version(case.library, python, modules)} | {where} | {told} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """The table on standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose app contains this, such as 'app.py loguru' or 'loop.'")
    parser.add_argument("--quota", action="store_true", help="the rows under a CPU quota, and these alone")
    parser.add_argument("--seconds", type=float, default=30.0)
    told = parser.parse_args(arguments)
    print("| app | library | its server | " + " | ".join(RULES) + " |\n|---|---|---|---|---|---|")
    for case in CASES:
        if told.only in f"{case.file} {case.what}" and bool(case.quota) == told.quota:
            print(line(case, told.seconds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
