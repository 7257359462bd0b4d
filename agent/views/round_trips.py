"""The agent's own round trips to each server that it asks over a span: mean parts that add up to the wall time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from agent.history import History, once
from probes.averages import median
from probes.postgres.probe import PostgresReading
from probes.record import dataclass
from probes.redis.reading import RedisReading
from probes.sockets.services import SERVICES, Service
from probes.store.probe import StoreReading
from probes.store.round_trip import PARTS

#: Every kind of server that is asked, by its reading.
HELD_SECONDS: Final = 0.01
"""A peer under a CPU limit may not run for a period, usually 100 ms: a question of so much longer than the quickest one met that."""
UNEVEN: Final = 0.5
"""Distance is constant, a server without CPU is not: quick ones take less than so much of the median."""
LEAST_TRIPS: Final = 3
"""Whether they are steady takes so many."""
FAR_SECONDS: Final = 0.005
"""A way from which a hundred questions one after another lose half a second."""
EVEN: Final = 0.6
"""Of distance the shortest time is at least so much of the median."""
LATEST: Final = 4
"""By so many the way is told: of a change, the old one is forgotten after that."""
KNOWN_SECONDS: Final = 300.0
"""How quick a peer can be is known from so long: a minute in which it is starved may have no quick answer."""
STORES: Final[Mapping[type[StoreReading], Service]] = {
    PostgresReading: SERVICES["postgres"],
    RedisReading: SERVICES["redis"],
}


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """Mean seconds of one operation's parts over a span; they sum to ``wall``."""

    wall: float
    network: float
    server: float
    suspended: float
    client: float
    unknown: float
    count: int
    #: Times outside of this machine, network and server together, in their order.
    aways: tuple[float, ...]
    #: Of them on the network.
    networks: tuple[float, ...]

    @property
    def least_network(self) -> float:
        """The shortest time on the network: distance, without what a busy server adds before its clock runs."""
        return min(self.networks)

    @property
    def usual_network(self) -> float:
        """Its median: a pause of either side that hits one question is no distance."""
        return median(self.networks)

    @property
    def least_away(self) -> float:
        """The shortest time outside of this machine."""
        return min(self.aways)

    @property
    def usual_away(self) -> float:
        """Its median."""
        return median(self.aways)

    def held(self, least: float) -> tuple[float, ...]:
        """Of the questions that a peer without CPU made wait the seconds above ``least``, which a quick one takes."""
        return tuple(away - least for away in self.aways if away - least >= HELD_SECONDS)

    def is_uneven(self, ratio: float) -> bool:
        """Whether quick ones, below ``ratio`` of the median, stand between slow ones.

        Quick ones that all come before or after the slow ones are a change, not unevenness.
        """
        quick = [away < ratio * self.usual_away for away in self.aways]
        return any(quick) and quick != sorted(quick) and quick != sorted(quick, reverse=True)


class Way(NamedTuple):
    """What the network takes of the agent's latest questions to a server, of every kind; seconds."""

    least: float
    usual: float

    @property
    def is_far(self) -> bool:
        """Whether that is long, and always about the same."""
        return self.least >= FAR_SECONDS and self.least >= EVEN * self.usual


def asked(history: History) -> dict[str, type[StoreReading]]:
    """Every configured server that there are readings of, and of which kind."""
    return {target: kind for kind in STORES for target in history.targets(kind)}


@once
def round_trips(history: History, seconds: float, target: str, latest: int = 1000) -> dict[str, RoundTrip]:
    """The ``latest`` round trips to one server: operation -> mean parts; empty while none was answered."""
    kind = asked(history).get(target)
    readings = [r for r in history.window(kind, seconds, target) if r.up][-latest:] if kind is not None else []
    found = {}
    for operation in (readings[-1].round_trip_seconds or {}) if readings else {}:
        of_it = [r for r in readings if operation in (r.round_trip_seconds or {})]
        walls = [(r.round_trip_seconds or {})[operation] for r in of_it]
        parts = {part: [(getattr(r, f"{part}_seconds") or {}).get(operation, 0.0) for r in of_it] for part in PARTS}
        away = [a + b for a, b in zip(parts["network"], parts["server"], strict=True)]
        means = {part: sum(values) / len(values) for part, values in parts.items()}
        found[operation] = RoundTrip(
            wall=sum(walls) / len(walls),
            **means,
            count=len(walls),
            aways=tuple(away),
            networks=tuple(parts["network"]),
        )
    return found


def way(history: History, seconds: float, target: str) -> Way:
    """The way to a server and back; not far while it has not answered."""
    found = [n for each in round_trips(history, seconds, target, LATEST).values() for n in each.networks]
    return Way(min(found), median(found)) if found else Way(0.0, 0.0)


def starved(history: History, seconds: float, target: str) -> float:
    """Share of the time in which this server, or a proxy before it, cannot run, 0 to 1; 0.0 also where nothing shows it.

    The instants at which the short questions are asked have nothing to do with the peer, so the share of them that it makes wait
    is that of the time (arrivals see time averages: R. W. Wolff, "Poisson Arrivals See Time Averages", 1982).
    """
    latest, known = (round_trips(history, span, target).get("short") for span in (seconds, KNOWN_SECONDS))
    if latest is None or known is None or known.count < LEAST_TRIPS:
        return 0.0
    if not known.is_uneven(UNEVEN):
        # By its own clock it takes as long for what takes microseconds: nearly all of that it waits for a CPU.
        return 1.0 if latest.server >= HELD_SECONDS else 0.0
    return len(latest.held(known.least_away)) / latest.count
