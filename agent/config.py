"""One frozen tree of settings from file, environment and flags; every fault reported at once.

The file is TOML: Python reads it without a dependency, it has comments and real types, and unlike
YAML it never turns ``no`` into a boolean.  The environment overrides the file, flags override both:
``[suspension] budget_ratio`` is ``STALLSCOPE_SUSPENSION__BUDGET_RATIO`` and
``--set suspension.budget_ratio=0.001``.  An unknown key is an error everywhere, because a misspelt
setting that silently does nothing is found only when it is needed.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

PREFIX = "STALLSCOPE_"
#: Kubernetes gives every pod variables like these for each Service; one named stallscope is not a setting.
_OF_KUBERNETES = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_\d+_(TCP|UDP|SCTP).*)?)$")
#: Cost of one heartbeat wake-up and of one slot with its report, CPU seconds.  Measured on a 2-core
#: machine by ``make bench``; used only to refuse settings that cannot meet the budget.
HEARTBEAT_COST_SECONDS = 50e-6
SLOT_COST_SECONDS = 2.5e-3
#: Upper bound of one slot's readings in the history (48 windows of 14 numbers and their containers).
SLOT_BYTES = 24_000


class ConfigError(Exception):
    """The settings are unusable.  ``faults`` holds one sentence per fault, all of them."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


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


def _http_url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ValueError("must begin with http:// or https://")
    return text


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Http(_Section):
    """The HTTP server."""

    listen: Annotated[str, AfterValidator(_address)] = Field(
        "127.0.0.1:9768", description="HOST:PORT of /health, /metrics and the rest."
    )
    most_connections: int = Field(32, ge=1, le=1024, description="Further connections get 503.")


