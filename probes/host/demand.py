"""How much CPU a group with a limit wants, period by period of that limit.

A mean over seconds cannot say what limit would do: a burst is stopped within a period of 100 ms.  Reading the counters each period
for ever would cost too much, so it is done in *trains* of consecutive periods: a short one every five minutes while nothing is
throttled (what is used is what is wanted then, and is kept to compare with), longer ones while something is, until
``MOST_PERIODS`` are known, and then one a minute.  Whether something is throttled the cgroup probe knows already.  After a
first look the samples may use ``LIMIT_SHARE`` of the limit that they are about: at 5 % of a core they come a tenth as often.

Each sample is taken just after the quota was renewed, because a process of the throttled group cannot run later: when that is
is found once, by looking for the moment at which ``nr_periods`` grows, and holds until the limit is set anew.

Cost: some 0.6 ms a sample, with its wake-up: 0.15 CPU seconds an hour while nothing is throttled.  What was wanted: :mod:`probes.host.wanted`.
It passes 150 lines because when to look, where the period begins and what is the agent's own decide together what a sample is worth.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable, Collection
from math import floor
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from probes.host import cgroup_files as files
from probes.host.cgroup import CgroupReading
from probes.host.cgroup_mounts import Level, locate
from probes.host.wanted import MOST_PERIODS, Period, Wanted
from probes.kernel_files import why
from probes.reading import Code, NoData, Reading, Stability, Unseen, gauge, increment
from probes.record import dataclass

#: Periods of a train while nothing is throttled, of the first while something is, and of those after it.
CALM_PERIODS, FIRST_PERIODS, BUSY_PERIODS = 20, 30, 80
#: Between two trains while nothing is throttled, and while enough is known.
CALM_SECONDS, KNOWN_SECONDS = 300.0, 60.0
#: A group that used less in a period may not have run in it.
ACTIVE_SECONDS = 0.0005
#: Of its slot a train takes at most this share.
MOST_SHARE = 0.85
#: Of the CPU limit the samples may use this share in the long run, each so many CPU seconds (measured in a limit of 20 %: 0.58 ms), and
#: so many may be taken before that counts: the first answer is due within a quarter of a minute.
LIMIT_SHARE, SAMPLE_SECONDS, SAVED_PERIODS = 0.005, 0.6e-3, 110.0
#: A sample is taken so long after a period's begin; when that is is looked for in steps of this share of a period.
AFTER_SECONDS, LOOK_SHARE = 0.002, 0.04
#: Fewer throttled periods than these since the last slot are an accident.
LEAST_HITS = 2
#: In one of so many periods the group wants its peak or more.
PEAK_ONE_IN = 100
#: CPU of the agent's child in a period from which on the period speaks of the child.
OURS_SECONDS = 0.005


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DemandReading(Reading):
    """What one group wanted.  ``wanted`` is CPU seconds in each period that was looked at, oldest first; None: not known (yet)."""

    probe: ClassVar[str] = "demand"
    stability: ClassVar[Stability] = "beta"
    labelled: ClassVar[bool] = True

    path: str = ""
    """The group whose limit it is."""
    limit_cores: float | None = None
    period_seconds: float = 0.0
    wanted: array[float] | None = None
    throttled: int = 0
    """Of these periods."""
    endless: bool = False
    """It took all that it was given: where its demand ends was not seen."""
    sampled_periods: int = increment("Periods of the CPU limit that were looked at one by one")
    wanted_cores: float | None = gauge("CPU that the group with the limit wants, mean over the periods looked at")
    peak_cores: float | None = gauge("The same in the one period of a hundred in which it wants most")
    width_cores: int | None = gauge("CPUs that it would use at once")
    calm_wanted_cores: float | None = gauge("CPU that it wanted when the limit was enough last")
    calm_peak_cores: float | None = gauge("The same in the one period of a hundred in which it wanted most")


class _Counted(NamedTuple):
    at: float
    periods: float
    throttled: float
    held: float
    used: float
    child: float


class DemandProbe:
    """Of one process's groups the one with the lowest limit.

    ``cgroup`` is the newest reading of the same groups, ``own`` the CPU seconds of the agent and of its child where they are in
    that group: they are no demand of the app's.  ``seconds`` is how long a slot may take.
    """

    name = "demand"
    reading_type = DemandReading

    def __init__(
        self, target: str = "", *, root: Path = Path("/"), pid: str = "self",
        cgroup: Callable[[], CgroupReading | None], cpus: Callable[[], int | None], seconds: float,
        own: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:  # fmt: skip
        self.target, self._root, self._pid, self._seconds = target, root, pid, seconds
        self._cgroup, self._cpus, self._own, self._clock, self._sleep = cgroup, cpus, own, clock, sleep
        self._limit: tuple[str, float, float] | None = None
        self._wanted: Wanted | None = None
        self._sequence: array[float] | None = None
        self._phase: float | None = None
        self._due = self._taken = self._counted = clock()
        self._saved = SAVED_PERIODS
        self._calm: tuple[float | None, float | None] = (None, None)
        #: Why the group's use cannot be read; it is tried again when the next train is due.
        self._refused: NoData | None = None

    async def read(self) -> DemandReading:
        """Take a train of periods where one is due.  Raises NoData while the group's counters cannot be read."""
        cgroup = self._cgroup()
        if cgroup is None:
            raise NoData("the group has not been read yet", code=Code.NOT_YET)
        limits, sampled = cgroup.limit_cores or {}, 0
        if not limits:
            self._limit = self._wanted = None
            none = Unseen("no CPU limit is set at any level that is visible here", Code.ABSENT)
            return self._reading(0, cgroup.unseen.get("limit_cores", none))
        path = min(limits, key=lambda each: (limits[each], -len(each)))
        limit = (path, limits[path], (cgroup.period_seconds or {}).get(path, 0.1))
        if limit != self._limit:
            self._limit, self._wanted, self._phase, self._due, self._refused = limit, None, None, self._clock(), None
        if self._refused is not None and self._clock() < self._due:
            raise self._refused
        hit = (cgroup.throttled_periods or {}).get(path, 0.0) >= LEAST_HITS
        known = self._wanted.periods if self._wanted is not None else 0
        if self._clock() >= self._due or (hit and known < MOST_PERIODS):
            most = (BUSY_PERIODS if known else FIRST_PERIODS) if hit else CALM_PERIODS
            if most <= self._allowed(limit[1]):
                try:
                    sampled, self._refused = await self._look(*limit, most, hit=hit), None
                except NoData as reason:
                    self._refused, self._due = reason, self._clock() + KNOWN_SECONDS
                    raise
                self._saved -= sampled
        return self._reading(sampled, Unseen("not looked at period by period yet", Code.NOT_YET))

    async def aclose(self) -> None:
        """Nothing is held open."""

    def _allowed(self, cores: float) -> float:
        """How many periods may be looked at now, of those that this limit has room for."""
        now = self._clock()
        self._saved = min(SAVED_PERIODS, self._saved + (now - self._counted) * cores * LIMIT_SHARE / SAMPLE_SECONDS)
        self._counted = now
        return self._saved

    async def _look(self, path: str, cores: float, period: float, most: int, *, hit: bool) -> int:
        """Take a train of these periods; returns how many were looked at.  ``hit``: some before it were throttled."""
        try:
            places = locate(self._root, self._pid)
            level = next(each for each in places.levels if each.path == path and each.cpu_dir and each.usage_dir)
            train, held, total = await self._train(level, places.version, period, most)
        except (OSError, ValueError) as error:
            raise NoData(
                why(error), "run where cpu.stat and the CPU use of the group with the limit can be read"
            ) from error
        except StopIteration:
            raise NoData(f"{path}: its CPU use is not counted here", code=Code.UNREACHABLE) from None
        if hit or any(each.throttled for each in train):
            self._wanted = self._wanted or Wanted(cores * period, period, self._cpus() or 1)
            self._wanted.add(train, held)
            self._due = self._clock() + KNOWN_SECONDS
        elif train:
            self._wanted, self._calm = None, _sizes([each.used for each in train], period)
            self._due = self._clock() + CALM_SECONDS
        return total

    async def _train(self, level: Level, version: int, period: float, most: int) -> tuple[list[Period], float, int]:
        """(consecutive periods but those in which the child worked or a sample was late, their throttled time, how many there were)."""
        end = self._clock() + self._seconds * MOST_SHARE
        before = self._count(level, version)
        if most > CALM_PERIODS and self._phase is None:
            self._phase = await self._renewal(level, version, period, before)
        start, found, total, held = self._phase or before.at, list[Period](), 0, 0.0
        first = before = await self._next(level, version, start, period)
        while total < most and self._clock() < end:
            now = await self._next(level, version, start, period)
            count = max(1, round((now.at - before.at) / period))
            # A sample that came late spans several periods, and would smooth what was wanted in them.
            if count == 1 and now.child - before.child < OURS_SECONDS:
                found.append(Period(max(0.0, now.used - before.used), now.throttled > before.throttled))
                held += now.held - before.held
            total, before = total + count, now
        if before.throttled - first.throttled >= before.periods - first.periods > 0:
            # The timer counts periods and throttlings at once, and when it is late those of two: then a sample misses the first.
            found = [each._replace(throttled=each.throttled or each.used > ACTIVE_SECONDS) for each in found]
        return found, held, total

    async def _next(self, level: Level, version: int, start: float, period: float) -> _Counted:
        """The counters just after the next period began."""
        now = self._clock()
        await self._sleep(start + (floor((now - start) / period) + 1) * period + AFTER_SECONDS - now)
        return self._count(level, version)

    async def _renewal(self, level: Level, version: int, period: float, before: _Counted) -> float | None:
        """When a period began: the moment at which their number grew; ``None`` in a group that rests."""
        for _ in range(round(2 / LOOK_SHARE)):
            await self._sleep(period * LOOK_SHARE)
            now = self._count(level, version)
            if now.periods > before.periods:
                return now.at
        return None

    def _count(self, level: Level, version: int) -> _Counted:
        assert level.cpu_dir is not None
        assert level.usage_dir is not None
        periods, throttled, held = files.read_throttling(level.cpu_dir, version)
        agent, child = self._own()
        used = files.read_usage(level.usage_dir, version) - agent - child
        return _Counted(self._clock(), periods, throttled, held, used, child)

    def _reading(self, sampled: int, otherwise: Unseen) -> DemandReading:
        taken = self._clock()
        seconds, self._taken = taken - self._taken, taken
        path, cores, period = self._limit or ("", None, 0.0)
        unseen, sizes, wanted = {"wanted_cores": otherwise}, self._calm if cores else (None, None), None
        if self._wanted is not None:
            if sampled or self._sequence is None:
                self._sequence = self._wanted.sequence
            wanted = self._sequence
            sizes = _sizes(wanted, period)
        if sizes[0] is not None:
            unseen = {}
        return DemandReading(
            taken=taken, seconds=seconds, target=self.target, unseen=unseen, path=path, limit_cores=cores,
            period_seconds=period, wanted=wanted, sampled_periods=sampled,
            throttled=self._wanted.throttled if self._wanted is not None else 0,
            endless=self._wanted is not None and self._wanted.endless,
            wanted_cores=sizes[0], peak_cores=sizes[1],
            width_cores=self._wanted.width if self._wanted is not None else None,
            calm_wanted_cores=self._calm[0], calm_peak_cores=self._calm[1],
        )  # fmt: skip


def _sizes(wanted: Collection[float], period: float) -> tuple[float | None, float | None]:
    """(mean, peak) in cores."""
    if not wanted:
        return None, None
    most = sorted(wanted)[-1 - len(wanted) // PEAK_ONE_IN]
    return sum(wanted) / len(wanted) / period, most / period
