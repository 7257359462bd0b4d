"""A real PostgreSQL that goes away and comes back, beside an app that uses it: what the agent says when, and what the app saw.

    .venv/bin/python -m tests.lab.postgres_outages > docs/evidence/postgres-outages.md      # as root, ten minutes
    .venv/bin/python -m tests.lab.postgres_outages --only killed --tree DIRECTORY            # the agent of another checkout

The app is psycopg with a time-out of 2 s, which asks four times a second and connects again after a failure.  The agent runs
at its defaults.  A name with two addresses stands in a hosts file that only the two of them see (a mount namespace of their
own), ::1 first; the server listens on 127.0.0.1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from agent.commands.embedded_postgres import HOST, free_port
from tests.lab.postgres import PostgresServer, Role, installations
from tests.lab.process import Running

ROOT = Path(__file__).resolve().parents[2]
NAME = "database.stallscope.test"
ROLE = Role("app", "secret-of-app")
RULE = "database_unreachable"
#: Before the fault, and after its end.
CALM_SECONDS, AFTER_SECONDS = 25.0, 60.0
POLL_SECONDS, ASK_SECONDS, PATIENCE_SECONDS = 0.5, 0.25, 2.0
START_SECONDS = 60.0


class Case(NamedTuple):
    """One fault: what is done to which server, for how long, and what undoes it."""

    key: str
    what: str
    hosts: str
    seconds: float
    hurt: Callable[[PostgresServer], object]
    heal: Callable[[PostgresServer], object]


def _nothing(_: PostgresServer) -> None:
    pass


CASES = (
    Case("name", "nothing; a name that is ::1 first, and the server on 127.0.0.1", "name", 30.0, _nothing, _nothing),
    Case("restarted", "restarted (fast shutdown), a name with two addresses", "name", 0.0, PostgresServer.restart, _nothing),
    Case("killed", "killed (SIGKILL to all), started after 75 s, a name with two addresses", "name", 75.0, PostgresServer.kill, PostgresServer.restart),
    Case("stopped", "stopped (SIGSTOP to all) for 75 s, a name with two addresses", "name", 75.0, PostgresServer.stop_processes, PostgresServer.continue_processes),
    Case("blip", "stopped (SIGSTOP to all) for 5 s, a name with two addresses", "name", 5.0, PostgresServer.stop_processes, PostgresServer.continue_processes),
    Case("list", "first of two hosts killed, started after 40 s", "list", 40.0, PostgresServer.kill, PostgresServer.restart),
    Case("list-dead", "nothing; the first of two hosts does not exist", "dead", 30.0, _nothing, _nothing),
)  # fmt: skip


class Seen(NamedTuple):
    """A change: seconds since the fault began, and what it was from then on."""

    at: float
    state: str
    text: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases and print the page; returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[case.key for case in CASES], action="append", help="only these cases")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout whose agent runs")
    options = parser.parse_args(arguments)
    lines = [row(case, *run(case, options.tree)) for case in CASES if not options.only or case.key in options.only]
    print(PAGE.format(rows="\n".join(lines)), end="")
    return 0


def run(case: Case, tree: Path) -> tuple[float, list[Seen], list[Seen]]:
    """When the fault ended, and what the app and the agent saw."""
    with ExitStack() as stack:
        first = stack.enter_context(PostgresServer(installations()[-1], roles=(ROLE,)))
        second = (
            stack.enter_context(PostgresServer(installations()[-1], roles=(ROLE,))) if case.hosts == "list" else None
        )
        dsn = {
            "name": first.dsn(user=ROLE.name, host=NAME),
            "list": _of(first.port, second.port if second else 0),
            "dead": _of(free_port(), first.port),
        }[case.hosts]
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        inside = _with_hosts(scratch)
        app = stack.enter_context(
            Running(
                [*inside, sys.executable, "-u", str(Path(__file__).resolve()), dsn],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        )
        url = stack.enter_context(agent(inside, tree, dsn, scratch))
        said = Poll(url)
        said.until(CALM_SECONDS)
        began = time.monotonic()
        case.hurt(first)
        said.until(case.seconds)
        case.heal(first)
        healed = time.monotonic() - began
        said.until(AFTER_SECONDS)
        return healed, _app_changes(app, began), said.changes(began)


def _of(*ports: int) -> str:
    hosts = ",".join(f"{HOST}:{port}" for port in ports)
    return f"postgresql://{ROLE.name}:{ROLE.password}@{hosts}/postgres"


def _with_hosts(scratch: Path) -> list[str]:
    """The words that start a command with a hosts file of its own."""
    hosts = scratch / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n::1 {NAME}\n127.0.0.1 {NAME}\n")
    return ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts)]


@contextmanager
def agent(inside: Sequence[str], tree: Path, dsn: str, scratch: Path) -> Iterator[str]:
    """An agent of this checkout at its defaults; yields the address of its /health."""
    ports = [str(port) for port in re.findall(r":(\d+)", dsn.rpartition("@")[2])]
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "DATABASE_URL": dsn,
        "STALLSCOPE_CONNECTIONS__PORTS": ",".join(ports),
    }
    module = "stallscope" if (tree / "stallscope.py").exists() else "agent.commands.cli"
    words = [
        sys.executable,
        "-m",
        module,
        "run",
        "--listen",
        f"{HOST}:0",
        "--set",
        "postgres.targets=main=env:DATABASE_URL",
    ]
    with (scratch / "agent").open("w+b") as told:
        started = subprocess.Popen(
            [*inside, *words],
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=told,
        )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not (found := re.search(rf"{HOST}:(\d+)", (scratch / "agent").read_text())):
                if started.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the agent did not start: {(scratch / 'agent').read_text()[-500:]}")
                time.sleep(0.1)
            yield f"http://{HOST}:{found[1]}/health"
        finally:
            started.terminate()
            started.wait()


class Poll:
    """What /health says of the database, at each look that differs from the one before."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._seen: list[tuple[float, str, str]] = []

    def until(self, seconds: float) -> None:
        """Look for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(urllib.error.URLError, TimeoutError):
                state, text = _told(self._document())
                if not self._seen or self._seen[-1][1] != state:
                    self._seen.append((time.monotonic(), state, text))
            time.sleep(POLL_SECONDS)

    def _document(self) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(self._url, timeout=5) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            text = error.read()
        found: dict[str, Any] = json.loads(text)
        return found

    def changes(self, began: float) -> list[Seen]:
        return [Seen(at - began, state, text) for at, state, text in self._seen]


def _told(document: dict[str, Any]) -> tuple[str, str]:
    """State of the finding, and its sentence."""
    for each in document.get("findings", []):
        if each["rule"] == RULE:
            return str(each["severity"]), str(each["evidence"][0]["text"])
    for each in document.get("unknown", []):
        if each["rule"] == RULE:
            return "unknown", str(each["because"])
    return "answers", ""


def _app_changes(app: Running, began: float) -> list[Seen]:
    """What the app noted, at each change."""
    app.close()
    seen: list[Seen] = []
    for line in app:
        noted = line.json()
        if noted and (not seen or seen[-1].state != noted["state"]):
            seen.append(Seen(noted["at"] - began, noted["state"], noted["state"]))
    return seen


def row(case: Case, healed: float, app: Sequence[Seen], told: Sequence[Seen]) -> str:
    """One line of the table."""
    print(case.key, f"{healed:.1f}", app, told, sep="\n  ", file=sys.stderr)
    failed = [
        (seen.at, end)
        for seen, end in zip(app, [*(s.at for s in app[1:]), None], strict=True)
        if seen.state != "ok" and (end is None or end > 0)
    ]
    saw = "; ".join(f"{at:.1f} to {'the end' if end is None else f'{end:.1f}'} s" for at, end in failed) or "nothing"
    at_first = next((seen for seen in reversed(told) if seen.at <= 0), None)
    states = [at_first.state] if at_first else []
    states += [f"{seen.at:.0f} s {seen.state}" for seen in told if seen.at > 0]
    critical = [seen for seen in told if seen.state == "critical"]
    over = next((seen.at for seen in told if critical and seen.at > critical[-1].at), None)
    late = "" if over is None else f"{max(0.0, over - healed):.0f} s"
    text = (
        critical[-1].text
        if critical
        else next((seen.text for seen in reversed(told) if seen.text and (seen.at > 0 or seen is at_first)), "")
    )
    return f"| {case.what} | {healed:.0f} s | {saw} | {', '.join(states)} | {late} | {text} |"


PAGE = """\
# A database that goes away and comes back

