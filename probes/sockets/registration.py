"""The settings, cadence and cost of watching the app's connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from probes.host.platform import in_gvisor
from probes.registration import Context, Planned, Registration
from probes.section import Section
from probes.sockets.connections import ConnectionsProbe, ConnectionsReading

#: Samples of the connections in one slot: their share of a minute rests on six times as many.
SAMPLES_PER_SLOT = 3
#: CPU of one slot with a thousand other sockets beside ten watched ones (measured).
CPU_SECONDS = 2e-3
#: Upper bound of one reading: 33 endpoints (measured: 34400).
READING_BYTES = 36_000


class Connections(Section):
    """The app's own connections, seen from the shared network namespace without any credential."""

    ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = Field(
        (5432,), max_length=32, description="Remote ports that are watched, such as 5432, 6379, 3306; none: off."
    )
    every_seconds: float = Field(10.0, ge=1, le=300, description="Time between two slots.")


def probes(context: Context) -> Iterator[Planned]:
    """One, when any port is to be watched."""
    settings = context.settings(Connections)
    if settings.ports:
        yield Planned(
            make=lambda: _make(context),
            every=settings.every_seconds,
            cpu_seconds=CPU_SECONDS,
            history_bytes=READING_BYTES,
        )


REGISTRATION = Registration(probes, readings=(ConnectionsReading,))


def _make(context: Context) -> ConnectionsProbe:
    probe = ConnectionsProbe(
        context.settings(Connections).ports, gvisor=lambda: in_gvisor(context), samples=SAMPLES_PER_SLOT
    )
    context.socket_inodes.let(probe.inodes)
    # The app's connections to a configured database go by its name.
    context.on_databases.append(probe.watch)
    return probe
