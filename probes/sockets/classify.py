"""The arithmetic of the connections probe: what each socket is doing, and what changed since the sample before.

No clock, no kernel: sockets in, numbers per endpoint out.  What the numbers mean is said in
:mod:`probes.sockets.connections`.
"""

from __future__ import annotations

from typing import NamedTuple

from probes.sockets.exchange import Exchange, Group, follow
from probes.sockets.tcp_info import ESTABLISHED, Socket, TcpInfo

#: A reply that lies longer than this is not being fetched (docs/evidence/measured-facts.md).
UNREAD_SECONDS = 0.02
#: The shortest silence after which Linux sends a keep-alive (tcp_sock_set_keepidle_locked in net/ipv4/tcp.c), and twice
#: the longest that an acknowledgement may be delayed (RFC 1122, 4.2.3.2).
KEEP_ALIVE_SECONDS = 1.0
#: The shortest that an acknowledgement is delayed by Linux (TCP_DELACK_MIN in net/tcp.h), less a tick of its clock.
DELAYED_SECONDS = 0.036
#: A connection that a request works with is not silent for so long: the app computes between two statements, or has finished.
REST_SECONDS = 1.0
#: A kernel acknowledges what it gets within half a second, whatever its process does (RFC 1122, 4.2.3.2): after twice that it was lost, or nobody is there.
UNHEARD_SECONDS = 1.0
#: Two ticks of a kernel's clock at 100 Hz: of two times of one socket the grain.
GRAIN_SECONDS = 0.02

#: Acknowledgements without data per request, from which replies are slow; the requests that this takes, because one
#: may meet a busy server; the segments of a small reply; and what a sample counts at the next one that saw requests.
APART, ENOUGH, SMALL, FADING = 0.5, 3, 3, 0.8

Key = tuple[str, int, str, int, int]


def classify(found: Socket) -> Group | None:
    """What a connection is doing at this moment; None where the kernel does not report its times.

    A request in the same tick of the kernel's clock as the last reply looks idle when it was acknowledged in that
    tick too, or once a keep-alive has been answered: :func:`settle` tells these by what the connection did before.
    """
    info = found.info
    sent, received = info.last_data_sent_seconds, info.last_data_recv_seconds
    if sent is None or received is None:
        return None
    if found.rqueue and received > UNREAD_SECONDS:
        return "unread"
    if info.unacked:
        return "waiting"
    if found.rqueue or sent > received:
        return "idle"
    return "waiting" if sent < received or _ends_with_a_request(info, received) else "idle"


def _ends_with_a_request(info: TcpInfo, received: float) -> bool:
    """Whether the request came last, when it and a reply share one tick of the kernel's clock (4 ms at 250 Hz).

    That is so when there was no reply yet (the tick is the handshake's), or when something without data followed the
    reply: the server's acknowledgement of the request.  The answer to a keep-alive comes later and does not count.
    """
    if info.data_segs_out and info.data_segs_in == 0:
        return True
    acknowledged = info.last_ack_recv_seconds
    return acknowledged is not None and 0 < received - acknowledged < KEEP_ALIVE_SECONDS


class Seen(NamedTuple):
    """A connection at a sample, and what it was doing; None where the kernel does not report its times."""

    socket: Socket
    group: Group | None
    sent: float
    """Its requests, the older ones counting less, ..."""
    apart: float
    """... how many of them were acknowledged apart from their replies, ..."""
    replies: float
    """... and the segments with data that came back."""
    exchange: Exchange
    long: bool
    """Whether what it is doing may be meant to last: see :mod:`probes.sockets.exchange`."""

    @property
    def pipelined(self) -> bool:
        """Whether more was sent, or written, before what went before it was acknowledged; who asks in turn has one segment under way."""
        info = self.socket.info
        return self.group == "waiting" and ((info.unacked or 0) > 1 or bool(info.notsent_bytes))

    @property
    def unheard(self) -> bool:
        """Whether what it sent has not been acknowledged for over a second, and nothing at all has come since: it is being sent again and again.

        So looks a connection that something on the way has forgotten while it was idle, and one to a host that is gone.
        """
        info, since = self.socket.info, self.exchange.since
        if self.group != "waiting" or not info.unacked or since is None or self.socket.state != ESTABLISHED:
            return False
        waited = self.exchange.at - since
        return waited >= UNHEARD_SECONDS and (info.last_ack_recv_seconds or 0.0) >= waited - GRAIN_SECONDS

    @property
    def rests(self) -> bool:
        """Whether it is idle and nothing has moved on it for over a second."""
        info = self.socket.info
        since = [s for s in (info.last_data_sent_seconds, info.last_data_recv_seconds) if s is not None]
        return self.group == "idle" and bool(since) and min(since) > REST_SECONDS


