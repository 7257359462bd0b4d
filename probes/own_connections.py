"""The agent's own TCP connections to databases, which the kernel counts among those of its network namespace.

A new one takes the old one's place each minute.  To whoever counts what the app begins and closes it is noise, and one that makes each
look at the app's connections a walk through the kernel's table (:mod:`probes.sockets.connections`).
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping

#: How long a connection that this side closed stands in the kernel's table (TCP_TIMEWAIT_LEN, include/net/tcp.h).
TIME_WAIT_SECONDS = 60.0
MOST_CLOSED = 1024


class OwnConnections:
    """How many were begun, and which were closed of late.  ``clock`` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: So far.  One that is not noted here is taken for another's, which costs a look; so note none that the kernel does not count.
        self.begun = 0
        self._closed: deque[tuple[float, tuple[str, int]]] = deque(maxlen=MOST_CLOSED)

    def begins(self) -> None:
        """The kernel has just been told to connect: its ActiveOpens has grown by one."""
        self.begun += 1

    def ends(self, peer: tuple[str, int] | None) -> None:
        """This side closes the one to that address and port; ``None``: it is none of the network's."""
        if peer is not None:
            self._closed.append((self._clock(), peer))

    def in_time_wait(self) -> Mapping[tuple[str, int], int]:
        """Of each address and port how many of ours the kernel may still hold as closed: at most so many, since a server may close first.

        Where it did, as many of the app's are left out by who goes by this: one a minute for each database at most.
        """
        since = self._clock() - TIME_WAIT_SECONDS
        return Counter(peer for at, peer in self._closed if at >= since)
