"""The server itself works for long on the app's statements.

Seen in the states of its sessions, not in the client's clock: an active session in ClientWrite waits for its
client and one in Lock for another session, and neither counts (docs/evidence/measured-facts.md: pg_stat_statements' mean rose 34
times only because a throttled client did not read).

The sessions are those of everybody: a report, a dump or another service in the same database works there too.  While hardly any
of the app's own connections waits, where these are seen, the statements convict nobody.
"""

from __future__ import annotations

from agent.history import History
from agent.report import Advice, Evidence
from agent.rules import targets
from agent.rules.confidence import measured
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.rules.words import duration
from agent.views import server_sessions
from agent.views.cpu import cpu_breakdown
from agent.views.stalled import SERVER
from agent.views.standstill import standstills
from probes.postgres.server import NOT_EXECUTING, PRIVILEGE, RUNNING, PostgresServerReading
from probes.reading import Code

SPAN = 60.0
LONG = Threshold(
    "length of the statements that the server executes, at least",
    0.05,
    "seconds",
    "an indexed query takes a few milliseconds",
)
OFTEN = Threshold(
    "statements that are executed at any moment, on average, at least",
    0.3,
    "",
    "one report a minute does not make a service slow",
)
NOW = Threshold(
    "of them in the newest half of that minute, at least",
    0.1,
    "",
    "the minute's mean of a load that ended in its first half says how it was",
)
FELT = Threshold(
    "of the app's own connections, where they are seen, those that wait at any moment, at least",
    0.1,
    "",
    "a third of the statements that convict: each of the app's keeps a connection waiting",
)
LOOKS = Threshold(
    "samples, of which the one with most statements does not count for how often, at least",
    2,
    "",
    "one may meet a burst, or a single long statement",
)
AWAY = Threshold(
    "time in which the server has no CPU, for its statements to be long for that alone, at least",
    0.05,
    "ratio",
    "four clients that ask all the time make 0.2 statements at any moment of that",
)
STANDS = Threshold(
    "length of the statements over that of the moments without CPU, for these to explain them, at most",
    2.0,
    "",
    "both are weighted by their own length, from some ten samples each",
)
HELD = Threshold(
    "time in which a CPU limit holds this agent, for statements that run without waiting to mean nothing, at least",
    0.5,
    "ratio",
    "a limit lets all go on at once: the agent samples while the client beside it reads, and that the statement has waited for its reader does not show",
)
COUNTED = Threshold(
    "statements that pg_stat_statements saw end, times the length in the samples, over those at any moment, at least, to weigh the two",
    0.5,
    "",
    "texts that are all different push each other out of pg_stat_statements, and are not counted",
)
SHORT = Threshold(
    "length of the statements, at most, for that", SPAN / 10, "seconds", "one that is still executed is not counted yet"
)
ACCOUNTED = Threshold(
    "of the statements at any moment, those that pg_stat_statements accounts for, below which the samples mean something else",
    0.25,
    "ratio",
    "waits for clients and locks are counted there too, so it should be more than all",
)
VERY = Threshold("length of the statements, critical from", 1.0, "seconds", "people leave")
SURE = measured(18, 18)


def _judge(history: History) -> Judgement:
    return targets.worst(history, PostgresServerReading, _target)


