"""What is measured.  One file per probe; its Reading type stands beside it.

``READINGS`` lists every reading type, so that an exporter can declare all series before the first
measurement.  Registering a probe is one line here and one in ``agent.app``, which gives it its settings.
"""

from __future__ import annotations

from probes.backlog import BacklogReading
from probes.cgroup import CgroupReading
from probes.connections import ConnectionsReading
from probes.log_delivery import LogDeliveryReading
from probes.platform import PlatformReading
from probes.pool import PoolReading
from probes.postgres import PostgresReading
from probes.postgres_server import PostgresServerReading
from probes.processes import ProcessesReading
from probes.reading import Reading
from probes.requests import RequestsReading
from probes.suspension import SuspensionReading

READINGS: tuple[type[Reading], ...] = (
    SuspensionReading,
    CgroupReading,
    PlatformReading,
    RequestsReading,
    PostgresReading,
    PostgresServerReading,
    ConnectionsReading,
    PoolReading,
    ProcessesReading,
    BacklogReading,
    LogDeliveryReading,
)
