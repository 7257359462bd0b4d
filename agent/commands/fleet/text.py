"""The report of a fleet for people."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from textwrap import wrap

from agent.commands.fleet.fleet_report import FleetFinding, FleetReport, Part
from agent.commands.fleet.sentences import instances, rest, since

WIDTH = 96
#: Groups that are shown of one finding, and lines of what cannot be seen; JSON has all.
MOST_GROUPS, MOST_UNSEEN = 10, 8
_WORDS = {"critical": "FAILING", "warning": "WARNING", "info": "HEALTHY"}


def render(report: FleetReport, foot: str, width: int = WIDTH) -> str:
    """The report, ending in a newline.  ``foot`` says who was asked and what it cost."""
    lines = [*_head(report, width)]
    for number, finding in enumerate(report.findings, 1):
        lines += ["", *_finding(report, finding, number, width)]
    if report.cannot_see:
        lines += ["", "Not seen"]
        for unseen in report.cannot_see[:MOST_UNSEEN]:
            remedy = f" (to see it: {unseen.remedy})" if unseen.remedy else ""
            lines += wrap(
                f"· {unseen.what}: {unseen.because}{remedy}", width, initial_indent="  ", subsequent_indent="    "
            )
        if len(report.cannot_see) > MOST_UNSEEN:
            lines.append(f"  and {len(report.cannot_see) - MOST_UNSEEN} more: --json")
    return "\n".join([*lines, "", *wrap(foot, width)]) + "\n"


def _head(report: FleetReport, width: int) -> Iterator[str]:
    worst = next((each for each in ("critical", "warning") if any(f.severity == each for f in report.findings)), "info")
    word = _WORDS[worst] if report.conclusive else "UNKNOWN"
    yield from wrap(report.verdict, width, initial_indent=f"{word:<9} ", subsequent_indent=" " * 10)


def _finding(report: FleetReport, finding: FleetFinding, number: int, width: int) -> Iterator[str]:
    now = datetime.fromisoformat(report.generated).timestamp()
    yield f"{number}. {finding.severity}: {finding.title} [{finding.rule}], on {finding.instances} of {instances(finding.of)}"
    shown = [
        part
        for part in finding.parts
        if part.held or part.harmless or part.effect or part.until or part.was_free or part.unknown
    ]
    for part in shown[:MOST_GROUPS]:
        yield from wrap(
            f"{part.name or 'all'}: {_state(part, now)}", width, initial_indent="   ", subsequent_indent="     "
        )
    if len(shown) > MOST_GROUPS:
        yield f"   and {len(shown) - MOST_GROUPS} more: --json"
    if finding.effects:
        effects = ", ".join(
            f"{rule} on {count}" for rule, count in sorted(finding.effects.items(), key=lambda e: -e[1])
        )
        yield from wrap(f"looks as: {effects}", width, initial_indent="   ", subsequent_indent="     ")
    yield from wrap(f"do: {finding.advice}", width, initial_indent="   ", subsequent_indent="     ")
    if finding.worst_instance:
        yield f"   the exact line: the report of the instance that loses most, {finding.worst_instance}"


def _state(part: Part, now: float) -> str:
    """One group, as this finding has it."""
    if not part.held:
        ended = "" if part.instances else ", and it has no instance now"
        if part.until:
            return f"had it until {part.until[11:16]} UTC{ended}"
        if part.was_free:
            return ("was" if ended else "is") + f" free of it{rest(part) if part.unknown else ''}{ended}"
        return f"not held{rest(part)}{ended}"
    said = f"{part.held} of {part.instances}{since(part, now)}{rest(part)}"
    said += f"; the worst loses {part.share:.0%}" if part.share is not None else ""
    return said + (
        f"; {part.stalled:.1f} threads, connections and waiters stand still" if part.stalled is not None else ""
    )
