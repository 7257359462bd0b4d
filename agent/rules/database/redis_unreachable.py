"""A Redis does not answer, or answers that it serves nobody: it loads its data, a script holds it, it refuses writes."""

from __future__ import annotations

from agent.history import History
from agent.rules.confidence import not_measured
from agent.rules.database import unanswered
from agent.rules.rule import Judgement, Rule
from agent.views.stalled import OTHER_SIDE
from probes.redis.reading import RedisReading

SURE = not_measured(0.9, "no run of the lab stops a Redis; the tests do, with a real one")


def _judge(history: History) -> Judgement:
    return unanswered.judge(history, RedisReading, SURE, ADVICE)


ADVICE = "Make Redis reachable from here, or let it finish what it does."

RULE = Rule(
    id="redis_unreachable",
    title="Redis does not answer, or serves nobody",
    meaning="No connection can be made, no PING is answered in time, or the answer is that nobody is served (LOADING, BUSY, MISCONF, MASTERDOWN).",
    disproof="redis-cli PING from this container answers with the same address and password",
    needs=(RedisReading,),
    thresholds=(unanswered.IN_A_ROW, unanswered.HELD),
    confidences=(SURE,),
    span_seconds=unanswered.SPAN,
    judge=_judge,
    clear_seconds=0.0,  # it has answered
    advice=ADVICE,
    stalls=(OTHER_SIDE,),
    suspect="database",
)
