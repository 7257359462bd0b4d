"""The settings, cadence and cost of the places where log entries wait, and of the query how late they arrive."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, ClassVar, Literal

from probes.app.processes import are_watched
from probes.gcp.cloud_logging import CALL_CPU_SECONDS, CloudLogging, log_id, open_api
from probes.hooks.listener import parse_place
from probes.host.platform import in_gvisor
from probes.logs.collector_names import ROWS, own_row
from probes.logs.collector_page import CollectorPage
from probes.logs.collectors import CollectorProbe
from probes.logs.deleted_files import DeletedFiles
from probes.logs.delivery import LogDeliveryProbe, LogDeliveryReading
from probes.logs.files import FilesProbe
from probes.logs.leader import leads, parse_leader
from probes.logs.reading import NUMBERS, BacklogReading
from probes.logs.stdout import PipeProbe
from probes.logs.storage import Backings
from probes.metrics_page.series import series
from probes.reading import Stability
from probes.registration import SLOT_CPU_SECONDS, Context, Planned, Registration
from probes.section import AfterValidator, Field, Preset, Section, http_url, named

#: CPU of one sample of the app's output, and of some hundred files (measured).
PIPE_CPU_SECONDS = 0.2e-3
FILES_CPU_SECONDS = 3e-3
#: Upper bounds of one reading with 32 queues, and with two (measured: 23500 and 3000).
QUEUES_BYTES = 28_000
STREAMS_BYTES = 4_000
#: What loading the library and finding the credentials may take beside the two calls, on a small CPU.
FIRST_CALL_SECONDS = 30.0

#: Sources of logs that have their names from us.
OWN_SOURCES = ("stdout", "hooks")


def _names(sources: dict[str, str]) -> dict[str, str]:
    for name in named(sources):
        if name in OWN_SOURCES:
            raise ValueError(f"{name!r} is the name of a source that is always there")
    return sources


def _files(files: dict[str, str]) -> dict[str, str]:
    for name, path in _names(files).items():
        if not path.startswith("/") or "**" in path or "\0" in path:
            raise ValueError(f"{name} must be an absolute path of a directory or file, with *, ? or [...], never **")
    return files


def _pages(pages: dict[str, str]) -> dict[str, str]:
    return {name: http_url(url) for name, url in _names(pages).items()}


def _series(names: dict[str, str]) -> dict[str, str]:
    for field, text in names.items():
        if field not in NUMBERS:
            raise ValueError(f"{field!r} is no number of a queue: one of {', '.join(NUMBERS)}")
        series(text)  # raises ValueError itself for what is no series
    return names


def _place(text: str) -> str:
    parse_place(text)
    return text


def _leader(text: str) -> str:
    if text:
        parse_leader(text)
    return text


class Logs(Section):
    """Where log entries wait: the app's output, files, queues that hooks and log collectors tell of."""

    stability: ClassVar[Stability] = "stable"
    doctor: ClassVar[Preset] = {"every_seconds": 2.0}

    stdout: bool = Field(True, description="Watch the standard output and error of the app's processes.")
    files: Annotated[dict[str, str], AfterValidator(_files)] = Field(
        {}, max_length=8, description="Name to a directory of log files, or to a pattern such as /var/log/app/*.log."
    )
    hook_listen: tuple[Annotated[str, AfterValidator(_place)], ...] = Field(
        ("udp:127.0.0.1:9769",),
        max_length=4,
        description="Where hooks are heard: udp:HOST:PORT (loopback only), unix:/PATH, file:/PATH; an empty list: off.",
    )
    metrics_urls: Annotated[dict[str, str], AfterValidator(_pages)] = Field(
        {}, max_length=8, description="Name to the metrics page of a log collector."
    )
    names: Annotated[dict[str, str], AfterValidator(_series)] = Field(
        {}, description="Metric names of a collector that is not known: number to series."
    )
    label: str = Field(
        "",
        pattern=r"^([a-zA-Z_][a-zA-Z0-9_]*)?$",
        description="Label that tells its queues apart; empty: the usual ones.",
    )
    medium: Literal["memory", "disk", "unknown"] = Field(
        "unknown", description="Where the queues of collectors wait whose pages do not say."
    )
    every_seconds: float = Field(10.0, ge=1, le=60, description="Time between two slots.")
    timeout_seconds: float = Field(2.0, ge=0.1, le=10, description="Time-out of one scrape.")


