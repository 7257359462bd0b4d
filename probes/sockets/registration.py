"""The settings, cadence and cost of watching the app's connections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

from probes.host.platform import in_gvisor
from probes.reading import Stability
from probes.registration import Context, Planned, Registration
from probes.section import AfterValidator, Field, Section
from probes.sockets.connections import ConnectionsProbe, ConnectionsReading
from probes.sockets.services import DEFAULT_PORTS, SERVICES

MOST_PORT = 65535
#: Samples of the connections in one slot: their share of a minute rests on six times as many.
SAMPLES_PER_SLOT = 3
#: CPU of one slot with a thousand other sockets beside ten watched ones (measured).
CPU_SECONDS = 2e-3
#: More, of what there is: for each sample, which may walk through the kernel's whole table of sockets; for each connection that is
#: watched; and for each endpoint with its share of the report (docs/evidence/lightness.md).
SAMPLE_CPU_SECONDS, CONNECTION_CPU_SECONDS, ENDPOINT_CPU_SECONDS = 3e-3, 4e-6, 0.3e-3
#: Upper bound of one reading: 33 endpoints (measured: 42575).
READING_BYTES = 44_000


def _services(services: dict[str, str]) -> dict[str, str]:
    for port, service in services.items():
        if not port.isascii() or not port.isdigit() or len(port) > 5 or not 1 <= int(port) <= MOST_PORT:
            raise ValueError(f"{port!r} is no port: a number of 1 to {MOST_PORT}")
        if service not in SERVICES:
            raise ValueError(f"{service!r} is no known service for port {port}: {', '.join(SERVICES)}")
    return services


class Connections(Section):
    """The app's own connections, seen from the shared network namespace without any credential."""

    stability: ClassVar[Stability] = "stable"
    otherwise: ClassVar[Mapping[str, Stability]] = {"services": "beta"}

    ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = Field(
        DEFAULT_PORTS,
        max_length=32,
        description="Remote ports that are watched; an empty list: off. Those of services that wait by design (9092, 443) are told and not judged.",
    )
    services: Annotated[dict[str, str], AfterValidator(_services)] = Field(
        {},
        max_length=16,
        description=f"Port to the service at it where that is not its usual one, such as 16379 to redis; watched too. Known: {', '.join(SERVICES)}.",
    )
    every_seconds: float = Field(10.0, ge=1, le=300, description="Time between two slots.")


def probes(context: Context) -> Iterator[Planned]:
    """One, when any port is to be watched."""
    settings = context.settings(Connections)
    if settings.ports or settings.services:
        yield Planned(
            make=lambda: _make(context),
            every=settings.every_seconds,
            cpu_seconds=CPU_SECONDS,
            growing=lambda: _more_cpu_seconds(context.latest(ConnectionsReading)),
            history_bytes=READING_BYTES,
        )


REGISTRATION = Registration(probes, readings=(ConnectionsReading,))


def _more_cpu_seconds(seen: ConnectionsReading | None) -> float:
    """Of a slot that meets what this one met."""
    if seen is None or not seen.connections:
        return 0.0
    number, ends = sum(seen.connections.values()), len(seen.connections)
    return SAMPLE_CPU_SECONDS * seen.samples + CONNECTION_CPU_SECONDS * number + ENDPOINT_CPU_SECONDS * ends


def _make(context: Context) -> ConnectionsProbe:
    settings = context.settings(Connections)
    probe = ConnectionsProbe(
        settings.ports,
        services={int(port): service for port, service in settings.services.items()},
        gvisor=lambda: in_gvisor(context),
        samples=SAMPLES_PER_SLOT,
        own=context.own_connections,
    )
    context.socket_inodes.let(probe.inodes)
    # The app's connections to a configured database go by its name.
    context.on_databases.append(probe.watch)
    return probe


def app_is_answered(context: Context, target: str, since: float) -> bool:
    """Whether a look at the app's connections after this monotonic instant has seen data of this target."""
    seen = context.latest(ConnectionsReading)
    return seen is not None and seen.taken > since and (seen.replies_per_second or {}).get(target, 0.0) > 0
