"""The composition root: builds every part from the settings and runs them in one loop.

Order matters at start-up.  The socket is bound first, so that a taken port is an error before anything
runs.  The heavy imports come next, before the child is started: on a slow or small machine they crowd
the CPUs for seconds, and the child would report the agent's own start-up as contention.  The platform is
looked at just before the child, because the child's plan depends on what can be believed here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from agent import __version__
from agent.config import Config
from agent.cost import Cost
from agent.diagnosis import Change, Engine
from agent.history import History
from agent.log_sources import delivery_probe, log_probes
from agent.report import AgentSelf, Report
from agent.rules import RULES
from agent.rules.rule import Rule
from agent.schedule import Pulse, Schedule
from exporters.state import SlotCount, Snapshot, State
from probes import pool_names
from probes.app_cgroup import AppCgroupProbe
from probes.cgroup import CgroupProbe, throttle_files
from probes.cgroup_places import locate
from probes.connections import ConnectionsProbe
from probes.log_queues import HooksProbe
from probes.page import Get, Shared, fetch
from probes.platform import PlatformProbe, PlatformReading
from probes.platform_trust import Trust
from probes.pool import PoolProbe
from probes.pool_page import Vocabulary
from probes.postgres import PostgresProbe, dsn_from
from probes.postgres_server import PostgresServerProbe
from probes.process_search import Found, chosen, has_name
from probes.processes import ProcessesProbe, ProcessesReading
from probes.reading import Reading
from probes.requests import InFlight, RequestsProbe
from probes.sockets import Remote
from probes.suspension import SuspensionProbe

#: Time between two spins of each length where the kernel's own counters can be believed, and where not:
#: there the ladder is climbed from time to time, because nothing else would show a mild quota.
SPIN_EVERY_SEEN = (24.0, 0.0, 0.0, 0.0)
SPIN_EVERY_BLIND = (15.0, 60.0, 1800.0, 3600.0)


#: Looks at the connections in one slot: their share of a minute rests on six times as many.
LOOKS = 3


class Agent:
    """Everything that runs, except the HTTP server and the signals: those are ``cli``'s."""

    def __init__(
        self,
        config: Config,
        *,
        root: Path = Path("/"),
        environ: Mapping[str, str] = os.environ,
        on_reading: Callable[[Reading], None] = lambda _: None,
        on_report: Callable[[Report, Sequence[Change]], None] = lambda _r, _c: None,
    ) -> None:
        self.config = config
        self.state = State()
        self.in_flight = InFlight()
        self._root, self.on_reading, self._on_report = root, on_reading, on_report
        self.history = History(config.history.seconds)
        self.pulse = Pulse()
        self.platform = PlatformProbe(root=root, environ=environ)
        self.suspension = SuspensionProbe(
            self._child_settings,
            trust=self._trust,
            witness=self.pulse.ran_between,
            root=root,
            on_news=self._news,
        )
        self.cost = Cost(self._child_pid)
        self.schedule = Schedule(self.history, self._after, over_budget=self._over_budget)
        self._environ = environ
        self._connections: ConnectionsProbe | None = None
        self._owners: ProcessesProbe | None = None
        self._group_is_watched = self._pools_are_watched = False
        self._peers: dict[str, Remote] = {}
        self.hooks: HooksProbe | None = None
        self._add_probes()
        self.engine = Engine(self.history, rules=self._rules())
        self._version = 0
        self.lines_dropped: Callable[[], int] = lambda: 0
        self.cloud_entries: Callable[[], Mapping[str, int]] = dict

    def _rules(self) -> list[Rule]:
        """A rule about something that is not watched would be an unknown that nobody can lift."""
        watched = {entry.probe.reading_type for entry in self.schedule.entries}
        return [r for r in RULES if r.id not in self.config.rules.disabled and r.can_run(watched)]

    def _add_probes(self) -> None:
        config = self.config
        self.schedule.add(self.suspension, config.suspension.every_seconds)
        self.schedule.add(CgroupProbe(root=self._root), config.cgroup.every_seconds)
        if config.app.process or config.app.pid:
            self._watch_group(
                lambda: chosen(self._root, config.app.process, config.app.pid, self._child_pid()),
                lambda pid: bool(config.app.pid) or has_name(self._root, pid, config.app.process),
            )
        requests, pool = config.requests, config.pool
        get = Shared() if pool.metrics_url == requests.metrics_url else fetch
        probe = RequestsProbe(
            self.in_flight, file=requests.file, url=requests.metrics_url, metric=requests.metric,
            timeout=requests.timeout_seconds, get=get,
        )  # fmt: skip
        polled = requests.file or requests.metrics_url
        every = requests.every_seconds if polled else config.suspension.every_seconds
        self.schedule.add(probe, every, requests.timeout_seconds + 1)
        self.schedule.add(self.platform, config.platform.every_seconds, 5)
        looks = ConnectionsProbe(config.connections.ports, gvisor=self._in_gvisor, looks=LOOKS)
        if config.connections.ports:
            self.schedule.add(looks, config.connections.every_seconds)
            self._connections = looks
        if config.watches_processes:  # after the look whose sockets they hold
            owners = ProcessesProbe(
                config.app.process, config.app.pid, inodes=looks.inodes, counters=self._counters,
                child=self._child_pid, root=self._root,
            )  # fmt: skip
            self.schedule.add(owners, config.processes.every_seconds)
            self._owners = owners
        for source, timeout in log_probes(
            config, self.in_flight, self._app_pids, gvisor=self._in_gvisor, environ=self._environ, root=self._root
        ):
            self.schedule.add(source, config.logs.every_seconds, timeout)
            self.hooks = source if isinstance(source, HooksProbe) else self.hooks
        if (delivery := delivery_probe(config, self._environ)) is not None:
            self.schedule.add(delivery[0], delivery[0].every, delivery[1])
        if pool.metrics_url:
            self._watch_pools(get)
        postgres = config.postgres
        for name, place in postgres.targets.items():
            database = PostgresProbe(
                name, dsn_from(place, self._environ), rows=postgres.rows, timeout=postgres.timeout_seconds,
                connect_every=postgres.connect_every_seconds,
                believe_cpu=lambda: self._trust().get("thread_cpu_time") is True, on_peer=self._met,
            )  # fmt: skip
            self.schedule.add(database, postgres.every_seconds, postgres.timeout_seconds + 1)
            if postgres.server_view:
                server = PostgresServerProbe(database)
                self.schedule.add(server, postgres.every_seconds, 2 * postgres.timeout_seconds + 1)

    def _met(self, target: str, peer: Remote | None) -> None:
        """A configured database is there: the app's connections to it go by its name."""
        if peer is None or self._peers.get(target) == peer:
            return
        self._peers[target] = peer
        if self._connections is not None:
            self._connections.watch({name: [remote] for name, remote in self._peers.items()})

    def _watch_pools(self, get: Get = fetch) -> None:
        """Look at the pools of the app: on its page, where there is one, and those that hooks tell of."""
        pool, hooks = self.config.pool, self.hooks
        vocabulary = Vocabulary(pool_names.chosen(pool.preset, pool.names), label=pool.label, size=pool.size)
        pools = PoolProbe(
            pool.metrics_url or "", vocabulary, told=lambda: hooks.pools if hooks is not None else {},
            timeout=pool.timeout_seconds, get=get,
        )  # fmt: skip
        self.schedule.add(pools, pool.every_seconds, pool.timeout_seconds + 1)
        self._pools_are_watched = True

    def _watch_group(self, find: Callable[[], Found], still: Callable[[int], bool]) -> None:
        """Read the app's cgroup too, from now on."""
        self._group_is_watched = True
        self.schedule.add(AppCgroupProbe(find, still, self._root), self.config.cgroup.every_seconds)

    def _watch_group_of_owners(self) -> None:
        """The owners of the watched connections are in another group: the app's limits are there."""
        assert self._owners is not None
        pids = self._owners.pids
        self._watch_group(lambda: Found(pids(), "the app's processes have ended"), lambda pid: pid in pids())

    def _app_pids(self) -> Collection[int]:
        return self._owners.pids() if self._owners is not None else ()

    def _child_pid(self) -> int | None:
        return self.suspension.child_pid

    def _in_gvisor(self) -> bool:
        platform = self.history.latest(PlatformReading)
        return platform is not None and platform.sandbox == "gvisor"

    def _counters(self) -> Mapping[str, Trust]:
        platform = self.history.latest(PlatformReading)
        return platform.counters if platform is not None else {}

    def _trust(self) -> dict[str, bool | None]:
        return {name: trust.counts for name, trust in self._counters().items()}

    def _blind(self) -> bool:
        """Whether the kernel's counters could miss a suspension here, so that spins must look for it."""
        platform = self.history.latest(PlatformReading)
        trust = self._trust()
        seen = all(trust.get(name) for name in ("cgroup_throttled", "run_delay", "steal"))
        return not seen or (platform is not None and platform.environment.startswith("cloud_run"))

    def _child_settings(self) -> str:
        settings, blind, trust = self.config.suspension, self._blind(), self._trust()
        every = settings.spin_every_seconds or (SPIN_EVERY_BLIND if blind else SPIN_EVERY_SEEN)
        parts = [
            f"interval={settings.heartbeat_seconds}",
            f"jitter={settings.heartbeat_seconds}",
            f"budget={settings.budget_ratio}",
            f"send={min(4.0, settings.every_seconds * 0.8):.1f}",
            f"levels={','.join(map(str, settings.spin_seconds))}",
            f"every={','.join(map(str, every))}",
            f"climb={int(blind)}",
            f"root={self._root}",
            f"ticks={int(trust.get('lost_ticks') is not False)}",
        ]
        if trust.get("cgroup_throttled"):
            with contextlib.suppress(OSError):
                files = throttle_files(locate(self._root))
                rows = (f"{f.version}|{f.stat}|{f.quota}|{f.period}" for f in files)
                parts.append("cgroups=" + ",".join(row for row in rows if not set(row) & set(",;")))
        return ";".join(parts)

    def _news(self) -> None:
        self.schedule.nudge()

    def _over_budget(self) -> bool:
        ratio = self.cost.ratio()
        return ratio is not None and ratio > self.config.budget.cpu_ratio

    async def start(self) -> None:
        """Look at the platform, start the child and make a first report.  Raises OSError when no process can be started."""
        self.history.add(await self.platform.read())
        self.suspension.start()
        self.publish()

    async def run(self) -> None:
        """Measure until cancelled."""
        self.pulse.start(asyncio.get_running_loop())
        try:
            await self.schedule.run()
        finally:
            self.pulse.stop()

    async def aclose(self) -> None:
        """End the child and close the probes."""
        await self.schedule.aclose()

    def _after(self, readings: Sequence[Reading]) -> None:
        self.pulse.note()
        self.state.report_failures = self.schedule.failures
        for reading in readings:
            self.on_reading(reading)
            if isinstance(reading, ProcessesReading) and reading.own_group is False and not self._group_is_watched:
                self._watch_group_of_owners()
        if self.hooks is not None and self.hooks.pools and not self._pools_are_watched:
            self._watch_pools()
            self.engine.watch(self._rules())
        self.publish()

    def publish(self) -> Report:
        """Judge the history now and swap the new report in."""
        cpu_seconds, memory = self.cost.measure()
        this = AgentSelf(
            __version__, round(self.cost.uptime_seconds, 1), round(cpu_seconds, 3), memory, self.schedule.skipped,
            self.schedule.failures,
        )  # fmt: skip
        report, changes = self.engine.evaluate(this)
        self._version += 1
        platform = self.history.latest(PlatformReading)
        self.state.child_alive = self.suspension.child_pid is not None
        self.state.snapshot = Snapshot(
            version=self._version,
            report=report,
            verdicts=dict(self.engine.verdicts()),
            slots=tuple(
                SlotCount(e.probe.name, e.probe.target, dict(e.outcomes), e.last_success) for e in self.schedule.entries
            ),
            loop_lateness_seconds=self.pulse.lateness_seconds,
            platform_labels=platform.labels if platform is not None else {},
            lines_dropped=self.lines_dropped(),
            cloud_entries=self.cloud_entries(),
        )
        self._on_report(report, changes)
        return report
