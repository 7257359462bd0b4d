"""The composition root: schedules every probe that the settings ask for and runs it all in one loop.

Order matters at start-up.  The socket is bound first, so that a taken port is an error before anything
runs.  The heavy imports come next, before the child is started: on a slow or small machine they crowd
the CPUs for seconds, and the child would report the agent's own start-up as contention.  The platform is
looked at just before the child, because the child's plan depends on what can be believed here.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from math import inf
from pathlib import Path

from agent import __version__
from agent.calm import PORTION, SMALL_CORES, SPREAD_SECONDS, USED_UP, Calm
from agent.cost import Cost
from agent.diagnosis import Change, Engine
from agent.history import History
from agent.portions import Portions
from agent.pulse import Pulse
from agent.report import AgentSelf, Report
from agent.rules import RULES
from agent.rules.rule import Rule
from agent.schedule import Schedule
from agent.settings.load import Config
from agent.snapshot import SlotCount, Snapshot, State
from probes import planned
from probes.host.cgroup import CgroupReading
from probes.host.platform import PlatformReading
from probes.reading import Probe, Reading
from probes.registration import Context, Starting, cpu_ratio


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
        on_slot: Callable[[], None] = lambda: None,
    ) -> None:
        self.config = config
        self.state = State()
        #: A reading came; there is a report; all readings of a slot are in, whether they were judged or not.
        self.on_reading, self.on_report, self.on_slot = on_reading, on_report, on_slot
        self.history = History(config.history.seconds)
        self.pulse = Pulse()
        self.calm = Calm(config.budget.calm_ratio)
        self.schedule = Schedule(
            self.history, self._after, pace=self._pace, apart=self.calm.apart,
            spread=lambda: SPREAD_SECONDS if self._limit_is_small() else 0.0,
        )  # fmt: skip
        self._context = Context(
            config.sections,
            root=root,
            environ=environ,
            latest=self.history.latest,
            ask_for_slot=self.schedule.nudge,
            loop_ran_between=self.pulse.ran_between,
        )
        self.in_flight = self._context.in_flight
        self.pulse.also = self._context.each_second
        self.cost = Cost(self._context.child_pid)
        self.cost.measured = lambda: self.schedule.meter.seconds
        self._first: list[Probe[Reading]] = []
        self._plans = tuple(planned(self._context))
        self._waiting = list(self._plans)
        self._add_due()
        self.engine = Engine(self.history, rules=self._rules())
        self._version = 0
        self._making: Portions[Report] | None = None
        self.lines_dropped: Callable[[], int] = lambda: 0
        self.cloud_entries: Callable[[], Mapping[str, int]] = dict
        self.pushed: Callable[[], Mapping[str, Mapping[str, int]]] = dict

    def _add_due(self) -> bool:
        """Schedule the planned probes that wait for nothing any more.  Returns whether there were any."""
        due = [plan for plan in self._waiting if plan.when is None or plan.when()]
        for plan in due:
            self._waiting.remove(plan)
            probe = plan.make()
            self.schedule.add(probe, plan.every, plan.timeout)
            if plan.first:
                self._first.append(probe)
        return bool(due)

    def _rules(self) -> list[Rule]:
        """A rule about something that is not watched would be an unknown that nobody can lift."""
        watched = {entry.probe.reading_type for entry in self.schedule.entries}
        return [r for r in RULES if r.id not in self.config.rules.disabled and r.can_run(watched)]

    def _pace(self) -> float:
        return self.cost.pace(self.config.budget.cpu_ratio)

    async def start(self) -> None:
        """Read what the others need, make a first report, and start those that must be started: they take CPU from now on.

        Raises OSError when the measuring child cannot be started.
        """
        for probe in self._first:
            self.history.add(await probe.read())
        self.publish()
        for entry in self.schedule.entries:
            if isinstance(entry.probe, Starting):
                entry.probe.start()
        self._note_child()

    async def run(self) -> None:
        """Measure until cancelled."""
        self.pulse.start()
        try:
            await self.schedule.run()
        finally:
            self.pulse.stop()

    async def aclose(self) -> None:
        """End the child and close the probes."""
        await self.schedule.aclose()

    def _after(self, readings: Sequence[Reading]) -> Awaitable[None] | None:
        self.pulse.note()
        self.state.report_failures = self.schedule.failures
        for reading in readings:
            self.on_reading(reading)
        if more := self._add_due():
            self.engine.watch(self._rules())
        urgent = not self.calm.harmed and any(reading.urgent for reading in readings)
        news = more or urgent or self.schedule.news or self.engine.settling
        small = self._limit_is_small()
        if not self.calm.may_wait(news=news, sparing=small):
            if small and not self._limit_is_used_up():
                return self._publish_in_portions()
            self.publish()
        if small:
            asyncio.get_running_loop().call_later(SPREAD_SECONDS, self.on_slot)
        else:
            self.on_slot()
        return None

    async def _publish_in_portions(self) -> None:
        """Take no more of a period's quota for a report than an app that shares the limit can spare."""
        self._making = Portions(self._report())
        await self._making.spread(PORTION * self._least_limit() * SPREAD_SECONDS, SPREAD_SECONDS)
        self._making = None
        await asyncio.sleep(SPREAD_SECONDS)
        self.on_slot()

    def _judge_calm(self, report: Report) -> None:
        before = self.calm.times
        harms = frozenset((found.rule, found.severity) for found in report.findings if found.severity != "info")
        self.calm.note(harms, pending=self.engine.pending, sparing=self._limit_is_small())
        if self.calm.times < before:
            self.schedule.wake()

    def _limit_is_small(self) -> bool:
        return self._least_limit() <= SMALL_CORES

    def _least_limit(self) -> float:
        own = self.history.latest(CgroupReading)
        return min(((own and own.limit_cores) or {}).values(), default=inf)

    def _limit_is_used_up(self) -> bool:
        """Whether the quota is gone in most periods: then no app has any left to lose, and each pause waits for quota anew."""
        own = self.history.latest(CgroupReading)
        ran = (own and own.periods) or {}
        hit = (own and own.throttled_periods) or {}
        return any(number >= USED_UP * ran.get(group, inf) for group, number in hit.items())

    def _note_child(self) -> None:
        self.state.child_alive = self._context.child_pid() is not None

    def last_word(self) -> Report:
        """The report to end with: of now, or the latest where another one takes the quota of several periods."""
        snapshot = self.state.snapshot
        return snapshot.report if snapshot is not None and self._limit_is_small() else self.publish()

    def publish(self) -> Report:
        """Judge the history now and swap the new report in."""
        if self._making is not None:
            self._making.finish()
        return Portions(self._report()).finish()

    def _report(self) -> Generator[None, None, Report]:
        cpu_seconds, memory = self.cost.measure()
        this = AgentSelf(
            __version__, round(self.cost.uptime_seconds, 1), round(cpu_seconds, 3), memory, self.schedule.skipped,
            self.schedule.failures, round(self._pace(), 2), self.calm.times,
            round(min(self.config.budget.cpu_ratio, cpu_ratio(self._plans)), 5),
        )  # fmt: skip
        self.history.stretch = max(self.cost.stretch(), self.calm.stretch)
        report, changes = yield from self.engine.steps(this)
        self._judge_calm(report)
        self.state.timeline.note(report, time.monotonic())
        self._version += 1
        platform = self.history.latest(PlatformReading)
        self._note_child()
        self.state.snapshot = Snapshot(
            version=self._version,
            report=report,
            verdicts=dict(self.engine.verdicts()),
            slots=tuple(
                SlotCount(e.probe.name, e.probe.target, dict(e.outcomes), e.last_success) for e in self.schedule.entries
            ),
            loop_lateness_seconds=self.schedule.lateness_seconds,
            platform_labels=platform.labels if platform is not None else {},
            lines_dropped=self.lines_dropped(),
            cloud_entries=self.cloud_entries(),
            pushed=self.pushed(),
        )
        self.on_report(report, changes)
        return report
