"""From the engine's numbers to one report of the fleet: pure, without I/O.

Findings stand in the order of harm: threads, connections and waiters that stand still on all instances together; where that is not
seen, the shares that are lost, summed, and an instance where it is critical counts as one.  Healthy takes instances that can judge:
where fewer than half of a group's can, or the engine did not answer everything, nobody can tell, whatever was found that holds nobody up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime

from agent.commands.fleet import sentences
from agent.commands.fleet.fleet_report import FleetFinding, FleetReport, Part
from agent.commands.fleet.look import Group, Points, Seen, Table
from agent.commands.fleet.sentences import Names
from agent.commands.fleet.unseen import cannot_see
from agent.diagnosis import LEAST_COVERAGE
from agent.explaining import SEVERITIES
from agent.report import Severity
from agent.rules.rule import Rule
from probes.labels import printable

#: A break of less than this is none: an engine looks back so long for a sample (its default).
BREAK_SECONDS = 300.0
#: Of one finding in one group: its other labels -> points.
Rows = Mapping[tuple[str, ...], Points]


def report(seen: Seen, rules: Mapping[str, Rule], warnings: Sequence[str] = ()) -> FleetReport:
    """Everything, of what was seen."""
    known, number = _Known(seen), total(seen.instances)
    found = sorted({rule for _, (rule, _, above) in seen.findings if not above})
    findings = sorted((_finding(rule, seen, known, rules) for rule in found), key=_order)
    blind = _blind(seen, known, [rule.id for rule in rules.values() if rule.vital])
    healthy = bool(number) and not warnings and not seen.missed and not blind
    harm = any(each.severity != "info" for each in findings)
    return FleetReport(
        sentences.of_fleet(findings, number, blind, healthy=healthy), harm or healthy, rfc3339(seen.now), rfc3339(seen.start), number,
        {known.names[group]: round(newest(points)) for (group, _), points in sorted(seen.instances.items())},
        tuple(findings), tuple(cannot_see(seen, known.names, warnings, {each.rule for each in findings})), seen.recorded,
    )  # fmt: skip


class _Known:
    """The tables by group and rule."""

    def __init__(self, seen: Seen) -> None:
        self.names = Names(seen)
        self.findings, self.verdicts = _by_rule(seen.findings), _by_rule(seen.verdicts)
        #: Every group of the window, in the order of their names.
        self.groups = sorted({group for table in (seen.instances, seen.alive) for group, _ in table})
        self.effects: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        for (_, (effect, _, above)), points in seen.findings.items():
            if above:
                self.effects[above][effect] += round(newest(points))


def _by_rule(table: Table) -> dict[tuple[Group, str], dict[tuple[str, ...], Points]]:
    found: dict[tuple[Group, str], dict[tuple[str, ...], Points]] = {}
    for (group, (rule, *more)), points in table.items():
        found.setdefault((group, rule), {})[tuple(more)] = points
    return found


def _order(finding: FleetFinding) -> tuple[bool, float, int, str]:
    return finding.severity == "info", -finding.harm, -finding.instances, finding.rule


def _finding(rule: str, seen: Seen, known: _Known, rules: Mapping[str, Rule]) -> FleetFinding:
    parts = [_part(rule, group, seen, known) for group in known.groups]
    parts.sort(key=lambda part: (-part.held, -part.harmless, part.name))
    held = sum(part.held for part in parts)
    severities: defaultdict[str, float] = defaultdict(float)
    for (_, (each, said, above)), points in seen.findings.items():
        if each == rule and not above:
            severities[said] += newest(points)
    severity: Severity = max(
        (each for each in SEVERITIES if severities[each] > 0), key=SEVERITIES.index, default="info"
    )
    stalled, lost = _of_rule(seen.stalled, rule), _of_rule(seen.lost, rule)
    text = rules.get(rule)
    title = text.title if text else f"The finding {rule}"
    return FleetFinding(
        rule, title, severity, sentences.of_finding(title, parts, seen.now), held or sum(part.harmless for part in parts), total(seen.instances),
        sum(stalled) if stalled else max(sum(lost), severities["critical"]),
        text.advice if text else f"stallscope explain {rule}, of the version that runs there", tuple(parts),
        dict(known.effects.get(rule, {})), printable(seen.worst_at.get(rule, "")),
    )  # fmt: skip


def _part(rule: str, group: Group, seen: Seen, known: _Known) -> Part:
    here = (group, (rule,))
    rows: Rows = known.findings.get((group, rule), {})
    verdicts = {verdict: round(newest(points)) for (verdict,), points in known.verdicts.get((group, rule), {}).items()}
    asked = bool(seen.verdicts) and (not seen.asked_rules or rule in seen.asked_rules)
    instances, held = round(newest(seen.instances.get((group, ()), ()))), round(newest(seen.causes.get(here, ())))
    harmless = sum(
        round(newest(points)) for (severity, above), points in rows.items() if severity == "info" and not above
    )
    effect = sum(round(newest(points)) for (_, above), points in rows.items() if above)
    rest = max(0, instances - held - harmless - effect)  # verdicts may be recorded a minute or two later than the rest
    absent = min(rest, verdicts.get("absent", 0))
    unknown = min(rest - absent, verdicts.get("unknown", 0) + max(0, instances - sum(verdicts.values())))
    began, ended = _run(seen.held.get(here, ()), seen)
    share, stalled = seen.worst.get(here), seen.stalled.get(here)
    return Part(
        known.names[group], {label: printable(value) for label, value in zip(seen.by, group, strict=True)}, instances, held,
        harmless, effect, absent if asked else None, unknown if asked else None,
        since=rfc3339(began) if held and began is not None else None,
        before=bool(held) and began is not None and began - seen.start < seen.step,
        until=rfc3339(ended) if not held and ended is not None else None,
        was_free=not rows and ended is None and _cleared(rule, group, seen),
        share=newest(share) if share else None, stalled=newest(stalled) if stalled else None,
    )  # fmt: skip


def _cleared(rule: str, group: Group, seen: Seen) -> bool:
    """Whether enough of the group's instances could judge in the window, and said that it is absent."""
    said, instances = seen.cleared.get((group, (rule, "absent")), ()), seen.alive.get((group, ()), ())
    absent, alive = sum(value for _, value in said), sum(value for _, value in instances)
    return absent > 0 and absent >= LEAST_COVERAGE * alive


