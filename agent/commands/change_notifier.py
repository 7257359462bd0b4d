"""Who is told what changes while the agent runs: standard output, a terminal, and Cloud Logging."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agent import __version__
from agent.diagnosis import Change, as_event
from agent.report import Report, to_json
from exporters import console
from exporters.board import Board
from exporters.causes import Causes
from exporters.cloud_logging import CloudLog
from exporters.json_log import LineWriter, line, severity_of, strings

#: For the findings that still wait for Cloud Logging at the end; Cloud Run gives ten seconds for all of it.
FLUSH_SECONDS = 3.0

Form = Literal["json", "text", "none"]


class ChangeNotifier:
    """Says what changes: on standard output as JSON lines or as text for a terminal, and in Cloud Logging when asked."""

    def __init__(self, form: Form, cloud: CloudLog | None = None, errors: LineWriter | None = None) -> None:
        """``errors`` is where Python's own records go as lines, when they do."""
        self.form, self._cloud, self._errors = form, cloud, errors
        self._writer = LineWriter()
        self._causes = Causes()
        self._colour = form == "text" and "NO_COLOR" not in os.environ
        self._board = Board(self._writer.write, colour=self._colour) if form == "text" else None

    def dropped(self) -> int:
        """Lines that standard output or error could not take."""
        return self._writer.dropped + (self._errors.dropped if self._errors else 0)

    def cloud_entries(self) -> dict[str, int]:
        """What became of the findings for Cloud Logging; empty when that is off."""
        cloud = self._cloud
        return {"written": cloud.written, "dropped": cloud.dropped} if cloud is not None else {}

    def greet(self, urls: Sequence[str]) -> None:
        """Say on standard error where the pages are."""
        base, *others = urls
        text = f"stallscope {__version__}: page {base}/  report {base}/report.txt  JSON {base}/health  metrics {base}/metrics"
        text += f"  also at {', '.join(others)}" if others else ""
        if self._errors is not None:
            self._errors.write(line("started", "INFO", text, {}))
            return
        with contextlib.suppress(OSError):  # nobody may be reading it
            print(text, file=sys.stderr, flush=True)

    def changes(self, report: Report, changes: Sequence[Change]) -> None:
        """Tell every verdict that changed to or from present, and whose effect a finding turned out to be.

        Unknown to absent is only the warm-up.
        """
        lines = ""
        of_others = [Change(f.rule, "present", "present", f) for f in self._causes.changed(report)]
        for change in (*changes, *(each for each in of_others if each.rule not in {other.rule for other in changes})):
            if "present" not in (change.before, change.now):
                continue
            event = as_event(change)
            severity = event.pop("severity")
            body = {**event, "finding_severity": severity, "verdict": report.verdict}
            cause = f" because of {event['explained_by']}" if event["explained_by"] else ""
            why = (*event["evidence"], event["because"])[0]
            text = f"{change.rule} is {change.now}{cause}" + (f": {why}" if why else "")
            labels = strings({"stallscope_rule": change.rule, "stallscope_explained_by": event["explained_by"]})
            told = "cause_changed" if change.before == change.now else "verdict_changed"
            if self.form == "json":
                self._writer.write(line(told, severity_of(severity), text, body, labels))
            lines += console.change_line({**event, "severity": severity}, colour=self._colour)
            if self._cloud is not None:
                self._cloud.write(severity_of(severity), {"message": text, "event": told, **body}, labels)
        if self._board is not None and lines:
            self._board.changed(lines, to_json(report))

    def renew(self, report: Report) -> None:
        """Show this report on a terminal, in the place of the one before."""
        if self._board is not None:
            self._board.show(to_json(report))

    def everything(self, report: Report) -> None:
        """Print the whole report on a terminal."""
        if self._board is not None:
            self._board.whole(to_json(report))

    def final(self, report: Report) -> None:
        """Tell the whole report, as the last word."""
        if self.form == "json":
            self._writer.write(line("final_report", "INFO", report.verdict, {"report": to_json(report)}))
        elif self._board is not None:
            self._board.end()
            self._board.whole(to_json(report))

    def failure(self, message: str, body: Mapping[str, Any]) -> None:
        """Tell that a request failed by a fault of ours."""
        if self.form == "json":
            self._writer.write(line("request_failed", "ERROR", message, body))

    async def aclose(self) -> None:
        """Send what waits for Cloud Logging, for a few seconds at most."""
        if self._cloud is not None:
            await asyncio.to_thread(self._cloud.close, FLUSH_SECONDS)
