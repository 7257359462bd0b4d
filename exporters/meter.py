"""What clients cost: CPU that is not measuring's, however often somebody asks.

The agent looks less often when it uses more than its budget.  That must not be in the hands of whoever can send requests:
a flood of them would blind it, and looking less would make the flood no cheaper.  Not counted here are handshakes and connections
that are only opened.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any


class Meter:
    """Adds up CPU seconds."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self.seconds = 0.0

    def add(self, work: Callable[[], Any]) -> None:
        """Do this at once, and count what it takes."""
        began = self._clock()
        try:
            work()
        finally:
            self.seconds += self._clock() - began

    def application(self, app: Any) -> Any:
        """The ASGI application, counted while it runs and not while it waits."""

        async def counted(scope: Any, receive: Any, send: Any) -> None:
            await self.work(app(scope, receive, send))

        return counted

    async def work(self, steps: Awaitable[None]) -> None:
        """Await this, and count it while it runs and not while it waits."""
        await _Counted(steps, self)


class _Counted:
    """An awaitable whose every step is counted."""

    def __init__(self, inner: Awaitable[None], meter: Meter) -> None:
        self._inner, self._meter = inner, meter

    def __await__(self) -> Generator[Any, Any, None]:
        steps = self._inner.__await__()
        clock, sent, raised = self._meter._clock, None, None  # noqa: SLF001 - of this module
        while True:
            began = clock()
            try:
                waits_for = steps.send(sent) if raised is None else steps.throw(raised)
            except StopIteration:
                return
            finally:
                self._meter.seconds += clock() - began
            try:
                sent, raised = (yield waits_for), None
            except BaseException as error:  # noqa: BLE001 - it is handed on: told to stop, the work must hear of it
                sent, raised = None, error
