"""The tree of settings: every section and key, its default, its range and what it is for.

docs/configuration.md is checked against this page; how it is filled is in ``agent.config``.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field

from agent.settings_base import NAME, NO_NAME, Section, http_url
from agent.settings_logs import CloudLogging, LogDelivery, Logs
from probes import pool_names


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int


def parse_address(text: str) -> Address:
    """``HOST:PORT`` (``[::1]:9768`` for IPv6; port 0 picks a free one).  Raises ValueError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError("must be HOST:PORT with a port of 0 to 65535, like 127.0.0.1:9768")
    if host != "localhost":
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise ValueError("the host must be an IP address or localhost") from None
    return Address(host, int(port))


def _address(text: str) -> str:
    parse_address(text)
    return text


def _with_body(status: int) -> int:
    if status in (204, 205, 304):
        raise ValueError("must be a status that has a body: not 204, 205 or 304")
    return status


class Http(Section):
    """The HTTP server."""

    listen: Annotated[str, AfterValidator(_address)] = Field(
        "127.0.0.1:9768", description="HOST:PORT of /health, /metrics and the rest."
    )
    fail_status: Annotated[int, AfterValidator(_with_body)] = Field(
        503, ge=200, le=599, description="HTTP status of /health while its status is fail."
    )
    most_connections: int = Field(32, ge=1, le=1024, description="Further connections get 503.")


class Suspension(Section):
    """The heartbeat and spin child."""

    every_seconds: float = Field(10.0, ge=1, le=60, description="Time between two slots; news brings them forward.")
    heartbeat_seconds: float = Field(0.2, ge=0.02, le=1, description="Mean time between two heartbeats.")
    budget_ratio: float = Field(
        0.0016, ge=0.0001, le=0.05, description="Most CPU that spins may use, as a share of one core."
    )
    spin_seconds: tuple[float, float, float, float] = Field(
        (0.012, 0.04, 0.13, 0.32),
        description="The ladder: lengths of a spin, short to long; a quota of q cores shows after q x 0.1 s.",
    )
    spin_every_seconds: tuple[float, float, float, float] | None = Field(
        None,
        description="Time between two spins of each length, 0 for never.  Unset: chosen for the platform, "
        "rare where the kernel's own counters can be believed.",
    )


class Cgroup(Section):
    """Quotas, throttling and memory of the cgroup."""

    every_seconds: float = Field(10.0, ge=1, le=60, description="Time between two slots.")


class Platform(Section):
    """Where the agent runs and which counters can be believed."""

    every_seconds: float = Field(60.0, ge=5, le=3600, description="Time between two slots.")


class App(Section):
    """The app whose cgroup and processes are watched beside the agent's own (needs a shared PID namespace)."""

    process: str = Field("", max_length=64, description="Name of the app's process as in /proc/PID/comm.")
    pid: int | None = Field(None, ge=1, description="The app's process id; wins over the name.")


class Requests(Section):
    """How the agent learns whether a request is in flight.  All three may be used; any one that says so counts."""

    file: str = Field("", description="A file that holds the number of requests in flight.")
    metrics_url: Annotated[str, AfterValidator(http_url)] | None = Field(
        None, description="The app's metrics page, scraped for the gauge below."
    )
    metric: str = Field(
        "http_requests_in_flight|http_server_active_requests|http_requests_inprogress|in_flight_requests",
        description="Name of the gauge; alternatives separated by |.",
    )
    own: bool = Field(False, description="Count the requests that the agent itself serves.")
    every_seconds: float = Field(5.0, ge=0.5, le=60, description="Time between two looks at file and gauge.")
    timeout_seconds: float = Field(1.0, ge=0.1, le=10, description="Time-out of one scrape.")


#: Where a DSN may stand; never in the settings themselves, which are shown.
DSN_PLACES = ("env:", "file:")


def _targets(targets: dict[str, str]) -> dict[str, str]:
    for name, place in targets.items():
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} {NO_NAME}")
        if not any(place.startswith(prefix) and place != prefix for prefix in DSN_PLACES):
            raise ValueError(f"{name} must be env:VARIABLE or file:PATH, where the DSN is; never the DSN itself")
    return targets


