"""What a scenario is made of: the steps of its timeline, and what is beside the app. `scenario.py` puts them together."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

#: What is not known is refused.
STRICT = ConfigDict(extra="forbid", frozen=True)


class Database(BaseModel):
    """The server, and the way there."""

    model_config = STRICT

    via: Literal["direct", "proxy", "route", "pgbouncer"] = "direct"
    """A TCP proxy hides the way from the kernel's round-trip time, a route does not."""
    round_trip: float = Field(default=0.0, ge=0, lt=5)
    """Seconds that proxy or route add."""
    rows: int = Field(default=20_000, ge=1_000, le=5_000_000)
    """Of the table `lab_rows`."""
    connections: int = Field(default=60, ge=10, le=500)
    """max_connections."""


class RedisPlace(BaseModel):
    """The Redis, and the way there."""

    model_config = STRICT

    round_trip: float = Field(default=0.0, ge=0, lt=5)
    """Seconds that a TCP proxy adds."""


class Logs(BaseModel):
    """The app that logs, and where it runs."""

    model_config = STRICT

    app: str
    """A client, its mode and options as `log_clients` has them."""
    hook: bool = True
    """Whether the app has the hook loaded."""
    memory_mb: int | None = Field(default=None, ge=64, le=4096)
    """Memory limit of the app's container, MiB."""
    files: Literal["memory", "disk"] = "memory"
    """What the mode `file` writes to."""


class Requests(BaseModel):
    """Requests `every` so many seconds: the quota is lifted while one is in flight."""

    model_config = STRICT

    every: float = Field(gt=0)
    lasting: float = Field(gt=0)
    quota: float | None = Field(default=None, gt=0, lt=1)
    signal: bool
    """Whether the agent is told when one begins and ends."""
    lifts: bool = True
    """Whether the quota is lifted at all."""


class Step(BaseModel):
    """What changes at this second."""

    model_config = STRICT

    at: float = Field(ge=0)
    mark: Literal["", "onset", "lift", "end"] = ""
    app: str = ""
    """A load and its options as `loads.py` has them; it runs until the next step with an app, or the end."""
    quota: float | Literal["none"] | None = None
    """Cores for the app's group; in gVisor and a guest, for the whole sandbox or machine, from outside."""
    inner_quota: float | Literal["none"] | None = None
    """Cores for the app's group inside the guest (cgroup v2)."""
    freeze: float = Field(default=0, ge=0)
    """Everything stands still for so many seconds."""
    by: Literal["stop", "freezer"] = "stop"
    neighbours: int = Field(default=0, ge=0, le=8)
    """Busy processes elsewhere on this machine, outside every quota, until lift."""
    requests: Requests | None = None
    lock: Literal["", "row", "table"] = ""
    """Another session holds the row 1, or the table, until lift."""
    server_quota: float | Literal["none"] | None = None
    """Cores for the database server."""
    hold: float = Field(default=0, ge=0, le=4)
    """Until lift a script of another client holds the Redis for so many seconds, with as long a pause between two."""
    crowd: int = Field(default=0, ge=0, le=500)
    """Connections of another app that stand idle until lift."""
    service: dict[Literal["delay", "fail", "quota", "hang"], float] = {}
    """What the log service does until lift: `cloud_logging.Settings`; 1 is yes."""
    reader: float | None = Field(default=None, ge=0)
    """Bytes per second that the reader of the app's standard output takes until lift, 0 for none."""
    signal: Literal["", "TERM", "KILL"] = ""
    """What the app is sent."""
