"""How long the present request of a connection has been under way, and whether a client like that waits for it.

Who asks and is answered, again and again, waits for each answer.  Others have one request under way for as long as all goes
well: BLPOP and START_REPLICATION, a leader election's standby in ``pg_advisory_lock``, a reader that takes the rows of one result at its
own pace.  On the wire they look like a slow server, and like a client that does not read.  What tells them apart is what the
connection did before:

* *long* is an exchange of more than ``LONG_SECONDS``; who has had a long one may be in the next one already: status messages
  and keep-alives cut a replication into pieces;
* a connection that asked at least once a second until then is not meant to wait, and does not take its rows at its own pace: its wait
  is a wait, and its reply was left lying;
* nor is a request that the other side's kernel has not even acknowledged: there is nobody;
* of the first wait that is seen nothing is known before its answer has come;
* of whose reply nothing at all is taken for a minute, that reads at no pace.

Seconds; moments are those of a monotonic clock.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from probes.sockets.tcp_info import Socket

#: People who wait have given up by then, and most time-outs are shorter.
LONG_SECONDS = 10.0
#: After a long exchange the next ones of this connection are taken for such, and after a busy time its waits for waits.
REMEMBERED_SECONDS = 60.0
BUSY_SECONDS = 120.0
#: Requests per second from which a connection is busy, looked at over so many seconds and more.
BUSY_PER_SECOND, OVER_SECONDS = 1.0, 1.0

#: Nothing of a reply is taken for so long by no reader that goes on: as a session that asks nothing, it is held (agent/rules/database/connections_held_by_app.py).
UNTAKEN_SECONDS = 60.0

Group = Literal["unread", "waiting", "idle"]


class Exchange(NamedTuple):
    """What is known of one connection's requests at a sample."""

    at: float = 0.0
    since: float | None = None
    """When the request was sent that is under way; ``None`` while none is."""
    long_at: float = -math.inf
    """When a wait was last seen that was long."""
    busy_at: float = -math.inf
    """When it last asked at least once a second."""
    waited_at: float = -math.inf
    """When it was last seen in a wait that has not become a long one."""
    unanswered: int | None = None
    """Segments received when it was last seen waiting; ``None``: not since an answer came."""
    answered_at: float = -math.inf
    """When an answer was last seen to have come to such a wait."""
    counted: tuple[float, int, int] | None = None
    """Where its rate is counted from: moment, segments with data sent and received."""
    lies: tuple[float, int, int] | None = None
    """Since when a reply lies of which nothing was taken, its bytes, segments with data received; ``None``: none lies."""

    @property
    def busy(self) -> bool:
        """Whether it asks often, or did until not long ago."""
        return self.at - self.busy_at <= BUSY_SECONDS

    @property
    def waited(self) -> bool:
        """Whether it was seen in such a wait within the last minute."""
        return self._within(self.waited_at)

    @property
    def lasts(self) -> bool:
        """Whether what is under way has been for long."""
        return self.since is not None and self.at - self.since > LONG_SECONDS

    @property
    def untaken(self) -> bool:
        """Whether a reply lies of which nothing was taken for long."""
        return self.lies is not None and self.at - self.lies[0] >= UNTAKEN_SECONDS

    def is_long(self, group: Group | None, *, acknowledged: bool) -> bool:
        """Whether what is under way may be meant to last."""
        if group == "waiting":
            again = self._within(self.long_at) or not self._within(self.answered_at)
            return acknowledged and not self.busy and (self.lasts or again)
        return group == "unread" and (self.lasts or not self.busy)

    def _within(self, moment: float) -> bool:
        return self.at - moment <= REMEMBERED_SECONDS


def follow(at: float, now: Socket, group: Group | None, before: Exchange, then: Socket | None) -> Exchange:
    """The exchange of ``now``, which was ``before`` when the connection looked like ``then``."""
    info = now.info
    sent = at - (info.last_data_sent_seconds or 0.0)
    since = None if group in {"idle", None} else sent
    if group == "waiting" and then is not None and before.since is not None:
        # Without an answer in between it is the same wait, whatever was sent meanwhile.
        same = info.data_segs_in is not None and info.data_segs_in == then.info.data_segs_in
        since = min(sent, before.since) if same else sent
    counted, busy_at = before.counted, before.busy_at
    total = at, info.data_segs_out or 0, info.data_segs_in or 0
    if counted is None:
        counted = total
    elif at - counted[0] >= OVER_SECONDS:
        asked, answered = total[1] - counted[1], total[2] - counted[2]
        busy = min(asked, answered) >= BUSY_PER_SECOND * (at - counted[0])
        counted, busy_at = total, at if busy else busy_at
    unanswered, answered_at = before.unanswered, before.answered_at
    if unanswered is not None and total[2] > unanswered:
        unanswered, answered_at = None, at
    if group == "waiting":
        unanswered = total[2]
    lies = None
    if group == "unread":
        same = before.lies is not None and before.lies[1:] == (now.rqueue, total[2])
        lies = before.lies if same else (at, now.rqueue, total[2])
    found = Exchange(at, since, before.long_at, busy_at, before.waited_at, unanswered, answered_at, counted, lies)
    if group == "waiting" and not found.is_long(group, acknowledged=not info.unacked):
        return found._replace(waited_at=at)
    if group == "waiting" and found.lasts and not info.unacked and not found.busy:
        return found._replace(long_at=at, waited_at=-math.inf)
    return found
