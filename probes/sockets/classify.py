"""The arithmetic of the connections probe: what each socket is doing, and what changed since the sample before.

No clock, no kernel: sockets in, numbers per endpoint out.  What the numbers mean is said in
:mod:`probes.sockets.connections`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from probes.counters import gains
from probes.reading import Code, Unseen
from probes.sockets.exchange import Exchange, Group, follow
from probes.sockets.tcp_info import TIME_WAIT_SECONDS, Socket, TcpInfo

#: A reply that lies longer than this is not being fetched (docs/evidence/measured-facts.md).
UNREAD_SECONDS = 0.02
#: The shortest silence after which Linux sends a keep-alive (tcp_sock_set_keepidle_locked in net/ipv4/tcp.c), and twice
#: the longest that an acknowledgement may be delayed (RFC 1122, 4.2.3.2).
KEEP_ALIVE_SECONDS = 1.0
#: A connection that a request works with is not silent for so long: the app computes between two statements, or has finished.
REST_SECONDS = 1.0

#: Acknowledgements without data per request, from which replies are slow; the requests that this takes, because one
#: may meet a busy server; the segments of a small reply; and what a sample counts at the next one that saw requests.
APART, ENOUGH, SMALL, FADING = 0.5, 3, 3, 0.8

_FIRST = Unseen("this is the first reading: nothing to compare with yet", Code.NOT_YET)
_STILL = Unseen("no time has passed since the previous reading", Code.NOT_YET)
_NOT_REPORTED = Unseen("the kernel does not report it for any of these connections", Code.CANNOT_COUNT)
_TOO_FEW = Unseen("it takes three samples in one slot", Code.NOT_YET)
_NOTHING_SENT = Unseen("no segment with data is known to have been sent since the previous reading", Code.IDLE)
_RATES = (
    "round_trips_per_second",
    "busiest_round_trips_per_second",
    "new_connections_per_second",
    "replies_per_second",
)

GROUPS: tuple[Group, ...] = ("unread", "waiting", "idle")
#: Those that may be meant to last.
LASTING: tuple[Group, ...] = ("unread", "waiting")
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
    exchange: Exchange = Exchange()

    @property
    def long(self) -> bool:
        """Whether what it is doing may be meant to last: see :mod:`probes.sockets.exchange`."""
        return self.exchange.is_long(self.group, acknowledged=not self.socket.info.unacked)

    @property
    def rests(self) -> bool:
        """Whether it is idle and nothing has moved on it for over a second."""
        info = self.socket.info
        since = [s for s in (info.last_data_sent_seconds, info.last_data_recv_seconds) if s is not None]
        return self.group == "idle" and bool(since) and min(since) > REST_SECONDS

    @property
    def slow(self) -> bool:
        """Whether its replies take longer than an acknowledgement may be delayed (40 ms).

        Not of large ones: who has sent much acknowledges each request at once.
        """
        return self.sent >= ENOUGH and self.apart >= APART * self.sent and self.replies <= SMALL * self.sent


def settle(now: Socket, before: Seen | None, at: float) -> Seen:
    """What a connection is doing at this monotonic moment, by what it did before.

    Request and reply in one tick: either a quick query was asked and answered, or a reply came and the next
    request followed at once.  Where replies are slow, requests are acknowledged apart from them, and it is the
    latter (measured on loopback: 0.97 acknowledgements per request of 100 ms back to back, 0.03 per quick one).
    And who waited and has had no data since still waits.
    """
    info, group = now.info, classify(now)
    then = before.socket.info if before is not None else TcpInfo()
    sent: float = (info.data_segs_out or 0) - (then.data_segs_out or 0)
    apart: float = (info.segs_in or 0) - (info.data_segs_in or 0) - ((then.segs_in or 0) - (then.data_segs_in or 0))
    replies: float = (info.data_segs_in or 0) - (then.data_segs_in or 0)
    if before is None:  # how it was opened, with a password to be checked, says nothing of its queries
        sent = apart = replies = 0.0
    else:
        fade = FADING if sent else 1.0
        sent, apart, replies = fade * before.sent + sent, fade * before.apart + apart, fade * before.replies + replies
    seen = Seen(now, group, sent, apart, replies)
    if group == "idle" and info.data_segs_in is not None and not now.rqueue:
        tie = info.last_data_sent_seconds == info.last_data_recv_seconds
        still = before is not None and before.group == "waiting"
        still = still and (info.data_segs_in, info.data_segs_out) == (then.data_segs_in, then.data_segs_out)
        group = "waiting" if still or (tie and seen.slow) else "idle"
    exchange = follow(at, now, group, before.exchange if before else Exchange(), before.socket if before else None)
    return seen._replace(group=group, exchange=exchange)


class Sample(NamedTuple):
    """What one read saw: the moment, why it may not be all, and the sockets."""

    taken: float
    missing: str
    sockets: Mapping[Key, Socket]

    def growth(self, now: Socket) -> tuple[bool, Mapping[str, float]]:
        """Whether the connection was made after this sample, and what its totals gained since this sample or its making.

        A total that fell belongs to a new connection on the same port.  A connection that this sample may not have
        reached is not new and gained nothing that is known.
        """
        totals = _totals(now)
        then = self.sockets.get(key_of(now))
        if then is None:
            return not self.missing, dict.fromkeys(totals, 0.0) if self.missing else totals
        before = _totals(then)
        if before.keys() != totals.keys():
            totals = {name: total for name, total in totals.items() if name in before}
        gained = gains(before, totals)
        return (True, totals) if gained is None else (False, gained)


def fleeting(samples: Sequence[tuple[float, Mapping[Key, Socket]]]) -> tuple[list[Socket], float]:
    """The sockets of single samples, (seconds, sockets) each, that neither neighbour had, and the time between those.

    The first and the last sample have but one neighbour: what they alone saw may have lived for long.
    """
    found, span = [], 0.0
    for (start, before), (_, now), (end, after) in zip(samples, samples[1:], samples[2:], strict=False):
        found += [now[key] for key in now.keys() - before.keys() - after.keys()]
        span += end - start
    return found, span


class Sums:
    """One reading in the making: the fields and the reasons of the missing ones.

    ``endpoints`` are the sockets of the last sample by endpoint, ``seen`` those of all samples of this reading.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Sequence[Socket]],
        because: Unseen | None,
        seen: Mapping[str, Sequence[Seen]],
    ) -> None:
        self._endpoints, self._because, self._seen = endpoints, because or _NOT_REPORTED, seen
        self.fields: dict[str, Any] = {}
        self.unseen: dict[str, Unseen] = {}

    def fill_states(self, targets: Collection[str]) -> None:
        """What the sockets say by themselves."""
        ends = self._endpoints
        self._put("connections", dict.fromkeys(targets, 0) | {end: len(found) for end, found in ends.items()})
        self._put("unread_bytes", {end: sum(s.rqueue for s in found) for end, found in ends.items()})
        rtts = {end: [r for s in found if (r := s.info.min_rtt_seconds) is not None] for end, found in ends.items()}
        self._put("min_rtt_seconds", {end: min(found, default=None) for end, found in rtts.items()})
        groups = {end: [each.group for each in found if each.group] for end, found in self._seen.items()}
        for group in GROUPS:
            shares = {end: found.count(group) / len(found) if found else None for end, found in groups.items()}
            self._put(f"{group}_ratio", shares)
        for group in LASTING:
            kept = {end: [each.long and each.group == group for each in found] for end, found in self._seen.items()}
            told = {end: sum(kept[end]) / len(groups[end]) if groups[end] else None for end in kept}
            self._put(f"{group}_long_ratio", told)
        resting = {end: sum(each.rests for each in found) for end, found in self._seen.items()}
        known = {end: number / len(groups[end]) if groups[end] else None for end, number in resting.items()}
        self._put("idle_long_ratio", known)
        waited = {end: {key_of(s.socket): s for s in found if s.exchange.waited} for end, found in self._seen.items()}
        self._put("waiters", {end: len(found) if groups[end] else None for end, found in waited.items()})
        busy = {end: sum(s.exchange.busy for s in found.values()) for end, found in waited.items()}
        self._put("busy_waiters", {end: number if groups[end] else None for end, number in busy.items()})
        waits = {end: _mean_wait(found) for end, found in self._seen.items()}
        self.fields["waiting_seconds"] = {end: wait for end, wait in waits.items() if wait is not None}
        if "waiting_ratio" in self.unseen:
            self._absent(("waiting_seconds",), self._because)

    def fill_closed(self, closed: Mapping[str, int], because: Unseen | None) -> None:
        """What this side closed within the last minute, by endpoint."""
        if because is not None:
            self._absent(("closed_per_second",), because)
            return
        known = {end: closed.get(end, 0) / TIME_WAIT_SECONDS for end in {*self._endpoints, *closed}}
        self._put("closed_per_second", known)

    def fill_fleeting(self, fleeting: Mapping[str, int], seconds: float) -> None:
        """Those that came and went within ``seconds``; 0 when there were not three samples."""
        if seconds <= 0:
            self._absent(("fleeting_per_second",), _TOO_FEW)
            return
        self._put("fleeting_per_second", {end: fleeting.get(end, 0) / seconds for end in {*self._seen, *fleeting}})

    def fill_growth(self, before: Sample | None, sample: Sample) -> None:
        """What changed since the sample before."""
        if before is None:
            self._absent((*_RATES, "request_bytes", "retransmits"), _FIRST)
            return
        new, sent, acked, again, back, most = {}, {}, {}, {}, {}, {}
        for end, found in self._endpoints.items():
            made, gained = zip(*map(before.growth, found), strict=True)
            new[end] = sum(made)
            sent[end], acked[end], again[end], back[end] = (
                _sum(gained, name) for name in ("sent", "acked", "again", "back")
            )
            most[end] = max((each["sent"] for each in gained if "sent" in each), default=None)
        self._put("retransmits", again)
        self._put("request_bytes", {end: _quotient(acked[end], sent[end]) for end in sent}, _NOTHING_SENT)
        seconds = sample.taken - before.taken
        if seconds <= 0:
            self._absent(_RATES, _STILL)
            return
        self._put("round_trips_per_second", {end: _quotient(count, seconds) for end, count in sent.items()})
        self._put("replies_per_second", {end: _quotient(count, seconds) for end, count in back.items()})
        self._put("busiest_round_trips_per_second", {end: _quotient(count, seconds) for end, count in most.items()})
        self._put("new_connections_per_second", {end: count / seconds for end, count in new.items()})
        if missing := sample.missing or before.missing:
            self._absent(("new_connections_per_second",), Unseen(missing, Code.PARTIAL))

    def _put(self, name: str, values: Mapping[str, float | None], because: Unseen | None = None) -> None:
        """Set a field to what is known; to None when there are connections and it is known of none."""
        known = {end: value for end, value in values.items() if value is not None}
        self.fields[name] = known
        if values and not known:
            self._absent((name,), because or self._because)

    def _absent(self, names: Iterable[str], because: Unseen) -> None:
        for name in names:
            self.fields[name] = None
            self.unseen[name] = because


