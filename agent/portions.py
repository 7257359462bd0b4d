"""Work in portions, with pauses between them.

A report takes 7 to 16 ms of CPU.  At once that is the quota of two or three periods of a limit of 0.05 cores, in which an app that shares the
limit stands still: of a server that used a fifth of it the p99 was 3.4 times as long (docs/evidence/lightness.md).
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class Portions(Generic[T]):
    """A generator that yields where the work may pause and returns what came of it; nothing is done before it is asked for."""

    def __init__(self, steps: Generator[None, None, T]) -> None:
        self._steps = steps
        self._result: T | None = None

    @property
    def done(self) -> bool:
        """Whether it has ended, by whatever."""
        return inspect.getgeneratorstate(self._steps) == inspect.GEN_CLOSED

    def step(self) -> bool:
        """Do one more step, if there is one.  Returns whether there may be another; raises what the work raises."""
        if self.done:
            return False
        try:
            next(self._steps)
        except StopIteration as end:
            self._result = end.value
        return not self.done

    def finish(self) -> T:
        """Do the rest at once, also in the middle of :meth:`spread`."""
        while self.step():
            pass
        return cast("T", self._result)

    async def spread(
        self,
        portion: float,
        pause: float,
        *,
        used: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        """Pause for so many seconds after each ``portion`` seconds of CPU that this thread has ``used``; a step is not divided."""
        began = used()
        while self.step():
            if used() - began >= portion:
                await sleep(pause)
                began = used()
