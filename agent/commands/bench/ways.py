"""How far a server is, and what opening a connection takes, over each way, while nothing else runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from agent.commands.bench.options import Script
from agent.commands.bench.programs import Program
from agent.commands.bench.runner import run, words_of
from agent.commands.bench.statistics import percentiles
from agent.commands.bench.target import BENCH, Target
from probes.postgres.connect import PHASES, connect
from probes.store.failures import LinkFailed

_ONE = Script("select1", "SELECT 1;\n", 1)
#: Connections that are opened one after the other; of each phase the median counts.
OPENINGS = 5


@dataclass(frozen=True, slots=True)
class Way:
    """One way; seconds."""

    way: str
    tls: str
    round_trip_seconds: float
    """A quick round trip of SELECT 1 (10th percentile) without the client's own CPU."""
    phases: dict[str, float]
    """Of opening a connection."""

    def as_json(self) -> dict[str, object]:
        """As it stands in a result."""
        return asdict(self)


async def measure_way(
    target: Target, program: Program, scratch: Path, way: str, tls: str, settings: Mapping[str, str]
) -> Way:
    """One second of SELECT 1 by one client, and some openings.  Raises RunFailed where this way is barred."""
    words = words_of(program.file, _ONE, scratch, clients=1, mode="pooled", seconds=1, scale=1, log=True)
    found = await run(words, target.environment(way, tls, None, settings=settings), scratch, seconds=1, clients=1)
    quick = percentiles(found.log.latencies or [0.0], (0.1,))[0]
    ours = found.cpu_seconds / max(1, found.log.transactions)
    return Way(way, tls, max(0.0, quick - min(ours, quick / 2)), await _phases(target, way, tls))


async def _phases(target: Target, way: str, tls: str) -> dict[str, float]:
    from psycopg.conninfo import make_conninfo  # noqa: PLC0415 - loaded with the connection

    seen = []
    for _ in range(OPENINGS):
        try:
            link = await connect(make_conninfo(**target.keywords(way, tls, None, BENCH)), application=BENCH, options="")
        except LinkFailed:
            break
        seen.append(dict(link.phases))
        link.close()
    return {phase: median(each[phase] for each in seen) for phase in PHASES} if seen else {}