class LogDelivery(Section):
    """How long the app's entries take to Cloud Logging, and whether it takes one; one instance asks for a service."""

    stability: ClassVar[Stability] = "stable"

    log_names: tuple[Annotated[str, AfterValidator(log_id)], ...] = Field(
        (),
        max_length=8,
        description="Ids of the app's logs whose newest entries are looked at, such as winston_log, python; an empty list: off.",
    )
    filter: str = Field(
        "", max_length=1000, description="Further condition on these entries, in Cloud Logging's query language."
    )
    every_seconds: float = Field(300.0, ge=60, le=900, description="Time between two slots.")
    canary_log: Annotated[str, AfterValidator(log_id)] = Field(
        "", description="Id of the log that a canary entry is written to, such as stallscope-canary; empty: off."
    )
    canary_every_seconds: float = Field(60.0, ge=15, le=300, description="Time between two canaries.")
    leader: Annotated[str, AfterValidator(_leader)] = Field(
        "", description="Whether this instance asks: always, never, host:SUFFIX, env:VARIABLE, file:PATH."
    )

    @property
    def wanted(self) -> bool:
        """Whether anything is to be asked, by whichever instance."""
        return bool(self.log_names or self.canary_log)


def probes(context: Context) -> Iterator[Planned]:
    """One for each place, and one for the way to the log service."""
    yield from _output_and_files(context)
    yield from _collectors(context)
    yield from _delivery(context)


REGISTRATION = Registration(probes, readings=(BacklogReading, LogDeliveryReading))


def _output_and_files(context: Context) -> Iterator[Planned]:
    settings = context.settings(Logs)
    backings = Backings(gvisor=lambda: in_gvisor(context), environ=context.environ)
    deleted = DeletedFiles(root=context.root)
    if settings.stdout and are_watched(context):
        yield Planned(
            make=lambda: _pipe(context, backings),
            every=settings.every_seconds,
            cpu_seconds=PIPE_CPU_SECONDS * (1 + settings.every_seconds),
            history_bytes=STREAMS_BYTES,
        )
    for name, pattern in settings.files.items():
        yield Planned(
            make=partial(FilesProbe, name, pattern, backings=backings, deleted=deleted),
            every=settings.every_seconds,
            cpu_seconds=FILES_CPU_SECONDS,
            history_bytes=STREAMS_BYTES,
        )


def _pipe(context: Context, backings: Backings) -> PipeProbe:
    probe = PipeProbe(context.app_all_pids, backings=backings, root=context.root)
    context.each_second.append(probe.sample)
    return probe


def _collectors(context: Context) -> Iterator[Planned]:
    settings = context.settings(Logs)
    for name, url in settings.metrics_urls.items():
        yield Planned(
            make=partial(_collector, settings, name, url),
            every=settings.every_seconds,
            timeout=settings.timeout_seconds + 1,
            cpu_seconds=SLOT_CPU_SECONDS,
            history_bytes=QUEUES_BYTES,
        )


def _collector(settings: Logs, name: str, url: str) -> CollectorProbe:
    rows = [*ROWS, *([own_row(settings.names, settings.label)] if settings.names else [])]
    return CollectorProbe(name, url, CollectorPage(rows, settings.medium), timeout=settings.timeout_seconds)


def _delivery(context: Context) -> Iterator[Planned]:
    settings, cloud = context.settings(LogDelivery), context.settings(CloudLogging)
    if not settings.wanted:
        return
    leader = leads(settings.leader, context.environ) if settings.leader else None
    probe = LogDeliveryProbe(
        open_api(cloud), log_names=settings.log_names, query=settings.filter, query_every=settings.every_seconds,
        canary_log=settings.canary_log, canary_every=settings.canary_every_seconds, leads=leader or _never,
    )  # fmt: skip
    calls = 2 * bool(settings.log_names) / settings.every_seconds
    calls += bool(settings.canary_log) / settings.canary_every_seconds
    yield Planned(
        make=lambda: probe,
        every=probe.every,
        timeout=3 * cloud.timeout_seconds + FIRST_CALL_SECONDS,
        cpu_seconds=CALL_CPU_SECONDS * calls * probe.every,
        history_bytes=0,
        when=None if leader else _never,  # another instance asks for all
    )


def _never() -> bool:
    return False
