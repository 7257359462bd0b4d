"""Blocking calls of a library that has no asynchronous form: one at a time, in a thread that nobody waits for.

A call into a foreign library may hang where no deadline reaches (a name that is looked up, a token that is fetched).  It is
then left behind: the loop goes on, the thread is a daemon, so that the process can end, and no second call is begun before
the first has come back.  So there is never more than one such thread, whatever hangs.  A pool of threads would be
joined at the interpreter's end and would hold it up.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class Busy(Exception):
    """The call before has not come back yet.  ``seconds`` is for how long."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"a call has not come back for {seconds:.0f} s")
        self.seconds = seconds


class OneThread:
    """Awaits a blocking call.  ``clock`` is monotonic seconds."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._clock = name, clock
        self._since: float | None = None

    async def run(self, work: Callable[[], T]) -> T:
        """What ``work`` returns or raises.  Raises Busy while an earlier call, given up or not, still runs."""
        if (since := self._since) is not None:
            raise Busy(self._clock() - since)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def settle(set_it: Callable[[Any], None], value: Any) -> None:
            if not answer.done():  # nobody has given up waiting
                set_it(value)

        def body() -> None:
            try:
                outcome: tuple[Callable[[Any], None], Any] = answer.set_result, work()
            except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
                outcome = answer.set_exception, error
            self._since = None
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, *outcome)

        self._since = self._clock()
        threading.Thread(target=body, name=self._name, daemon=True).start()
        return await answer
