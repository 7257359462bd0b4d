"""When the log service is asked, by whom, and what its failures are called."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core import exceptions
from hypothesis import given
from hypothesis import strategies as st

from agent.settings.schema import Config
from probes.gcp.cloud_api import FAILURES, CallFailed, CloudApi, Times, reason_of
from probes.gcp.retry_timer import MOST_PAUSE_SECONDS, RetryTimer
from probes.logs.delivery import LogDeliveryProbe, LogDeliveryReading
from probes.logs.leader import leads, parse_leader
from probes.logs.registration import LogDelivery, probes
from probes.reading import NoData, specs
from probes.registration import Context, Planned
from tests.unit.builders import FakeClock


def fail(reason: str = "429") -> Any:
    raise CallFailed(reason)


# ---- turns


def test_what_is_never_wanted_is_never_due() -> None:
    assert not RetryTimer[float](0.0, 5.0, FakeClock()).due


def test_after_a_success_it_is_due_an_interval_later_half_a_slot_early_or_late() -> None:
    clock = FakeClock()
    timer = RetryTimer[float](300.0, 30.0, clock)
    due = [timer.due]
    timer.take(lambda: 1.0)
    for later in (0.0, 269.0, 1.0):
        clock.advance(later)
        due.append(timer.due)
    assert due == [True, False, False, True]


def test_after_each_failure_the_pause_doubles_up_to_a_bound_and_a_success_ends_that() -> None:
    clock = FakeClock()
    timer = RetryTimer[float](60.0, 0.0, clock)
    pauses = []
    for _ in range(5):
        timer.take(fail)
        began = clock()
        while not timer.due:
            clock.advance(1.0)
        pauses.append(clock() - began)
    assert pauses == [60.0, 120.0, 240.0, MOST_PAUSE_SECONDS, MOST_PAUSE_SECONDS]
    assert (timer.outcome, timer.value) == ("429", None)
    timer.take(lambda: 2.0)
    assert (timer.outcome, timer.value) == ("ok", 2.0)
    assert clock.advance(60.0)
    assert timer.due


@given(st.lists(st.tuples(st.booleans(), st.floats(1, 200)), max_size=200))
def test_whatever_happens_no_more_is_asked_than_the_interval_allows(slots: list[tuple[bool, float]]) -> None:
    clock = FakeClock(0.0)
    timer = RetryTimer[float](300.0, 30.0, clock)
    asked = []
    for ok, later in slots:
        if timer.due:
            asked.append(clock())
            timer.take(lambda ok=ok: 1.0 if ok else fail())  # type: ignore[misc]
        clock.advance(later)
    assert all(second - first >= 270.0 for first, second in pairwise(asked))


# ---- the names of failures


class Foreign(Exception):
    """What a library raises."""

    __module__ = "google.auth.exceptions"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (exceptions.ResourceExhausted("Quota exceeded for quota metric 'Write requests'"), "429"),
        (exceptions.ResourceExhausted("CLIENT: Received message larger than max (9 vs. 4)"), "too_large"),
        (exceptions.ServiceUnavailable("Received http2 header with status: 429"), "429"),
        (exceptions.ServiceUnavailable("Received http2 header with status: 502"), "unavailable"),
        (exceptions.ServiceUnavailable("failed to connect to all addresses"), "unavailable"),
        (exceptions.ServiceUnavailable("Getting metadata from plugin failed with error: x"), "credentials"),
        (exceptions.DeadlineExceeded("Deadline Exceeded"), "timeout"),
        (exceptions.PermissionDenied("IAM"), "permission"),
        (exceptions.Unauthenticated("token"), "credentials"),
        (exceptions.InvalidArgument("filter"), "invalid"),
        (exceptions.NotFound("project"), "invalid"),
        (exceptions.InternalServerError("oops"), "unavailable"),
        (exceptions.InternalServerError("Exception deserializing response!"), "wrong_reply"),
        (exceptions.MethodNotImplemented("no"), "wrong_reply"),
        (Foreign("secret"), "credentials"),
        (RuntimeError("anything"), "other"),
    ],
)
def test_a_failure_has_one_class_and_a_reply_too_large_is_no_quota(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason
    assert FAILURES[reason].because
    assert FAILURES[reason].remedy


def test_of_a_failure_no_foreign_word_is_reported() -> None:
    words = str(CallFailed(reason_of(exceptions.PermissionDenied("token=hunter2"))))
    assert "hunter2" not in words


# ---- the probe


class Api(CloudApi):
    """A log service that answers as the test says."""

    def __init__(
        self, *, wrote: Callable[[], object] = lambda: None, times: Sequence[Times] = (), late: Sequence[Times] = ()
    ) -> None:
        super().__init__("p")
        self.project, self.queries, self.most = "p", [], []  # type: str, list[str], list[int]
        self.wrote, self.newest, self.late = wrote, list(times), list(late)

    def connect(self) -> None: ...

    def write(self, log: str, entries: Sequence[Any]) -> None:
        self.wrote()

    def times(self, query: str, most: int, *, newest_first: bool) -> list[Times]:
        self.queries.append(query)
        self.most.append(most)
        return self.newest if newest_first else self.late


def read(probe: LogDeliveryProbe) -> LogDeliveryReading:
    return asyncio.run(probe.read())


def test_the_canary_is_timed_by_the_probes_clock() -> None:
    clock = FakeClock()
    probe = LogDeliveryProbe(Api(wrote=lambda: clock.advance(0.7)), canary_log="c", clock=clock)
    assert read(probe).canary_seconds == pytest.approx(0.7)


def test_the_query_asks_for_what_was_received_lately_however_old_it_is() -> None:
    api = Api(times=[Times(100.0, 103.0), Times(90.0, 91.0), Times(80.0, 80.5)])
    logs = ("run.googleapis.com/stdout", "app")
    probe = LogDeliveryProbe(api, log_names=logs, query='labels.a="b"', wall=lambda: 1795000000.0, clock=FakeClock())
    reading = read(probe)
    assert reading.late_seconds == {"median": 1.0, "largest": 3.0}
    common = (
        'logName=("projects/p/logs/run.googleapis.com%2Fstdout" OR "projects/p/logs/app") '
        'AND timestamp>="2026-11-17T11:06:40.000Z" AND (labels.a="b")'
    )
    newest, late = api.queries
    assert newest == f'{common} AND receiveTimestamp>="2026-11-18T10:51:40.000Z"'
    slices = late.removeprefix(f"{common} AND (").removesuffix(")").split(" OR ")
    assert len(slices) == 10  # of the 300 s before
    assert slices[0] == (
        '(receiveTimestamp>="2026-11-18T11:01:40.000Z" AND receiveTimestamp<"2026-11-18T11:02:10.000Z" '
        'AND timestamp<="2026-11-18T11:01:30.000Z")'
    )
    assert 'receiveTimestamp<"2026-11-18T11:06:40.000Z"' in slices[-1]


@pytest.mark.parametrize(("after", "slices"), [(300.0, 10), (330.0, 11), (3000.0, 30)])
def test_the_next_query_asks_for_late_entries_since_the_one_before(after: float, slices: int) -> None:
    api, clock = Api(times=[Times(100.0, 100.5)]), FakeClock()
    probe = LogDeliveryProbe(api, log_names=("a",), clock=clock, wall=lambda: 1795000000.0 + clock())
    read(probe)
    clock.advance(after)
    read(probe)
    assert api.queries[-1].count("receiveTimestamp<") == slices


def late(instance: str, by: float, *received: float) -> list[Times]:
    return [Times(at - by, at, instance) for at in received]


PROMPT = [Times(1000.0 - n, 1000.3 - n, "prompt") for n in range(20)]
#: The late entries that were found, whose lateness is told, and the median of what.
FOUND: dict[str, tuple[list[Times], str, float]] = {
    "none": ([], "", 0.3),
    "one instance of two": (late("slow", 40.0, 700.0, 800.0, 900.0), "slow", 40.0),
    "the latest of two": (late("slow", 20.0, *range(700, 1000, 60)) + late("slower", 60.0, 700.0, 800.0, 900.0), "slower", 60.0),
    "a whole page at one time": (late("slow", 40.0, *[900.0] * 20), "slow", 40.0),
    "instances that are not named": (late("", 40.0, 700.0, 800.0, 900.0), "", 40.0),
    "two stray ones": (late("slow", 40.0, 700.0, 900.0), "", 0.3),
    "some that were held up once": (late("slow", 40.0, *[900.0] * 8), "", 0.3),
    "one of each of many": ([each for n in range(9) for each in late(f"i{n}", 40.0, 700.0 + 30 * n)], "", 0.3),
}  # fmt: skip


@pytest.mark.parametrize(("found", "instance", "median"), FOUND.values(), ids=FOUND)
def test_a_late_instance_is_told_and_stray_entries_are_not(found: list[Times], instance: str, median: float) -> None:
    """Of one late instance of two no entry is among the twenty newest."""
    reading = read(LogDeliveryProbe(Api(times=PROMPT, late=found), log_names=("a",), clock=FakeClock()))
    assert reading.late_seconds is not None
    assert reading.late_seconds["median"] == pytest.approx(median)
    assert (reading.late_instance, reading.late_entries, reading.entries) == (instance, len(found), 20)


@pytest.mark.parametrize(("received", "instance"), [((900.0, 900.0, 900.0), ""), ((840.0, 870.0, 900.0), "slow")])
def test_what_was_held_up_once_is_stray_also_where_a_page_holds_no_more(
    received: tuple[float, ...], instance: str
) -> None:
    """A reply was too large, and fewer entries are asked for from then on."""
    api, clock = Api(times=PROMPT[:3], late=late("slow", 40.0, *received)), FakeClock()
    probe = LogDeliveryProbe(api, log_names=("a",), clock=clock)
    answer, api.times = api.times, lambda *_, **__: fail("too_large")  # type: ignore[method-assign]
    assert read(probe).look == "too_large"
    api.times = answer  # type: ignore[method-assign]
    clock.advance(300.0)
    assert read(probe).late_instance == instance
    assert api.most == [3, 3]


def test_an_entry_from_a_clock_ahead_is_not_early() -> None:
    reading = read(LogDeliveryProbe(Api(times=[Times(105.0, 100.0)]), log_names=("a",), clock=FakeClock()))
    assert reading.late_seconds == {"median": 0.0, "largest": 0.0}


def test_between_two_samples_the_latest_one_stands_and_is_counted_once() -> None:
    clock = FakeClock()
    probe = LogDeliveryProbe(Api(times=[Times(0.0, 2.0)]), log_names=("a",), canary_log="c", clock=clock)
    readings = []
    for _ in range(4):
        readings.append(read(probe))
        clock.advance(60.0)
    assert [r.late_seconds for r in readings] == [{"median": 2.0, "largest": 2.0}] * 4
    assert [(r.looks, r.canaries) for r in readings] == [(1, 1), (0, 1), (0, 1), (0, 1)]


@pytest.mark.parametrize("on", [{"log_names": ("a",)}, {"canary_log": "c"}, {"log_names": ("a",), "canary_log": "c"}])
@pytest.mark.parametrize("times", [(), (Times(0.0, 1.0),)], ids=["no entries", "entries"])
@pytest.mark.parametrize("wrote", [lambda: None, fail], ids=["taken", "refused"])
def test_every_number_is_there_or_has_a_reason(on: Any, times: Any, wrote: Any) -> None:
    reading = read(LogDeliveryProbe(Api(wrote=wrote, times=times), **on, clock=FakeClock()))
    for spec in specs(LogDeliveryReading):
        assert (getattr(reading, spec.name) is None) == (spec.name in reading.unseen), spec.name


def test_who_does_not_lead_asks_nobody() -> None:
    probe = LogDeliveryProbe(Api(wrote=fail), canary_log="c", leads=lambda: False)
    with pytest.raises(NoData, match="another instance"):
        read(probe)


def test_without_the_package_the_reason_and_the_remedy_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.logging_v2.services", None)
    with pytest.raises(NoData, match="not installed") as caught:
        read(LogDeliveryProbe(CloudApi("p"), canary_log="c"))
    assert "stallscope[cloud-logging]" in caught.value.remedy


# ---- the leader


HERE = SimpleNamespace(environ={"LEADER": "True", "OTHER": "0"}, host=lambda: "shop-0")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("always", True),
        ("never", False),
        ("host:-0", True),
        ("host:shop-0", True),
        ("host:-1", False),
        ("env:LEADER", True),
        ("env:OTHER", False),
        ("env:UNSET", False),
    ],
)
def test_who_leads_is_known_by_the_configuration(text: str, wanted: bool) -> None:
    found = leads(text, HERE.environ, HERE.host)
    assert (found is not None and found()) is wanted
    assert (found is None) is not wanted, "who never leads has no probe and no rule"


def test_a_leader_by_a_file_may_change_while_the_agent_runs(tmp_path: Path) -> None:
    file = tmp_path / "leader"
    found = leads(f"file:{file}", {}, HERE.host)
    assert found is not None
    assert not found()
    file.touch()
    assert found()


@pytest.mark.parametrize("text", ["", "yes", "host:", "env", "file:leader", "always:x", "pod:-0"])
def test_what_names_no_leader_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be always, never, host:SUFFIX"):
        parse_leader(text)


def delivery(**more: Any) -> list[Planned]:
    """The plans of the probe with these settings."""
    context = Context(Config(log_delivery=LogDelivery(**more)).sections, environ={})
    return [plan for plan in probes(context) if isinstance(plan.make(), LogDeliveryProbe)]


def test_only_what_is_wanted_of_an_instance_that_leads_is_watched() -> None:
    assert not delivery()
    (plan,) = delivery(canary_log="c", leader="never")
    assert plan.when is not None
    assert not plan.when()
    for wanted, every in (
        ({"canary_log": "c"}, 60.0), ({"log_names": ("a",)}, 300.0), ({"log_names": ("a",), "canary_log": "c"}, 60.0),
    ):  # fmt: skip
        (plan,) = delivery(**wanted, leader="always")
        assert plan.when is None
        assert plan.every == every