def _run(points: Points, seen: Seen) -> tuple[float | None, float | None]:
    """(when the last time without a break began, when it was there for the last time)."""
    present = [at for at, value in points if value > 0]
    if not present:
        return None, None
    began = present[-1]
    for at in reversed(present):
        if began - at > max(BREAK_SECONDS, 2 * seen.step):
            break
        began = at
    return began, present[-1]


def _blind(seen: Seen, known: _Known, vital: Collection[str]) -> int:
    """Instances of the groups of which too few can be judged that cannot."""
    found = 0
    for (group, _), points in seen.instances.items():
        number, silent = newest(points), newest(seen.silent.get((group, ()), ()))
        judged = [
            sum(newest(row) for (state,), row in known.verdicts.get((group, rule), {}).items() if state != "unknown")
            for rule in vital
        ]
        able = min((number, *judged))
        if able < LEAST_COVERAGE * (number + silent):
            found += round(number + silent - able)
    return found


def _of_rule(table: Table, rule: str) -> list[float]:
    return [newest(points) for (_, labels), points in table.items() if labels[0] == rule]


def total(table: Table) -> int:
    """The sum over all groups, now."""
    return round(sum(newest(points) for points in table.values()))


def newest(points: Points) -> float:
    """The newest value, 0 where there is none."""
    return points[-1][1] if points else 0.0


def rfc3339(at: float) -> str:
    """Unix seconds as a time."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
