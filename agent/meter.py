"""Who on the event loop takes how much CPU: those who ask for pages, and measuring itself.

The agent looks less often when it uses more than its budget.  That must not be in the hands of whoever can send requests:
a flood of them would blind it, and looking less would make the flood no cheaper.  What the loop takes beside the steps that are
counted here (waiting, the sockets, handshakes) is shared out by :mod:`agent.cost`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class Meter:
    """Adds up CPU seconds."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self.seconds = 0.0

    def add(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do this at once, and count what it takes."""
        began = self._clock()
        try:
            return work(*arguments)
        finally:
            self.seconds += self._clock() - began

    def application(self, app: Any) -> Any:
        """The ASGI application, counted while it runs and not while it waits."""

        async def counted(scope: Any, receive: Any, send: Any) -> None:
            await self.work(app(scope, receive, send))

        return counted

    async def work(self, steps: Awaitable[T]) -> T:
        """Await this, and count it while it runs and not while it waits."""
        return await _Counted(steps, self)


class _Counted(Generic[T]):
    """An awaitable whose every step is counted."""

    def __init__(self, inner: Awaitable[T], meter: Meter) -> None:
        self._inner, self._meter = inner, meter

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._inner.__await__()
        clock, sent, raised = self._meter._clock, None, None  # noqa: SLF001 - of this module
        while True:
            began = clock()
            try:
                waits_for = steps.send(sent) if raised is None else steps.throw(raised)
            except StopIteration as end:
                return cast("T", end.value)
            finally:
                self._meter.seconds += clock() - began
            try:
                sent, raised = (yield waits_for), None
            except BaseException as error:  # noqa: BLE001 - it is handed on: told to stop, the work must hear of it
                sent, raised = None, error
