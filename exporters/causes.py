"""Findings whose cause became known after they were told, or became another: else an effect would stand in the log as a cause."""

from __future__ import annotations

from agent.report import Finding, Report


class Causes:
    """Remembers by whom each finding that is present is explained."""

    def __init__(self) -> None:
        self._known: dict[str, str | None] = {}

    def changed(self, report: Report) -> list[Finding]:
        """Those that were present before, and are explained by another finding now, or by none any more."""
        before, self._known = self._known, {finding.rule: finding.explained_by for finding in report.findings}
        return [each for each in report.findings if before.get(each.rule, each.explained_by) != each.explained_by]
