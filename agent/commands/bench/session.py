"""One bench from its start to its result: what may be done is asked first, what was measured is never lost."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from agent import __version__
from agent.commands.bench import result
from agent.commands.bench.answers import answers
from agent.commands.bench.cell import CellRunner
from agent.commands.bench.client_watch import ClientWatch
from agent.commands.bench.ground import Ground, fresh_name, remove_leftovers
from agent.commands.bench.options import Options
from agent.commands.bench.plan import Cell, cells, clock, runs, seconds_of
from agent.commands.bench.programs import Program
from agent.commands.bench.runner import NothingDone, RunFailed, execute
from agent.commands.bench.safety import Place, Server, decide, look
from agent.commands.bench.server_watch import ServerWatch
from agent.commands.bench.target import Target
from agent.commands.bench.ways import Way, measure_way
from agent.commands.bench.words_of_failure import told

#: A server that restarts is waited for this long; a run that met its end is made again once.
BACK_SECONDS = 60.0
#: Making the tables may take so long for each unit of scale, and this much at least.
INIT_SECONDS = 600.0


class Session:
    """One bench.  ``say`` takes what a person should read meanwhile."""

    def __init__(
        self, options: Options, target: Target, program: Program, client: ClientWatch, scratch: Path, *,
        say: Callable[[str], None], show: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._options, self._target, self._program, self._client, self._scratch = (
            options,
            target,
            program,
            client,
            scratch,
        )
        self._say, self._show = say, show
        self._runs: dict[str, list[dict[str, Any]]] = {}
        self._remarks: list[str] = []
        self._ways: dict[tuple[str, str], Way] = {}
        self._server = Server(version=0)
        self._place = Place("as it is", "")
        self.interrupted = False
        self.failed: str | None = None

    async def run(self) -> dict[str, Any]:
        """Measure, and return the result.  Raises Faults, RunFailed, OSError, Unreadable before anything was measured."""
        async with AsyncExitStack() as stack:
            journal = await self._prepare()
            ground = Ground(self._target, self._place, self._name)
            await stack.enter_async_context(self._client)
            try:
                for way in self._options.ways:
                    for tls in self._options.tls:
                        self._ways[way, tls] = await measure_way(
                            self._target, self._program, self._scratch, way, tls, self._place.settings
                        )
                with told("cannot make a place to work in"):
                    await stack.enter_async_context(ground)
                await self._fill()
                await self._measure(journal, ground)
            except asyncio.CancelledError:
                self._interrupt()
        if ground.left:
            self._remark(
                f"{ground.left} could not be removed, the server did not answer: the next bench of this server removes it"
            )
        return self.result()

    def _interrupt(self) -> None:
        """Told to stop: what was measured is kept.  With nothing measured there is nothing to keep."""
        task = asyncio.current_task()
        if not self._runs or task is None:
            raise asyncio.CancelledError
        task.uncancel()
        self.interrupted = True
        self._remark("interrupted: what was measured until then is here")

    def _remark(self, text: str) -> None:
        self._remarks.append(text)
        self._say(text)

    async def _prepare(self) -> result.Journal | None:
        self._name = fresh_name()
        with told("cannot ask the server"):
            connection = await self._target.connect()
            try:
                self._server = await look(connection)
                self._place = decide(self._options, self._server, self._name)
                for left in await remove_leftovers(connection):
                    self._remark(f"removed what a bench that was killed had left: {left.kind.lower()} {left.name}")
            finally:
                await connection.close()
        self._advise()
        if self._options.out is None:
            return None
        journal = result.Journal(self._options.out)
        if self._options.resume:
            for found in journal.resume(self._header()):
                self._runs.setdefault(found["cell"], []).append(found)
        else:
            journal.must_be_new()
        return journal

    def _advise(self) -> None:
        options = self._options
        if self._place.kind == "as it is" and options.script.tables:
            self._remark(
                f"pgbench's tables of {self._server.database!r} are read as they are: --scale says nothing about them"
            )
        elif options.script.tables and options.script.name == "tpcb" and max(options.clients) > options.scale:
            self._remark(
                f"more clients ({max(options.clients)}) than --scale {options.scale}: each transaction changes one of {options.scale} rows, so they wait for each other"
            )
        if options.script.tables and self._place.kind != "as it is":
            self._say(
                f"working in {self._place.kind} {self._name!r}: about {16 * options.scale} MB, removed at the end"
            )

    async def _fill(self) -> None:
        if not self._options.script.tables or self._place.kind == "as it is":
            return
        self._show(f"filling pgbench's tables, scale {self._options.scale}")
        words = [str(self._program.file), "--initialize", "--quiet", f"--scale={self._options.scale}"]
        environ = self._environment("direct", self._options.tls[0])
        await execute(words, environ, self._scratch, seconds=INIT_SECONDS + self._options.scale)

    def _environment(self, way: str, tls: str) -> dict[str, str]:
        return self._target.environment(way, tls, self._place.database, settings=self._place.settings)

    async def _measure(self, journal: result.Journal | None, ground: Ground) -> None:
        done = {(key, found["repeat"]) for key, each in self._runs.items() for found in each}
        left = list(runs(self._options, done))
        if journal is not None and not self._options.resume:
            journal.begin(self._header())  # not before all that can be refused was asked
        own = self._place.database if self._place.kind == "own database" else None
        watch = ServerWatch(self._target, own)
        runner = CellRunner(self._options, self._program, self._scratch, self._client, watch)
        try:
            for at, each in enumerate(left):
                text = (
                    f"{at + 1} of {len(left)}, {clock(seconds_of(self._options, len(left) - at))} left: {each.cell.key}"
                )
                try:
                    found = await self._once_more(partial(self._run, runner, each.cell, text), ground)
                except NothingDone as reason:
                    self._remark(f"{each.cell.key}, repeat {each.repeat + 1}: {reason}")
                    continue
                found = {"repeat": each.repeat, **found}
                self._runs.setdefault(each.cell.key, []).append(found)
                if journal is not None:
                    journal.add(each.cell.key, each.repeat, found)
            if not self._runs:
                raise RunFailed("nothing was measured: in no run one transaction ended")
        except RunFailed as reason:
            if not self._runs:
                raise
            self.failed = f"{reason}"
            self._remark(f"ended early: {reason}")
        finally:
            await watch.aclose()

    async def _run(self, runner: CellRunner, cell: Cell, text: str) -> dict[str, Any]:
        environ = self._environment(cell.way, cell.tls)
        return await runner.run(cell, environ, self._ways[cell.way, cell.tls], lambda: self._show(text))

    async def _once_more(self, work: Callable[[], Awaitable[dict[str, Any]]], ground: Ground) -> dict[str, Any]:
        """Run it; where the server went away meanwhile, wait until it is back and run it again, once."""
        try:
            await ground.keep()
            return await work()
        except RunFailed as reason:
            if not reason.gone:
                raise
            self._remark(f"{reason}: waiting up to {BACK_SECONDS:.0f} s for the server, then this run is made again")
            await ground.back(BACK_SECONDS)
            return await work()

    def _header(self) -> dict[str, Any]:
        return {
            "kind": result.KIND,
            "version": result.VERSION,
            "settings": self._settings(),
            "target": self._target.told(),
        }

    def _settings(self) -> dict[str, Any]:
        o = self._options
        script = {"name": o.script.name, "text": o.script.text, "round_trips": o.script.trips}
        return {"clients": list(o.clients), "modes": list(o.modes), "tls": list(o.tls), "ways": list(o.ways), "script": script, "scale": o.scale,
                "repeats": o.repeats, "seconds": o.seconds, "warm_up_seconds": o.warm_up, "seed": o.seed}  # fmt: skip

    def result(self) -> dict[str, Any]:
        """All of it, as JSON."""
        found = result.cells_json(cells(self._options), self._runs)
        number = sum(len(each) for each in self._runs.values())
        return {
            "kind": result.KIND, "version": result.VERSION, "generated": datetime.now(UTC).isoformat(timespec="seconds"),
            "complete": number == len(list(runs(self._options))), "machine": self._client.machine(),
            "versions": {"stallscope": __version__, "pgbench": self._program.told, "server": self._server.told, "python": platform.python_version(),
                         "kernel": os.uname().release},
            "server": self._server.settings, "target": self._target.told(), "place": self._place.kind, "settings": self._settings(),
            "ways": [way.as_json() for way in self._ways.values()], "cells": found, "answers": answers(found), "remarks": self._remarks,
        }  # fmt: skip


def write(found: Mapping[str, Any], directory: Path, forms: Sequence[tuple[str, str | bytes]]) -> list[Path]:
    """The result and its forms, each whole or not at all.  Raises OSError."""
    import json  # noqa: PLC0415 - only at the end

    written = []
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in (("result.json", json.dumps(found, indent=1) + "\n"), *forms):
        file, partial = directory / name, directory / f".{name}.part"
        partial.write_bytes(text.encode() if isinstance(text, str) else text)
        partial.replace(file)
        written.append(file)
    return written
