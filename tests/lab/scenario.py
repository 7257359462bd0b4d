"""A scenario is data: one TOML file in `scenarios/` says where, what happens when, and what is the right answer.

`each` makes one cell per value and `$name` stands for the value. The timeline counts seconds from the moment
at which the agent answers. The marks name what is measured from: `onset` (the stall begins), `lift` (it ends)
and `end`. The expectation says what is *true*, never what the agent happens to say:

| word | the right answer |
|---|---|
| present | the finding appears between onset and lift, still stands at lift, and is gone at the end |
| eases | as present, but the limit stays: at the end it is gone, or a remark (severity info) that nobody is slow for |
| lasting | as present, and its span reaches beyond the end |
| absent | ruled out, with a number: neither a finding nor unknown |
| remark | absent, or a remark (severity info): it is there, and nobody is slow for it |
| unknown | it cannot be known here: neither a finding nor ruled out |
| silent | no finding; absent or unknown, as the place has it (every rule that is not named) |
| either | both answers are true, the file says why |

A scenario with a `database` has a real PostgreSQL and a real client beside it (`database.py`). Its stall is watched by four
agents at once, one for each access that a user may give it, and each is a cell:

| access | the agent |
|---|---|
| network | a sidecar that shares the network namespace |
| processes | and the PID namespace |
| role | and has a role with pg_monitor in the database |
| inside | runs inside the app's container, and has that role |

`expect` holds for all of them; `expect_by.ACCESS` says where it differs. What an agent without a role cannot be asked is
`silent` for it by itself. A scenario with a `redis` (`redis_stage.py`) has a real Redis, an app of `redis_client.py`, and the first and the last
of these accesses: the last one has its address in redis.targets.

A scenario with `logs` has an app that logs, what it logs to, and an agent beside it (`logs.py`); the app runs from the
beginning, and the timeline changes what holds its entries up.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from agent.rules import BY_ID, RULES
from probes.postgres.probe import PostgresReading
from probes.postgres.server import PostgresServerReading
from probes.redis.reading import RedisReading
from tests.lab import apps, clients, log_clients, redis_client
from tests.lab.timeline import STRICT, Database, Logs, RedisPlace, Step

DIRECTORY = Path(__file__).with_name("scenarios")
Expectation = Literal["present", "eases", "lasting", "absent", "remark", "unknown", "silent", "either"]
#: Which of its cells a scenario has in a set: all, none, or those with one of these values.
Chosen = bool | list[float | int | str]
#: Words for a finding that must be made.
DUE = frozenset({"present", "eases", "lasting"})
NAMES = tuple(rule.id for rule in RULES)
Access = Literal["network", "processes", "role", "inside"]
ACCESSES: tuple[Access, ...] = ("network", "processes", "role", "inside")
#: In a sandbox the agent is inside the app's container.
SANDBOX_ACCESSES: tuple[Access, ...] = ("inside",)
#: Of a Redis: a sidecar without its address, and an agent inside the app's container that has it.
REDIS_ACCESSES: tuple[Access, ...] = ("network", "inside")
#: What only an agent with a role in the database reads.
ROLE_READINGS = frozenset({PostgresReading, PostgresServerReading, RedisReading})
DATABASE_CORES = 0.3
"""Server, client and four agents; a scenario with more says so."""
LOG_CORES = 0.5
"""App, log service, reader and agent, until the service is slow; a scenario with more says so."""
AGENT_CORES = 0.03
GUEST_CORES = 0.06
"""An emulated machine costs this much beside what its app does."""


#: Where a scenario with one of these, or with none, may happen.
_PLACES_OF: Mapping[type, tuple[str, ...]] = {
    type(None): ("plain", "gvisor", "guest"),
    Database: ("plain", "gvisor"),
    RedisPlace: ("plain",),
}


class Scenario(BaseModel):
    """One cell: a scenario with the values of its `each` filled in."""

    model_config = STRICT

    name: str
    variant: str = ""
    title: str
    environment: Literal["plain", "gvisor", "guest"]
    command: Literal["run", "doctor"] = "run"
    agent: Literal["inside", "sidecar"] = "inside"
    """Whether the agent shares the app's cgroup, or has a container of its own beside it."""
    hook: bool = False
    """Whether the app has the Python hook loaded, and the agent listens to it; of an app with `logs`: `logs.hook`."""
    settings: dict[str, str] = {}
    env: dict[str, str] = {}
    before: str = ""
    """An app that tells what it does, and does it before the agent starts, until the first step with an app."""
    timeline: tuple[Step, ...]
    culprit: str = "nobody"
    expect: dict[str, Expectation] = {}
    expect_by: dict[Access, dict[str, Expectation]] = {}
    database: Database | None = None
    redis: RedisPlace | None = None
    logs: Logs | None = None
    access: Access | Literal[""] = ""
    cores: float | None = Field(default=None, gt=0, le=2)
    """What a scenario with a database or logs needs; any other says it by its loads, or claims more to be alone."""
    smoke: Chosen = False
    quick: Chosen = True
    because: str = ""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        told = [*self.expect, *(name for words in self.expect_by.values() for name in words)]
        faults = [f"expect.{name}: no such rule; allowed: {', '.join(NAMES)}" for name in told if name not in NAMES]
        times = [step.at for step in self.timeline]
        if times != sorted(times):
            faults.append(f"timeline: at goes back in {times}")
        marks = [step.mark for step in self.timeline if step.mark]
        if marks not in (["onset", "end"], ["onset", "lift", "end"]):
            faults.append(f"timeline: marks are {marks}; allowed: onset, (lift,) end")
        faults += [fault for step in self.timeline for fault in self._faults_of(step)]
        if self.before and (self.before.split()[0] not in self._kinds() or self.database or self.redis or self.logs):
            faults.append(
                f"before: {self.before!r}; allowed, without database, redis and logs: {', '.join(self._kinds())}"
            )
        if self.agent == "sidecar" and self.environment != "plain":
            faults.append(f"agent: sidecar needs environment plain, not {self.environment}")
        served = self.database or self.redis
        if (served is None) == bool(self.access) or self.environment not in _PLACES_OF[type(served)]:
            faults.append(
                "database, redis: need environment plain (a database: or gvisor), and every cell of them an access"
            )
        if self.logs is not None:
            faults += self._faults_of_logs(self.logs)
        words = [*self.expect.values(), *(word for each in self.expect_by.values() for word in each.values())]
        if "either" in words and not self.because:
            faults.append("because: say why either answer is right")
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def _faults_of(self, step: Step) -> Iterator[str]:
        kinds = self._kinds()
        if self.database or self.redis or self.logs:
            kinds = tuple(clients.CLIENTS) if self.database else tuple(redis_client.QUESTIONS) if self.redis else ()
        if step.app and step.app.split()[0] not in kinds:
            yield f"timeline: app {step.app!r}; allowed: {', '.join(kinds)}"
        if self.database is None and (step.lock or step.crowd):
            yield "timeline: lock and crowd need a [database]"
        if self.database is None and self.redis is None and step.server_quota:
            yield "timeline: server_quota needs a [database] or a [redis]"
        if self.redis is None and step.hold:
            yield "timeline: hold needs a [redis]"
        if self.logs is None and (step.service or step.reader is not None or step.signal):
            yield "timeline: service, reader and signal need [logs]"
        if step.inner_quota is not None and self.environment != "guest":
            yield f"timeline: inner_quota needs environment guest, not {self.environment}"

    def _kinds(self) -> tuple[str, ...]:
        """Of apps that can be there."""
        return tuple(kind for kind, app in apps.BY_KIND.items() if self.environment in app.environments)

    def _faults_of_logs(self, logs: Logs) -> Iterator[str]:
        client, mode = [*logs.app.split(), "", ""][:2]
        if mode not in log_clients.CLIENTS.get(client, ()):
            known = "; ".join(f"{name} {', '.join(modes)}" for name, modes in log_clients.CLIENTS.items())
            yield f"logs.app: {logs.app!r}; allowed: {known}"
        if self.environment != "plain" or self.database is not None or self.command != "run":
            yield "logs: needs environment plain, command run, and no [database]"
        if mode not in log_clients.TO_SERVICE and any(step.service for step in self.timeline):
            yield f"timeline: service, but {logs.app!r} writes to none"

    @property
    def id(self) -> str:
        return f"{self.name} {self.variant}".strip()

    @property
    def seconds(self) -> float:
        return self.timeline[-1].at

    @property
    def run_id(self) -> str:
        """What the cells have in common that are watched in one run."""
        return self.id.removesuffix(f"access={self.access}").strip() if self.access else self.id

    def expected(self, rule: str) -> Expectation:
        word = self.expect.get(rule, "silent")
        if self.access:
            word = self.expect_by.get(self.access, {}).get(rule, word)
            needs, uses = set(BY_ID[rule].needs), set(BY_ID[rule].uses)
            asked = not ROLE_READINGS.isdisjoint(needs) or (bool(uses) and uses <= ROLE_READINGS)
            if self.access in {"network", "processes"} and asked:
                word = "silent"
        return word

    def cores_from(self, index: int) -> float:
        """The most CPU that any step from this one on can use."""
        if self.cores:
            return self.cores
        if self.database or self.redis or self.logs:
            return LOG_CORES if self.logs else DATABASE_CORES
        most = 0.0
        quota, inner, app, neighbours = 1.0, 1.0, apps.demand(self.before) if self.before else 0.0, 0
        for at, step in enumerate(self.timeline):
            if step.quota is not None:
                quota = 1.0 if step.quota == "none" else step.quota
            if step.inner_quota is not None:
                inner = 1.0 if step.inner_quota == "none" else step.inner_quota
            if step.app:
                app = apps.demand(step.app)
            neighbours = 0 if step.mark == "lift" else step.neighbours or neighbours
            asked = min(app, inner) + (GUEST_CORES if self.environment == "guest" else AGENT_CORES)
            if step.requests and step.requests.quota:
                share = step.requests.lasting / step.requests.every if step.requests.lifts else 0.0
                asked = min(asked, share + (1 - share) * step.requests.quota + AGENT_CORES)
            if at >= index and at + 1 < len(self.timeline):
                most = max(most, min(asked, quota) + neighbours)
        return most


