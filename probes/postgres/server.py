"""What the server says about its sessions, locks and limits, on the connection of the Postgres probe.

It tells a slow database from one that waits for its client: a session ``active`` in ClientWrite, or ``idle``,
is the client's time (docs/evidence/measured-facts.md: with multi-MB results and a throttled client pg_stat_statements' mean rose
from 28 to 953 ms only because nobody read).  Sessions are sampled several times in a slot, because a share
rests on their number; a statement seen at a random moment is half over on average, the long ones counting more.

Most are asked together, in one round trip; where one is refused, each alone.  What this role, version or installation does not answer
is ``None`` with the reason, and is asked again in an hour; the rest goes on.  A role without ``pg_monitor`` sees the states of its own
role's sessions: the app's, when it is the app's.

Behind one name there may be several servers (a reader endpoint, a list of hosts, a pooler before replicas, a failover), each with totals
of its own: what another one says is compared with nothing.

Longer than a probe should be: six questions, each with what it means that it is not answered.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from probes.counters import Counters
from probes.postgres import sql
from probes.postgres.failures import REFUSED
from probes.postgres.held import STATES, Holder, holders
from probes.postgres.link import Row
from probes.postgres.locks import ADVISORY, Blocked, LockWaits
from probes.postgres.probe import PostgresProbe
from probes.reading import Code, NoData, Reading, Stability, Unseen, flag, gauge, increment
from probes.record import dataclass
from probes.store.failures import LinkFailed

#: Samples of the sessions in one slot, and the pause between two: not in step with anything.
SAMPLES_PER_SLOT, BETWEEN_SECONDS = 3, (0.03, 0.17)
#: What was refused once is not asked again for so long.
REFUSED_SECONDS = 3600.0
#: Of an active session: waits in which it is the client's turn, and those in which another session holds it.
CLIENT_WAITS = frozenset({"ClientRead", "ClientWrite"})
RUNNING, LOCK, HIDDEN = "running", "Lock", "hidden"
#: Where the slot before met sessions in these states alone, one sample: a choice made before it is taken leaves the mean as it is.
RESTING = frozenset({"idle", HIDDEN})
#: Of an active session: it waits, and the server does not work for it.
NOT_EXECUTING = CLIENT_WAITS | {LOCK, ADVISORY}
_SERVICES = {"cloudsql": "Cloud SQL", "alloydb": "AlloyDB", "rds": "Amazon RDS", "azure": "Azure Database"}
_FIRST = Unseen("this is the first reading of this server: nothing to compare with yet", Code.NOT_YET)
_NO_SESSION_COUNT = Unseen("PostgreSQL counts sessions from version 14 on", Code.CANNOT_COUNT)
_NO_EXTENSION = Unseen(
    "the extension pg_stat_statements is not in this database: CREATE EXTENSION pg_stat_statements", Code.NOT_CONFIGURED
)
PRIVILEGE = Unseen("this role may not see the sessions of other roles", Code.NOT_PERMITTED)
HOW_LONG = Unseen(
    "this role may not see since when others wait, and they have been seen once: the next slot knows more",
    Code.NOT_PERMITTED,
)
NOBODY_HOLDS = Unseen("no session was idle in transaction", Code.IDLE)
NOBODY_WAITS = Unseen("nobody waits for a lock", Code.IDLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServerReading(Reading):
    """One slot's view of one server; sessions are those of other clients of the same database, mean of the samples."""

    probe: ClassVar[str] = "postgres_server"
    stability: ClassVar[Stability] = "stable"
    labelled: ClassVar[bool] = True
    #: Ages: that they are hidden ``active`` and ``blocked`` say too.
    told_elsewhere: ClassVar[frozenset[str]] = frozenset(
        {"executing_seconds", "blocked_seconds", "idle_in_transaction_seconds"}
    )

    sessions: Mapping[str, float] | None = gauge(
        "Other sessions of the database by state; starting: it has none yet; hidden: this role may not see it",
        by="state",
    )
    active: Mapping[str, float] | None = gauge("Active sessions by what they wait for; running: nothing", by="wait")
    executing_seconds: float | None = gauge(
        "Age of the statements that the server works on, neither waiting for a client nor for a lock, on average"
    )
    idle_in_transaction_seconds: float | None = gauge(
        "For how long the longest silent session in a transaction has asked nothing"
    )
    blocked: float | None = gauge("Sessions that wait for a lock of another, without those that stand by")
    blocked_seconds: float | None = gauge(
        "How long the oldest of them has waited; before PostgreSQL 14 the age of its statement, to a role that may not see it since it was seen"
    )
    standing_by: float | None = gauge(
        "Sessions that wait for an advisory lock which another session keeps between its transactions, as in a leader election"
    )
    used_connections: float | None = gauge("Connections in use, of the narrowest limit")
    most_connections: float | None = gauge(
        "The narrowest limit of connections: the server's without the reserved ones, the database's or the role's"
    )
    new_sessions_per_second: float | None = gauge("Sessions that were opened in this database, per second")
    statement_seconds: float | None = gauge(
        "Mean execution time of a statement since the reading before (pg_stat_statements), waits for clients and locks included"
    )
    statements: float | None = increment("Statements executed (pg_stat_statements)")
    transactions: float | None = increment("Transactions ended")
    blocks_read: float | None = increment("Blocks read from outside of shared_buffers")
    blocks_hit: float | None = increment("Blocks found in shared_buffers")
    temporary_bytes: float | None = increment("Written to temporary files")
    deadlocks: float | None = increment("Deadlocks that the server broke")
    requested_checkpoints: float | None = increment("Checkpoints that came before their time")
    standby: bool | None = flag("Whether it is a standby")
    waits: tuple[Blocked, ...] = ()
    """Those who are ``blocked``."""
    holders: tuple[Holder, ...] = ()
    """Those who are longest idle in transaction."""
    leaders: frozenset[int] = frozenset()
    """For whom the others stand by."""
    service: str = ""
    """Who runs the server, where its settings tell."""


