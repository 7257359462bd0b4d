"""What the app's processes do where no request shows it, as their hooks tell: work after a response, and timers that come late.

A request ends with its response, for the platform too.  What a handler, a background task or a goroutine does from then on is
*work after the response*: where the platform takes the CPU away between requests it crawls.  A hook counts a piece of it once it
has outlived one of its looks (every 2 s), because the last lines of a handler are none.

*Timers*: the hook's own one is due every 2 s.  That it came a second late or more says that the app's other timers did too: a
token's refresh, a TLS handshake's deadline, an exporter's.  Whether the CPU was gone or the app itself was busy is not said by
that: :mod:`agent.rules.app.background_refresh_starved` asks who had the CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from probes.counters import Counters
from probes.hooks.message import Message, RuntimeReport
from probes.reading import Code, NoData, Reading, Stability, Unseen, gauge, increment
from probes.record import dataclass

if TYPE_CHECKING:
    from probes.hooks.state import HookState, Key

#: Of one reading; the rest is only counted.
MOST_LATE, MOST_RUNTIMES = 8, 8
#: Upper bound of one reading with so many.
READING_BYTES = 4_000

_SILENCE = Unseen("no hook has spoken lately", Code.UNREACHABLE)
_REMEDY = "load the hook in the app: stallscope hooks"
_NO_REQUESTS = Unseen("no hook that is heard counts requests", Code.NOT_CONFIGURED)


class Late(NamedTuple):
    """A timer came this late: it was due at ``at - seconds`` (monotonic seconds of the agent) and came at ``at``."""

    at: float
    seconds: float
    process: str


class Runtime(NamedTuple):
    """What the runtime of a process says of itself."""

    process: str
    pid: int
    pid_namespace: str
    told: RuntimeReport


@dataclass(frozen=True, slots=True, kw_only=True)
class HooksReading(Reading):
    """What the hooks told since the reading before, all processes together."""

    probe: ClassVar[str] = "hooks"
    stability: ClassVar[Stability] = "beta"

    after_response: float | None = gauge("Pieces of work that go on although their response is sent")
    after_response_pieces: float | None = increment("Pieces of work that went on after their response")
    after_response_seconds: float | None = increment("Time that work went on after its response, all pieces together")
    timers_late: float | None = increment("Timers of the app's hooks that came a second late or more")
    timers_late_seconds: float | None = increment("Time by which these came late")
    late: tuple[Late, ...] = ()
    runtimes: tuple[Runtime, ...] = ()
    tell_timers: bool = False
    """Whether any of them tells of its timers."""


class Work:
    """Makes gains of the totals as the messages come; :meth:`take` gives them to a reading."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._gained = dict.fromkeys(("pieces", "seconds", "late", "late_seconds"), 0.0)
        self._late: list[Late] = []

    def hear(self, key: Key, message: Message, now: float, *, fresh: bool) -> None:
        """One message; ``fresh`` when a process that was not heard before must be new."""
        for name, totals in (("after", message.after_response), ("timers", message.timers)):
            source = (*key, name)
            known = {total: value for total, value in totals.items() if total in self._gained}
            added = self._counters.added(source, known, from_zero=fresh or source in self._counters)
            for total, value in added.items():
                self._gained[total] += value
            if added.get("late"):
                self._late = [*self._late, Late(now, added.get("late_seconds", 0.0) / added["late"], key.name)][
                    -MOST_LATE:
                ]

    def take(self) -> tuple[dict[str, float], tuple[Late, ...]]:
        """What was gained since the last call."""
        gained, late = self._gained, tuple(self._late)
        self._gained, self._late = dict.fromkeys(gained, 0.0), []
        return gained, late


class WorkProbe:
    """Hands on what the hooks' listener has heard; it opens nothing of its own."""

    name = "hooks"
    target = ""
    reading_type = HooksReading

    def __init__(self, state: HookState, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._state, self._clock = state, clock
        self._taken = clock()
        self._runtimes: tuple[Runtime, ...] = ()

    async def read(self) -> HooksReading:
        """What was told since the last slot.  Raises NoData while no hook speaks."""
        self._state.forget_silent()
        messages = list(self._state.speaking)
        gained, late = self._state.work.take()
        if not messages and not late:
            raise NoData(_SILENCE, _REMEDY)
        taken, before = self._clock(), self._taken
        self._taken = taken
        if (runtimes := _runtimes(messages)) != self._runtimes:
            self._runtimes = runtimes  # else the history holds one for all
        counting = [message for message in messages if message.after_response]
        return HooksReading(
            taken=taken, seconds=taken - before,
            after_response=sum(message.after_response.get("now", 0.0) for message in counting) if counting else None,
            after_response_pieces=gained["pieces"] if counting else None,
            after_response_seconds=gained["seconds"] if counting else None,
            timers_late=gained["late"], timers_late_seconds=gained["late_seconds"], late=late, runtimes=self._runtimes,
            tell_timers=any(message.timers for message in messages),
            unseen={} if counting else {"after_response": _NO_REQUESTS},
        )  # fmt: skip

    async def aclose(self) -> None:
        """The listener is another's."""


def _runtimes(messages: Iterable[Message]) -> tuple[Runtime, ...]:
    found = [
        Runtime(m.name, m.pid, m.pid_namespace, m.runtime._replace(goroutines=None)) for m in messages if m.runtime
    ]
    return tuple(found[:MOST_RUNTIMES])
