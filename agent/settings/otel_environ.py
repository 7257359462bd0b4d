"""What the OTEL_* variables say of sending by OTLP, as OpenTelemetry's specification has them.

https://opentelemetry.io/docs/specs/otel/protocol/exporter/ and .../configuration/sdk-environment-variables/.  A variable of one
signal goes before the common one.  Times are milliseconds, as the specification says (Python's SDK takes a time-out for seconds: a
value too small to be milliseconds is therefore a fault).  A fault switches off what it is about, and its text holds no value that
could be a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote, urlsplit

Signal = Literal["metrics", "logs"]
SIGNALS: tuple[Signal, ...] = ("metrics", "logs")
DEFAULT_ENDPOINT = "http://localhost:4318"
DEFAULT_TIMEOUT_MS, DEFAULT_INTERVAL_MS = 10_000, 60_000
#: A day: longer is a mistake.
MOST_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one signal goes.  ``timeout`` is in seconds; files are empty where none is set."""

    url: str
    headers: Mapping[str, str]
    timeout: float
    gzip: bool
    authorities_file: str = ""
    certificate_file: str = ""
    key_file: str = ""


@dataclass(frozen=True, slots=True)
class Otel:
    """All of it: a signal that is switched off, or cannot be sent, has no endpoint."""

    endpoints: Mapping[Signal, Endpoint]
    #: Between two reports of all metrics.
    interval_seconds: float
    service_name: str
    resource: Mapping[str, str]
    faults: tuple[str, ...]


def read(environ: Mapping[str, str]) -> Otel:
    """The variables as they are now."""
    get, faults = _given(environ), []
    endpoints: dict[Signal, Endpoint] = {}
    for signal in SIGNALS if get("OTEL_SDK_DISABLED").lower() != "true" else ():
        wanted = get(f"OTEL_{signal.upper()}_EXPORTER") or "otlp"
        if wanted == "none":
            continue
        bad: list[str] = []
        if "otlp" not in [each.strip() for each in wanted.split(",")]:
            bad.append(f"OTEL_{signal.upper()}_EXPORTER = {wanted[:20]!r}: must be otlp or none")
        endpoint = _endpoint(signal, get, bad)
        faults += [f"{each}; {signal} are not sent" for each in bad]
        if not bad:
            endpoints[signal] = endpoint
    bad = []
    interval = _milliseconds(
        "OTEL_METRIC_EXPORT_INTERVAL", get("OTEL_METRIC_EXPORT_INTERVAL"), DEFAULT_INTERVAL_MS, bad
    )
    faults += [f"{each}; {DEFAULT_INTERVAL_MS} is taken" for each in bad]
    if "delta" in (temporality := get("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE").lower()):
        faults.append(
            f"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE = {temporality[:20]}: sums are cumulative here"
        )
    return Otel(
        endpoints, interval / 1000, get("OTEL_SERVICE_NAME"), pairs(get("OTEL_RESOURCE_ATTRIBUTES")), tuple(faults)
    )


class _given:  # noqa: N801 - it is called like a function
    """An empty variable is as one that is not set."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def __call__(self, name: str) -> str:
        return self._environ.get(name, "").strip()

    def of(self, signal: Signal, name: str) -> tuple[str, str]:
        """The variable of this signal, or the common one, and what it is."""
        own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}"
        text = self(own)
        common = f"OTEL_EXPORTER_OTLP_{name}"
        return (own, text) if text else (common, self(common))


def pairs(text: str) -> dict[str, str]:
    """``name=value,name=value``, both percent-encoded; what is no pair is left out, as SDKs do."""
    found = (part.partition("=") for part in text.split(","))
    return {unquote(name).strip(): unquote(value).strip() for name, equals, value in found if equals and name.strip()}


def _endpoint(signal: Signal, get: _given, bad: list[str]) -> Endpoint:
    name, protocol = get.of(signal, "PROTOCOL")
    if protocol not in ("", "http/protobuf"):
        bad.append(f"{name} = {protocol[:20]!r}: must be http/protobuf (collectors take it at port 4318)")
    own = get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    common = get("OTEL_EXPORTER_OTLP_ENDPOINT") or DEFAULT_ENDPOINT
    url = own or f"{common.rstrip('/')}/v1/{signal}"
    name = f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT" if own else "OTEL_EXPORTER_OTLP_ENDPOINT"
    try:
        parts = urlsplit(url)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
        port = parts.port
    except ValueError:
        right, port = False, None
    if not right:
        bad.append(f"{name}: must be http://HOST[:PORT] or https://..., without a user or a password")
    elif port == 4317:
        bad.append(f"{name}: port 4317 is that of gRPC; HTTP has 4318")
    name, text = get.of(signal, "TIMEOUT")
    timeout = _milliseconds(name, text, DEFAULT_TIMEOUT_MS, bad)
    name, compression = get.of(signal, "COMPRESSION")
    if compression.lower() not in ("", "none", "gzip"):
        bad.append(f"{name} = {compression[:20]!r}: must be gzip or none")
    headers = {key.lower(): value for key, value in pairs(get.of(signal, "HEADERS")[1]).items()}
    return Endpoint(
        url,
        headers,
        timeout / 1000,
        compression.lower() == "gzip",
        get.of(signal, "CERTIFICATE")[1],
        get.of(signal, "CLIENT_CERTIFICATE")[1],
        get.of(signal, "CLIENT_KEY")[1],
    )


def _milliseconds(name: str, text: str, default: int, bad: list[str]) -> int:
    if not text:
        return default
    if text.isascii() and text.isdigit() and len(text) < 10 and 100 <= int(text) <= MOST_MS:
        return int(text)
    bad.append(f"{name} = {text[:20]!r}: must be milliseconds, 100 to {MOST_MS}")
    return default
