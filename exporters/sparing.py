"""Log lines about what outsiders can repeat at will: one at once, then one a minute with a count.

A line for each event would hand whoever causes them the app's log quota and the agent's CPU: 1,500 idle connections
were once written at 1.3 MB/s.
"""

from __future__ import annotations

import asyncio
import logging

#: From the first event to its line, so that the line counts a burst, and between two lines.
BURST_SECONDS, BETWEEN_SECONDS = 1.0, 60.0

_log = logging.getLogger("stallscope.http")


class Sparing:
    """Tells of one kind of event; ``text`` is a format with ``{count}``, and what :meth:`note` is given by name."""

    def __init__(self, text: str) -> None:
        self._text, self._count = text, 0
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0.0

    def note(self, **details: object) -> None:
        """It happened once more; the details of the latest are reported."""
        self._count += 1
        self._details = details
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time() + BURST_SECONDS, self._next), self._tell, loop)

    def _tell(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, self._next = None, loop.time() + BETWEEN_SECONDS
        count, self._count = self._count, 0
        _log.warning(self._text.format(count=count, **self._details))
