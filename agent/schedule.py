"""When probes run: jittered slots, time-outs, a budget.  The only place that catches a probe's exception.

A probe that has seen a change brings the slots forward (:meth:`Schedule.nudge`), so they can be rare.  Deadlines are
absolute and monotonic; a slot that was missed is counted and skipped, never caught up, so a suspended
agent does not wake to a burst of its own making.  Slots that fall close together run in one wake-up, and those of probes that come
seldom in the nearest of the others'; a probe that is slow reports when it is back, and the others do not wait for it.  Those that
time something run one after another: ten questions at once, to ten databases, measured each other.  What has been read is told at once, or when
the loop has rested from the last telling.

Over 300 lines: when probes run and when it is told share the lateness, the nudges and what is news.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import field
from os import urandom
from typing import Any

from agent.history import History
from agent.meter import Meter
from probes.reading import Code, Impatient, NoData, Probe, Reading, Timing
from probes.record import dataclass

_log = logging.getLogger("stallscope.schedule")

#: Slots this much ahead of their time, as a share of their interval, join a wake-up that happens anyway.
EARLY_SHARE = 0.2
#: What comes so many times as seldom as the most frequent slot joins the nearest wake-up of that one, early or late.
SELDOM_TIMES = 1.5
JITTER_SHARE = 0.1
#: A nudge brings a slot forward, but not closer than this to the last wake-up.
NUDGE_SECONDS = 4.0
#: So many nudges in a row are followed, and then one in each NUDGE_EVERY seconds: where the CPU is taken away again and again, all
#: that is new is known after the first, and each slot takes some 10 ms of the CPU that is short.
NUDGES, NUDGE_EVERY = 4, 30.0
#: Probes that come more rarely than this are not nudged.
NUDGED_EVERY = 30.0
#: A probe that is not back after this long, such as one that asks a dead server, no longer holds up the report.
PATIENCE_SECONDS = 1.0
#: Who times something waits so long for those before, at most: what takes longer waits for a server, or between two samples, and hardly needs a CPU.
ALONE_SECONDS = 0.1
#: What comes late, and so shortly before the next slot, is judged together with that one: a report costs more than a reading.
SOON_SECONDS = 2.0
_GOLDEN = 0.6180339887498949

#: After so many slots without data in a row a probe's last values are no longer those of now.
STALE_SLOTS = 3

OUTCOMES = ("ok", "no_data", "failed", "timeout", "skipped")


@dataclass(slots=True)
class Entry:
    """One scheduled probe and what became of its slots."""

    probe: Probe[Reading]
    every: float
    timeout: float
    due: float = 0.0
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    last_success: float | None = None
    running: bool = False
    missed: int = 0
    """Slots without data since."""
    impatient: Impatient | None = None
    """The probe, if it may ask for its next slot sooner: asked once, since that takes as long as a reading."""
    hurried: bool = False
    """Whether it has asked for the slot that is due."""
    alone: bool = False
    """Whether it times something."""


class Schedule:
    """Runs probes into a History and calls ``after`` once per wake-up; what that returns is awaited before it is called again.

    ``pace`` is asked before each wake-up: all slots come that many times as far apart as was asked for (1.0 or more).
    ``apart`` makes of the seconds that were asked for between two slots those that there are now, whatever the pace (:mod:`agent.calm`).
    ``spread`` is asked in each wake-up for the seconds between the starts of two probes (0.0: all at once), and between the last answer and telling.
    ``clock`` is monotonic seconds.  :attr:`on_stale` is called with a reading type and target that had no data in
    ``STALE_SLOTS`` slots in a row.
    """

    def __init__(
        self,
        history: History,
        after: Callable[[list[Reading]], Awaitable[None] | None],
        *,
        pace: Callable[[], float] = lambda: 1.0,
        apart: Callable[[float], float] = lambda every: every,
        spread: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[Any]] | None = None,
    ) -> None:
        self.entries: list[Entry] = []
        #: What the probes' steps and the telling take.
        self.meter = Meter()
        self.failures = 0
        self.on_stale: Callable[[type[Reading], str], None] = lambda _kind, _target: None
        self._history, self._after, self._pace, self._apart, self._spread = history, after, pace, apart, spread
        self._clock, self._sleep = clock, sleep or self._doze
        #: Whether what is told now is no usual batch: it was brought forward, or something of it is late, missing or back.
        self.news = False
        #: How late the latest wake-up was, seconds.
        self.lateness_seconds = 0.0
        #: Where the jitter begins: two agents that start together would look at each other's questions each time.
        self._phase, self._turn = urandom(1)[0] / 256, 0
        self._last_turn = clock()
        self._nudged = asyncio.Event()
        self._nudges, self._nudges_at = float(NUDGES), clock()
        self._late: set[asyncio.Task[Reading | None]] = set()
        self._followers: set[asyncio.Task[None]] = set()
        self._untold: list[Reading | None] = []
        #: Until when nothing is told, and the telling that comes then.
        self._rests_until = clock()
        self._rest: asyncio.TimerHandle | None = None
        self._telling: asyncio.Task[None] | None = None

    def add(self, probe: Probe[Reading], every: float, timeout: float | None = None) -> None:
        """Schedule a probe each ``every`` seconds; a read may take ``timeout`` (default: 80 % of that)."""
        impatient = probe if isinstance(probe, Impatient) else None
        alone = isinstance(probe, Timing) and probe.alone
        entry = Entry(probe, every, timeout or every * 0.8, due=self._clock(), impatient=impatient, alone=alone)
        self.entries.append(entry)

    @property
    def skipped(self) -> int:
        """Slots that were skipped, all probes together."""
        return sum(entry.outcomes["skipped"] for entry in self.entries)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            # A nudge wakes the sleeper, who sleeps on when nothing is due yet.
            while (wait := self._next_wake_up() - self._clock()) > 0:
                await self._sleep(wait)
            self.lateness_seconds = -wait
            await self.turn()

    def _next_wake_up(self) -> float:
        """When something must run: what comes seldom waits for the next of the others."""
        return min(entry.due + moved for entry, moved in self._joining())

    def _joining(self) -> list[tuple[Entry, float]]:
        """All entries, with the seconds by which a slot may come early or late to join the others: 0 for those that come often."""
        often = min(self.entries, key=lambda entry: entry.every)
        half = self._interval(often, self._pace()) / 2
        return [
            (entry, half if not entry.hurried and entry.every >= SELDOM_TIMES * often.every else 0.0)
            for entry in self.entries
        ]

    @staticmethod
    def _early(entry: Entry) -> float:
        """Seconds ahead of its time that a slot joins a wake-up; one that was asked for comes when it was."""
        return 0.0 if entry.hurried else entry.every * EARLY_SHARE

    async def _doze(self, seconds: float) -> None:
        """Sleep until then, or until :meth:`nudge`."""
        self._nudged.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._nudged.wait()

    def nudge(self) -> None:
        """Bring every slot that comes often forward, but keep a distance to the last one, and no more than NUDGES in a row."""
        now = self._clock()
        self._nudges = min(NUDGES, self._nudges + (now - self._nudges_at) / NUDGE_EVERY)
        self._nudges_at = now
        soon = max(now, self._last_turn + NUDGE_SECONDS * self._pace())
        if self._nudges < 1.0:
            return
        self.news = True
        later = [entry for entry in self.entries if entry.every <= NUDGED_EVERY and entry.due > soon]
        if not later:
            return
        self._nudges -= 1.0
        for entry in later:
            entry.due = soon
        self._nudged.set()

    def wake(self) -> None:
        """Bring every slot forward that is further off than is asked for now: something happens."""
        pace = self._pace()
        for entry in self.entries:
            entry.due = min(entry.due, self._last_turn + self._interval(entry, pace))
        self._nudged.set()

    def _interval(self, entry: Entry, pace: float) -> float:
        """Seconds between two slots of this probe: as rare as one of the two reasons has it, and not as both together."""
        return max(self._apart(entry.every), entry.every * pace)

    async def turn(self) -> None:
        """Run every probe that is due: together, and then one by one those that time something."""
        self._last_turn = now = self._clock()
        due = [entry for entry, moved in self._joining() if entry.due <= now + (moved or self._early(entry))]
        self._turn += 1
        pace = self._pace()
        for entry in [entry for entry in due if entry.running]:  # never two reads of one probe at once
            entry.outcomes["skipped"] += 1
            entry.due = now + self._interval(entry, pace)
            due.remove(entry)
        for entry in due:
            apart = self._interval(entry, pace)
            entry.outcomes["skipped"] += max(0, int((now - entry.due) / apart))
            jitter = 1 + JITTER_SHARE * ((self._phase + self._turn * _GOLDEN) % 1.0 - 0.5) * 2
            entry.due, entry.hurried = now + apart * jitter, False
        if not due:
            return
        tasks: list[asyncio.Task[Reading | None]] = []
        spread = self._spread()
        try:
            before: list[asyncio.Task[Reading | None]] = []
            for entry in sorted(due, key=lambda entry: entry.alone):
                if entry.alone and before and not spread:
                    await asyncio.wait(before, timeout=ALONE_SECONDS)
                    before = []
                tasks.append(asyncio.create_task(self._read(entry)))
                before.append(tasks[-1])
                if spread:
                    await asyncio.sleep(spread)
            await asyncio.wait(tasks, timeout=PATIENCE_SECONDS)
        except asyncio.CancelledError:
            self._late.update(tasks)
            raise
        if late := {task for task in tasks if not task.done()}:
            self._late |= late
            follower = asyncio.create_task(self._follow(late))
            self._followers.add(follower)
            follower.add_done_callback(self._followers.discard)
        self._tell([task.result() for task in tasks if task.done()])

    async def _follow(self, late: set[asyncio.Task[Reading | None]]) -> None:
        """Tell what comes late: what comes soon after the first of them, with it."""
        while late:
            await asyncio.wait(late, return_when=asyncio.FIRST_COMPLETED)
            back, late = await asyncio.wait(late, timeout=PATIENCE_SECONDS)
            self._late -= back
            results = [task.result() for task in back if not task.cancelled()]
            self.news = True
            if self._next_wake_up() - self._clock() > SOON_SECONDS:
                self._tell(results)
            else:
                self._untold += results

    def _tell(self, results: Sequence[Reading | None]) -> None:
        """Now, or when the loop has had as long for everything else as the last telling took.

        Where hardly any CPU is left a report takes half a minute: whoever asks a page waits for the end of one, and not for one after the other.
        """
        self._untold += results
        if self._telling is not None:
            return
        wait = self._rests_until - self._clock()
        if wait <= 0:
            self._tell_all()
        elif self._rest is None:
            self._rest = asyncio.get_running_loop().call_later(wait, self._tell_all)

    def _tell_all(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
        results, self._untold, self._rest, began = self._untold, [], None, self._clock()
        slowly: Awaitable[None] | None = None
        with self._counting_failures():
            slowly = self.meter.add(self._after, [reading for reading in results if reading is not None])
        self.news = False
        if slowly is None:
            self._rest_since(began)
        else:
            self._telling = asyncio.create_task(self._told(slowly, began))

    async def _told(self, slowly: Awaitable[None], began: float) -> None:
        """Wait until all is told, and then tell what has come since."""
        with self._counting_failures():
            await self.meter.work(slowly)
        self._telling = None
        self._rest_since(began)
        if self._untold:
            self._tell([])

    @contextlib.contextmanager
    def _counting_failures(self) -> Iterator[None]:
        """A defect in judging or telling must not end the measuring; the old report stays."""
        try:
            yield
        except Exception:
            self.failures += 1
            _log.exception("the report could not be made")

    def _rest_since(self, began: float) -> None:
        ended = self._clock()
        self._rests_until = ended + (ended - began)

    async def _read(self, entry: Entry) -> Reading | None:
        """One slot of one probe: whatever happens, it ends here."""
        probe, entry.running = entry.probe, True
        try:
            async with asyncio.timeout(entry.timeout):
                reading = await self.meter.work(probe.read())
        except NoData as reason:
            self._miss(entry, "no_data", reason)
        except TimeoutError:
            self._miss(entry, "timeout", NoData(f"no answer within {entry.timeout:g} s", code=Code.TIMED_OUT))
        except Exception as error:  # one broken probe must not end the others
            # The text of a foreign exception may hold a credential: only its type is shown.
            _log.debug("probe %s failed", probe.name, exc_info=True)
            self._miss(entry, "failed", NoData(f"the probe failed: {type(error).__name__}", code=Code.FAILED))
        else:
            entry.outcomes["ok"] += 1
            self.news = self.news or entry.missed > 0
            entry.last_success, entry.missed = time.time(), 0
            self._history.add(reading)
            if entry.impatient is not None and (wanted := entry.impatient.sooner) is not None:
                entry.due, entry.hurried = min(entry.due, self._clock() + wanted), True
            return reading
        finally:
            entry.running = False
        return None

    def _miss(self, entry: Entry, outcome: str, reason: NoData) -> None:
        entry.outcomes[outcome] += 1
        entry.missed += 1
        self.news = self.news or entry.missed == 1
        self._history.miss(entry.probe.reading_type, entry.probe.target, reason)
        if entry.missed == STALE_SLOTS:
            self.on_stale(entry.probe.reading_type, entry.probe.target)

    async def aclose(self) -> None:
        """Close every probe; a failure to close does not keep the others open."""
        if self._rest is not None:
            self._rest.cancel()
        waiting = [*self._followers, *self._late, *([self._telling] if self._telling else [])]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await _close_all(entry.probe for entry in self.entries)


async def _close_all(probes: Iterable[Probe[Reading]]) -> None:
    results = await asyncio.gather(*(probe.aclose() for probe in probes), return_exceptions=True)
    for error in results:
        if isinstance(error, Exception):
            _log.debug("a probe did not close cleanly: %s", type(error).__name__)
