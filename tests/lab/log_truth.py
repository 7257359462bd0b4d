"""`python -m tests.lab.log_truth`: how far what the agent tells of an app's log queue is from what really waits.

Real apps with the hook loaded write to a real log service that is slow, full or silent, with an agent beside them at its
default settings. It is asked on /metrics each second, as a Prometheus would ask it. What is taken for true, and
what the tables say, stands in log_score.py. One run after the other: p95 and CPU of the apps are told too.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.lab import campaign
from tests.lab.__main__ import complain, revision
from tests.lab.episode import START_SECONDS
from tests.lab.log_score import CELLS, LEAD_SECONDS, MIB, RATE, SIZE, Cell, compare, emissions, page
from tests.lab.log_stage import LogStage
from tests.lab.places import REPOSITORY
from tests.lab.process import Running
from tests.lab.quota import CpuGroup
from tests.lab.witness import stolen_seconds

NAME = "log-truth"
EVERY_SECONDS, LINE_SECONDS = 1.0, 0.2
AFTER_SECONDS = 30.0
"""How long it is watched what is said of an app that was killed."""
HOOKS = "hooks"
"""The target of what hooks tell."""
OF_QUEUES = {"stallscope_log_backlog_entries": "entries", "stallscope_log_backlog_oldest_seconds": "oldest"}
#: Whose evidence tells the seconds that are left, and how that is known among the rest.
PROJECTING, PROJECTION = "log_queue_in_memory", "is at its limit in"


class Run:
    """One cell: the stage, the agent beside it, and what is asked of both."""

    def __init__(self, cell: Cell, stack: ExitStack) -> None:
        self.cell = cell
        self.group = stack.enter_context(CpuGroup(f"app{time.monotonic_ns()}"))
        seconds = LEAD_SECONDS + cell.seconds + START_SECONDS
        self.stage = stack.enter_context(
            LogStage(
                f"{cell.app} --rate {RATE} --size {SIZE}", seconds=seconds, group=self.group, memory_bytes=cell.limit_mib * MIB,
                every=LINE_SECONDS,
            )
        )  # fmt: skip
        flags = [word for key, value in self.stage.settings().items() for word in ("--set", f"{key}={value}")]
        words = [sys.executable, "-m", "stallscope", "run", "--json", "--listen", "127.0.0.1:0", *flags]
        group = stack.enter_context(CpuGroup(f"agent{time.monotonic_ns()}"))
        agent = stack.enter_context(Running(words, group=group, cwd=REPOSITORY, timeout=seconds))
        line = agent.wait_for("http://", START_SECONDS).text
        self._url = "http://" + line.partition("http://")[2].split("/")[0].split('"')[0]
        self.samples: list[dict[str, Any]] = []
        self.projections: list[dict[str, float]] = []
        self.ended: dict[str, Any] | None = None
        self._present: dict[str, float] = {}

    def go(self, lead: float = LEAD_SECONDS) -> dict[str, Any]:
        """The record, as log_score.py wants it; `lead` is how long all is well at first."""
        start, stolen = time.monotonic(), stolen_seconds()
        self._watch(lead)
        onset = time.time()
        if self.stage.service is not None:
            self.stage.service.set(**self.cell.service)
        self.group.set_quota(self.cell.cores)
        self._watch(self.cell.seconds)
        lines, service = self.stage.lines(), self.stage.service
        entries = service.entries() if service is not None else []
        samples = compare(self.samples, emissions(lines), entries) if service is not None else self.samples
        seconds = time.monotonic() - start
        return {
            "id": self.cell.id, "onset": onset, "seconds": seconds,
            "stolen": (stolen_seconds() - stolen) / seconds / (os.cpu_count() or 1),
            "samples": [{**row, "since": row["at"] - onset} for row in samples],
            "found": {rule: at - onset for rule, at in self._present.items()},
            "app": [{name: line[name] for name in _KEPT} for line in lines],
            "counts": service.counts() if service is not None else {},
            "said": {finding["rule"]: finding["evidence"][0]["text"] for finding in self._findings()},
            "projections": self.projections, "ended": self.ended,
        }  # fmt: skip

    def _watch(self, seconds: float) -> None:
        """Ask once a second; of an app that has ended a little longer."""
        due, until = time.monotonic(), time.monotonic() + seconds
        while due < until:
            time.sleep(max(0.0, due - time.monotonic()))
            self._look()
            if self.cell.to_the_limit and self.ended is None:
                self._project()
                if self._sees_the_end():
                    until = min(until, time.monotonic() + AFTER_SECONDS)
            due += EVERY_SECONDS

    def _look(self) -> None:
        assert self.stage.memory is not None
        told: dict[str, float | None] = {"entries": None, "oldest": None, "taken": None}
        at = time.time()
        for family in text_string_to_metric_families(self._get("/metrics").decode()):
            for name, labels, value, *_ in family.samples:
                if name in OF_QUEUES and labels["target"] == HOOKS:
                    told[OF_QUEUES[name]] = value
                elif name == "stallscope_probe_last_success_timestamp_seconds" and labels["target"] == HOOKS:
                    told["taken"] = value
                elif name == "stallscope_rule_verdict" and value and labels["verdict"] == "present":
                    self._present.setdefault(labels["rule"], at)
        self.samples.append({"at": at, **told, "used_bytes": self.stage.memory.used_bytes()})

    def _project(self) -> None:
        """What is said of the time that is left."""
        for finding in self._findings():
            for each in finding["evidence"] if finding["rule"] == PROJECTING else ():
                if PROJECTION in each["text"] and each["unit"] == "seconds":
                    self.projections.append({"at": time.time(), "left": each["value"]})

    def _sees_the_end(self) -> bool:
        assert self.stage.memory is not None
        status = self.stage.app.run.process.poll()
        if status is not None:
            killed = self.stage.memory.kills()
            how = "killed by the kernel for want of memory" if killed else f"ended by itself, status {status}"
            self.ended = {"at": time.time(), "how": how}
        return status is not None

    def _findings(self) -> list[dict[str, Any]]:
        return list(json.loads(self._get("/health"))["findings"])

    def _get(self, path: str) -> bytes:
        """The body; 503 is an answer."""
        try:
            with urllib.request.urlopen(self._url + path, timeout=START_SECONDS) as answer:
                return bytes(answer.read())
        except urllib.request.HTTPError as error:
            return error.read()


_KEPT = ("at", "emitted", "errors", "rss_bytes", "cpu_seconds", "p95_ms")


def measure(cells: Sequence[Cell], records: list[dict[str, Any]]) -> None:
    """Add a record for each cell, keep it at once. The order is mixed: a bad spell of the machine hits no part alone."""
    commit = revision()
    for cell in random.Random(len(cells)).sample(cells, len(cells)):
        with ExitStack() as stack:
            record = {**Run(cell, stack).go(), "commit": commit}
        records.append(record)
        with campaign.records_of(NAME).open("a") as file:
            file.write(json.dumps(record) + "\n")
        complain(f"{len(records)}/{len(cells)} {cell.id}: {record['seconds']:.0f} s, {_said(record)}")


def _said(record: Mapping[str, Any]) -> str:
    found = ", ".join(f"{rule} {seconds:.0f} s" for rule, seconds in record["found"].items())
    return f"found {found or 'nothing'}{'; ' + record['ended']['how'] if record['ended'] else ''}"


def main() -> int:
    """Exit status 1 where it cannot be measured."""
    options = campaign.parser("log_truth", "log queues, told against true").parse_args()
    return campaign.run(options, CELLS, measure, page, NAME)


if __name__ == "__main__":
    sys.exit(main())