def _filled(value: Any, names: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, names) for each in value]
    if isinstance(value, str) and "$" in value:
        for name, each in names.items():
            if value == f"${name}":
                return each
            value = value.replace(f"${name}", str(each))
    return value


def _cells(path: Path) -> Iterator[Scenario]:
    raw = tomllib.loads(path.read_text())
    each: dict[str, list[Any]] = raw.pop("each", {})
    if "database" in raw:
        each["access"] = list(SANDBOX_ACCESSES if raw["environment"] == "gvisor" else ACCESSES)
        raw["access"] = "$access"
    if "redis" in raw:
        each["access"] = list(REDIS_ACCESSES)
        raw["access"] = "$access"
    combinations: list[dict[str, Any]] = [{}]
    shown: list[str] = []
    for name, values in each.items():
        named = [value if isinstance(value, dict) else {name: value} for value in values]  # a table: several at once
        shown.append(next(iter(named[0])))
        combinations = [{**before, **value} for before in combinations for value in named]
    for names in combinations:
        cell = _filled(raw, names)
        for chosen in ("smoke", "quick"):
            if isinstance(cell.get(chosen), list):
                cell[chosen] = any(value in cell[chosen] for value in names.values())
        variant = " ".join(f"{name}={names[name]}" for name in shown)
        yield Scenario(name=path.stem, variant=variant, **cell)


@cache
def load(directory: Path = DIRECTORY) -> tuple[Scenario, ...]:
    """Every cell of every file. Raises ValueError with all faults of all files."""
    cells: list[Scenario] = []
    faults: list[str] = []
    for path in sorted(directory.glob("*.toml")):
        try:
            cells.extend(_cells(path))
        except ValidationError as error:
            faults += [
                f"{path.name}: {'.'.join(map(str, each['loc']))}: {each['msg']}, not {str(each['input'])[:60]!r}"
                for each in error.errors()
            ]
        except ValueError as error:
            faults.append(f"{path.name}: {error}")
    if faults:
        raise ValueError("\n".join(faults))
    return tuple(cells)


@dataclass(frozen=True)
class Selection:
    """Which cells to run."""

    which: Literal["smoke", "quick", "full"] = "quick"
    only: tuple[str, ...] = ()
    """Parts of ids; a cell whose id contains one of them is taken, in whatever set it is."""

    def of(self, cells: tuple[Scenario, ...]) -> tuple[Scenario, ...]:
        if self.only:
            return tuple(cell for cell in cells if any(part in cell.id for part in self.only))
        if self.which == "full":
            return cells
        return tuple(cell for cell in cells if getattr(cell, self.which) is True)