class Postgres(Section):
    """The databases whose round trip is taken apart."""

    targets: Annotated[dict[str, str], AfterValidator(_targets)] = Field(
        {}, max_length=16, description="Name to where its DSN is: env:VARIABLE or file:PATH."
    )
    every_seconds: float = Field(10.0, ge=2, le=300, description="Time between two slots of one database.")
    timeout_seconds: float = Field(5.0, ge=0.5, le=30, description="Time-out of a slot; the server's is four fifths.")
    rows: int = Field(500, ge=1, le=10000, description="Rows of the bulk operation, 200 bytes each.")
    server_view: bool = Field(True, description="Ask the server about its sessions, locks and limits too.")
    connect_every_seconds: float = Field(60.0, ge=10, le=3600, description="Time between two new connections.")


class Connections(Section):
    """The app's own connections, seen from the shared network namespace without any credential."""

    ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = Field(
        (5432,), max_length=32, description="Remote ports that are watched, such as 5432, 6379, 3306; none: off."
    )
    every_seconds: float = Field(10.0, ge=1, le=300, description="Time between two looks.")


def _preset(text: str) -> str:
    if text and text not in pool_names.LIBRARIES:
        raise ValueError(f"must be empty (all of them) or one of {', '.join(pool_names.LIBRARIES)}")
    return text


def _pool_names(names: dict[str, str]) -> dict[str, str]:
    for field, text in names.items():
        if field not in pool_names.FIELDS:
            raise ValueError(f"{field!r} is no number of a pool: one of {', '.join(pool_names.FIELDS)}")
        pool_names.series(text)  # raises ValueError itself for what is no series
    return names


class Pool(Section):
    """The app's connection pools, as its own metrics page tells of them."""

    metrics_url: Annotated[str, AfterValidator(http_url)] | None = Field(
        None, description="The app's metrics page.  Unset: only pools that hooks tell of are looked at."
    )
    preset: Annotated[str, AfterValidator(_preset)] = Field(
        "", description="The library whose metric names are looked for; empty: all that are known."
    )
    names: Annotated[dict[str, str], AfterValidator(_pool_names)] = Field(
        {}, description="Your own metric names: number to series, which go before those of the preset."
    )
    label: str = Field(
        "", pattern=r"^([a-zA-Z_][a-zA-Z0-9_]*)?$", description="Label that tells pools apart; empty: the usual ones."
    )
    size: int | None = Field(None, ge=1, le=100_000, description="Size of a pool whose page does not tell it.")
    every_seconds: float = Field(10.0, ge=1, le=15, description="Time between two looks.")
    timeout_seconds: float = Field(2.0, ge=0.1, le=10, description="Time-out of one scrape.")


class Processes(Section):
    """The app's processes: those that ``app`` names, else the owners of its connections."""

    every_seconds: float = Field(10.0, ge=1, le=300, description="Time between two looks.")


class Budget(Section):
    """What the agent may use: checked when the settings are read, enforced while it runs."""

    cpu_ratio: float = Field(0.01, ge=0.001, le=0.5, description="Agent and child together, share of one core.")
    memory_bytes: int = Field(
        96 * 2**20, ge=64 * 2**20, le=2**33, description="Agent and child together; history is refused above it."
    )


class History(Section):
    """How much is remembered."""

    seconds: float = Field(600.0, ge=120, le=3600, description="Length of the history.")


class Rules(Section):
    """Which rules run."""

    disabled: tuple[str, ...] = Field((), description="Rule ids that are not judged.")


class Log(Section):
    """Lines on standard output."""

    format: Literal["json", "none"] = Field("json", description="json: one line per change; none: silence.")


class Config(Section):
    """All settings."""

    http: Http = Http()
    suspension: Suspension = Suspension()
    cgroup: Cgroup = Cgroup()
    platform: Platform = Platform()
    app: App = App()
    requests: Requests = Requests()
    postgres: Postgres = Postgres()
    connections: Connections = Connections()
    pool: Pool = Pool()
    processes: Processes = Processes()
    logs: Logs = Logs()
    log_delivery: LogDelivery = LogDelivery()
    cloud_logging: CloudLogging = CloudLogging()
    budget: Budget = Budget()
    history: History = History()
    rules: Rules = Rules()
    log: Log = Log()

    @property
    def watches_processes(self) -> bool:
        """Whether anything tells which processes are the app's."""
        return bool(self.connections.ports or self.app.process or self.app.pid)

    @property
    def watches_output(self) -> bool:
        """Whether the app's standard output is looked at."""
        return self.logs.stdout and self.watches_processes
