"""What the engine is asked, in PromQL: once of the instances' own series, once of those that recording rules made of them.

A page of metrics holds three series for each rule alone, so that 10,000 instances have more than a million.  The rules of
deploy/prometheus/recording.yaml add them up by :data:`KEPT`, some hundreds of series for each group; a look at the last hour then
reads a thousandth.  The same expressions stand there, and a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from agent.commands.fleet.selector import Matcher

#: Labels that may tell revisions apart: a relabelled one, Cloud Run's by Google's collector, a Kubernetes ReplicaSet's.
REVISIONS = ("revision", "revision_name", "pod_template_hash")
REVISION = REVISIONS[0]
#: What is told apart beside what ``--by`` names: revision 12 of one service is not that of another.
SCOPE = ("cluster", "namespace", "job")
#: Labels of instances that the recorded series have.
KEPT = (*SCOPE, "service_name", *REVISIONS)


@dataclass(frozen=True, slots=True)
class Question:
    """A number for each group, and for each value of these ``labels`` of the findings.

    ``of`` makes it of the instances' series, where SELECT( begins what is to be selected, with matchers of its own; ``recorded`` is the series that a rule
    made of it, added up by ``add``.
    """

    of: str
    labels: tuple[str, ...] = ()
    recorded: str = ""
    add: str = "sum"


#: One series for each instance.
ALIVE = "max without (version) (stallscope_build_info{})"
INSTANCES = Question(f"count {{by}} ({ALIVE})", (), "stallscope:instances:count")
#: Instances on which somebody is slow because of it, and no other finding is the cause.
CAUSES = Question(
    'count {by} (max without (severity, explained_by) (stallscope_finding{severity!="info",explained_by=""}))',
    ("rule",), "stallscope:finding_causes:count",
)  # fmt: skip
FINDINGS = Question(
    "count {by} (stallscope_finding{})", ("rule", "severity", "explained_by"), "stallscope:findings:count"
)
VERDICTS = Question("sum {by} (stallscope_rule_verdict{})", ("rule", "verdict"), "stallscope:rule_verdicts:count")
WORST = Question("max {by} (stallscope_finding_share_ratio{})", ("rule",), "stallscope:finding_share:max", "max")
LOST = Question("sum {by} (stallscope_finding_share_ratio{})", ("rule",), "stallscope:finding_share:sum")
STALLED = Question("sum {by} (stallscope_finding_stalled{})", ("rule",), "stallscope:finding_stalled:sum")
RECORDED = (INSTANCES, CAUSES, FINDINGS, VERDICTS, WORST, LOST, STALLED)


def select(expression: str, matchers: Iterable[Matcher]) -> str:
    """The expression with these matchers in every selector, each of which ends in ``}`` after its own matchers."""
    more = ",".join(map(str, matchers))
    if not more:
        return expression
    parts = expression.split("}")
    return "".join(f"{part}{'' if part.endswith('{') else ','}{more}}}" for part in parts[:-1]) + parts[-1]


def ask(
    question: Question,
    by: Sequence[str],
    matchers: Collection[Matcher],
    *,
    recorded: bool = False,
    rules: Collection[str] = (),
) -> str:
    """The query: groups by the labels ``by``, of the instances that match, of these rules alone if any are named."""
    clause = f"by ({', '.join((*by, *question.labels))})"
    if rules:
        matchers = (*matchers, Matcher("rule", "=~", "|".join(rules)))
    if recorded:
        return f"{question.add} {clause} ({select(question.recorded + '{}', matchers)})"
    return select(question.of.replace("{by}", clause), matchers)