def _mean_wait(found: Iterable[Seen]) -> float | None:
    """How long the waiting ones have waited, on average, without the long ones; None when nobody does or it is not told."""
    # Before the first data the kernel counts from its own start.
    waiting = [
        each.socket.info
        for each in found
        if each.group == "waiting" and not each.long and each.socket.info.data_segs_out != 0
    ]
    since = [info.last_data_sent_seconds for info in waiting]
    known = [seconds for seconds in since if seconds is not None]
    return sum(known) / len(known) if known else None


def key_of(found: Socket) -> Key:
    """What tells connections apart: a port is used again sooner than an inode together with it."""
    return found.source, found.source_port, found.destination, found.destination_port, found.inode


def _totals(found: Socket) -> dict[str, float]:
    """Segments with data sent, bytes acknowledged (less the handshake's one), segments sent again, segments with data received: what is reported."""
    info = found.info
    totals = {
        "sent": info.data_segs_out, "acked": info.bytes_acked and info.bytes_acked - 1, "again": info.retransmits,
        "back": info.data_segs_in,
    }  # fmt: skip
    return {name: total for name, total in totals.items() if total is not None}


def _sum(gained: Iterable[Mapping[str, float]], name: str) -> float | None:
    known = [each[name] for each in gained if name in each]
    return sum(known) if known else None


def _quotient(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None