#: Totals of the server: those of the reading in their order in the query, and the sessions that were opened.
_TOTALS = (
    "transactions", "blocks_read", "blocks_hit", "temporary_bytes", "deadlocks", "sessions", "requested_checkpoints",
)  # fmt: skip


class _Question(NamedTuple):
    """Its name, the SELECT, and the fields that are unseen while it is not answered."""

    what: str
    query: str
    fields: tuple[str, ...] = ()


_SESSIONS = _Question("sessions", sql.SESSIONS, ("sessions", "active", "executing_seconds"))
_COUNTERS = tuple(name for name in _TOTALS if name != "sessions")


class PostgresServerProbe:
    """Asks the server that ``database`` is connected to.  Raises NoData while it is not."""

    name = "postgres_server"
    reading_type = PostgresServerReading

    def __init__(
        self,
        database: PostgresProbe,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.target, self._database, self._clock, self._sleep = database.target, database, clock, sleep
        self._taken = clock()
        self._connection: object = None
        self._facts: Row = ()
        self._counters, self._totals_read = Counters(), clock()
        self._started: str | None = None
        self._lock_waits = LockWaits(clock)
        self._refused: dict[str, tuple[Unseen, float]] = {}
        self._samples = SAMPLES_PER_SLOT

    async def read(self) -> PostgresServerReading:
        """Ask everything once, the sessions several times."""
        self._unseen: dict[str, Unseen] = {}
        fields: dict[str, Any] = {}
        try:
            if self._connection is None or self._database.connection is not self._connection:
                self._facts = ((await self._ask(_Question("facts", sql.FACTS))) or [()])[0]
                self._connection = self._database.connection
            first, locks, totals, *statements = await self._ask_together(*self._questions())
            fields |= self._locks(locks) | self._totals(totals) | self._statements(*statements)
            fields |= await self._sample_sessions(first)
            fields |= await self._read_holders(fields["sessions"] or {})
            fields |= _without_standbys(fields)
        except LinkFailed as fault:
            raise NoData(fault.because, fault.remedy) from None
        standby, _, _, service = self._facts or (None,) * 4
        now, before = self._clock(), self._taken
        self._taken = now
        return PostgresServerReading(
            taken=now, seconds=now - before, target=self.target, **fields, unseen=self._unseen,
            standby=None if standby is None else standby == "t", service=_SERVICES.get(service or "", ""),
        )  # fmt: skip

    def _questions(self) -> list[_Question]:
        """The sessions, the locks and the totals; and the statements where their extension is."""
        version, schema = self._database.server_version, self._facts[2] if self._facts else None
        return [
            _SESSIONS,
            _Question("locks", sql.locks(version), ("blocked", "blocked_seconds", "standing_by")),
            _Question(
                "totals", sql.totals(version), (*_COUNTERS, "new_sessions_per_second", "used_connections", "most_connections")
            ),
            *([_Question("statements", sql.statements(version, schema), ("statement_seconds", "statements"))] if schema else []),
        ]  # fmt: skip

    async def _ask_together(self, *questions: _Question) -> list[list[Row] | None]:
        """The rows of each: in one round trip, without those that are refused; when one of them is, each alone."""
        now = self._clock()
        answered = [each for each in questions if now >= self._refused.get(each.what, (_FIRST, 0.0))[1]]
        found: dict[_Question, list[Row]] = {}
        try:
            if answered:
                found = dict(zip(answered, await self._database.rows(*(each.query for each in answered)), strict=True))
        except LinkFailed as fault:
            if fault.reason != REFUSED:
                raise
        return [found[each] if each in found else await self._ask(each) for each in questions]

    async def _ask(self, question: _Question) -> list[Row] | None:
        """The rows; ``None`` when this question is not answered here, with the reason for its fields."""
        what, query, fields = question
        because, until = self._refused.get(what, (_FIRST, 0.0))
        if self._clock() >= until:
            try:
                return (await self._database.rows(query))[0]
            except LinkFailed as fault:
                if fault.reason != REFUSED:
                    raise
                said = f"{fault.because}; {fault.remedy}" if fault.remedy else fault.because
                because = fault.because.reworded(said)
                if not fault.passing:
                    self._refused[what] = because, self._clock() + REFUSED_SECONDS
        self._unseen |= dict.fromkeys(fields, because)
        return None

    async def _sample_sessions(self, rows: list[Row] | None) -> dict[str, Any]:
        """``rows`` are those of the first sample."""
        states: dict[str, float] = {}
        active: dict[str, float] = {}
        count = age = 0.0
        samples = self._samples
        for number_of_sample in range(samples):
            if number_of_sample:
                await self._sleep(random.uniform(*BETWEEN_SECONDS))  # noqa: S311 - no secret
                rows = await self._ask(_SESSIONS)
            if rows is None:
                return dict.fromkeys(_SESSIONS.fields)
            for state, kind, event, number, ages in rows:
                states[str(state)] = states.get(str(state), 0.0) + _number(number) / samples
                if state == "active":
                    told = event in CLIENT_WAITS or (kind, event) == (LOCK, ADVISORY)
                    wait = str(event) if told else str(kind or RUNNING)
                    active[wait] = active.get(wait, 0.0) + _number(number) / samples
                    if wait not in NOT_EXECUTING:
                        count, age = count + _number(number), age + _number(ages)
        self._samples = 1 if states.keys() <= RESTING else SAMPLES_PER_SLOT
        if states.keys() == {HIDDEN}:
            self._unseen |= dict.fromkeys(("active", "executing_seconds"), PRIVILEGE)
            return {"sessions": states}
        if not count:
            self._unseen["executing_seconds"] = Unseen("no statement was being executed", Code.IDLE)
        return {"sessions": states, "active": active, "executing_seconds": age / count if count else None}

    async def _read_holders(self, sessions: Mapping[str, float]) -> dict[str, Any]:
        """Asked only while somebody is idle in transaction."""
        if not any(sessions.get(state) for state in STATES):
            self._unseen["idle_in_transaction_seconds"] = NOBODY_HOLDS
            return {}
        found = holders(await self._ask(_Question("holders", sql.HOLDERS, ("idle_in_transaction_seconds",))) or ())
        return {"holders": found, "idle_in_transaction_seconds": found[0].idle_seconds if found else None}

    def _locks(self, rows: list[Row] | None) -> dict[str, Any]:
        if rows is None:
            return {}
        waits, others = self._lock_waits.take(rows)
        held = tuple(wait for wait in waits if not wait.standing_by)
        oldest = max((w.seconds for w in held if w.seconds is not None), default=None)
        if oldest is None:
            self._unseen["blocked_seconds"] = HOW_LONG if held else NOBODY_WAITS
        return {
            "waits": held, "blocked": float(len(held) + others), "blocked_seconds": oldest,
            "standing_by": float(len(waits) - len(held)), "leaders": frozenset(w.blocker for w in waits if w.standing_by),
        }  # fmt: skip

    def _totals(self, rows: list[Row] | None) -> dict[str, Any]:
        if not rows:
            return {}
        started, *numbers = rows[0]
        if started != self._started:  # another server, or this one anew
            self._started, self._counters = started, Counters()
        *counts, used, most, of_database, of_role, used_of_database, used_of_role = map(_maybe, numbers)
        now, before = self._clock(), self._totals_read
        self._totals_read = now
        limits = [(used, most), (used_of_database, of_database), (used_of_role, of_role)]
        known = [(u, m) for u, m in limits if u is not None and m is not None]
        narrowest = max(known, key=lambda pair: pair[0] / max(1.0, pair[1]), default=(None, None))
        fields: dict[str, Any] = {"used_connections": narrowest[0], "most_connections": narrowest[1]}
        totals = dict(zip(_TOTALS, counts, strict=True))
        gained = {name: self._gain(name, total) for name, total in totals.items()}
        for name in _COUNTERS:
            fields[name] = gained[name]
            if gained[name] is None:
                self._unseen[name] = _FIRST
        opened, seconds = gained["sessions"], now - before
        fields["new_sessions_per_second"] = opened / seconds if opened is not None and seconds > 0 else None
        if opened is None:
            self._unseen["new_sessions_per_second"] = _NO_SESSION_COUNT if totals["sessions"] is None else _FIRST
        return fields

    def _gain(self, name: str, total: float | None) -> float | None:
        """Each total alone: the statistics of a database, of the checkpoints and of its sessions are reset apart."""
        gained = None if total is None else self._counters.gained(name, {name: total})
        return None if gained is None else gained[name]

    def _statements(self, *answer: list[Row] | None) -> dict[str, Any]:
        """``answer`` is empty where the extension is not there."""
        names = ("statement_seconds", "statements")
        if not answer:
            self._unseen |= dict.fromkeys(names, _NO_EXTENSION)
            return {}
        if not (rows := answer[0]):
            return {}
        totals = {"calls": _number(rows[0][0]), "seconds": _number(rows[0][1]) / 1e3}
        gained = self._counters.gained("statements", totals)
        if gained is None:
            self._unseen |= dict.fromkeys(names, _FIRST)
            return {}
        calls, seconds = gained["calls"], gained["seconds"]
        if not calls:
            self._unseen["statement_seconds"] = Unseen("no statement ended", Code.IDLE)
        return {"statements": calls, "statement_seconds": seconds / calls if calls else None}

    async def aclose(self) -> None:
        """The connection is the Postgres probe's."""


def _without_standbys(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The active sessions, of which those alone wait for an ``advisory`` lock that stand by; the others wait for a Lock."""
    if not fields.get("active") or ADVISORY not in fields["active"]:
        return {}
    active = dict(fields["active"])
    waiting = active.pop(ADVISORY)
    standing = min(waiting, fields.get("standing_by") or 0.0)
    parts = {ADVISORY: standing, LOCK: active.get(LOCK, 0.0) + waiting - standing}
    return {"active": active | {wait: number for wait, number in parts.items() if number}}


def _maybe(text: str | None) -> float | None:
    return None if text is None else float(text)


def _number(text: str | None) -> float:
    return float(text or 0)
