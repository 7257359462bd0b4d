"""The probes of the places where log entries wait, and of the way to the log service, made from the settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from agent.leader import leads
from agent.settings import Config
from probes.backlog import BacklogReading
from probes.cloud_api import CloudApi
from probes.collector_names import ROWS, own_row
from probes.collector_page import CollectorPage
from probes.deleted_files import DeletedFiles
from probes.hook_socket import parse_place
from probes.log_backing import Backings
from probes.log_collectors import CollectorProbe
from probes.log_delivery import LogDeliveryProbe
from probes.log_files import FilesProbe
from probes.log_pipe import PipeProbe
from probes.log_queues import HooksProbe
from probes.reading import Probe
from probes.requests import InFlight

#: What loading the library and finding the credentials may take beside the two calls, on a small CPU.
FIRST_CALL_SECONDS = 30.0


def cloud_api(config: Config) -> CloudApi:
    """A way to the log service; nothing is loaded or connected yet."""
    cloud = config.cloud_logging
    return CloudApi(cloud.project, cloud.endpoint, timeout=cloud.timeout_seconds)


def delivery_probe(config: Config, environ: Mapping[str, str]) -> tuple[LogDeliveryProbe, float] | None:
    """The probe and its time-out, None where nothing is to be asked or another instance does."""
    delivery = config.log_delivery
    if not delivery.wanted or (leader := leads(delivery.leader, environ)) is None:
        return None
    probe = LogDeliveryProbe(
        cloud_api(config), look_at=delivery.log_names, query=delivery.filter, look_every=delivery.every_seconds,
        canary_log=delivery.canary_log, canary_every=delivery.canary_every_seconds, leads=leader,
    )  # fmt: skip
    return probe, 2 * config.cloud_logging.timeout_seconds + FIRST_CALL_SECONDS


def log_probes(
    config: Config,
    in_flight: InFlight,
    pids: Callable[[], Collection[int]],
    *,
    gvisor: Callable[[], bool],
    environ: Mapping[str, str],
    root: Path,
) -> Iterator[tuple[Probe[BacklogReading], float | None]]:
    """Each with its time-out, None for the usual one.  ``pids`` gives the app's processes."""
    logs = config.logs
    backings = Backings(gvisor=gvisor, environ=environ)
    if config.watches_output:
        yield PipeProbe(pids, backings=backings, root=root), None
    deleted = DeletedFiles(root=root)
    for name, pattern in logs.files.items():
        yield FilesProbe(name, pattern, backings=backings, deleted=deleted), None
    if logs.hook_listen:
        yield HooksProbe([parse_place(place) for place in logs.hook_listen], in_flight, root=root), None
    rows = [*ROWS, *([own_row(logs.names, logs.label)] if logs.names else [])]
    for name, url in logs.metrics_urls.items():
        page = CollectorPage(rows, logs.medium)
        yield CollectorProbe(name, url, page, timeout=logs.timeout_seconds), logs.timeout_seconds + 1
