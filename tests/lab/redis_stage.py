"""One run of a scenario with a Redis: one real stall, watched by an agent that sees the sockets alone and by one that asks it.

The server, and the way to it, are outside of the app's group; the app is `redis_client.py`, inside the app's container.
"""

from __future__ import annotations

import sys
from pathlib import Path

from agent.commands.embedded_postgres import HOST
from tests.lab import redis_client
from tests.lab.database import ALONE
from tests.lab.episode import Watched
from tests.lab.redis import Redis
from tests.lab.staged import Staged
from tests.lab.tcp_proxy import TcpProxy
from tests.lab.timeline import Step

#: Of holds: more than any timeline has.
MANY = 10_000


class RedisEpisode(Staged):
    """Runs the cells of one scenario once, all together."""

    def _set_up(self) -> list[Watched]:
        assert self.scenario.redis is not None
        self._server_group = self._container("redis")
        self._server = self._stack.enter_context(Redis(group=self._server_group))
        self._port = self._server.port
        if self.scenario.redis.round_trip:
            proxy = self._stack.enter_context(TcpProxy(HOST, self._server.port))
            proxy.delay(self.scenario.redis.round_trip / 2)
            self._port = proxy.port
        self._group = self._container("app")
        self._app = self._session(self._group)
        watched = []
        for cell, record in zip(self._cells, self.records, strict=True):
            settings = {"connections.services": f"{self._port}=redis", **cell.settings}
            place = self._app if cell.access == "inside" else self._session(self._container("agent"), *ALONE)
            if cell.access == "inside":
                settings["redis.targets"] = f"cache=redis://{HOST}:{self._port}"
            watched.append(self._start(Watched(place, record), settings, dict(cell.env)))
        return watched

    def _collect(self, began: float) -> None:
        for heard in list(self._app.heard):
            if "client" in heard.record:
                line = {**heard.record, "second": round(heard.at - began, 2)}
                for record in self.records:
                    record.loads.setdefault(f"{line['client']} {line['load']}", []).append(line)

    def _apply(self, step: Step) -> None:
        if step.server_quota is not None:
            self._server_group.set_quota(None if step.server_quota == "none" else step.server_quota)
        if step.hold:
            self._lifts.append(self._server.hold(1e3 * step.hold, MANY, step.hold).kill)
        if step.app:
            later = [s.at for s in self.scenario.timeline if s.at > step.at and s.app]
            seconds = (later[0] if later else self.scenario.seconds + 5) - step.at
            words = [sys.executable, str(Path(redis_client.__file__)), HOST, str(self._port), *step.app.split()]
            self._app.do("start", words=[*words, "--seconds", f"{seconds:g}"], env={})
