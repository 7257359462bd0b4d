"""What the samples of one slot add up to, per endpoint, and what was gained since the sample before.

No clock, no kernel.  What the numbers mean is said in :mod:`probes.sockets.connections`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from probes.counters import gains
from probes.reading import Code, Unseen
from probes.sockets.classify import Key, Seen
from probes.sockets.exchange import Group
from probes.sockets.tcp_info import TIME_WAIT_SECONDS, Socket

FIRST = Unseen("this is the first reading: nothing to compare with yet", Code.NOT_YET)
_STILL = Unseen("no time has passed since the previous reading", Code.NOT_YET)
_NOT_REPORTED = Unseen("the kernel does not report it for any of these connections", Code.CANNOT_COUNT)
_TOO_FEW = Unseen("it takes three samples in one slot", Code.NOT_YET)
_NOTHING_SENT = Unseen("no segment with data is known to have been sent since the previous reading", Code.IDLE)
_NOTHING_CAME = Unseen("no segment with data is known to have come since the previous reading", Code.IDLE)
#: What :func:`_totals` counts of each connection.
_TOTALS = ("sent", "acked", "again", "back", "received")
_RATES = (
    "round_trips_per_second",
    "busiest_round_trips_per_second",
    "new_connections_per_second",
    "replies_per_second",
)

GROUPS: tuple[Group, ...] = ("unread", "waiting", "idle")
#: Those that may be meant to last.
LASTING: tuple[Group, ...] = ("unread", "waiting")


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
    """The sockets of single samples, (seconds, sockets) each, that neither neighbour had, and the time in which they began, or ended.

    They began after the sample before, and ended before the one after: no more than begin, and end, in the shorter of the two, so they tell
    the least.  The first and the last sample have but one neighbour: what they alone saw may have lived for long.
    """
    found, span = [], 0.0
    for (start, before), (at, now), (end, after) in zip(samples, samples[1:], samples[2:], strict=False):
        found += [now[key] for key in now.keys() - before.keys() - after.keys()]
        span += min(at - start, end - at)
    return found, span


class Sums:
    """One reading in the making: the fields and the reasons of the missing ones.

    ``endpoints`` are the sockets of the last sample by endpoint, ``seen`` those of all samples of this reading; ``scale`` says
    of endpoints of which some connections are followed and the others counted, how many each of those stands for.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Sequence[Socket]],
        because: Unseen | None,
        seen: Mapping[str, Sequence[Seen]],
        scale: Mapping[str, float] | None = None,
    ) -> None:
        self._endpoints, self._because, self._seen = endpoints, because or _NOT_REPORTED, seen
        self._scale = scale or {}
        self.fields: dict[str, Any] = {}
        self.unseen: dict[str, Unseen] = {}

    def fill_states(self, targets: Collection[str]) -> None:
        """What the sockets say by themselves."""
        ends = self._endpoints
        number = {end: float(round(len(found) * self._scale.get(end, 1.0))) for end, found in ends.items()}
        self._put("connections", dict.fromkeys(targets, 0.0) | number)
        some = {end: float(len(found)) for end, found in ends.items() if self._scale.get(end, 1.0) > 1}
        self._put("followed", some)
        self._put(
            "unread_bytes", self._scaled({end: float(sum(s.rqueue for s in found)) for end, found in ends.items()})
        )
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
        ahead = {end: sum(each.pipelined for each in found) for end, found in self._seen.items()}
        self._put("pipelined_ratio", {end: n / len(groups[end]) if groups[end] else None for end, n in ahead.items()})
        left = {end: sum(each.exchange.untaken for each in found) for end, found in self._seen.items()}
        self._put("untaken_ratio", {end: n / len(groups[end]) if groups[end] else None for end, n in left.items()})
        unheard = {end: sum(each.unheard for each in found) for end, found in self._seen.items()}
        self.fields["unheard"] = {end: number / len(groups[end]) for end, number in unheard.items() if number}
        waited = {end: {key_of(s.socket): s for s in found if s.exchange.waited} for end, found in self._seen.items()}
        self._put(
            "waiters", self._scaled({end: float(len(found)) if groups[end] else None for end, found in waited.items()})
        )
        busy = {end: sum(s.exchange.busy for s in found.values()) for end, found in waited.items()}
        self._put(
            "busy_waiters", self._scaled({end: float(number) if groups[end] else None for end, number in busy.items()})
        )
        waits = {end: _mean_wait(found) for end, found in self._seen.items()}
        self.fields["waiting_seconds"] = {end: wait for end, wait in waits.items() if wait is not None}
        if "waiting_ratio" in self.unseen:
            self._absent(("waiting_seconds",), self._because)

    def fill_closed(self, closed: Mapping[str, float], because: Unseen | None) -> None:
        """What this side closed within the last minute, by endpoint."""
        if because is not None:
            self._absent(("closed_per_second",), because)
            return
        known = {end: closed.get(end, 0) / TIME_WAIT_SECONDS for end in {*self._endpoints, *closed}}
        self._put("closed_per_second", known)

    def fill_fleeting(self, fleeting: Mapping[str, int], seconds: float, most: float | None) -> None:
        """Those that began within ``seconds`` and went at once; 0 when there were not three samples.  ``most``: so many were begun a second, where that is known.

        One that a sample happens to meet in a tenth of a second would be ten a second.
        """
        if seconds <= 0:
            self._absent(("fleeting_per_second",), _TOO_FEW)
            return
        known = {end: fleeting.get(end, 0) / seconds for end in {*self._seen, *fleeting}}
        told = {end: value and min(value, inf if most is None else most) for end, value in self._scaled(known).items()}
        self._put("fleeting_per_second", told)

    def fill_growth(self, before: Sample | None, sample: Sample) -> None:
        """What changed since the sample before."""
        if before is None:
            self._absent((*_RATES, "request_bytes", "reply_bytes", "retransmits"), FIRST)
            return
        new, most = {}, {}
        totals: dict[str, dict[str, float | None]] = {name: {} for name in _TOTALS}
        for end, found in self._endpoints.items():
            made, gained = zip(*map(before.growth, found), strict=True)
            new[end] = sum(made)
            for name, of in totals.items():
                of[end] = _sum(gained, name)
            most[end] = max((each["sent"] for each in gained if "sent" in each), default=None)
        sent, acked, again, back, received = (self._scaled(of) for of in totals.values())
        self._put("retransmits", again)
        self._put("request_bytes", {end: _quotient(acked[end], sent[end]) for end in sent}, _NOTHING_SENT)
        self._put("reply_bytes", {end: _quotient(received[end], back[end]) for end in back}, _NOTHING_CAME)
        seconds = sample.taken - before.taken
        if seconds <= 0:
            self._absent(_RATES, _STILL)
            return
        self._put("round_trips_per_second", {end: _quotient(count, seconds) for end, count in sent.items()})
        self._put("replies_per_second", {end: _quotient(count, seconds) for end, count in back.items()})
        self._put("busiest_round_trips_per_second", {end: _quotient(count, seconds) for end, count in most.items()})
        self._put("new_connections_per_second", self._scaled({end: count / seconds for end, count in new.items()}))
        if missing := sample.missing or before.missing:
            self._absent(("new_connections_per_second",), Unseen(missing, Code.PARTIAL))

    def _scaled(self, values: Mapping[str, float | None]) -> dict[str, float | None]:
        """What the followed connections add up to, as that of all of them."""
        return {end: value and value * self._scale.get(end, 1.0) for end, value in values.items()}

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
    """Segments with data sent, bytes acknowledged (less the handshake's one), segments sent again, segments with data received, their bytes: what is reported."""
    info = found.info
    totals = {
        "sent": info.data_segs_out, "acked": info.bytes_acked and info.bytes_acked - 1, "again": info.retransmits,
        "back": info.data_segs_in, "received": info.bytes_received,
    }  # fmt: skip
    return {name: total for name, total in totals.items() if total is not None}


def _sum(gained: Iterable[Mapping[str, float]], name: str) -> float | None:
    known = [each[name] for each in gained if name in each]
    return sum(known) if known else None


def _quotient(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None
