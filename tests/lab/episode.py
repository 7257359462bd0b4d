"""One run of one scenario without a database: the real condition, the real agent, and everything that it said.

What is kept (`Record`) is raw: times are seconds since the agent answered, verdicts and reports are as they
were told. `score.py` judges it, so that a table can be made again without running anything.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.lab import apps, loads
from tests.lab.cores import HEAVY_CORES, Cores, Share
from tests.lab.freezer import Freezer
from tests.lab.log_stage import free_udp_port
from tests.lab.places import PLACES, Heard, Place, Session, Stopped
from tests.lab.process import Running
from tests.lab.scenario import Scenario
from tests.lab.timeline import Requests, Step
from tests.lab.witness import Witness, stolen_seconds

#: Booting and starting take this long at most; an emulated machine needs it.
START_SECONDS = 120.0
#: Seconds until an answer is missing.  An emulated CPU that is held at 5 % does less than 1 % of what the one does that it is emulated on, and a
#: sandbox beside a busy app in the same 5 % took 33 s and more.
ANSWER_SECONDS = {"plain": 45.0, "gvisor": 100.0, "guest": 150.0}
PUSH_SECONDS = 5.0
#: What starting an agent takes for a moment: more of them at once would contend, and truly so.
BOOT_CORES = {"plain": 0.2, "gvisor": 0.4, "guest": 1.0}
#: The weight of a heavy run's group: it uses what the others leave.
HEAVY_WEIGHT, USUAL_WEIGHT = 32, 1024
DOCTOR_SECONDS = 15
#: An emulated CPU is some eight times as slow as the one that it is emulated on: the agent may use as much more of it for the same work, or
#: it would look each 80 s from its third minute on, which no guest on a real CPU does.
PLACE_SETTINGS = {"guest": {"budget.cpu_ratio": "0.08"}}


@dataclass
class Record:
    """What happened in one run."""

    scenario: str
    repeat: int
    began: str = ""
    commit: str = ""
    marks: dict[str, float] = field(default_factory=dict)
    said: list[tuple[float, str, str, list[str]]] = field(default_factory=list)
    """(second, rule, verdict, evidence) as the agent's log told it."""
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Mark -> report; `onset` and `lift` just before, `end` at the end."""
    whole: dict[str, Any] = field(default_factory=dict)
    """The report at `lift` as it was given: `pages.py` shows it."""
    truth: dict[str, float] = field(default_factory=dict)
    """From outside, onset to lift: CPU `usage` of the group per second, `throttled` seconds per second."""
    stolen: float = 0.0
    """Share of all CPUs that the host took from this machine."""
    stolen_most: float = 0.0
    """The same in the worst half minute of the run."""
    crowded: float = 0.0
    """What a busy thread without any limit lost on this machine, in the worst half minute of the run."""
    stood_still: float = 0.0
    """Longest time for which nothing ran on this machine, outside every scenario either; seconds."""
    loads: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """Load -> lines of its meter, each with `second`, when it was heard."""
    seconds: float = 0.0
    failed: str = ""
    skipped: str = ""

    def json(self) -> dict[str, Any]:
        return asdict(self)


class Surroundings:
    """What the machine itself did to a run, from now on."""

    def __init__(self, witness: Witness) -> None:
        self._witness, self._start, self._stolen = witness, time.monotonic(), stolen_seconds()

    def tell(self, records: Iterable[Record]) -> None:
        """Note it in these."""
        taken, now = stolen_seconds() - self._stolen, time.monotonic()
        for record in records:
            record.seconds = round(now - self._start, 1)
            record.crowded = round(self._witness.crowded(self._start, now), 3)
            record.stolen_most = round(self._witness.stolen(self._start, now), 4)
            record.stood_still = round(self._witness.stood_still(self._start, now), 2)
            record.stolen = round(taken / record.seconds / (os.cpu_count() or 1), 4)


class Watched:
    """One running agent: asked for reports at marks, and its log heard, into its record."""

    def __init__(self, session: Session, record: Record, answer_seconds: float = ANSWER_SECONDS["plain"]) -> None:
        self.session, self.record, self.url = session, record, ""
        self._answer_seconds = answer_seconds

    def start(self, words: Sequence[str], env: Mapping[str, str]) -> None:
        """Return when it answers."""
        self.session.do("start", words=list(words), env=dict(env))
        ready = self.session.wait_for(lambda heard: "http://" in heard.text, START_SECONDS)
        self.url = "http://" + ready.text.partition("http://")[2].split("/")[0].split('"')[0]

    def ask(self, mark: str) -> None:
        """Keep its report of this moment."""
        self.session.do("health", url=self.url, mark=mark)
        try:
            self.keep(mark, self.session.wait_for(answers(mark), self._answer_seconds).record)
        except TimeoutError as fault:
            self.record.failed = f"no report at {mark}: {fault}"

    def keep(self, mark: str, record: dict[str, Any]) -> None:
        if "health" in record:
            self.record.reports[mark] = record["health"]
            self.record.whole = record.get("whole", self.record.whole)
        else:
            self.record.failed = f"no report at {mark}: {record.get('failed')}"

    def collect(self, began: float) -> None:
        """Verdicts from the agent's log."""
        for heard in list(self.session.heard):
            record = heard.record
            if record.get("event") == "verdict_changed":
                told = (
                    round(heard.at - began, 2),
                    record["rule"],
                    record["now"],
                    record["evidence"] or [record["because"]],
                )
                self.record.said.append(told)


