"""The app waits for a connection of its own pool.

A symptom: something holds the connections for longer than the pool was made for.  What, is said by the finding that
explains this one, and as far as they can by the sockets.

A pool that is always full with nobody waiting is one of the right size: a worker's own connection, or as many
workers as connections.  Where a page does not tell who waits, a full pool of two and more is reported at low
confidence (of requests that come at random, as many must wait as find it full), and a full pool of one is unknown.  So is one
in which somebody waits now and then, or whose page comes late, where nothing tells for how long: an event loop answers for its page
when it has done what else was to be done, and by then who waited may have been served.
"""

from __future__ import annotations

from agent.history import History, once
from agent.report import Advice, Evidence
from agent.rules import targets
from agent.rules.confidence import measured, not_measured
from agent.rules.logs import queues
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.rules.words import duration
from agent.views.pool import PoolView, holders, view
from agent.views.stalled import WAITERS, remotes_of_pools
from probes.app.pool import PoolReading
from probes.reading import Code

SPAN = 60.0
FULL = Threshold(
    "connections in use of the pool's size, from which it is full",
    0.95,
    "ratio",
    "of up to 19 connections all; of more the rest is soon gone",
)
MOST = Threshold(
    "samples that find the pool full, or somebody waiting, above", 0.5, "ratio", "one such sample is a burst"
)
LOOKS = Threshold("samples of the pool, at least", 3, "", "fewer can all fall into one burst")
SOME = Threshold(
    "samples of a full pool in which somebody waits, at least, for it not to be cleared where how long is not published",
    2,
    "",
    "one is a burst",
)
LATE = Threshold(
    "time in which the app answers for its page, from which it does so when who waited has been served",
    0.05,
    "seconds",
    "a page takes some milliseconds, and a loop that computes 200 ms for each request half of that at least",
)
WAIT = Threshold(
    "mean wait for a connection, at least",
    0.01,
    "seconds",
    "opening a new one takes about as long: 7 round trips of 1 ms and TLS",
)
LONG = Threshold(
    "mean wait for a connection, critical from", 0.1, "seconds", "a person notices it; so is any request that gave up"
)
BY_WAIT = measured(12, 12, when="by the mean wait", cells=("* case=psycopg*", "* case=pgx*"))
BY_WAITERS = measured(5, 5, when="by who waits", cells=("* case=node*",))
BY_FULLNESS = not_measured(0.6, "a pool of the right size is always full too", "by the connections alone")


@once  # other rules ask as well whether anybody waits for a connection
def _judge(history: History) -> Judgement:
    readings = history.window(PoolReading, SPAN)
    pools = readings[-1].libraries if readings else ()
    found = [_pool(history, view(readings, pool)) for pool in pools]
    if (
        pools and "checked_out" in readings[-1].unseen and readings[-1].checked_out
    ):  # the page is missing, a hook speaks
        reason = readings[-1].unseen["checked_out"]
        found.append(Unknown(reason, SERVE, reason.code))
    return targets.worst_of(found) or Unknown("no pool has been read yet", code=Code.NOT_YET)