def _target(history: History, target: str) -> Judgement:
    seen = server_sessions.sessions(history, SPAN, target)
    if seen is None or seen.readings < LOOKS.value:
        return targets.unseen(history, target, "active")
    clients, locked = seen.waiting_for_clients, seen.waiting_for_locks
    text = (
        f"{targets.name(target)} works on {seen.executing:.1f} statements at any moment, "
        f"{1e3 * seen.executing_seconds:.0f} ms long; {clients:.1f} wait for their client, {locked:.1f} for a lock"
    )
    evidence = [Evidence(text, seen.executing_seconds, "seconds")]
    ended = targets.statements(history, SPAN, target)
    if ended is not None:
        share = clients + locked and (clients + locked) / (clients + locked + seen.executing)
        mean = ended.seconds * (1 - share)
        said = (
            f"pg_stat_statements: {1e3 * mean:.1f} ms each, with {share:.0%} of waiting for clients and locks taken out"
        )
        evidence.append(Evidence(said, mean, "seconds"))
    if seen.executing < OFTEN.value or seen.executing_seconds < LONG.value:
        if server_sessions.hidden(history, target) and not seen.executing:
            return Unknown(PRIVILEGE, targets.GRANT, PRIVILEGE.code)
        return Absent(text, tuple(evidence))
    if (doubt := _doubt(history, target, seen, ended, text)) is not None:
        return doubt
    for stands in standstills(history, SPAN, target):
        if stands.share >= AWAY.value and seen.executing_seconds <= STANDS.value * stands.seconds:
            because = f"{text}; it has no CPU {stands.share:.0%} of the time, for {duration(stands.seconds)} at once, which makes any statement as long"
            return Unknown(because, NO_CPU, Code.CANNOT_COUNT)
    what = max((w for w in seen.active if w not in NOT_EXECUTING), key=lambda w: seen.active[w])
    own = cpu_breakdown(history, SPAN)
    held = own.shares["suspended_quota"] if own is not None else 0.0
    if what == RUNNING and held >= HELD.value:
        because = (
            f"{text}; a CPU limit held this agent {held:.0%} of the time, and it samples while a client beside it reads"
        )
        return Unknown(because, NOT_HELD, Code.CANNOT_COUNT)
    most = "run, or wait for a CPU" if what == RUNNING else f"wait, and the server calls it {what} (wait_event_type)"
    evidence.append(Evidence(f"most of them {most}", seen.active[what]))
    return Present("critical" if seen.executing_seconds >= VERY.value else "warning", SURE, "the app", tuple(evidence), Advice(
        ADVICE, ("SELECT queryid, calls, mean_exec_time, query FROM pg_stat_statements ORDER BY total_exec_time DESC LIMIT 5",
                 "EXPLAIN (ANALYZE, BUFFERS) of the first: a sequential scan wants an index", "a larger server, when its CPU or disks are full"),
        "an index costs writes and space", "more CPU for the client, or another billing mode: it waits for the server",
    ))  # fmt: skip


def _doubt(
    history: History, target: str, seen: server_sessions.Sessions, ended: targets.Statements | None, text: str
) -> Unknown | None:
    """Why what the samples met is no more, is not the app's, or is no work."""
    if but := _passing(history, target, seen):
        return Unknown(f"{text}; but {but}", "wait for another sample: it may be over", Code.NOT_YET)
    if ended is not None and _contradicts(ended, seen):
        because = (
            f"{text}; but of those that ended, {ended.per_second:.1f} a second, pg_stat_statements counts {1e3 * ended.seconds:.0f} ms each, "
            f"so the server worked on {ended.at_once:.2f} at any moment: the others were over, and their processes not yet back"
        )
        return Unknown(because, NOT_BACK, Code.CANNOT_COUNT)
    waits = targets.app_waits(history, SPAN, target)
    if waits is not None and waits[1] < FELT.value:
        number, waiting = waits
        because = (
            f"{text}; but of the app's {number:.1f} connections that are seen here {waiting:.2f} wait at any moment: "
            "the statements are another client's, or come by a way that is not seen"
        )
        return Unknown(because, WHOSE, Code.CANNOT_COUNT)
    return None


def _passing(history: History, target: str, seen: server_sessions.Sessions) -> str:
    """How it may be that this was so for a moment, or is no more; "" where it is so."""
    if seen.often < OFTEN.value:
        return f"without the sample of the most on {seen.often:.1f}"
    newest = server_sessions.sessions(history, SPAN / 2, target)
    now = newest.executing if newest is not None else 0.0
    return f"in the last half minute on {now:.1f}" if now < NOW.value else ""


def _contradicts(ended: targets.Statements, seen: server_sessions.Sessions) -> bool:
    """Whether enough statements are counted to be those of the samples, and took too little time for it."""
    counted = ended.per_second * seen.executing_seconds >= COUNTED.value * seen.executing
    return counted and seen.executing_seconds <= SHORT.value and ended.at_once < ACCOUNTED.value * seen.executing


NOT_BACK = (
    "see the findings about the CPU: who sends a reply, or waits for a CPU to do so, is active and executes nothing"
)
NOT_HELD = "raise the CPU limit first, then look again; or let an agent look that is not behind it"
NO_CPU = "give the server its CPU first, then look again"
WHOSE = (
    "on the server: SELECT usename, application_name, client_addr, now() - query_start, query FROM pg_stat_activity WHERE state = 'active'; "
    "a pooler at another port than the usual ones belongs into connections.ports"
)
ADVICE = "Make the statements cheaper, or the server larger."

RULE = Rule(
    id="database_slow",
    title="The database works long on the app's statements",
    meaning="At most moments the server is executing statements of this database, and they last.",
    disproof="pg_stat_activity shows the sessions idle, in ClientRead or ClientWrite, or waiting for a lock",
    needs=(PostgresServerReading,),
    thresholds=(LONG, OFTEN, NOW, FELT, LOOKS, AWAY, STANDS, HELD, COUNTED, SHORT, ACCOUNTED, VERY),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    stalls=(SERVER,),
    suspect="database",
)
