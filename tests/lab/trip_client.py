"""The client of tests.lab.round_trips: asks a server as PostgresProbe does, and tells all that it saw of each trip.

It is started without a quota and connects without one, because at 5 % its imports alone take half a minute; the
quota comes before `go`. Trips are apart by random times, as slots are: one that follows the other at once
begins at the same moment of each quota period. It tells nothing before the last one, because telling costs CPU too.

One line of JSON on standard input, `{"dsn": ..., "operation": ..., "trips": ..., "seed": ...}`, is answered with
`{"ready": ...}` when the connection stands and one trip was made; then any line with `{"trips": [...]}`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from dataclasses import asdict
from typing import Any

from probes.postgres.connect import connect
from probes.postgres.link import Link
from probes.postgres.sql import APPLICATION
from probes.store.round_trip import RunDelay, split

#: No divisor of the 100 ms quota period lies in between.
PAUSE_SECONDS = (0.03, 0.17)
#: Far above any trip: the way may have gone with a killed harness, and then no answer ever comes.
TIMEOUT_SECONDS = 15.0
OPTIONS = "-c default_transaction_read_only=on -c statement_timeout=4000"


async def trips(link: Link, operation: str, count: int, draw: random.Random) -> list[dict[str, Any]]:
    """Each trip as it was seen (`trip`) and taken apart (`told`); seconds."""
    run_delay = RunDelay()
    found = []
    for _ in range(count):
        async with asyncio.timeout(TIMEOUT_SECONDS):
            trip = await link.ask(operation, run_delay)
        found.append({"trip": asdict(trip), "told": asdict(split(trip, link.least_rtt)), "least_rtt": link.least_rtt})
        await asyncio.sleep(draw.uniform(*PAUSE_SECONDS))
    return found


def main() -> None:
    """Until the standard input ends."""
    with asyncio.Runner() as runner:
        while line := sys.stdin.readline():
            want = json.loads(line)
            draw = random.Random(want["seed"])
            link = runner.run(connect(want["dsn"], application=APPLICATION, options=OPTIONS))
            # The first trip may come without arrivals: the kernel begins to note them when it is first asked.
            runner.run(trips(link, want["operation"], 1, draw))
            _say(ready=dict(link.phases))
            if not sys.stdin.readline():
                return
            _say(trips=runner.run(trips(link, want["operation"], want["trips"], draw)))
            link.close()


def _say(**record: Any) -> None:
    unsaid = (json.dumps(record) + "\n").encode()
    while unsaid:
        unsaid = unsaid[os.write(1, unsaid) :]


if __name__ == "__main__":
    main()
