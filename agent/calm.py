"""Looking less often while nothing happens: what is asked for each ten seconds comes each fifteen, and is judged each thirty.

Most of what an agent costs is to look, and to judge, again and again at an app that is well.  After ``AFTER_SECONDS`` without a finding
that harms, or one that is about to be told, slots come up to ``MOST_TIMES`` as far apart, though never further than
``APART_SECONDS``: several rules judge no fewer than three readings of the last minute, and a Prometheus asks each fifteen
seconds as well.  The first sign of anything brings the next slot forward, and what the measuring child feels does so at once
(:meth:`agent.schedule.Schedule.nudge`).

What is found and stays as it is makes no quiet time: people wait for its end.  But in a CPU limit of ``SMALL_CORES`` or less the agent would be part of
the harm: there it does, as long as no other finding comes, none goes, and none gets worse; and what it reads is judged as in a quiet time from the start.
While such a finding stands slots come ``SPARED_TIMES`` as far apart again, and as much longer is looked back for three readings: the agent takes 2 % of that
limit else, and it, too, waits for quota, so what it does at once reaches over several periods.

To judge costs five times what a reading does, so in a quiet time every other batch of readings waits for the next one: none is lost, and
the page of all metrics has them at once.  What is news is judged at once: whatever came out of turn, late, or not at all, or shows a limit at
work or a slow database by itself (``Reading.urgent``).  So a finding may come twenty seconds later after a quiet time, and one that three readings must show, thirty.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

AFTER_SECONDS = 120.0
MOST_TIMES = 1.5
APART_SECONDS = 15.0
#: Several rules judge no fewer in a minute.
LEAST_READINGS = 3
#: What an agent takes where something is found, 6 to 8 CPU-s/h (docs/evidence/bench.md), is 2 % of a limit of this size.
SMALL_CORES = 0.1
SPARED_TIMES = 2.0
#: Readings from such a time are looked back for so long after it.
SPARED_SECONDS = 60.0
#: There probes start so far apart, a usual period of a limit: all that a wake-up takes at once, some 20 ms of CPU, would use up the quota of several
#: periods, in which the app stands still.
SPREAD_SECONDS = 0.1
#: Of the quota of a period a report takes this part, and goes on in the next one; not where the quota is gone in this part of the periods anyway: an
#: app that wants more than it gets loses the same to a report in portions, and who asks a page waits longer (docs/evidence/lightness.md).
PORTION, USED_UP = 0.25, 0.5


class Calm:
    """Whether anything happens.  ``clock`` is monotonic; a start is no quiet time."""

    def __init__(self, times: float = MOST_TIMES, clock: Callable[[], float] = time.monotonic) -> None:
        self._times, self._clock = times, clock
        self._since = clock()
        self._waiting = True  # the first batch does not
        self._harms: frozenset[object] = frozenset()
        #: Whether what is found stands in a small limit, and when that was so last while slots were rare.
        self._spares, self._spared_at = False, -math.inf

    def may_wait(self, *, news: bool, sparing: bool = False) -> bool:
        """Whether a batch of readings need not be judged before the next one comes: every other one of a quiet time, unless it is ``news``.

        ``sparing``: at any time.
        """
        self._waiting = not (self._waiting or news) and (self.times > 1.0 or sparing)
        return self._waiting

    @property
    def harmed(self) -> bool:
        """Whether the latest report has something that harms: what shows it again is no news."""
        return bool(self._harms)

    def note(self, harms: frozenset[object], *, pending: bool = False, sparing: bool = False) -> None:
        """What the latest report has: whatever harms, and whether something is about to be told.  ``sparing``: the same harm again is no reason."""
        changed = harms != self._harms
        if pending or (harms and (changed or not sparing)) or (changed and self.times > 1.0):
            self._since = self._clock()
        self._harms, self._spares = harms, sparing and bool(harms)
        if self._spares and self.times > 1.0:
            self._spared_at = self._clock()

    @property
    def times(self) -> float:
        """How many times as far apart as asked for slots may come: 1.0, or that of the settings, or ``SPARED_TIMES`` of it."""
        if self._clock() - self._since < AFTER_SECONDS:
            return 1.0
        return self._times * self._more

    @property
    def _more(self) -> float:
        return SPARED_TIMES if self._spares and self._times > 1.0 else 1.0

    @property
    def stretch(self) -> float:
        """How many times as far back as usual has to be looked for three readings."""
        rare = self._clock() - self._spared_at < SPARED_SECONDS
        return SPARED_TIMES * APART_SECONDS * LEAST_READINGS / 60.0 if rare else 1.0

    def apart(self, every: float) -> float:
        """Seconds between two slots that were asked for each ``every`` seconds."""
        return max(every, min(APART_SECONDS * self._more, every * self.times))
