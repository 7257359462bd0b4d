"""The settings, cadence and cost of the probes of configured databases."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, ClassVar

from probes.host.platform import trust_of
from probes.postgres.dsn import hosts
from probes.postgres.probe import PostgresProbe, PostgresReading
from probes.postgres.server import PostgresServerProbe, PostgresServerReading
from probes.reading import Stability
from probes.registration import Context, Planned, Registration
from probes.section import AfterValidator, Field, Preset, Section, named
from probes.sockets.registration import app_is_answered
from probes.store.place import is_place, secret_from

#: CPU of one slot (three round trips; with all that belongs to it docs/evidence/bench.md has 4 to 6 ms), and of opening a connection with TLS and SCRAM (measured).
CPU_SECONDS = 4e-3
CONNECT_CPU_SECONDS = 10e-3
#: Upper bound of the readings of one database from both sides (measured: 2900 and 4000).
READING_BYTES = 8_000


def _targets(targets: dict[str, str]) -> dict[str, str]:
    for name, place in named(targets).items():
        if not is_place(place):
            raise ValueError(f"{name} must be env:VARIABLE or file:PATH, where the DSN is; never the DSN itself")
    return targets


class Postgres(Section):
    """The databases whose round trip is taken apart."""

    stability: ClassVar[Stability] = "stable"

    targets: Annotated[dict[str, str], AfterValidator(_targets)] = Field(
        {}, max_length=16, description="Name to where its DSN is: env:VARIABLE or file:PATH."
    )
    every_seconds: float = Field(10.0, ge=2, le=300, description="Time between two slots of one database.")
    timeout_seconds: float = Field(5.0, ge=0.5, le=30, description="Time-out of a slot; the server's is four fifths.")
    rows: int = Field(500, ge=1, le=10000, description="Rows of the bulk operation, 200 bytes each.")
    server_view: bool = Field(True, description="Ask the server about its sessions, locks and limits too.")
    connect_every_seconds: float = Field(
        60.0,
        ge=10,
        le=3600,
        description="Time between two new connections; longer where slots come further apart, as in quiet times.",
    )

    def for_doctor(self) -> Preset:
        """A slot must end before the next one."""
        return {"every_seconds": 2.0, "timeout_seconds": min(1.5, self.timeout_seconds)}


def probes(context: Context) -> Iterator[Planned]:
    """Of each database the round trip and, unless that is not wanted, the server's view on the same connection."""
    for target, place in context.settings(Postgres).targets.items():
        context.host_names.append(partial(hosts, secret_from(place, context.environ)))
        yield from _of_one(context, target)


def _of_one(context: Context, target: str) -> Iterator[Planned]:
    settings = context.settings(Postgres)
    database = PostgresProbe(
        target, secret_from(settings.targets[target], context.environ), rows=settings.rows, timeout=settings.timeout_seconds,
        connect_every=settings.connect_every_seconds, every=settings.every_seconds,
        believe_cpu=lambda: trust_of(context).get("thread_cpu_time") is True,
        app_is_answered=lambda since: app_is_answered(context, target, since), on_peer=context.found_database, own=context.own_connections,
    )  # fmt: skip
    yield Planned(
        make=lambda: database,
        every=settings.every_seconds,
        timeout=settings.timeout_seconds + 1,
        cpu_seconds=CPU_SECONDS + CONNECT_CPU_SECONDS * settings.every_seconds / settings.connect_every_seconds,
        history_bytes=READING_BYTES,
    )
    if settings.server_view:
        yield Planned(
            make=lambda: PostgresServerProbe(database),
            every=settings.every_seconds,
            timeout=2 * settings.timeout_seconds + 1,
            cpu_seconds=0.0,
            history_bytes=0,
        )


REGISTRATION = Registration(probes, readings=(PostgresReading, PostgresServerReading))
