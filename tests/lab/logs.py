"""One run of a scenario with logs: an app that logs for real, what holds its entries up, and an agent beside it.

The agent is a sidecar: a container of its own that shares the PID and network namespaces. What it is told by the app's
hook and what it sees from outside is all that it has; what the app emitted and the service took is the truth.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from tests.lab.cloud_logging import Settings, waiting
from tests.lab.episode import START_SECONDS, Watched
from tests.lab.log_score import emissions
from tests.lab.log_stage import LogStage
from tests.lab.staged import Staged
from tests.lab.timeline import Step


class LogEpisode(Staged):
    """Runs the one cell of a scenario once."""

    def _set_up(self) -> list[Watched]:
        logs, (record,) = self.scenario.logs, self.records
        assert logs is not None
        self._group = self._container("app")
        self._stage = self._stack.enter_context(
            LogStage(
                logs.app, seconds=self.scenario.seconds + START_SECONDS, group=self._group, files=logs.files,
                memory_bytes=logs.memory_mb and logs.memory_mb * 2**20, hook=logs.hook, stop=self._stop,
            )
        )  # fmt: skip
        settings = {**self._stage.settings(), **self.scenario.settings}
        return [self._start(Watched(self._session(self._container("agent")), record), settings, self.scenario.env)]

    def _apply(self, step: Step) -> None:
        service = self._stage.service
        if step.service and service is not None:
            service.set(**step.service)
            self._lifts.append(lambda: service.set(**Settings()._asdict()))
        if step.reader is not None:
            self._stage.read_at(step.reader)
            self._lifts.append(lambda: self._stage.read_at(None))
        if step.signal:
            os.kill(self._stage.app.run.pid, getattr(signal, f"SIG{step.signal}"))

    def _more_truth(self) -> Mapping[str, float]:
        """What the app is by its last word, and what became of its entries."""
        line, service = self._stage.lines()[-1], self._stage.service
        found = {"emitted": float(line["emitted"]), "rss_bytes": float(line["rss_bytes"])}
        if service is not None:
            found |= {name: float(count) for name, count in service.counts().items() if name in _FATES}
        if self._stage.memory is not None:
            found["memory_peak_bytes"] = float(self._stage.memory.peak_bytes())
        return found

    def _collect(self, began: float) -> None:
        """Its lines; and how old the oldest entry was that really waited at each mark, which score.py needs."""
        (record,), stage = self.records, self._stage
        wall, lines = time.time() - time.monotonic() + began, stage.lines()
        told = [{**line, "second": round(line["at"] - wall, 2)} for line in lines]
        record.loads["app"] = [{name: line[name] for name in line if name != "options"} for line in told]
        if stage.service is not None:
            emitted, entries = emissions(lines), stage.service.entries()
            for mark in ("onset", "lift", "end"):
                oldest = waiting(emitted, entries, wall + record.marks[mark]).oldest_seconds
                record.truth |= {f"oldest_{mark}": round(oldest or 0.0, 2)}


_FATES = ("accepted", "rejected", "abandoned")