class Suspension(_Section):
    """The heartbeat and spin child."""

    every_seconds: float = Field(5.0, ge=1, le=60, description="Time between two slots.")
    heartbeat_seconds: float = Field(0.12, ge=0.02, le=1, description="Mean time between two heartbeats.")
    budget_ratio: float = Field(
        0.002, ge=0.0001, le=0.05, description="Most CPU that spins may use, as a share of one core."
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


class Cgroup(_Section):
    """Quotas, throttling and memory of the cgroup."""

    every_seconds: float = Field(5.0, ge=1, le=60, description="Time between two slots.")


class Platform(_Section):
    """Where the agent runs and which counters can be believed."""

    every_seconds: float = Field(60.0, ge=5, le=3600, description="Time between two slots.")


class App(_Section):
    """The app whose cgroup is watched beside the agent's own (needs a shared PID namespace)."""

    process: str = Field("", max_length=64, description="Name of the app's process as in /proc/PID/comm.")
    pid: int | None = Field(None, ge=1, description="The app's process id; wins over the name.")


class Requests(_Section):
    """How the agent learns whether a request is in flight.  All three may be used; any one that says so counts."""

    file: str = Field("", description="A file that holds the number of requests in flight.")
    metrics_url: Annotated[str, AfterValidator(_http_url)] | None = Field(
        None, description="The app's metrics page, scraped for the gauge below."
    )
    metric: str = Field(
        "http_requests_in_flight|http_server_active_requests|http_requests_inprogress|in_flight_requests",
        description="Name of the gauge; alternatives separated by |.",
    )
    own: bool = Field(False, description="Count the requests that the agent itself serves.")
    every_seconds: float = Field(5.0, ge=0.5, le=60, description="Time between two looks at file and gauge.")
    timeout_seconds: float = Field(1.0, ge=0.1, le=10, description="Time-out of one scrape.")


class Budget(_Section):
    """What the agent may use: checked when the settings are read, enforced while it runs."""

    cpu_ratio: float = Field(0.01, ge=0.001, le=0.5, description="Agent and child together, share of one core.")
    memory_bytes: int = Field(
        96 * 2**20, ge=64 * 2**20, le=2**33, description="Agent and child together; history is refused above it."
    )


class History(_Section):
    """How much is remembered."""

    seconds: float = Field(600.0, ge=120, le=3600, description="Length of the history.")


class Rules(_Section):
    """Which rules run."""

    disabled: tuple[str, ...] = Field((), description="Rule ids that are not judged.")


class Log(_Section):
    """Lines on standard output."""

    format: Literal["json", "none"] = Field("json", description="json: one line per change; none: silence.")


class Config(_Section):
    """All settings."""

    http: Http = Http()
    suspension: Suspension = Suspension()
    cgroup: Cgroup = Cgroup()
    platform: Platform = Platform()
    app: App = App()
    requests: Requests = Requests()
    budget: Budget = Budget()
    history: History = History()
    rules: Rules = Rules()
    log: Log = Log()


def predicted_cpu_ratio(config: Config) -> float:
    """What these settings cost, share of one core: heartbeats + spins + slots."""
    return (
        HEARTBEAT_COST_SECONDS / config.suspension.heartbeat_seconds
        + config.suspension.budget_ratio
        + SLOT_COST_SECONDS / config.suspension.every_seconds
        + SLOT_COST_SECONDS / config.cgroup.every_seconds / 2
        + (SLOT_COST_SECONDS / config.requests.every_seconds if config.requests.metrics_url else 0.0)
    )


def history_bytes(config: Config) -> int:
    """Upper bound of the history's memory."""
    return int(config.history.seconds / config.suspension.every_seconds) * SLOT_BYTES


def load(
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Sequence[tuple[str, str]] = (),
    *,
    known_rules: Sequence[str] = (),
) -> Config:
    """Read the settings.

    ``flags`` are (dotted key, text) pairs.  Raises ConfigError with every fault of every source.
    """
    faults: list[str] = []
    tree: dict[str, Any] = {}
    source: dict[str, str] = {}
    if path is not None:
        tree = _read_file(path, faults)
        source = dict.fromkeys(_dotted(tree), f"file {path}")
    given = [
        (name.removeprefix(PREFIX).lower().replace("__", "."), text, f"environment {name}")
        for name, text in sorted((environ or {}).items())
        if name.startswith(PREFIX) and not _OF_KUBERNETES.search(name)
    ] + [(key, text, f"flag for {key}") for key, text in flags]
    for key, text, where in given:
        section, dot, name = key.partition(".")
        if not dot or not name:
            faults.append(f"{where}: no such setting; a setting is SECTION.KEY, like http.listen")
            continue
        node = tree.setdefault(section, {})
        if isinstance(node, dict):
            node[name] = _from_text(section, name, text)
            source[key] = where
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        faults.extend(_sentence(fault, source) for fault in error.errors())
        raise ConfigError(faults) from None
    faults.extend(_impossible(config, known_rules))
    if faults:
        raise ConfigError(faults)
    return config


def _read_file(path: Path, faults: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        faults.append(f"file {path}: {error.strerror}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        faults.append(f"file {path}: not TOML: {error}")
    return {}


def _dotted(tree: Mapping[str, Any]) -> list[str]:
    return [f"{section}.{key}" for section, node in tree.items() if isinstance(node, Mapping) for key in node]


def _from_text(section: str, key: str, text: str) -> Any:
    """Lists are comma-separated in the environment and in flags; everything else is parsed by its type."""
    model = Config.model_fields.get(section)
    fields = getattr(model.annotation, "model_fields", {}) if model is not None else {}
    field = fields.get(key)
    if field is not None and "tuple" in str(field.annotation):
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _sentence(fault: Any, source: Mapping[str, str]) -> str:
    path = ".".join(str(part) for part in fault["loc"])
    where = source.get(".".join(str(part) for part in fault["loc"][:2]), "")
    suffix = f" ({where})" if where else ""
    if fault["type"] == "extra_forbidden":
        return f"{path}{suffix}: no such setting{_near(fault['loc'])}"
    message = fault["msg"].removeprefix("Value error, ")
    return f"{path} = {fault['input']!r}{suffix}: {message[0].lower()}{message[1:]}"


def _near(loc: tuple[Any, ...]) -> str:
    import difflib  # noqa: PLC0415 - only on the way to an error

    known: dict[str, Any] = dict(Config.model_fields)
    if len(loc) > 1 and loc[0] in known:
        known = getattr(known[loc[0]].annotation, "model_fields", {})
    close = difflib.get_close_matches(str(loc[-1]), known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known here: {', '.join(sorted(known))}"


def _impossible(config: Config, known_rules: Sequence[str]) -> list[str]:
    """Values that are each allowed and together are not."""
    faults = []
    if list(config.suspension.spin_seconds) != sorted(set(config.suspension.spin_seconds)):
        faults.append("suspension.spin_seconds: must grow from one length to the next")
    if not all(0.002 <= length <= 1 for length in config.suspension.spin_seconds):
        faults.append("suspension.spin_seconds: each length must be 0.002 to 1 second")
    if any(gap < 0 or 0 < gap < 1 for gap in config.suspension.spin_every_seconds or ()):
        faults.append("suspension.spin_every_seconds: each must be 0 (never) or at least 1 second")
    if (cost := predicted_cpu_ratio(config)) > config.budget.cpu_ratio:
        faults.append(
            f"budget.cpu_ratio = {config.budget.cpu_ratio}: these settings need about {cost:.4f} of a core; "
            "raise it, or lengthen heartbeat_seconds and every_seconds"
        )
    if (size := history_bytes(config)) > (room := config.budget.memory_bytes - 62 * 2**20):
        faults.append(
            f"history.seconds = {config.history.seconds:g}: the history could take {size >> 20} MiB, "
            f"budget.memory_bytes leaves {room >> 20} MiB for it"
        )
    faults.extend(
        f"rules.disabled: no such rule {rule!r}; known: {', '.join(known_rules)}"
        for rule in config.rules.disabled
        if known_rules and rule not in known_rules
    )
    return faults