class Episode:
    """Runs one scenario once."""

    def __init__(
        self, cells: Sequence[Scenario], repeat: int, cores: Cores, witness: Witness, stop: threading.Event
    ) -> None:
        (self.scenario,) = cells
        self._answer_seconds = ANSWER_SECONDS[self.scenario.environment]
        self._stop, self._cores, self._witness = stop, cores, witness
        self.record = Record(self.scenario.id, repeat, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        self.records = [self.record]
        self._name = f"lab{time.monotonic_ns() % 10**9}"
        self._stack = ExitStack()
        self._still: Callable[[], None] | None = None
        self._hook = ""
        self._neighbours: list[Running] = []

    def run(self) -> Record:
        with self._stack:
            most = max(BOOT_CORES[self.scenario.environment], self.scenario.cores_from(0))
            share = self._stack.enter_context(self._cores.taken(most))
            around = Surroundings(self._witness)
            limit = START_SECONDS + self.scenario.seconds + 4 * self._answer_seconds
            place = self._stack.enter_context(
                PLACES[self.scenario.environment](
                    limit,
                    self._stop,
                    self.scenario.agent == "sidecar",
                    [self.scenario.before, *(step.app for step in self.scenario.timeline)],
                )
            )
            self._stack.callback(self._lift)
            place.agent.wait_for(lambda heard: heard.record.get("inside") == "ready", START_SECONDS)
            if any(step.by == "freezer" for step in self.scenario.timeline):
                place.freezer = self._stack.enter_context(Freezer(place.group.pids()))
            if self.scenario.command == "doctor":
                self._doctor(place, share)
            else:
                self._watch(place, share)
        around.tell([self.record])
        return self.record

    def _doctor(self, place: Place, share: Share) -> None:
        """The stall is there first, and lasts: a person asks what is wrong."""
        self._shrink(place, share, 0)
        for step in self.scenario.timeline:
            self._apply(place, step)
        self._wait(1.0)
        share.started()
        began = time.monotonic()
        words = place.agent_words(["doctor", "--json", "--for", f"{DOCTOR_SECONDS}s"])
        used, throttled = place.group.usage_seconds(), place.group.throttled_seconds()
        place.agent.do("doctor", words=words, mark="lift")
        Watched(place.agent, self.record).keep("lift", place.agent.wait_for(answers("lift"), START_SECONDS).record)
        self._measure(place, used, throttled, time.monotonic() - began)
        self.record.marks = {"onset": 0.0, "lift": round(time.monotonic() - began, 2)}
        self.record.marks["end"] = self.record.marks["lift"]
        for finding in self.record.reports.get("lift", {}).get("findings", []):
            self.record.said.append((self.record.marks["lift"], finding["rule"], "present", finding["evidence"]))

    def _watch(self, place: Place, share: Share) -> None:
        scenario = self.scenario
        settings = {**PLACE_SETTINGS.get(scenario.environment, {}), **scenario.settings}
        flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        if scenario.hook:
            self._hook = f"udp:127.0.0.1:{free_udp_port()}"
            flags += ["--set", f"logs.hook_listen={self._hook}"]
        flags = [flag.replace("$app", self._name) for flag in flags]
        command = ["run", "--json", "--listen", "127.0.0.1:0", *flags]
        if scenario.before:
            self._start(place, scenario.before, -START_SECONDS)
            place.app.wait_for(lambda heard: "load" in heard.record, START_SECONDS)
        watched = Watched(place.agent, self.record, self._answer_seconds)
        watched.start(place.agent_words(command), scenario.env)
        url = watched.url
        self._shrink(place, share, 0)
        share.started()
        began, used, throttled, since = time.monotonic(), 0.0, 0.0, 0.0
        requests: Requests | None = None
        slip = 0.0  # what answers took: a throttled place is slow to give them, and the phases keep their length
        for index, step in enumerate(scenario.timeline):
            self._wait(began + slip + step.at - time.monotonic(), place, url, requests)
            asked = time.monotonic()
            if step.mark:
                if step.mark == "lift" or (step.mark == "end" and "lift" not in self.record.marks):
                    watched.ask("lift")
                    self._measure(place, used, throttled, time.monotonic() - since)
                    self.record.marks["lift"] = round(time.monotonic() - began, 2)
                else:
                    watched.ask(step.mark)
                used, throttled, since = place.group.usage_seconds(), place.group.throttled_seconds(), time.monotonic()
                self.record.marks[step.mark] = round(since - began, 2)
            slip += time.monotonic() - asked
            self._shrink(place, share, index)
            requests = None if step.mark == "lift" else step.requests or requests
            self._apply(place, step)
        watched.collect(began)
        self._collect_loads(place, began)

    def _shrink(self, place: Place, share: Share, index: int) -> None:
        """Give back what no later step needs; a group that is small now competes like any other."""
        needed = self.scenario.cores_from(index)
        crowds = any(step.neighbours for step in self.scenario.timeline)
        place.group.set_weight(HEAVY_WEIGHT if needed >= HEAVY_CORES and not crowds else USUAL_WEIGHT)
        share.shrink(needed)

    def _apply(self, place: Place, step: Step) -> None:
        if step.mark == "lift":
            self._lift()
        if step.quota is not None:
            place.group.set_quota(None if step.quota == "none" else step.quota)
        if step.requests is not None and step.requests.quota is not None:
            place.group.set_quota(step.requests.quota)
        if step.inner_quota is not None:
            place.inner_quota(None if step.inner_quota == "none" else step.inner_quota)
        if step.app:
            self._start(place, step.app, step.at)
        for _ in range(step.neighbours):
            words = loads.command("busy", seconds=self.scenario.seconds)
            self._neighbours.append(self._stack.enter_context(Running(words, timeout=self.scenario.seconds + 60)))
        if step.freeze:
            self._still = place.stand_still(step.by)
            self._wait(step.freeze)
            self._lift_freeze()

    def _start(self, place: Place, app: str, at: float) -> None:
        """Start it at this second of the timeline, until the next one with an app."""
        later = [step.at for step in self.scenario.timeline if step.at > at and step.app]
        until = later[0] if later else self.scenario.seconds + self._answer_seconds
        words = apps.command(app, until - at, place.where, self._name)
        place.app.do("start", words=words, env=self._app_environment(place))

    def _app_environment(self, place: Place) -> dict[str, str]:
        """The hook is loaded as a user loads it, by the environment alone."""
        if not self.scenario.hook:
            return {}
        return {"PYTHONPATH": str(place.hooks / "python/auto"), "STALLSCOPE_HOOK": self._hook}

    def _lift(self) -> None:
        self._lift_freeze()
        while self._neighbours:
            self._neighbours.pop().close()

    def _lift_freeze(self) -> None:
        if self._still is not None:
            self._still()
            self._still = None

    def _wait(
        self, seconds: float, place: Place | None = None, url: str = "", requests: Requests | None = None
    ) -> None:
        """Let time pass; requests come and go meanwhile."""
        deadline = time.monotonic() + seconds
        while place and requests and time.monotonic() + requests.every < deadline:
            self._pause(requests.every - requests.lasting)
            if requests.lifts and requests.quota is not None:
                place.group.set_quota(None)
            if requests.signal:
                self._tell(place, url, 1)
            self._pause(requests.lasting)
            if requests.signal:
                self._tell(place, url, 0)
            if requests.lifts and requests.quota is not None:
                place.group.set_quota(requests.quota)
        self._pause(deadline - time.monotonic())

    def _tell(self, place: Place, url: str, in_flight: int) -> None:
        """As an app does: the response leaves when this has been taken, and the platform acts on the response."""
        since = len(place.agent.heard)
        place.agent.do("push", url=url, in_flight=in_flight)
        with suppress(TimeoutError):
            place.agent.wait_for(lambda heard: heard.record.get("pushed") == in_flight, PUSH_SECONDS, since)

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(max(0.0, seconds)):
            raise Stopped

    def _measure(self, place: Place, used: float, throttled: float, seconds: float) -> None:
        self.record.truth = {
            "usage": round((place.group.usage_seconds() - used) / seconds, 4),
            "throttled": round((place.group.throttled_seconds() - throttled) / seconds, 4),
            "seconds": round(seconds, 2),
        }

    def _collect_loads(self, place: Place, began: float) -> None:
        """The lines of the app's meter."""
        for heard in list(place.app.heard):
            if "timed_wall" in heard.record:
                line = {**heard.record, "second": round(heard.at - began, 2)}
                self.record.loads.setdefault(line.pop("load"), []).append(line)


def answers(mark: str) -> Callable[[Heard], bool]:
    return lambda heard: heard.record.get("mark") == mark
