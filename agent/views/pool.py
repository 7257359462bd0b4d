"""What a minute of samples says of one connection pool, and what the kernel saw of its connections meanwhile.

*Mean wait.*  Libraries count the time of a wait when it is over.  While hardly anybody gets a connection only those who
wait now show it: by Little's law their mean number is the rate of acquires times the mean wait.  The samples are few, so that
counts only where it says more than ``UNFINISHED`` times as much as the counter.  Where only those that had to wait are counted,
and no time of any wait was, these may have begun and not ended (database/sql counts them as they begin): how long is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.history import History
from agent.report import Evidence
from agent.views.connections import may_end_unanswered
from probes.app.pool import PoolReading
from probes.averages import fmean, median
from probes.record import dataclass
from probes.sockets.connections import ConnectionsReading

UNFINISHED = 2.0


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool.  Numbers by sample are keyed by the sample's place; samples without that number are left out."""

    name: str
    library: str
    samples: int
    size: Mapping[int, float]
    checked_out: Mapping[int, float]
    waiting: Mapping[int, float]
    #: Mean seconds for a connection: of all acquires, or of those that waited.  ``None`` while there was none, and while
    #: none of these waits is over.
    mean_wait: float | None
    of_waits: bool
    #: Who waits at any moment: sampled, or the seconds that were waited, per second; ``None`` where neither is told.
    mean_waiting: float | None
    gave_up: float
    #: Median seconds in which the app answered for its page; ``None`` where no page tells of this pool.
    page_seconds: float | None

    def full(self, share: float) -> set[int]:
        """The samples in which at least this share of the connections was checked out."""
        return {at for at, size in self.size.items() if self.checked_out.get(at, 0.0) >= share * size}

    def waited(self) -> set[int]:
        """The samples in which somebody waited."""
        return {at for at, number in self.waiting.items() if number > 0}

    def numbers(self) -> str:
        """The numbers of the view in a few words."""
        said = []
        if self.checked_out:
            of_size = f" of {median(self.size.values()):g}" if self.size else ""
            said.append(f"{median(self.checked_out.values()):g}{of_size} checked out")
        if self.waiting:
            said.append(f"{max(self.waiting.values()):g} waiting")
        if self.mean_wait is not None:
            milliseconds = 1e3 * self.mean_wait
            said.append(f"{milliseconds:.{0 if milliseconds >= 10 else 1}f} ms mean wait")
            said[-1] += " of those that waited" if self.of_waits else ""
        return ", ".join(said)


def view(readings: Sequence[PoolReading], pool: str) -> PoolView:
    """Put the samples of one pool together."""
    samples = [r for r in readings if pool in r.libraries]

    def values_of(field: str) -> dict[int, float]:
        by_sample: list[Mapping[str, float]] = [getattr(r, field) or {} for r in samples]
        return {at: numbers[pool] for at, numbers in enumerate(by_sample) if pool in numbers}

    waiting, acquires, spent = values_of("waiting"), values_of("acquires"), values_of("wait_seconds")
    number, over, standing = sum((acquires or values_of("waits")).values()), sum(spent.values()), 0.0
    if acquires and waiting:  # who waits now is one of those that asked, whether or not somebody was served
        number = max(number, *waiting.values())
        standing = sum(waiting[at] * samples[at].seconds for at in waiting)
    answered = [r.page_seconds for r in samples if r.page_seconds is not None]
    known = number > 0 and (over > 0 or (acquires and (spent or waiting)))
    waited = standing if standing > UNFINISHED * over else over
    return PoolView(
        name=pool,
        library=samples[-1].libraries[pool] if samples else "",
        samples=len(samples),
        size=values_of("size"),
        checked_out=values_of("checked_out"),
        waiting=waiting,
        mean_wait=waited / number if known else None,
        of_waits=not acquires,
        mean_waiting=_mean_waiting(waiting, sum(spent.values()) if spent else None, sum(r.seconds for r in samples)),
        gave_up=sum(values_of("timeouts").values()),
        page_seconds=median(answered) if answered else None,
    )


def _mean_waiting(sampled: Mapping[int, float], waited: float | None, seconds: float) -> float | None:
    known = [fmean(sampled.values())] if sampled else []
    if waited is not None and seconds > 0:
        known.append(waited / seconds)
    return max(known, default=None)


def holders(history: History, seconds: float) -> Evidence | None:
    """What the app's connections did, as the kernel saw it; ``None`` where it cannot be seen, or who waits cannot.

    Those to the endpoint with the most of them: whose pool it is nobody tells.  The waiting share is a lower bound:
    in a pool that is used up the next question follows the reply within a tick of the kernel's clock, and looks idle
    (:mod:`probes.sockets.classify`).  So nothing is said of those that look idle.
    """
    samples = [r for r in history.window(ConnectionsReading, seconds) if r.connections and r.unread_ratio]
    count: dict[str, float] = {}
    for reading in samples:
        for remote, number in (reading.connections or {}).items():
            count[remote] = count.get(remote, 0.0) + number
    most = max(count, key=count.__getitem__, default="")
    if not count.get(most) or may_end_unanswered(history, most):
        return None

    def share(field: str) -> float:
        shares: list[Mapping[str, float]] = [getattr(r, field) or {} for r in samples]
        each = (r.connections or {} for r in samples)
        return sum(s.get(most, 0.0) * n.get(most, 0.0) for s, n in zip(shares, each, strict=True)) / count[most]

    waiting, unread = share("waiting_ratio"), share("unread_ratio")
    return Evidence(
        f"meanwhile at least {waiting:.0%} of its connections to {most} waited for the other side, {unread:.0%} held a "
        "reply that nobody read; of the rest the wire does not say whether the app holds them",
        waiting,
        "ratio",
    )
