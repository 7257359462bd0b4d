"""The Cloud Logging API through google-cloud-logging, with a deadline for every call and no call made twice.

The library is loaded by the first call, in the caller's thread: it takes a third of a second of CPU and 40 MB, so nothing
else may import it.  Its own retries are off (a probe that is refused must not ask again at once), its replies are bounded,
and of what went wrong only a class is reported: the text of a foreign exception may hold a credential.

Two answers look like a used-up quota and are none: gRPC says RESOURCE_EXHAUSTED too when a reply is larger than this side
takes, and a front end's HTTP 429 arrives as UNAVAILABLE (gRPC's table of HTTP status codes).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from probes.labels import printable
from probes.reading import Code, NoData

#: Largest reply that is taken; a page of three entries of the largest size (256 KiB) fits.
MOST_REPLY_BYTES = 1024 * 1024
QUOTA, TIMEOUT, UNAVAILABLE, TOO_LARGE = "429", "timeout", "unavailable", "too_large"
EXTRA = "pip install 'stallscope[cloud-logging]' where the agent runs (it adds 40 MB), and raise budget.memory_bytes"
#: Labels that name one instance of a service: of Cloud Run, Kubernetes, Compute Engine, App Engine and what others set.
INSTANCE_LABELS = ("instanceId", "instance_id", "pod_name", "clone_id", "task_id", "node_name")
_SCOPES = ("https://www.googleapis.com/auth/logging.write", "https://www.googleapis.com/auth/logging.read")


class Failure(NamedTuple):
    """A class of failures: why, and what to do, in sentences for people."""

    because: str
    remedy: str
    code: Code


FAILURES: Mapping[str, Failure] = {
    QUOTA: Failure(
        "the log service refuses for want of quota (429)", "see the quotas of logging.googleapis.com", Code.BUSY
    ),
    TIMEOUT: Failure(
        "the log service has not answered in time", "is logging.googleapis.com reachable, and not slow?", Code.TIMED_OUT
    ),
    UNAVAILABLE: Failure(
        "the log service cannot be reached, or is down", "is its address right, and port 443 open?", Code.UNREACHABLE
    ),
    "permission": Failure(
        "the log service denies it (403)",
        "grant roles/logging.logWriter for the canary and roles/logging.viewer for the query, and enable the API",
        Code.NOT_PERMITTED,
    ),
    "credentials": Failure(
        "the credentials are missing or are not taken",
        "run under a service account (Cloud Run, Workload Identity), or set GOOGLE_APPLICATION_CREDENTIALS",
        Code.NOT_PERMITTED,
    ),
    "invalid": Failure(
        "the log service does not understand the request (400 or 404)",
        "check cloud_logging.project, log_delivery.log_names, log_delivery.filter and log_delivery.canary_log",
        Code.NOT_CONFIGURED,
    ),
    TOO_LARGE: Failure(
        f"the reply is larger than {MOST_REPLY_BYTES >> 20} MiB", "choose a log with smaller entries", Code.MALFORMED
    ),
    "wrong_reply": Failure("what answers is no log service", "check cloud_logging.endpoint", Code.MALFORMED),
    "other": Failure("the call failed", "see the agent's own log", Code.FAILED),
}
_BY_STATUS = {
    "RESOURCE_EXHAUSTED": QUOTA, "DEADLINE_EXCEEDED": TIMEOUT, "UNAVAILABLE": UNAVAILABLE, "ABORTED": UNAVAILABLE,
    "PERMISSION_DENIED": "permission", "UNAUTHENTICATED": "credentials", "INVALID_ARGUMENT": "invalid",
    "NOT_FOUND": "invalid", "FAILED_PRECONDITION": "invalid", "OUT_OF_RANGE": "invalid", "UNIMPLEMENTED": "wrong_reply",
    "INTERNAL": UNAVAILABLE, "UNKNOWN": "wrong_reply", "DATA_LOSS": "wrong_reply",
}  # fmt: skip


class CallFailed(Exception):
    """A call did not succeed; ``reason`` is a key of FAILURES."""

    def __init__(self, reason: str) -> None:
        super().__init__(FAILURES[reason].because)
        self.reason = reason


class Times(NamedTuple):
    """When an entry was emitted, as the app says, and when the log service received it; seconds since the epoch."""

    emitted: float
    received: float
    instance: str = ""
    """Of the app, as the entry's labels or its resource's name it; "" where they do not."""

    @property
    def late_seconds(self) -> float:
        """From one to the other; the two clocks may differ."""
        return max(0.0, self.received - self.emitted)


class CloudApi:
    """Blocking; for one thread at a time.  Connects when it is used, also after :meth:`close`.

    Close it when nothing follows soon: an open channel wakes its threads nine times a second, as much CPU in 25 s as making
    a new one costs (measured).  ``endpoint`` is empty, HOST[:PORT], or http://HOST:PORT for a server without TLS and credentials.
    """

    def __init__(self, project: str = "", endpoint: str = "", *, timeout: float = 10.0) -> None:
        self._wanted, self._endpoint, self._timeout = project, endpoint, timeout
        self.project = ""
        self._found: tuple[Any, str] | None = None
        self._channel: Any = None
        self._client: Any = None

    def connect(self) -> None:
        """Load the library and make a channel; nothing is sent yet.

        Raises NoData where the package, the credentials or the project are missing.
        """
        if self._client is not None:
            return
        # The C library writes to standard error, which could block, whatever logging is set to.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        try:
            from google.cloud.logging_v2.services import logging_service_v2 as service  # noqa: PLC0415 - 40 MB
            from google.cloud.logging_v2.services.logging_service_v2 import transports  # noqa: PLC0415 - same
        except ImportError:
            raise NoData("google-cloud-logging is not installed", EXTRA, code=Code.NOT_CONFIGURED) from None
        transport = transports.LoggingServiceV2GrpcTransport
        credentials, named = self._credentials()
        self.project = self._wanted or os.environ.get("GOOGLE_CLOUD_PROJECT", "") or named
        if not self.project:
            remedy = "set cloud_logging.project or GOOGLE_CLOUD_PROJECT"
            raise NoData("no Google Cloud project is known", remedy, code=Code.NOT_CONFIGURED)
        self._channel = self._open(transport, credentials)
        self._client = service.LoggingServiceV2Client(transport=transport(channel=self._channel))

    def _credentials(self) -> tuple[Any, str]:
        """The credentials, None where they are not used, and the project that they name; looked for once."""
        import google.auth  # noqa: PLC0415 - comes with the library
        import google.auth.exceptions  # noqa: PLC0415 - same

        if self._found is None:
            try:
                plain = self._endpoint.startswith("http://")
                credentials, project = (None, "") if plain else google.auth.default(scopes=_SCOPES)
            except google.auth.exceptions.GoogleAuthError:
                because, remedy, code = FAILURES["credentials"]
                raise NoData(because, remedy, code=code) from None
            self._found = credentials, project or ""
        return self._found

    def _open(self, transport: Any, credentials: Any) -> Any:
        import grpc  # noqa: PLC0415 - comes with the library

        options = [("grpc.max_receive_message_length", MOST_REPLY_BYTES)]
        if credentials is None:
            return grpc.insecure_channel(urlsplit(self._endpoint).netloc, [*options, ("grpc.enable_http_proxy", 0)])
        host = self._endpoint or transport.DEFAULT_HOST
        host = host if ":" in host else f"{host}:443"
        return transport.create_channel(host, credentials=credentials, options=options)

    def write(self, log: str, entries: Sequence[Mapping[str, Any]]) -> None:
        """Write entries (fields as the LogEntry message has them) to the log of this id, in one request."""
        self.connect()
        resource = {"type": "global", "labels": {"project_id": self.project}}
        request = {"log_name": self.log_name(log), "resource": resource, "entries": list(entries)}
        self._call("write_log_entries", request)

    def times(self, query: str, most: int, *, newest_first: bool) -> list[Times]:
        """When entries that the query finds were emitted and received, by their timestamps; one request, one page.

        The service sorts by nothing else.
        """
        self.connect()
        request = {
            "resource_names": [f"projects/{self.project}"],
            "filter": query,
            "order_by": "timestamp desc" if newest_first else "timestamp asc",
            "page_size": most,
        }
        entries = self._call("list_log_entries", request).entries
        return [_times(entry) for entry in entries if entry.timestamp and entry.receive_timestamp]

    def log_name(self, log: str) -> str:
        """The full name of the log of this id; the project is known once it is connected."""
        return f"projects/{self.project}/logs/{quote(log, safe='')}"

    def _call(self, method: str, request: Mapping[str, Any]) -> Any:
        try:
            return getattr(self._client, method)(request=request, retry=None, timeout=self._timeout)
        except Exception as error:  # noqa: BLE001 - whatever the library raises becomes one of our classes
            raise CallFailed(reason_of(error)) from None

    def close(self) -> None:
        """Give the channel back; the credentials stay."""
        if self._channel is not None:
            self._channel.close()
        self._channel = self._client = None


def _times(entry: Any) -> Times:
    labels = {**dict(entry.resource.labels), **dict(entry.labels)}
    instance = next((str(labels[name]) for name in INSTANCE_LABELS if labels.get(name)), "")
    return Times(entry.timestamp.timestamp(), entry.receive_timestamp.timestamp(), printable(instance))


def reason_of(error: Exception) -> str:
    """The class of what the library raised."""
    status = getattr(getattr(error, "grpc_status_code", None), "name", "")
    text = str(getattr(error, "message", ""))
    if status == "RESOURCE_EXHAUSTED" and "larger than max" in text:
        return TOO_LARGE
    if status == "UNAVAILABLE" and "status: 429" in text:
        return QUOTA
    if "deserializing response" in text:
        return "wrong_reply"
    if status == "UNAVAILABLE" and "metadata from plugin" in text:
        return "credentials"
    if type(error).__module__.startswith("google.auth"):
        return "credentials"
    return _BY_STATUS.get(status, "other")
