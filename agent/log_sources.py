"""The probes of the places where log entries wait, made from the settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from agent.settings import Config
from probes.backlog import BacklogReading
from probes.collector_names import ROWS, own_row
from probes.collector_page import CollectorPage
from probes.deleted_files import DeletedFiles
from probes.hook_socket import parse_place
from probes.log_backing import Backings
from probes.log_collectors import CollectorProbe
from probes.log_files import FilesProbe
from probes.log_pipe import PipeProbe
from probes.log_queues import HooksProbe
from probes.reading import Probe
from probes.requests import InFlight


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
