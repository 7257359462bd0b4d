"""The tree of settings: the agent's own sections, and the name that each probe's section has.

A probe's section stands beside the probe.  How the tree is filled is in ``agent.settings.load``; docs/configuration.md
has every key of it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple

from agent.calm import MOST_TIMES
from agent.settings.push import Alertmanager, Alerts, Otlp, Webhook
from probes.app.pool import PoolSettings
from probes.app.processes import Processes
from probes.app.requests import Requests
from probes.app.search import App
from probes.cpu.registration import Suspension
from probes.gcp.cloud_logging import CloudLogging
from probes.host.registration import Cgroup, Demand, Platform
from probes.logs.registration import LogDelivery, Logs
from probes.names.probe import Names
from probes.postgres.registration import Postgres
from probes.reading import Stability
from probes.redis.registration import Redis
from probes.section import AfterValidator, Field, Preset, Section
from probes.sockets.listening import Listening
from probes.sockets.registration import Connections

_MOST_ADDRESSES = 8


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int


def parse_address(text: str) -> Address:
    """``HOST:PORT`` (``[::1]:9768`` for IPv6; port 0 picks a free one).  Raises ValueError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65535:
        raise ValueError("must be HOST:PORT with a port of 0 to 65535, like 127.0.0.1:9768")
    if host != "localhost":
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise ValueError("the host must be an IP address or localhost") from None
    return Address(host, int(port))


def parse_addresses(text: str) -> tuple[Address, ...]:
    """One or several of them, with commas between.  Raises ValueError."""
    words = [word.strip() for word in text.split(",")]
    if len(words) > _MOST_ADDRESSES:
        raise ValueError(f"must be at most {_MOST_ADDRESSES} addresses")
    found: list[Address] = []
    faults = []
    for word in words:
        try:
            found.append(parse_address(word))
        except ValueError as fault:
            faults.append(f"{word[:60]!r}: {fault}" if len(words) > 1 else f"{fault}")
    faults += [f"{word!r} stands there twice" for word in sorted({each for each in words if words.count(each) > 1})]
    if faults:
        raise ValueError("; ".join(faults))
    return tuple(found)


def _addresses(text: str) -> str:
    parse_addresses(text)
    return text


#: What may be open to everybody: what a kubelet asks for, or all the pages.
_OPEN_PATHS = (
    "/livez", "/readyz", "/metrics", "/health", "/report.txt", "/", "/timeline", "/page.css", "/page.js", "/requests-in-flight",
    "/openapi.json",
)  # fmt: skip


def _open_path(text: str) -> str:
    if text not in _OPEN_PATHS:
        raise ValueError(f"must be one of {', '.join(_OPEN_PATHS)}")
    return text


def _with_body(status: int) -> int:
    if status in (204, 205, 304):
        raise ValueError("must be a status that has a body: not 204, 205 or 304")
    return status


#: Names that nobody outside can point elsewhere: those of Kubernetes, and what is reserved for private use (ICANN, 2024),
#: as Docker, Google Cloud, Amazon and Fly.io use it.
_PRIVATE_HOSTS = ("*.svc", "*.cluster.local", "*.internal")
_HOST_PATTERN = re.compile(r"\*|(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?", re.IGNORECASE)


def _host_pattern(text: str) -> str:
    if not _HOST_PATTERN.fullmatch(text):
        raise ValueError("must be a host name without scheme and port, *.NAME for all below it, or * for any")
    return text


class Http(Section):
    """The HTTP server."""

    stability: ClassVar[Stability] = "stable"
    otherwise: ClassVar[Mapping[str, Stability]] = {"web_config": "beta", "open_paths": "beta"}

    listen: Annotated[str, AfterValidator(_addresses)] = Field(
        "127.0.0.1:9768", description="HOST:PORT of /health, /metrics and the rest; several with commas between."
    )
    web_config: str = Field("", max_length=4096, description="A file that says who may ask: TLS, users, tokens.")
    open_paths: tuple[Annotated[str, AfterValidator(_open_path)], ...] = Field(
        ("/livez", "/readyz"), max_length=16, description="What is answered without a login where one is asked for."
    )
    fail_status: Annotated[int, AfterValidator(_with_body)] = Field(
        200, ge=200, le=599, description="HTTP status of /health while its status is fail."
    )
    allowed_hosts: tuple[Annotated[str, AfterValidator(_host_pattern)], ...] = Field(
        _PRIVATE_HOSTS,
        max_length=64,
        description="Names that a request may ask for beside IP addresses, localhost, names without a dot and this host's own.",
    )
    most_connections: int = Field(
        32, ge=1, le=1024, description="Connections at a time; for a further one that which was idle longest is closed."
    )


class Budget(Section):
    """What the agent may use: checked when the settings are read, enforced while it runs."""

    stability: ClassVar[Stability] = "stable"
    doctor: ClassVar[Preset] = {"cpu_ratio": 0.5}

    cpu_ratio: float = Field(0.01, ge=0.001, le=0.5, description="Agent and child together, share of one core.")
    calm_ratio: float = Field(
        MOST_TIMES, ge=1.0, le=MOST_TIMES,
        description="How many times as far apart, though each 15 s, slots come after two minutes without a finding. 1: as asked for.",
    )  # fmt: skip
    memory_bytes: int = Field(
        96 * 2**20, ge=64 * 2**20, le=2**33, description="Agent and child together; history is refused above it."
    )


class History(Section):
    """How much is remembered."""

    stability: ClassVar[Stability] = "stable"

    seconds: float = Field(600.0, ge=120, le=3600, description="Length of the history.")


class Rules(Section):
    """Which rules run."""

    stability: ClassVar[Stability] = "stable"

    disabled: tuple[str, ...] = Field((), description="Rule ids that are not judged.")


class Log(Section):
    """Lines on standard output."""

    stability: ClassVar[Stability] = "stable"

    format: Literal["json", "none"] = Field("json", description="json: one line per change; none: silence.")


class Config(Section):
    """All settings."""

    http: Http = Http()
    suspension: Suspension = Suspension()
    cgroup: Cgroup = Cgroup()
    demand: Demand = Demand()
    platform: Platform = Platform()
    app: App = App()
    requests: Requests = Requests()
    postgres: Postgres = Postgres()
    redis: Redis = Redis()
    connections: Connections = Connections()
    listening: Listening = Listening()
    names: Names = Names()
    pool: PoolSettings = PoolSettings()
    processes: Processes = Processes()
    logs: Logs = Logs()
    log_delivery: LogDelivery = LogDelivery()
    cloud_logging: CloudLogging = CloudLogging()
    budget: Budget = Budget()
    history: History = History()
    rules: Rules = Rules()
    log: Log = Log()
    alerts: Alerts = Alerts()
    otlp: Otlp = Otlp()
    webhook: Webhook = Webhook()
    alertmanager: Alertmanager = Alertmanager()

    @property
    def sections(self) -> dict[type[Section], Section]:
        """Every section by its class, as probes ask for their own."""
        return {type(section): section for _, section in self}
