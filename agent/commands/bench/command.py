"""``stallscope bench``: what its flags ask for, carried out, and its result written and shown."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent.commands.bench.client_watch import NAME, ClientWatch
from agent.commands.bench.compare import as_text, compare
from agent.commands.bench.options import Faults, check
from agent.commands.bench.programs import find_pgbench
from agent.commands.bench.result import Unreadable, read
from agent.commands.bench.runner import RunFailed, Scratch
from agent.commands.bench.session import Session, write
from agent.commands.bench.target import Target
from agent.commands.embedded_postgres import EmbeddedPostgres, NotAvailable
from agent.commands.exits import CANNOT_TELL, HEALTHY, UNAVAILABLE, USAGE, complain
from agent.settings.load import Config
from exporters.bench.markdown import render
from exporters.bench.page import page
from exporters.bench.plots import plots, standalone
from probes.store.failures import LinkFailed
from probes.store.place import PLACES, secret_from

#: Holds the DSN for the agent in this process, and for nobody else.
_VARIABLE = "BENCH_DSN"
#: On something that is no terminal a line comes this often.
_LINE_SECONDS = 30.0


def postgres(arguments: argparse.Namespace, load: Callable[[], Config]) -> int:
    """Run a bench.  Returns the exit code: 0 whole, 2 in part."""
    try:
        options = check(arguments, lambda: secrets.randbelow(2**31 - 1) + 1)
        out = options.out or Path(f"stallscope-bench-{datetime.now(UTC):%Y%m%d-%H%M%S}")
        options = replace(options, out=out)
        config = load()
        program = find_pgbench(arguments.pgbench)
        with ExitStack() as stack:
            dsn = (
                stack.enter_context(EmbeddedPostgres()).dsn if arguments.embedded_postgres else _dsn(arguments, config)
            )
            target = Target.of(dsn, options.proxy)
            os.environ[_VARIABLE] = dsn
            scratch = stack.enter_context(Scratch())
            session = Session(
                options,
                target,
                program,
                ClientWatch(_watching(config, target)),
                scratch,
                say=complain,
                show=_Progress(),
            )
            found = asyncio.run(_until_told(session))
    except (Faults, Unreadable) as reason:
        complain(*reason.args)
        return USAGE
    except (RunFailed, NotAvailable) as reason:
        complain(f"{reason}")
        return UNAVAILABLE
    except LinkFailed as reason:
        complain(f"{reason.because}; {reason.remedy}")
        return USAGE
    except FileExistsError as error:
        complain(f"{error.filename} is there already: --resume goes on with it, another --out begins anew")
        return USAGE
    text = render(found)
    pictures = [(f"{plot.name}.svg", standalone(plot)) for plot in plots(found)]
    files = write(found, out, [("result.md", text), ("result.html", page(found)), *pictures])
    print(json.dumps(found, indent=1) if arguments.json else text, end="")
    complain(f"written: {', '.join(str(file) for file in files)}")
    return HEALTHY if found["complete"] else CANNOT_TELL


async def _until_told(session: Session) -> dict[str, Any]:
    """Run it; SIGTERM and SIGHUP end it like Ctrl-C."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await session.run()
    except asyncio.CancelledError:
        raise RunFailed("interrupted before anything was measured") from None


def _dsn(arguments: argparse.Namespace, config: Config) -> str:
    """The DSN of ``--dsn`` or ``--target``, or of the only target that is configured.  Raises Faults."""
    targets = config.postgres.targets
    place = arguments.dsn
    if place and arguments.target:
        raise Faults("--dsn and --target: give one of the two")
    if place and not place.startswith(PLACES):
        return str(place)
    if not place:
        name = arguments.target or (next(iter(targets)) if len(targets) == 1 else None)
        if name is None:
            known = f" ({', '.join(targets)})" if targets else ""
            raise Faults(f"which database: --dsn DSN, --target NAME{known} or --embedded-postgres")
        if name not in targets:
            raise Faults(f"--target {name}: not in postgres.targets ({', '.join(targets) or 'which is empty'})")
        place = targets[name]
    try:
        return secret_from(place, os.environ)()
    except (OSError, ValueError) as error:
        raise Faults(f"{error}") from None


def _watching(config: Config, target: Target) -> Config:
    """The agent beside a bench: this database alone, seldom asked, and its connections."""
    port = target.options.get("port", "5432").split(",")[0]
    return Config.model_validate({
        "postgres": {"targets": {NAME: f"env:{_VARIABLE}"}, "server_view": False, "rows": 1, "connect_every_seconds": 60.0},
        "connections": {"ports": [int(port)] if port.isdigit() else []},
        "budget": config.budget.model_dump(), "suspension": config.suspension.model_dump(),
    })  # fmt: skip


class _Progress:
    """One moving line on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self._terminal, self._last, self._at = sys.stderr.isatty(), "", 0.0

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if text == self._last and (self._terminal or now < self._at + _LINE_SECONDS):
            return
        if not self._terminal and now < self._at + _LINE_SECONDS:
            return
        self._last, self._at = text, now
        with contextlib.suppress(OSError):
            print(
                f"\r\x1b[K{text}" if self._terminal else text,
                end="" if self._terminal else "\n",
                file=sys.stderr,
                flush=True,
            )


def compared(arguments: argparse.Namespace) -> int:
    """Compare two results.  Returns the exit code."""
    try:
        found = compare(read(arguments.before), read(arguments.after))
    except Unreadable as reason:
        complain(f"{reason}")
        return USAGE
    print(json.dumps(found, indent=1) + "\n" if arguments.json else as_text(found), end="")
    return HEALTHY
