"""What explains what, how severe it is, and in which order: causes before their mechanisms, then by harm.

*Order.*  Causes before their mechanisms, then by what stands still for them (:mod:`agent.views.stalled`).  Of what that does
not measure what is critical comes first, and the rest by the share of the time or of the connections that is lost to it.  Severity is
the rule's, and critical where half of the work in progress stands still for what is likely enough (:data:`SURE`).

*Explaining needs size.*  A cause explains an effect when as much stands still for it as half of what the effect holds up, or more,
or, where that is not seen of both, by their shares; who is less severe must be as large as the effect itself.  A smaller
cause is named beside the effect as contributing.  Where the effect is the same loss as a share of something else (of round trips, not
of time), it is explained by whoever is as severe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from agent.report import Finding, Severity
from agent.rules.causal_graph import CausalGraph
from agent.rules.rule import Present

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
#: Before what will not help, beside other causes.
ALONE = "against this cause alone: "
#: Of an effect's share a cause must have so much to explain it by itself.
ENOUGH = 0.5
#: A warning that is smaller than what is critical does not stand above it.
AS_LARGE = 1.0
#: More of the work in progress stands still than goes on ...
SEVERE = 0.5
#: ... and who is named for it is named by chance in less than a third.
SURE = 0.7


def explain(
    rule: str, present: Mapping[str, Present], graph: CausalGraph, sizes: Mapping[str, float | None]
) -> tuple[str | None, tuple[str, ...]]:
    """(the finding that explains this one, those that only contribute to it).  ``sizes``: how much stands still for each."""
    effect, size = present[rule], sizes.get(rule)
    named = dict.fromkeys(graph.causes(rule, effect.cases))
    causes = [cause for cause in named if cause in present and _concerns(present[cause], effect)]
    able = [
        cause
        for cause in causes
        if _can_explain(present[cause], sizes.get(cause), effect, size, same=graph.same(cause, rule))
    ]
    above = next(iter(able), None)
    return above, () if above is not None else tuple(c for c in causes if present[c].severity != "info")


def _concerns(cause: Present, effect: Present) -> bool:
    """What holds a group beside the app is the cause of nothing in the app, and one server is not that of what waits for another."""
    about = None if cause.remotes is None else {*cause.remotes, *cause.perhaps}
    others = about is not None and effect.remotes is not None and about.isdisjoint(effect.remotes)
    return not others and not (cause.beside and effect.scope == "the app")


def _can_explain(
    cause: Present, cause_size: float | None, effect: Present, effect_size: float | None, *, same: bool
) -> bool:
    """What holds nobody up now is not the cause of what does, and what holds up few not that of what holds up many.

    ``same``: the two measure one loss, so no size and no share of it decides.
    """
    if cause.severity == "info":
        return effect.severity == "info"
    if same and _as_severe(cause, effect):
        return True
    if cause_size is not None and effect_size is not None:
        return cause_size >= effect_size * (ENOUGH if _as_severe(cause, effect) else AS_LARGE)
    return cause.share is None or effect.share is None or cause.share >= ENOUGH * effect.share


def _as_severe(cause: Present, effect: Present) -> bool:
    return rank(cause.severity) >= rank(effect.severity)


def rank(severity: Severity) -> int:
    """From the least severe on."""
    return SEVERITIES.index(severity)


def severity_of(judged: Severity, size: float | None, share: float | None, confidence: float) -> Severity:
    """What a rule said, or critical where it is sure enough that one of the app's at least stands still for it at any moment, and half of all."""
    severe = size is not None and share is not None and size >= 1 and share >= SEVERE and confidence >= SURE
    return "critical" if severe and judged == "warning" else judged


def _harm(finding: Finding) -> float:
    if finding.stalled_share is not None:
        return finding.stalled_share
    return 1.0 if finding.severity == "critical" else finding.share or 0.0


def in_order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Causes first, then by what is lost to each; what holds nobody up comes last."""
    return tuple(
        sorted(
            findings,
            key=lambda f: (
                f.explained_by is not None,
                f.severity == "info",
                -_harm(f),
                -rank(f.severity),
                -f.confidence,
            ),
        )
    )


def advise(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The advice made once for the set, in the order of the findings.

    A change is said by the first who wants it.  Beside other causes what will not help is true of one part of the time alone: it must
    not forbid what another cause needs.
    """
    several = sum(f.explained_by is None and f.severity != "info" for f in findings) > 1
    said: set[str] = set()
    found = []
    for finding in findings:
        advice = finding.advice
        new = tuple(change for change in advice.changes if change not in said)
        said.update(new)
        if several and advice.will_not_help:
            advice = replace(advice, will_not_help=f"{ALONE}{advice.will_not_help}")
        found.append(replace(finding, advice=replace(advice, changes=new)))
    return tuple(found)
