"""`python -m tests.lab.round_trips`: how far the parts of a round trip that the agent tells are from the true ones.

Cells are quota x delay x sleep on the server x TLS. In each, a client under the quota makes round trips as
PostgresProbe does; PostgreSQL and the way to it (route_delay.py) stand outside of the quota. What is taken for
true, and why, stands in trip_score.py.

A busy process runs in the client's group, as an app does beside the agent: alone, a client that needs a
millisecond per trip never meets a quota. At 5 % both live on one slice of 5 ms per period, and who gets it is
luck, as it is in a container. It is a process and no thread of the client's, because there the interpreter's lock would
hold the client up, and no quota. Without a quota the client is alone: a busy neighbour on two cores would make contention.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, Self

from tests.lab import Unavailable, campaign, loads
from tests.lab.__main__ import TRIES, complain, revision
from tests.lab.places import REPOSITORY
from tests.lab.postgres import PostgresServer, installations
from tests.lab.process import Running
from tests.lab.quota import CpuGroup
from tests.lab.route_delay import RouteDelay
from tests.lab.score import SPOILT_SHARE
from tests.lab.trip_score import CELLS, Cell, page, truth, worst
from tests.lab.witness import stolen_seconds

NAME = "round-trips"
#: Until the busy process has met its quota.
MET_PERIODS, MET_SECONDS = 3, 10.0
#: Most that a start, and a trip, can take.
START_SECONDS, TRIP_SECONDS = 60.0, 5.0


class Bench:
    """One server, one way, one client. Entering raises Unavailable where one of them cannot be had."""

    def __init__(self, trips: int) -> None:
        self.seconds = START_SECONDS + trips * TRIP_SECONDS
        self.trips = trips
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        debian = [each for each in installations() if each.is_relative_to("/usr/lib/postgresql")]
        if not debian:
            raise Unavailable("needs a PostgreSQL that has TLS: apt-get install postgresql")
        with ExitStack() as stack:
            self.server = stack.enter_context(PostgresServer(debian[0], certificate="valid"))
            self.route = stack.enter_context(RouteDelay(prompt=True))
            self.group = stack.enter_context(CpuGroup("trips"))
            words = [sys.executable, "-m", "tests.lab.trip_client"]
            self.client = stack.enter_context(
                Running(words, group=self.group, cwd=REPOSITORY, tell=True, timeout=self.seconds)
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, cell: Cell) -> dict[str, Any]:
        """The record of one cell, as trip_score.py wants it."""
        self.route.set_delay(cell.rtt / 2)
        dsn = self.server.dsn(host=self.route.address, sslmode="require" if cell.tls else "disable")
        want = {"dsn": dsn, "operation": cell.operation, "trips": self.trips, "seed": cell.id}
        self.client.tell(json.dumps(want))
        self._answer("ready")
        with ExitStack() as stack:
            if cell.quota is not None:
                words = loads.command("busy", seconds=self.seconds)
                stack.enter_context(Running(words, group=self.group)).wait_for('"load"')
                stack.callback(self.group.set_quota, None)
                self.group.set_quota(cell.quota)
                self._meet_the_quota()
            self.route.packets()
            before, start, stolen = self.group.stat(), time.monotonic(), stolen_seconds()
            self.client.tell("go")
            seen = self._answer("trips")
            after, seconds = self.group.stat(), time.monotonic() - start
        packets = self.route.packets()
        periods = after["nr_periods"] - before["nr_periods"]
        return {
            "cell": asdict(cell), "id": cell.id, "seconds": seconds,
            "throttled_periods": (after["nr_throttled"] - before["nr_throttled"]) / periods if periods else 0.0,
            "stolen": (stolen_seconds() - stolen) / seconds / (os.cpu_count() or 1),
            "trips": [{**each, "true": truth(each["trip"], packets)} for each in seen],
        }  # fmt: skip

    def _answer(self, key: str) -> Any:
        for record in self.client.records():
            if key in record:
                return record[key]
        raise RuntimeError(f"the client ended: {self.client.tail()}")

    def _meet_the_quota(self) -> None:
        begin = self.group.stat()["nr_throttled"]
        deadline = time.monotonic() + MET_SECONDS
        while self.group.stat()["nr_throttled"] < begin + MET_PERIODS:
            if time.monotonic() > deadline:
                raise Unavailable(f"a busy process did not meet its quota within {MET_SECONDS:g} s")
            time.sleep(0.02)


def measure(cells: Sequence[Cell], trips: int, records: list[dict[str, Any]]) -> None:
    """Add a record for each cell, keep it at once. The order is mixed: a bad spell of the machine hits no row alone."""
    commit = revision()
    with Bench(trips) as bench:
        for cell in random.Random(len(cells)).sample(cells, len(cells)):
            for _ in range(TRIES):
                record = {**bench.run(cell), "commit": commit, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
                if record["stolen"] <= SPOILT_SHARE:
                    break
            records.append(record)
            with campaign.records_of(NAME).open("a") as file:
                file.write(json.dumps(record) + "\n")
            complain(f"{len(records)}/{len(cells)} {cell.id}: {record['seconds']:.1f} s, {worst(record)}")


def main() -> int:
    """Exit status 1 where it cannot be measured."""
    parser = campaign.parser("round_trips", "breakdown error against truth")
    parser.add_argument("--trips", type=int, default=20, metavar="N", help="of each cell; default 20")
    options = parser.parse_args()
    if options.trips < 1:
        parser.error(f"--trips: {options.trips} is too few, at least 1 is wanted")
    return campaign.run(options, CELLS, lambda cells, records: measure(cells, options.trips, records), page, NAME)


if __name__ == "__main__":
    sys.exit(main())
