"""One run of one cell: warmed up, measured, and its limit told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from agent.commands.bench.client_watch import ClientWatch
from agent.commands.bench.limits import Observed, limit, split
from agent.commands.bench.options import Options
from agent.commands.bench.plan import Cell
from agent.commands.bench.programs import Program
from agent.commands.bench.runner import Measured, NothingDone, execute, run, words_of
from agent.commands.bench.server_watch import Seen, ServerWatch
from agent.commands.bench.statistics import percentiles
from agent.commands.bench.ways import Way


class CellRunner:
    """Runs cells one after the other."""

    def __init__(
        self, options: Options, program: Program, scratch: Path, client: ClientWatch, server: ServerWatch
    ) -> None:
        self._options, self._program, self._scratch = options, program, scratch
        self._client, self._server = client, server

    async def run(self, cell: Cell, environ: Mapping[str, str], way: Way, tick: Callable[[], None]) -> dict[str, Any]:
        """The numbers of one run.  Raises RunFailed."""
        words = self._words(cell, self._options.warm_up, log=False)
        await execute(words, environ, self._scratch, seconds=self._options.warm_up, clients=cell.clients, tick=tick)
        self._server.every = max(1, cell.clients // 4)
        active = await self._server.active_seconds()
        self._server.start()
        try:
            words, seconds = self._words(cell, self._options.seconds, log=True), self._options.seconds
            measured = await run(words, environ, self._scratch, seconds=seconds, clients=cell.clients, tick=tick)
        finally:
            seen = await self._server.stop()
        client = self._client.between(measured.began, measured.ended)
        after = await self._server.active_seconds()
        done = max(1, measured.summary.transactions)
        active_seconds = (
            (after - active) / done if active is not None and after is not None and after >= active else None
        )
        return self._numbers(cell, measured, seen, way, active_seconds, client)

    def _words(self, cell: Cell, seconds: int, *, log: bool) -> list[str]:
        return words_of(
            self._program.file, self._options.script, self._scratch,
            clients=cell.clients, mode=cell.mode, seconds=seconds, scale=self._options.scale, log=log,
        )  # fmt: skip

    def _numbers(
        self,
        cell: Cell,
        measured: Measured,
        seen: Seen,
        way: Way,
        active_seconds: float | None,
        client: Mapping[str, Any],
    ) -> dict[str, Any]:
        tps, latencies = measured.summary.tps, measured.log.latencies
        if not latencies or tps <= 0:
            raise NothingDone(
                f"not one transaction ended in {self._options.seconds} s with {cell.clients} clients: more --seconds, or fewer clients"
            )
        cycle, latency = cell.clients / tps, fmean(latencies)
        connection = measured.summary.connection_seconds
        if cell.mode == "per-transaction" and connection is None:  # before PostgreSQL 14 pgbench does not tell it
            connection = max(0.0, cycle - latency)
        if cell.mode == "pooled":
            connection = None
        if active_seconds is None and seen.mean_active is not None:
            active_seconds = seen.mean_active / tps
        counted = measured.threads if client["threads_count"] else None
        observed = Observed(
            clients=cell.clients, tps=tps, latency_seconds=latency, connection_seconds=connection or 0.0,
            trips=self._options.script.trips, way_seconds=way.round_trip_seconds,
            cpu=counted.cpu if counted else None, delay=counted.delay if counted else None, others=counted.others if counted else None,
            throttled=client["throttled"], suspended=client["suspended"], cpu_runs_through=client["cpu_runs_through"],
            active_seconds=active_seconds, locked=seen.locked, at_work=seen.at_work, for_client=seen.for_client,
            held_by_idle=seen.held_by_idle, starved=seen.starved,
            running=seen.running, sessions=seen.sessions or None,
        )  # fmt: skip
        shares = split(observed)
        p50, p95, p99 = percentiles(latencies)
        return {
            "tps": tps, "latency_seconds": latency, "cycle_seconds": cycle, "connection_seconds": connection,
            "p50_seconds": p50, "p95_seconds": p95, "p99_seconds": p99, "transactions": measured.summary.transactions,
            "failed": measured.summary.failed, "malformed_lines": measured.log.malformed, "shares": shares, "limit": limit(shares),
            "observed": {
                "cpu": observed.cpu, "delay": observed.delay, "throttled": observed.throttled, "suspended": dict(observed.suspended),
                "others": observed.others, "active_seconds": active_seconds, "locked": seen.locked, "at_work": seen.at_work,
                "held_by_idle": seen.held_by_idle, "starved": seen.starved,
                "running": seen.running, "sessions": seen.sessions, "moments": seen.moments,
                "min_rtt_seconds": client["min_rtt_seconds"],
            },
        }  # fmt: skip