What the agent says when, beside what an app saw. Made by `python -m tests.lab.postgres_outages` (as root): a real PostgreSQL on 127.0.0.1, psycopg as the app
(a question each 250 ms, a time-out of 2 s), the agent at its defaults. Seconds since the fault began; one run, on a machine of two shared cores that did
other work. *After the end* is how long `database_unreachable` stayed critical after the server was there again.
A stopped server's kernel still accepts connections, and psycopg tries for ten seconds to cancel its question before it gives up.

The first version said critical all the time behind the name, because it tried ::1 alone, and had no reading at all of a list of hosts; an outage of 75 s
was told for 110 s after its end.

| What happened to the server | Fault lasted | The app failed | The agent | After the end | What it said |
|---|---|---|---|---|---|
{rows}
"""


async def use(dsn: str) -> None:
    """The app: never ends."""
    import psycopg  # noqa: PLC0415 - the harness needs none of it

    connection: psycopg.AsyncConnection[Any] | None = None
    while True:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                connection = connection or await psycopg.AsyncConnection.connect(dsn, autocommit=True)
                await connection.execute("SELECT 1")
            state = "ok"
        except (psycopg.Error, TimeoutError, OSError) as error:
            state = type(error).__name__
            if connection is not None:
                with suppress(Exception):
                    connection.pgconn.finish()
            connection = None
        print(json.dumps({"at": time.monotonic(), "state": state}), flush=True)
        await asyncio.sleep(ASK_SECONDS)


if __name__ == "__main__":
    if len(sys.argv) == 2 and "://" in sys.argv[1]:
        asyncio.run(use(sys.argv[1]))
    sys.exit(main())