def _pool(history: History, pool: PoolView) -> Judgement:
    if pool.samples < LOOKS.value:
        return Unknown(
            f"pool {pool.name!r} has fewer than {LOOKS.value:g} samples of the last minute",
            "wait",
            Code.NOT_YET,
        )
    if not pool.waiting and not (pool.size and pool.checked_out):
        return Unknown(
            f"neither who waits for pool {pool.name!r} nor how many connections it may have is published",
            TELL,
            Code.CANNOT_COUNT,
        )
    waited, most, wait = pool.waited(), MOST.value * pool.samples, pool.mean_wait
    busy = pool.full(FULL.value) | waited
    text = f"in {len(busy)} of {pool.samples} samples pool {pool.name!r} had no connection left ({pool.numbers()})"
    evidence = [Evidence(text, len(busy) / pool.samples, "ratio")]
    told = wait is not None or bool(pool.waiting)
    harm = wait >= WAIT.value if wait is not None else len(waited) > most or not told
    if len(busy) <= most:
        return Absent(text, tuple(evidence))
    if not harm:
        late = pool.page_seconds or 0.0
        if wait is None and late >= LATE.value:
            because = f"{text}; but the app answers for its page after {duration(late)} only, when who waited may have been served"
            return Unknown(because, HOW_LONG, Code.TIMED_OUT)
        if wait is None and len(waited) >= SOME.value:
            because = f"{text}; in {len(waited)} of them somebody waited, and how long is not published"
            return Unknown(because, HOW_LONG, Code.CANNOT_COUNT)
        return Absent(text, tuple(evidence))
    if not told and max(pool.size.values()) <= 1:
        return Unknown(
            f"the one connection of pool {pool.name!r} is in use, as it may be meant to be; who waits for it is not published",
            TELL,
            Code.CANNOT_COUNT,
        )
    if pool.gave_up:
        evidence.append(Evidence(f"{pool.gave_up:g} requests gave up waiting", pool.gave_up, ""))
    evidence += filter(None, [holders(history, SPAN)])
    severe = pool.gave_up > 0 or (wait is not None and wait >= LONG.value)
    settings = [SETTINGS[pool.library]] if pool.library in SETTINGS else COMMON
    return Present(
        "critical" if severe else "warning", BY_WAIT if wait is not None else BY_WAITERS if told else BY_FULLNESS, "the app", tuple(evidence),
        Advice(ADVICE, (*FIRST, *(f"only then a larger pool ({setting})" for setting in settings)), COST, WILL_NOT_HELP),
        cases=queues.stuck_in_write(history, SPAN), share=len(busy) / pool.samples, remotes=remotes_of_pools(history, SPAN),
    )  # fmt: skip


ADVICE = "Find what holds the connections; a larger pool is the last thing to try."
FIRST = (
    "act on the finding that explains this one, where there is one",
    "give a connection back before work that needs no database (calls to others, files, computing)",
)
COST = "each connection is a process and some megabytes in the server; those of all instances must stay below max_connections"
WILL_NOT_HELP = (
    "a larger pool against a client that is asleep, a lock or a starved database: more requests wait for the same"
)
SERVE = "let the app serve its metrics at pool.metrics_url, or correct that"
HOW_LONG = "publish the time that requests wait for a connection"
TELL = "publish its size, or set pool.size; best of all publish how many requests wait for a connection"
#: Library, as in probes.pool_names: its setting.
SETTINGS = {
    "pgxpool": "pgxpool: MaxConns, or pool_max_conns in the DSN",
    "database_sql": "database/sql: db.SetMaxOpenConns(n)",
    "hikaricp": "HikariCP: maximumPoolSize (Spring: spring.datasource.hikari.maximum-pool-size)",
    "agroal": "Quarkus: quarkus.datasource.jdbc.max-size",
    "r2dbc": "Spring: spring.r2dbc.pool.max-size",
    "psycopg_pool": "psycopg_pool: ConnectionPool(max_size=n)",
    "sqlalchemy": "SQLAlchemy: create_engine(pool_size=n, max_overflow=m)",
    "node_postgres": "node-postgres: new Pool({ max: n })",
    "prisma": "Prisma: connection_limit=n in the URL of the database",
    "active_record": "Active Record: pool: n in database.yml",
}
COMMON = [SETTINGS[name] for name in ("pgxpool", "hikaricp", "sqlalchemy", "node_postgres", "psycopg_pool")]

RULE = Rule(
    id="pool_saturated",
    title="The app waits for a connection of its pool",
    meaning="Most of the time a pool of the app has no connection left, and requests wait before they reach the database.",
    disproof="the app's own time from asking for a connection to having one stays below 10 ms",
    needs=(PoolReading,),
    thresholds=(FULL, MOST, LOOKS, SOME, LATE, WAIT, LONG),
    confidences=(BY_WAIT, BY_WAITERS, BY_FULLNESS),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    stalls=(WAITERS,),
)
