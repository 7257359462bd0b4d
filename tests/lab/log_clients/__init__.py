"""Small apps that log as real ones do: too much for their way out, when the lab makes that slow.

Both have one command line and one output. The entries are numbered from 1 (`seq`) and come evenly, as those of a
request each 20 ms.

| mode | in Node | in Python |
|---|---|---|
| cloud | winston and @google-cloud/logging-winston: one call per entry | google-cloud-logging and its background thread |
| redirect | logging-winston with redirectToStdout | StructuredLogHandler to standard output |
| queue | pino with a transport: its worker writes to standard output | QueueHandler; its listener writes to standard output |
| stdout | process.stdout.write | a StreamHandler to standard output |
| direct | @google-cloud/logging alone, nobody waits for its promises | - |
| bunyan | bunyan and @google-cloud/logging-bunyan | - |
| pino-async, pino-sync | pino's own destination, standard output | - |
| file | - | a FileHandler to the file that LAB_LOG_FILE names |

cloud, direct and bunyan write to the `cloud_logging.CloudLoggingServer` of the environment.

It writes a line to standard error, or to the file --status, at the start, every --every seconds, and when the last
entry is emitted (`done`): `at` (wall clock, seconds), `emitted`, `errors` (that the library told the app; null in Python,
where none is told), `heap_bytes` (null in Python), `rss_bytes`, `cpu_seconds`, and `p95_ms`: of the requests since the line
before, the time from when one was due until its entries were handed over. The first line has `options` too. What it does then:

| --end | |
|---|---|
| drain | goes on until nothing waits |
| exit | process.exit() or sys.exit(): Node loses what waits, Python's library tries for some seconds |
| crash | an exception that nobody catches |
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from tests.lab import Unavailable, builds

COMMON = ("cloud", "redirect", "queue", "stdout")
#: The clients and their modes.
CLIENTS: Mapping[str, tuple[str, ...]] = {
    "node": (*COMMON, "direct", "bunyan", "pino-async", "pino-sync"),
    "python": (*COMMON, "file"),
}
#: Modes that write to the log service.
TO_SERVICE = frozenset({"cloud", "direct", "bunyan"})
#: The variable that tells the mode file where to write.
FILE = "LAB_LOG_FILE"
#: Defaults of all options but --mode; app.js repeats them, a test compares.
OPTIONS: Mapping[str, float | str] = {
    "seconds": 10.0,  # in which entries are emitted
    "rate": 10.0,  # entries per second
    "size": 200,  # characters of each message
    "every": 1.0,
    "end": "drain",
    "errors": "count",  # crash: in Node nobody listens for errors, so that the first ends the app; no effect in Python
    "status": "",
}
HERE = Path(__file__).parent
_NODE = (HERE / "node", "log-client-node")
#: The variable that names another directory like `node` here, with other versions of the packages installed in it.
GIVEN_NODE_CLIENT = "ST_LAB_NODE_CLIENT"


def command(client: str, mode: str, **options: float | str) -> list[str]:
    """The command line of a client: `command("node", "cloud", rate=500, end="exit")`.

    Raises ValueError, and Unavailable when the client is not prepared.
    """
    for field, given, allowed in (("client", [client], CLIENTS), ("option", options, OPTIONS)):
        if unknown := [each for each in given if each not in allowed]:
            raise ValueError(f"{field}: {', '.join(unknown)}; allowed: {', '.join(allowed)}")
    if mode not in CLIENTS[client]:
        raise ValueError(f"mode of {client}: {mode}; allowed: {', '.join(CLIENTS[client])}")
    start: Callable[[], list[str]] = _node if client == "node" else _python
    return [*start(), "--mode", mode, *(word for name, value in options.items() for word in (f"--{name}", str(value)))]


def prepare(client: str) -> str:
    """Install what it needs, once for each state of its sources. Raises Unavailable, with what to do."""
    if client == "node":
        return builds.prepare(*_NODE, builds.install_packages)
    _python()
    return "installed by make install"


def node_directory() -> Path:
    """Where Node's packages are. Raises Unavailable."""
    if given := os.environ.get(GIVEN_NODE_CLIENT):
        return Path(given)
    return Path(builds.built(*_NODE, "package.json")).parent


def _node() -> list[str]:
    return [builds.node(), str(node_directory() / "app.js")]


def _python() -> list[str]:
    if find_spec("google.cloud.logging") is None:
        raise Unavailable(f"needs google-cloud-logging, which is not in {sys.prefix}: make install")
    return [sys.executable, "-m", "tests.lab.log_clients.python_app"]
