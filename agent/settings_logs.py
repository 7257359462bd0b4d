"""The settings of the sources of logs, and of the way to Cloud Logging."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from agent.leader import parse_leader
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


#: What an id of a log may hold, as the LogEntry message has it.
_LOG_ID = re.compile(r"[A-Za-z0-9/_.-]{1,511}")
_PROJECT = re.compile(r"[a-z0-9.:-]{1,100}")
_HOST = re.compile(r"[A-Za-z0-9.-]+(:\d{1,5})?")


def _log(text: str) -> str:
    if text and not _LOG_ID.fullmatch(text):
        raise ValueError("must be the id of a log: letters, digits, / _ - and ., like winston_log")
    return text


def _project(text: str) -> str:
    if text and not _PROJECT.fullmatch(text):
        raise ValueError("must be the id of a project: small letters, digits, -, . and :")
    return text


def _leader(text: str) -> str:
    if text:
        parse_leader(text)
    return text


def _endpoint(text: str) -> str:
    """Credentials go over TLS alone, so without TLS there are none, and it is for a test server on this machine."""
    if text.startswith("http://"):
        parts = urlsplit(http_url(text))
        host = parts.hostname or ""
        if (host != "localhost" and not _is_loopback(host)) or parts.port is None or parts.path not in ("", "/"):
            raise ValueError("without TLS it must be http://HOST:PORT on loopback: a server for tests")
    elif text and not _HOST.fullmatch(text):
        raise ValueError("must be HOST or HOST:PORT, like restricted.googleapis.com")
    return text


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class CloudLogging(Section):
    """How the Cloud Logging API is reached, and what the agent itself writes to it."""

    project: Annotated[str, AfterValidator(_project)] = Field(
        "", description="Google Cloud project; empty: GOOGLE_CLOUD_PROJECT, else that of the credentials."
    )
    endpoint: Annotated[str, AfterValidator(_endpoint)] = Field(
        "",
        description="HOST[:PORT] of the API; empty: the usual one; http://HOST:PORT on loopback: a server for tests.",
    )
    timeout_seconds: float = Field(10.0, ge=0.1, le=30, description="Deadline of one call.")
    findings_log: Annotated[str, AfterValidator(_log)] = Field(
        "", description="Id of the log that changed findings are written to through the API; empty: off."
    )


class LogDelivery(Section):
    """How long the app's entries take to Cloud Logging, and whether it takes one; one instance asks for a service."""

    log_names: tuple[Annotated[str, AfterValidator(_log)], ...] = Field(
        (),
        max_length=8,
        description="Ids of the app's logs whose newest entries are looked at, such as winston_log, python; none: off.",
    )
    filter: str = Field(
        "", max_length=1000, description="Further condition on these entries, in Cloud Logging's query language."
    )
    every_seconds: float = Field(300.0, ge=60, le=900, description="Time between two looks.")
    canary_log: Annotated[str, AfterValidator(_log)] = Field(
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