def _slow(sent: float, apart: float, replies: float) -> bool:
    """Whether a connection's replies take longer than an acknowledgement may be delayed (40 ms).

    Not of large ones: who has sent much acknowledges each request at once.
    """
    return sent >= ENOUGH and apart >= APART * sent and replies <= SMALL * sent


def _delayed(info: TcpInfo) -> bool:
    """Whether the last thing that came did so as long after the last data as an acknowledgement is delayed.

    Sooner it may be the end of the reply once more: where the client's kernel has not acknowledged it within two ticks, because the client did not
    take it, Linux sends it again (tail loss probe, RFC 8985).  That is a segment with data, which moves the time of the last acknowledgement alone.
    Measured at a limit of 5 %: 8 ms after the reply, on connections that then rested for seconds.
    """
    return (info.last_data_recv_seconds or 0.0) - (info.last_ack_recv_seconds or 0.0) >= DELAYED_SECONDS


def settle(now: Socket, before: Seen | None, at: float) -> Seen:
    """What a connection is doing at this monotonic moment, by what it did before.

    Request and reply in one tick: either a quick query was asked and answered, or a reply came and the next
    request followed at once.  Where replies are slow, requests are acknowledged apart from them, and it is the
    latter (measured on loopback: 0.97 acknowledgements per request of 100 ms back to back, 0.03 per quick one).
    And who waited and has had no data since still waits.  What looks like a request's acknowledgement after a reply must be one: a segment without
    data that came since, and delayed, but by a server whose replies are slow.
    """
    info, group = now.info, classify(now)
    then = before.socket.info if before is not None else TcpInfo()
    sent: float = (info.data_segs_out or 0) - (then.data_segs_out or 0)
    apart: float = (info.segs_in or 0) - (info.data_segs_in or 0) - ((then.segs_in or 0) - (then.data_segs_in or 0))
    gained = apart
    replies: float = (info.data_segs_in or 0) - (then.data_segs_in or 0)
    if before is None:  # how it was opened, with a password to be checked, says nothing of its queries
        sent = apart = replies = 0.0
    else:
        fade = FADING if sent else 1.0
        sent, apart, replies = fade * before.sent + sent, fade * before.apart + apart, fade * before.replies + replies
    same = before is not None and (info.data_segs_in, info.data_segs_out) == (then.data_segs_in, then.data_segs_out)
    waited = same and before is not None and before.group == "waiting"
    tie, slow = info.last_data_sent_seconds == info.last_data_recv_seconds, _slow(sent, apart, replies)
    if group == "waiting" and tie and info.data_segs_in and not info.unacked:
        acknowledged = not same and (before is None or gained > 0) and (slow or _delayed(info))
        group = "waiting" if waited or acknowledged else "idle"
    elif group == "idle" and info.data_segs_in is not None and not now.rqueue:
        group = "waiting" if waited or (tie and slow) else "idle"
    exchange = follow(at, now, group, before.exchange if before else Exchange(), before.socket if before else None)
    long = exchange.is_long(group, acknowledged=not info.unacked)
    return Seen(now, group, sent, apart, replies, exchange, long)
