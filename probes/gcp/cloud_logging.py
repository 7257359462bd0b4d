"""How the Cloud Logging API is reached: one section of the settings for those who ask it and those who write to it."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from probes.gcp.cloud_api import CloudApi
from probes.reading import Stability
from probes.section import AfterValidator, Field, Section, http_url

#: What google-cloud-logging takes once it is loaded, and the CPU of one call with its connection (measured: docs/log-delivery.md).
LIBRARY_BYTES = 44 * 2**20
CALL_CPU_SECONDS = 15e-3

#: What an id of a log may hold, as the LogEntry message has it.
_LOG_ID = re.compile(r"[A-Za-z0-9/_.-]{1,511}")
_PROJECT = re.compile(r"[a-z0-9.:-]{1,100}")
_HOST = re.compile(r"[A-Za-z0-9.-]+(:\d{1,5})?")


def log_id(text: str) -> str:
    """The id of a log, or "" for none.  Raises ValueError for anything else."""
    if text and not _LOG_ID.fullmatch(text):
        raise ValueError("must be the id of a log: letters, digits, / _ - and ., like winston_log")
    return text


def _project(text: str) -> str:
    if text and not _PROJECT.fullmatch(text):
        raise ValueError("must be the id of a project: small letters, digits, -, . and :")
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

    stability: ClassVar[Stability] = "stable"

    project: Annotated[str, AfterValidator(_project)] = Field(
        "", description="Google Cloud project; empty: GOOGLE_CLOUD_PROJECT, else that of the credentials."
    )
    endpoint: Annotated[str, AfterValidator(_endpoint)] = Field(
        "",
        description="HOST[:PORT] of the API; empty: the usual one; http://HOST:PORT on loopback: a server for tests.",
    )
    timeout_seconds: float = Field(10.0, ge=0.1, le=30, description="Deadline of one call.")
    findings_log: Annotated[str, AfterValidator(log_id)] = Field(
        "", description="Id of the log that changed findings are written to through the API; empty: off."
    )


def open_api(settings: CloudLogging) -> CloudApi:
    """A way to the log service; nothing is loaded or connected yet."""
    return CloudApi(settings.project, settings.endpoint, timeout=settings.timeout_seconds)
