"""What is measured.  One file per probe; its Reading type stands beside it.

Registering a probe is one line here: the module that holds its ``REGISTRATION`` (docs/adding-a-probe.md).  ``READINGS``
lists every reading type, so that an exporter can declare all series before the first measurement.
"""

from __future__ import annotations

from collections.abc import Iterator

from probes.reading import Reading
from probes.registration import Context, Planned, Registration, load

REGISTERED: tuple[Registration, ...] = load(
    __name__,
    "cpu.registration",
    "host.registration",
    "app.requests",
    "postgres.registration",
    "redis.registration",
    "sockets.registration",
    "sockets.unix",
    "sockets.listening",
    "app.pool",
    "app.processes",
    "app.app_cgroup",
    "app.runtime",
    "logs.registration",
    "hooks.probe",
    "names.probe",
    "hooks.in_app",
)

READINGS: tuple[type[Reading], ...] = tuple(dict.fromkeys(kind for each in REGISTERED for kind in each.readings))


def planned(context: Context) -> Iterator[Planned]:
    """Every probe that these settings ask for, in the order of registration."""
    for each in REGISTERED:
        yield from each.probes(context)
