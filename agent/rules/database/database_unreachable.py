"""The database does not answer.  One attempt without an answer may be a restart of a proxy: two are told.

An attempt is one that was made: between them the agent pauses, and asks nothing.  What answers the app's own connections is
there, whatever this agent is told: a policy, a proxy or an address of its own stands in its way.
"""

from __future__ import annotations

from agent.history import History
from agent.rules.confidence import not_measured
from agent.rules.database import unanswered
from agent.rules.rule import Judgement, Rule
from agent.views.stalled import OTHER_SIDE
from probes.postgres.probe import PostgresReading

SURE = not_measured(0.9, "no run of the lab stops a database; the tests do, with a real one")


def _judge(history: History) -> Judgement:
    return unanswered.judge(history, PostgresReading, SURE, ADVICE)


ADVICE = "Make the database reachable from here."

RULE = Rule(
    id="database_unreachable",
    title="The database does not answer",
    meaning="No connection can be made, or none of its questions is answered in time.",
    disproof="psql from this container answers with the same DSN",
    needs=(PostgresReading,),
    thresholds=(unanswered.IN_A_ROW, unanswered.HELD),
    confidences=(SURE,),
    span_seconds=unanswered.SPAN,
    judge=_judge,
    clear_seconds=0.0,  # it has answered
    advice=ADVICE,
    stalls=(OTHER_SIDE,),
    suspect="database",
)
