"""What is to be delivered to one place and was not yet: bounded in number, bytes and age; what has no room is dropped and counted.

One task of the agent's loop, there only while something waits.  An attempt that failed for now (no answer, 5xx, 429) is made
again after a pause that doubles, or as long as the answer asked for; what was refused for good is dropped and the next goes on.
The oldest goes first and is dropped first.  An outage is told once, at its begin, in the agent's own log.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import NamedTuple

from exporters.push.post import Answer, Failed
from probes.backoff import Backoff

_log = logging.getLogger("stallscope.push")

#: Of one place: an hour of a report a minute, with room for findings; and what a minute's metrics take, times as many (compressed).
MOST_MESSAGES, MOST_BYTES = 128, 1_000_000
#: What is older tells nobody anything any more (Prometheus' own bound for samples out of order is an hour as well).
MOST_AGE_SECONDS = 3600.0
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 1.0, 60.0
#: Answers after which the same may succeed later: too many requests, a server or what stands before it that cannot now, and a token
#: that is renewed (it is read anew for each attempt).
RETRIED = frozenset({401, 408, 425, 429, 500, 502, 503, 504})


class Waiting(NamedTuple):
    """A message and when it was put in."""

    body: bytes
    since: float


#: Sends a body, in so many seconds at most.  Raises Failed.
Send = Callable[[bytes, float], Awaitable[Answer]]


class Outbox:
    """The queue for one place, called ``name`` in metrics and texts.

    ``most_messages`` of 1 keeps the newest alone, which is no loss where each holds all that is to be told.  ``gives_up``: answers
    after which nothing is sent any more.
    """

    def __init__(
        self,
        name: str,
        send: Send,
        *,
        timeout: float,
        retried: Collection[int] = RETRIED,
        gives_up: Collection[int] = (),
        most_messages: int = MOST_MESSAGES,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] | None = None,
    ) -> None:
        self.name = name
        self._send, self._timeout, self._retried, self._gives_up, self._clock = send, timeout, retried, gives_up, clock
        self._most, self._sleep = most_messages, sleep or self._doze
        self._queue: deque[Waiting] = deque()
        self._bytes = 0
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS, clock)
        self._task: asyncio.Task[None] | None = None
        self._wakeup = asyncio.Event()
        self._ending = False
        self._failing = ""
        self.off = ""
        """Why nothing is sent any more; empty while it is."""
        self.delivered = self.dropped = self.refused = 0

    def put(self, body: bytes) -> None:
        """Send this as soon as it can be; never waits."""
        if self.off:
            self.refused += 1
            return
        self._queue.append(Waiting(body, self._clock()))
        self._bytes += len(body)
        self._make_room()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def waiting(self) -> int:
        """How many messages wait."""
        return len(self._queue)

    @property
    def counts(self) -> dict[str, int]:
        """What became of messages since the start, by outcome."""
        return {"delivered": self.delivered, "dropped": self.dropped, "refused": self.refused}

    async def aclose(self, seconds: float) -> None:
        """Send what waits, once, in so many seconds at most; the rest is dropped and told."""
        self._ending = True
        self._wakeup.set()
        if self._task is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._task, seconds)
        if left := len(self._queue):
            self._queue.clear()
            self.dropped += left
            _log.warning("%s: %d messages were not delivered: %s", self.name, left, self._failing or "no time was left")

    def _make_room(self) -> None:
        old = self._clock() - MOST_AGE_SECONDS
        while len(self._queue) > self._most or self._bytes > MOST_BYTES or self._queue[0].since < old:
            self._take()
            self.dropped += self._most > 1
            if not self._queue:
                return

    def _take(self) -> Waiting:
        first = self._queue.popleft()
        self._bytes -= len(first.body)
        return first

    async def _run(self) -> None:
        while self._queue:
            while not self._ending and (pause := self._backoff.seconds_left) > 0:
                await self._sleep(pause)
            first = self._queue[0]
            later = await self._attempt(first)
            done = not later or bool(self.off)
            # While it was on its way it may have been dropped to make room: then it is no longer the first.
            if done and self._queue and self._queue[0] is first:
                self._take()
            if later and self._ending:
                return

    async def _doze(self, seconds: float) -> None:
        """Sleep until then, or until the end."""
        self._wakeup.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wakeup.wait(), seconds)

    async def _attempt(self, message: Waiting) -> bool:
        """Whether it is to be tried again."""
        try:
            answer = await self._send(message.body, self._timeout)
        except Failed as failed:
            return self._failed(str(failed), None)
        except Exception as error:  # noqa: BLE001 - a defect here must not end the telling, and a text may hold a secret
            return self._failed(type(error).__name__, None)
        if 200 <= answer.status < 300:
            self._backoff.succeeded()
            if answer.refused:
                self.refused += 1
                self._tell(answer.refused, "not sent again")
            else:
                self.delivered += 1
                self._failing = ""
            return False
        if answer.status in self._retried:
            return self._failed(f"answered {answer.status}", answer.retry_after)
        self.refused += 1
        if answer.status in self._gives_up:
            self.off = f"answered {answer.status}"
            self.refused += len(self._queue) - 1
            self._queue.clear()
            self._bytes = 0
        self._tell(f"answered {answer.status}", "switched off" if self.off else "not sent again")
        return False

    def _failed(self, because: str, pause: float | None) -> bool:
        self._backoff.failed()
        if pause is not None:
            self._backoff.wait_at_least(min(pause, MOST_PAUSE_SECONDS * 5))
        self._tell(because, "tried again later")
        return True

    def _tell(self, because: str, then: str) -> None:
        if not self._failing:
            _log.warning("%s: %s; %s", self.name, because, then)
        self._failing = because
