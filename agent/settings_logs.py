"""The settings of the sources of logs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from agent.settings_base import NAME, NO_NAME, Section, http_url
from probes.backlog import NUMBERS
from probes.hook_socket import parse_place
from probes.pool_names import series

#: Sources of logs that have their names from us.
OWN_SOURCES = ("stdout", "hooks")


def _names(named: dict[str, str]) -> dict[str, str]:
    for name in named:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} {NO_NAME}")
        if name in OWN_SOURCES:
            raise ValueError(f"{name!r} is the name of a source that is always there")
    return named


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


class Logs(Section):
    """Where log entries wait: the app's output, files, queues that hooks and log collectors tell of."""

    stdout: bool = Field(True, description="Look at the standard output and error of the app's processes.")
    files: Annotated[dict[str, str], AfterValidator(_files)] = Field(
        {}, max_length=8, description="Name to a directory of log files, or to a pattern such as /var/log/app/*.log."
    )
    hook_listen: tuple[Annotated[str, AfterValidator(_place)], ...] = Field(
        ("udp:127.0.0.1:9769",),
        max_length=4,
        description="Where hooks are heard: udp:HOST:PORT (loopback only), unix:/PATH, file:/PATH; none: off.",
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
        "unknown", description="Where the queues of collectors wait whose pages do not tell."
    )
    every_seconds: float = Field(10.0, ge=1, le=60, description="Time between two looks.")
    timeout_seconds: float = Field(2.0, ge=0.1, le=10, description="Time-out of one scrape.")
