"""The findings about logs: present, absent, unknown and what looks alike, of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.diagnosis import Engine
from agent.history import History
from agent.report import AgentSelf, Finding, to_json
from agent.rules import BY_ID
from agent.rules.logs import RULES as LOG_RULES
from agent.rules.logs.advice import CHANGES
from agent.rules.logs.untold import KNOWN, NEWER_HOOK, TO_STDOUT_ALONE
from agent.rules.rule import Absent, Judgement, Present, Unknown
from agent.views.backlog import queues
from agent.views.growth import slope
from agent.views.memory import Memory, group_memory
from exporters.console import render
from probes.app.processes import ProcessesReading
from probes.hooks.message import KINDS
from probes.host.cgroup import CgroupReading
from probes.logs.collector_names import ROWS
from probes.logs.reading import Backing, BacklogReading, Loggers, Queue, backlog
from probes.reading import Code, NoData, Unseen
from tests.unit.builders import ALL_COUNT, NONE_COUNTS, FakeClock, platform

MEMORY, DISK = Backing("memory", "the memory of the app's own process"), Backing("disk", "ext4")
NOT_TOLD = Backing("unknown", "a file system of type FUSE does not tell where it keeps this")
TMPFS = Backing("memory", "tmpfs is memory, charged to who wrote it")
MB = 1e6
STREAM = Loggers(7, "python", known=("StreamHandler",), elsewhere=("ssl",))
SENDS = Loggers(7, "node", elsewhere=("http", "tcp"))
UNREAD = Loggers(7, "node", known=("winston",), unread=("winston's LokiTransport",))
#: What a look at one queue told: numbers by field, as functions of the seconds since the first look.
HIDDEN = Unseen("the descriptors of process 9 may not be looked at", Code.NOT_PERMITTED)
CUT = Unseen("more than 255 files: only so many were counted", Code.PARTIAL)
TOO_MANY = Unseen("the app has 70 processes", Code.PARTIAL)
Numbers = Mapping[str, Callable[[float], float] | float]


class Logs:
    """A history of looks each ten seconds."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.history = History(900.0, clock=self.clock)
        self.began = self.clock()
        self.history.add(platform(self.began, trust=ALL_COUNT))

    def run(
        self, seconds: float = 60.0, *, kind: str = "google-cloud-logging", source: str = "hooks", queue: str = "orders/log",
        backing: Backing | None = MEMORY, unit: str = "", lost: Mapping[str, float] | None = None,
        silent: Mapping[str, float] | None = None, loggers: Loggers | None = None, unheard: float = 0.0,
        left_out: int = 0, overflowed: float = 0.0, unseen: Unseen | None = None, cut: bool = False, **numbers: Any,
    ) -> Logs:  # fmt: skip
        """Look at one queue for so long; of each number a value, or a function of the seconds since the start.

        ``cut`` is what a look at files tells that saw a part of them.
        """
        lacks = dict.fromkeys(("waiting_bytes", "arrived_bytes"), CUT) if cut else {}
        lacks |= {} if unseen is None else {"waiting_bytes": unseen}
        for _ in range(round(seconds / 10)):
            now = self.clock.advance(10.0)
            told = {name: float(n(now - self.began) if callable(n) else n) for name, n in numbers.items()}
            seen = {queue: Queue(kind, backing, told, unit)} if kind else {}
            self.history.add(
                backlog(
                    source,
                    seen,
                    taken=now,
                    before=now - 10.0,
                    otherwise="",
                    unseen=lacks,
                    lost_at_exit=lost,
                    silent_entries=silent,
                    loggers={"orders": loggers} if loggers is not None else {},
                    unheard=unheard,
                    left_out=left_out,
                    overflowed=overflowed,
                )
            )
        return self

    def silent(self, source: str = "hooks", because: str = "no hook has told of a queue for 30 s") -> Logs:
        """Six looks at a source that tells nothing."""
        for _ in range(6):
            self.clock.advance(10.0)
            self.history.miss(BacklogReading, source, NoData(because, "load it"))
        return self

    def memory(
        self, seconds: float = 120.0, *, used: Callable[[float], float] | float, limit: float | None = 512 * MB,
        pages: float | None = 0.0, shared: float = 0.0, target: str = "", killed: float = 0.0, owns: bool | None = True,
        path: str = "/", own: str | None = None,
    ) -> Logs:  # fmt: skip
        """Looks at a group's memory: in use without page cache, ``pages`` of which come on top."""
        for _ in range(round(seconds / 5)):
            now = self.clock.advance(5.0)
            value = used(now - self.began) if callable(used) else used
            self.history.add(CgroupReading(
                taken=now, seconds=5.0, target=target, memory_limit_bytes={path: limit} if limit else {}, own_path=own,
                memory_current_bytes={path: value + (pages or 0.0)}, memory_file_bytes=None if pages is None else {path: pages},
                memory_shmem_bytes={path: shared}, memory_events={"oom_kill": killed},
                unseen={} if limit else {"memory_limit_lowest_bytes": Unseen("none is set here", Code.ABSENT)},
            ))  # fmt: skip
        self.history.add(ProcessesReading(taken=self.clock(), own_group=owns, resident_bytes={"node": 3e8}))
        return self

    def at_once(self) -> Logs:
        """What follows happened at the same time as what came before."""
        self.clock.now = self.began
        return self

    def judge(self, rule: str) -> Judgement:
        return BY_ID[rule].judge(self.history)


def grows(per_second: float, start: float = 0.0) -> Callable[[float], float]:
    return lambda seconds: start + per_second * seconds


def sawtooth(low: float, high: float, period: float) -> Callable[[float], float]:
    return lambda seconds: low + (high - low) * (seconds % period) / period


def burst(seconds: float, begins: float = 30.0, size: float = 60000.0) -> Callable[[float], float]:
    """So many at once, and gone after so long."""
    return lambda now: max(0.0, size * (1 - (now - begins) / seconds)) if now > begins else 0.0


def growing(**more: Any) -> Logs:
    """500 entries a second come, 160 go."""
    told = {"entries": grows(340.0), "oldest_seconds": grows(0.68), "arrived": 5000, "drained": 1600}
    return Logs().run(**{**told, **more})


GOOD_BATCHES: dict[str, Any] = {
    "entries": sawtooth(0, 480, 23),
    "oldest_seconds": sawtooth(0, 5, 7),
    "arrived": 5000,
    "drained": 5000,
}

SCENES: dict[tuple[str, str], tuple[Callable[[], Logs], type]] = {
    ("log_queue_in_memory", "more comes than goes"): (growing, Present),
    ("log_queue_in_memory", "no age is told"): (lambda: Logs().run(kind="winston", entries=grows(100)), Present),
    ("log_queue_in_memory", "only bytes are told"): (lambda: Logs().run(kind="stdout", waiting_bytes=grows(1e5)), Present),
    ("log_queue_in_memory", "only bytes and an age are told"): (lambda: Logs().run(50, kind="pino", waiting_bytes=grows(1e5), oldest_seconds=grows(1)), Present),
    ("log_queue_in_memory", "it stands, a minute old"): (lambda: Logs().run(entries=900, oldest_seconds=80, drained=10), Present),
    ("log_queue_in_memory", "it hangs"): (lambda: Logs().run(entries=grows(5), oldest_seconds=grows(1)), Present),
    ("log_queue_in_memory", "a trickle hangs"): (lambda: Logs().run(entries=grows(0.1, 3), oldest_seconds=grows(1, 30), arrived=1), Present),
    ("log_queue_in_memory", "a few forgotten, many pass"): (lambda: Logs().run(entries=15, oldest_seconds=grows(1, 30), arrived=5000, dropped=5000), Absent),
    ("log_queue_in_memory", "one of two sources"): (lambda: growing().at_once().run(source="fluent-bit", kind="fluent-bit", waiting_bytes=0.0), Present),
    ("log_queue_in_memory", "beside one that is silent"): (lambda: _both(growing(), "fluent-bit"), Present),
    ("log_queue_in_memory", "busy, in batches"): (lambda: Logs().run(kind="otel-batch", **GOOD_BATCHES), Absent),
    ("log_queue_in_memory", "a burst that drains"): (lambda: Logs().run(entries=lambda s: max(0.0, 60000 - 1000 * s), oldest_seconds=20), Absent),
    ("log_queue_in_memory", "a burst that is half delivered"): (lambda: Logs().run(60, entries=burst(33.0), oldest_seconds=lambda s: max(0.0, s - 30)), Absent),
    ("log_queue_in_memory", "a saw with a rise"): (lambda: Logs().run(entries=lambda s: 340 * s - 500 * (s % 20 < 10), oldest_seconds=grows(0.68)), Present),
    ("log_queue_in_memory", "a burst at the last look"): (lambda: Logs().run(50, entries=3, oldest_seconds=0.1).run(10, entries=9000, oldest_seconds=0.9), Absent),
    ("log_queue_in_memory", "bounded and full"): (lambda: Logs().run(kind="queue-handler", entries=1000, most_entries=1000, oldest_seconds=3), Absent),
    ("log_queue_in_memory", "no age, bounded, and nothing leaves it"): (lambda: _collector(entries=grows(3), drained=0), Present),
    ("log_queue_in_memory", "full of batches, and what comes is refused"): (lambda: _collector(entries=1000, drained=0, dropped=500), Present),
    ("log_queue_in_memory", "batches of which some leave"): (lambda: _collector(entries=900, drained=1), Absent),
    ("log_queue_in_memory", "events of which fewer leave than wait"): (lambda: _collector(kind="vector", unit="", entries=500, drained=6), Present),
    ("log_queue_in_memory", "events of which as many leave as wait"): (lambda: _collector(kind="vector", unit="", entries=500, drained=100), Absent),
    ("log_queue_in_memory", "nothing waits, and nothing leaves"): (lambda: _collector(entries=0, drained=0), Absent),
    ("log_queue_in_memory", "the oldest may be dropped"): (lambda: _collector(kind="sentry", unit="", entries=100, drained=0, dropped=90), Absent),
    ("log_queue_in_memory", "nothing leaves, and where it waits is not told"): (lambda: _collector(backing=NOT_TOLD, entries=grows(3), drained=0), Unknown),
    ("log_queue_in_memory", "on disk"): (lambda: growing(backing=DISK, kind="vector"), Absent),
    ("log_queue_in_memory", "what an output only delivers"): (lambda: Logs().run(kind="fluent-bit", drained=100.0), Absent),
    ("log_queue_in_memory", "nobody knows where"): (lambda: growing(backing=NOT_TOLD, kind="opentelemetry-collector"), Unknown),
    ("log_queue_in_memory", "no queue, a known logger"): (lambda: Logs().run(kind="", loggers=STREAM), Absent),
    ("log_queue_in_memory", "nothing is sent anywhere"): (lambda: Logs().run(kind="", loggers=Loggers(1, "node")), Absent),
    ("log_queue_in_memory", "an empty queue, a known logger"): (lambda: Logs().run(entries=0, loggers=STREAM), Absent),
    ("log_queue_in_memory", "no known logger, and it sends"): (lambda: Logs().run(kind="", loggers=SENDS), Unknown),
    ("log_queue_in_memory", "an empty stdout, and it sends"): (lambda: Logs().run(kind="stdout", waiting_bytes=0, loggers=SENDS), Unknown),
    ("log_queue_in_memory", "an empty queue beside a logger that is not read"): (lambda: Logs().run(entries=0, loggers=UNREAD), Unknown),
    ("log_queue_in_memory", "more comes than goes beside a logger that is not read"): (lambda: growing(loggers=UNREAD), Present),
    ("log_queue_in_memory", "an older hook without a queue"): (lambda: Logs().run(kind="", loggers=Loggers(1, "", elsewhere=("?",))), Unknown),
    ("log_queue_in_memory", "processes that are not heard"): (lambda: Logs().run(entries=0, loggers=STREAM, unheard=6), Unknown),
    ("log_queue_in_memory", "messages that were thrown away"): (lambda: Logs().run(entries=0, loggers=STREAM, overflowed=9), Unknown),
    ("log_queue_in_memory", "queues without a label"): (lambda: Logs().run(entries=0, loggers=STREAM, left_out=2), Unknown),
    ("log_queue_in_memory", "no hook"): (lambda: Logs().silent(), Unknown),
    ("log_queue_in_memory", "a clean collector and no hook"): (lambda: _both(Logs().run(source="v", kind="vector", entries=1.0), "hooks"), Unknown),
    ("log_queue_in_memory", "nothing is watched"): (Logs, Unknown),
    ("log_pipe_blocked", "its reader stands"): (lambda: _pipe(full=1.0, blocked=1.0), Present),
    ("log_pipe_blocked", "Node queues instead of waiting"): (lambda: _pipe(full=1.0, blocked=0.0), Present),
    ("log_pipe_blocked", "who waits is hidden"): (lambda: _pipe(full=1.0), Present),
    ("log_pipe_blocked", "its reader stops for 12 of 36 s"): (lambda: _pipe(full=0.0, full_ratio=0.33, full_seconds=12, blocked_ratio=1.0), Present),
    ("log_pipe_blocked", "a tenth of the time, for moments"): (lambda: _pipe(full=0.0, full_ratio=0.1, full_seconds=0.0), Present),
    ("log_pipe_blocked", "its reader stopped once, for 4 s"): (lambda: _pipe(full=0.0, full_ratio=0.07, full_seconds=lambda s: 4.0 * (s == 30)), Present),
    ("log_pipe_blocked", "its reader stopped in the only slot"): (lambda: _pipe(10, full=0.0, full_ratio=0.4, full_seconds=4.0), Present),
    ("log_pipe_blocked", "half of the samples of a slot each"): (lambda: _pipe(full=lambda s: s % 20 < 10, blocked=0.0), Present),
    ("log_pipe_blocked", "bursts"): (lambda: _pipe(full=lambda s: s == 30, full_ratio=0.05, full_seconds=1.0, blocked_ratio=1.0), Absent),
    ("log_pipe_blocked", "it is taken as it comes"): (lambda: _pipe(full=0.0, blocked=0.0), Absent),
    ("log_pipe_blocked", "a terminal"): (lambda: _pipe(kind="terminal", full=0.0), Absent),
    ("log_pipe_blocked", "a file"): (lambda: _pipe(kind="file"), Absent),
    ("log_pipe_blocked", "two looks"): (lambda: _pipe(seconds=20, full=1.0, blocked=1.0), Unknown),
    ("log_pipe_blocked", "nobody reads it any more"): (lambda: _pipe(backing=None), Unknown),
    ("log_pipe_blocked", "it may not be looked at"): (lambda: Logs().silent("stdout", "another user's"), Unknown),
    ("log_pipe_blocked", "it is not looked at"): (growing, Unknown),
    ("log_pipe_blocked", "one is taken, another may not be looked at"): (lambda: _pipe(unseen=HIDDEN, full=0.0, blocked=0.0), Unknown),
    ("log_pipe_blocked", "one is full, another may not be looked at"): (lambda: _pipe(unseen=HIDDEN, full=1.0, blocked=1.0), Present),
    ("log_pipe_blocked", "one is a file, and there are more than are looked at"): (lambda: _pipe(unseen=TOO_MANY, kind="file"), Unknown),
    ("log_files_in_memory", "large"): (lambda: _files(waiting_bytes=200 * MB), Present),
    ("log_files_in_memory", "small and fast"): (lambda: _files(waiting_bytes=grows(5e5)).at_once().memory(60, used=grows(5e5, 100 * MB)), Present),
    ("log_files_in_memory", "deleted and held open"): (lambda: _files(waiting_bytes=0.0, deleted_bytes=200 * MB), Present),
    ("log_files_in_memory", "a tenth of the limit"): (lambda: _files(waiting_bytes=60 * MB).at_once().memory(60, used=100 * MB), Present),
    ("log_files_in_memory", "small and rotated"): (lambda: _files(waiting_bytes=sawtooth(1 * MB, 3 * MB, 17)), Absent),
    ("log_files_in_memory", "soon more than their file system takes"): (lambda: _files(waiting_bytes=grows(3e4, 3 * MB), most_bytes=16 * MB).at_once().memory(60, used=grows(3e4, 160 * MB)), Present),
    ("log_files_in_memory", "a part of them is large"): (lambda: _files(waiting_bytes=200 * MB, cut=True), Present),
    ("log_files_in_memory", "a part of them is small"): (lambda: _files(waiting_bytes=17 * MB, cut=True), Unknown),
    ("log_files_in_memory", "large, on disk"): (lambda: _files(waiting_bytes=2000 * MB, backing=DISK), Absent),
    ("log_files_in_memory", "none is named, and the group has none"): (lambda: Logs().memory(used=100 * MB, shared=1 * MB), Absent),
    ("log_files_in_memory", "none is named, and the group has some"): (lambda: Logs().memory(used=200 * MB, shared=100 * MB), Unknown),
    ("log_files_in_memory", "none is named, and the app is elsewhere"): (lambda: Logs().memory(used=100 * MB, owns=False), Unknown),
    ("log_files_in_memory", "nobody knows where"): (lambda: _files(waiting_bytes=200 * MB, backing=NOT_TOLD), Unknown),
    ("log_files_in_memory", "standard output, a file on tmpfs"): (lambda: _output(waiting_bytes=200 * MB), Present),
    ("log_files_in_memory", "standard output, a small one"): (lambda: _output(waiting_bytes=1 * MB).at_once().memory(60, used=100 * MB, shared=1 * MB), Absent),
    ("log_files_in_memory", "standard output on disk, others in memory"): (lambda: _output(backing=DISK, waiting_bytes=1 * MB).at_once().memory(60, used=200 * MB, shared=100 * MB), Unknown),
    ("log_files_in_memory", "standard output on disk, others not known"): (lambda: _output(backing=DISK, waiting_bytes=1 * MB), Unknown),
    ("log_files_in_memory", "a directory, and more elsewhere"): (lambda: _files(waiting_bytes=1 * MB).at_once().memory(60, used=200 * MB, shared=100 * MB), Unknown),
    ("log_files_in_memory", "a directory, which is all there is"): (lambda: _files(waiting_bytes=30 * MB).at_once().memory(60, used=200 * MB, shared=31 * MB), Absent),
    ("log_files_in_memory", "it cannot be read"): (lambda: Logs().silent("app", "permission denied"), Unknown),
    ("log_entries_dropped", "some"): (lambda: Logs().run(entries=0, dropped=2, errors=1, refused=1), Present),
    ("log_entries_dropped", "deliveries that are tried again"): (lambda: Logs().run(entries=0, dropped=0, errors=9), Absent),
    ("log_entries_dropped", "a full queue whose writer waits"): (lambda: Logs().run(entries=9, most_entries=9, full=1, dropped=0), Absent),
    ("log_entries_dropped", "full, and nobody counts what it drops"): (lambda: Logs().run(kind="otel-batch", entries=2048, most_entries=2048), Unknown),
    ("log_entries_dropped", "nobody counts, and it is never half full"): (lambda: Logs().run(kind="otel-batch", entries=900, most_entries=2048), Absent),
    ("log_entries_dropped", "it fails, and nobody counts what is lost"): (lambda: Logs().run(kind="fluentd", entries=3, errors=9), Unknown),
    ("log_entries_dropped", "a pipe whose writer waits"): (lambda: Logs().run(kind="loguru", waiting_bytes=9, most_bytes=9), Absent),
    ("log_entries_dropped", "without a bound, and nothing fails"): (lambda: Logs().run(entries=9), Absent),
    ("log_entries_dropped", "a logger that is not read"): (lambda: Logs().run(entries=0, dropped=0, loggers=UNREAD), Unknown),
    ("log_entries_dropped", "no hook"): (lambda: Logs().silent(), Unknown),
    ("logs_lost_at_exit", "501 of them"): (lambda: Logs().run(60, entries=501).run(10, kind="", lost={"orders": 501}), Present),
    ("logs_lost_at_exit", "it ended with an empty queue"): (lambda: Logs().run(60, entries=5).run(10, kind="", lost={"orders": 0}), Absent),
    ("logs_lost_at_exit", "it fell silent with entries in it"): (lambda: Logs().run(60, entries=501).run(10, kind="", silent={"orders": 501}), Unknown),
    ("logs_lost_at_exit", "it runs"): (lambda: Logs().run(60, entries=501), Absent),
    ("logs_lost_at_exit", "a logger that is not read"): (lambda: Logs().run(60, entries=0, loggers=UNREAD), Unknown),
    ("logs_lost_at_exit", "processes that are not heard"): (lambda: Logs().run(60, entries=0, unheard=6), Unknown),
    ("logs_lost_at_exit", "no hook"): (lambda: Logs().silent(), Unknown),
    ("logs_lost_at_exit", "hooks are not listened to"): (Logs, Unknown),
    ("memory_near_limit", "near"): (lambda: Logs().memory(used=480 * MB), Present),
    ("memory_near_limit", "soon"): (lambda: Logs().memory(used=grows(0.5 * MB, 300 * MB)), Present),
    ("memory_near_limit", "somebody was killed"): (lambda: Logs().memory(used=100 * MB, killed=1.0), Present),
    ("memory_near_limit", "full of page cache"): (lambda: Logs().memory(used=100 * MB, pages=410 * MB), Absent),
    ("memory_near_limit", "a start"): (lambda: Logs().memory(used=grows(1.5 * MB, 10 * MB)), Absent),
    ("memory_near_limit", "garbage that is collected"): (lambda: Logs().memory(used=sawtooth(200 * MB, 400 * MB, 43)), Absent),
    ("memory_near_limit", "a day away"): (lambda: Logs().memory(used=grows(1e3, 300 * MB)), Absent),
    ("memory_near_limit", "no limit"): (lambda: Logs().memory(used=480 * MB, limit=None), Absent),
    ("memory_near_limit", "no limit, and somebody was killed"): (lambda: Logs().memory(used=480 * MB, limit=None, killed=1.0), Present),
    ("memory_near_limit", "page cache is not told"): (lambda: Logs().memory(used=480 * MB, pages=None), Unknown),
    ("memory_near_limit", "nothing was read"): (Logs, Unknown),
}  # fmt: skip


def _collector(**more: Any) -> Logs:
    """Two minutes of a queue that tells no age and holds no more than 1000."""
    return Logs().run(120, **{"kind": "opentelemetry-collector", "unit": "batches", "most_entries": 1000, **more})


def _pipe(seconds: float = 60.0, kind: str = "pipe", backing: Backing | None = MEMORY, **numbers: Any) -> Logs:
    return Logs().run(seconds, kind=kind, source="stdout", queue="stdout", backing=backing, **numbers)


def _output(backing: Backing = TMPFS, **numbers: Any) -> Logs:
    return Logs().run(60, kind="file", source="stdout", queue="stdout", backing=backing, **numbers)


def _files(backing: Backing = TMPFS, **numbers: Any) -> Logs:
    return Logs().run(60, kind="directory", source="app", queue="app", backing=backing, **numbers)


def _both(logs: Logs, silent: str) -> Logs:
    """A source beside this one has said nothing all the time."""
    for _ in range(6):
        logs.history.miss(BacklogReading, silent, NoData("connection refused", "correct it"))
    return logs


@pytest.mark.parametrize(("rule", "scene"), SCENES, ids=str)
def test_each_finding_is_told_from_what_looks_alike(rule: str, scene: str) -> None:
    make, verdict = SCENES[rule, scene]
    judgement = make().judge(rule)
    assert isinstance(judgement, verdict), judgement
    if isinstance(judgement, Unknown | Absent):
        assert judgement.because


def test_every_rule_has_its_four_cases() -> None:
    elsewhere = {"log_delivery_late", "log_quota_exceeded", "log_call_slow"}  # in files of their own
    for rule in (rule for rule in LOG_RULES if rule.id not in elsewhere):
        verdicts = [verdict for (name, _), (_, verdict) in SCENES.items() if name == rule.id]
        assert {Present, Absent, Unknown} <= set(verdicts), rule.id
        assert len(verdicts) >= 4, rule.id


def _of_files(seconds: float, size: Callable[[float], float], limit: float = 512 * MB, **more: Any) -> list[Judgement]:
    """What is said each ten seconds of files in a group that holds 100 MB of other things."""
    logs, found = Logs(), []
    for _ in range(round(seconds / 10)):
        before = logs.clock()
        logs.run(10, kind="directory", source="app", queue="app", backing=TMPFS, waiting_bytes=size, **more)
        logs.clock.now = before
        found.append(logs.memory(10, used=lambda s: 100 * MB + size(s), limit=limit).judge("log_files_in_memory"))
    return found


@pytest.mark.parametrize("period", [43, 87, 200, 333, 500])
def test_files_that_are_rotated_fill_nothing_after_their_first_turn(period: float) -> None:
    later = _of_files(1500, sawtooth(4 * MB, 24 * MB, period), limit=256 * MB)[round(period / 10) + 1 :]
    assert {type(judgement) for judgement in later} == {Absent}


def test_files_that_are_deleted_and_held_open_are_not_taken_for_rotated_ones() -> None:
    found = _of_files(
        590, sawtooth(10 * MB, 20 * MB, 200), limit=256 * MB, deleted_bytes=lambda s: 10 * MB * (s // 200)
    )[-1]
    assert isinstance(found, Present)
    assert found.severity == "critical"


def test_large_files_that_are_rotated_are_said_to_be_large_and_not_to_reach_the_limit() -> None:
    found = _of_files(900, sawtooth(100 * MB, 110 * MB, 200))[-1]
    assert isinstance(found, Present)
    assert found.severity == "warning"
    assert found.evidence[-1].text == "the app's group uses 205 MB of 512 MB"


@pytest.mark.parametrize("looks", ["cccwww", "wwwccc", "cwcwcw", "wccccw", "cccccw"])
def test_a_part_of_the_files_and_all_of_them_are_no_growth(looks: str) -> None:
    """Of 600 files that nobody writes to some looks see 255: their time is up."""
    logs = Logs()
    for look in looks:
        cut = look == "c"
        size = 17 * MB if cut else 39 * MB
        logs.run(10, kind="directory", source="app", queue="app", backing=TMPFS, waiting_bytes=size, cut=cut)
    (files,) = queues(logs.history, 60.0)
    assert not files.growth_bytes
    assert files.falling is None
    judgement = logs.at_once().memory(60, used=170 * MB, shared=39 * MB).judge("log_files_in_memory")
    assert isinstance(judgement, Unknown if looks[-1] == "c" else Absent), judgement


def test_files_of_which_all_are_seen_now_and_then_grow_as_those_looks_say() -> None:
    logs = Logs()
    for look in range(1, 19):
        cut = look % 3 != 0
        size = 1e6 * look * (0.4 if cut else 1.0)
        logs.run(10, kind="directory", source="app", queue="app", backing=TMPFS, waiting_bytes=size, cut=cut)
    (files,) = queues(logs.history, 60.0)
    assert files.growth_bytes == pytest.approx(1e5)
    logs.at_once().memory(180, used=grows(1e5, 100 * MB), limit=256 * MB)
    assert present(logs, "log_files_in_memory").severity == "critical"
    logs.clock.now -= 10
    logs.run(10, kind="directory", source="app", queue="app", backing=TMPFS, waiting_bytes=7.6 * MB, cut=True)
    judgement = logs.judge("log_files_in_memory")
    assert isinstance(judgement, Unknown)
    assert judgement.code is Code.PARTIAL


@pytest.mark.parametrize("limit", [256 * MB, None])
def test_of_files_that_fill_a_small_file_system_no_memory_limit_is_spoken_of(limit: float | None) -> None:
    logs = _files(waiting_bytes=grows(3e4, 3 * MB), most_bytes=16 * MB)
    found = present(logs.at_once().memory(60, used=grows(3e4, 160 * MB), limit=limit), "log_files_in_memory")
    assert found.severity == "warning"
    assert [each.text for each in found.evidence[1:]] == [
        TMPFS.because,
        "at this growth their file system, which takes 11 MB more, is full in 6 min",
    ]


def test_files_on_a_large_file_system_come_to_the_memory_limit_first() -> None:
    logs = _files(waiting_bytes=grows(3e4, 3 * MB), most_bytes=1000 * MB)
    found = present(logs.at_once().memory(60, used=grows(3e4, 160 * MB), limit=256 * MB), "log_files_in_memory")
    assert found.severity == "critical"
    assert found.evidence[-1].text.endswith("is at its limit in 52 min")


def present(logs: Logs, rule: str) -> Present:
    judgement = logs.judge(rule)
    assert isinstance(judgement, Present), judgement
    return judgement


@pytest.mark.parametrize("seconds", [15.0, 33.0, 55.0])
def test_a_burst_that_is_delivered_is_no_queue_that_grows_at_any_sample(seconds: float) -> None:
    """The calm before it makes its slope rise for a minute."""
    logs = Logs()
    for _ in range(12):
        logs.run(10, entries=burst(seconds), oldest_seconds=lambda now: now - 30 if burst(seconds)(now) else 0.0)
        assert not isinstance(logs.judge("log_queue_in_memory"), Present)


def test_a_growing_queue_says_how_long_the_memory_lasts() -> None:
    logs = growing().at_once().memory(60, used=grows(0.5 * MB, 390 * MB))
    found = present(logs, "log_queue_in_memory")
    assert found.severity == "critical"
    assert found.evidence[0].text == (
        "20400 entries in google-cloud-logging 'orders/log', the oldest for 40.8 s; 500 come and 160 go per second"
    )
    limit = found.evidence[2].text
    assert limit == "the app's group uses 420 MB of 512 MB, grows by 30 MB a minute and is at its limit in 3 min"
    assert any("StructuredLogHandler" in change for change in found.advice.changes)


def test_the_calm_before_the_oldest_entry_came_does_not_flatter() -> None:
    """The memory has grown by 1 MB/s for half a minute, before that not at all; 82 MB are left."""

    def left(oldest: float) -> float | None:
        logs = growing(oldest_seconds=oldest).at_once().memory(60, used=lambda s: 400 * MB + MB * max(0.0, s - 30))
        return present(logs, "log_queue_in_memory").evidence[2].value

    assert left(oldest=12) == pytest.approx(82, rel=0.1)
    assert left(oldest=28) == pytest.approx(82, rel=0.1)
    assert (left(oldest=50) or 0.0) > 100


def test_of_fewer_than_four_readings_no_growth_is_reported_and_none_is_denied() -> None:
    logs = Logs().memory(15, used=grows(1 * MB, 100 * MB))
    told = group_memory(logs.history, 120.0, "")
    assert told is not None
    assert (told.growth, told.seconds_to_limit) == (None, None)
    judgement = logs.judge("memory_near_limit")
    assert isinstance(judgement, Absent)
    assert judgement.because == "this container uses 115 MB of 512 MB"
    told = group_memory(logs.memory(5, used=grows(1 * MB, 100 * MB)).history, 120.0, "", since=1.0)
    assert told is not None
    assert told.growth == pytest.approx(MB)


def test_of_a_group_that_may_not_be_the_apps_no_time_to_limit_is_reported() -> None:
    logs = growing().at_once().memory(60, used=grows(0.5 * MB, 390 * MB), owns=None)
    assert len(present(logs, "log_queue_in_memory").evidence) == 2


def test_in_gvisor_the_groups_memory_is_not_believed() -> None:
    logs = Logs().memory(used=480 * MB)
    logs.history.add(platform(logs.clock(), trust=NONE_COUNTS))
    assert isinstance(logs.judge("memory_near_limit"), Unknown)


@pytest.mark.parametrize("target", ["", "app"])
def test_who_is_killed_without_a_limit_is_killed_for_the_machines_memory_or_a_group_above(target: str) -> None:
    logs = (
        Logs()
        .memory(60, used=480 * MB, limit=None, target=target)
        .memory(5, used=480 * MB, limit=None, target=target, killed=3.0)
    )
    found = present(logs, "memory_near_limit")
    assert (found.severity, found.cases) == ("critical", ())
    whose = "the app's group" if target else "this container"
    assert [each.text for each in found.evidence] == [
        f"the kernel killed 3 of the processes of {whose} in the last two minutes",
        "none is set here: the machine's memory was used up, or the limit of a group above was reached",
        "process 'node' holds 300 MB",
    ]
    assert any("limits.memory" in change for change in found.advice.changes)
    logs.history.add(platform(logs.clock(), trust=NONE_COUNTS))
    assert isinstance(logs.judge("memory_near_limit"), Unknown)


def test_who_is_killed_where_the_limit_cannot_be_read_is_not_blamed_on_the_machine() -> None:
    logs = Logs()
    refused = {"memory_limit_lowest_bytes": Unseen("memory.max: permission denied", Code.NOT_PERMITTED)}
    logs.history.add(CgroupReading(taken=logs.clock(), seconds=5.0, memory_events={"oom_kill": 1.0}, unseen=refused))
    found = present(logs, "memory_near_limit")
    assert found.evidence[1].text == "memory.max: permission denied: which limit was reached is not known"


def test_a_memory_limit_of_the_group_above_is_named_and_raised_there() -> None:
    found = Logs().memory(used=480 * MB, path="/tenants", own="/tenants/shop").judge("memory_near_limit")
    assert isinstance(found, Present)
    assert found.evidence[0].text.startswith("the group /tenants above it uses")
    assert "/sys/fs/cgroup/tenants/memory.max" in found.advice.changes[0]


def test_what_fills_the_memory_explains_that_it_is_near_its_end() -> None:
    logs = growing().at_once().memory(60, used=grows(1 * MB, 420 * MB))
    report, _ = Engine(logs.history, rules=LOG_RULES, clock=logs.clock).evaluate(AgentSelf("", 0.0, 0.0, 0))
    found: dict[str, Finding] = {finding.rule: finding for finding in report.findings}
    assert found["memory_near_limit"].explained_by == "log_queue_in_memory"
    assert any("log" in evidence.text for evidence in found["memory_near_limit"].evidence)
    assert report.verdict.startswith("Log entries pile up in memory")


LEAK = 1 * MB
"""Bytes per second by which the app's group grows, from 420 MB on."""


@pytest.mark.parametrize(
    ("queue", "owns", "explains"),
    [
        ({"waiting_bytes": grows(0.01 * LEAK, 0.9 * MB)}, True, False),
        ({"waiting_bytes": grows(0.4 * LEAK, 0.9 * MB)}, True, False),
        ({"waiting_bytes": grows(0.6 * LEAK, 0.9 * MB)}, True, True),
        ({"waiting_bytes": grows(0.01 * LEAK, 250 * MB)}, True, True),
        ({"entries": grows(340.0)}, True, True),
        ({"entries": grows(340.0)}, None, False),
        ({"entries": grows(340.0)}, False, False),
        ({"waiting_bytes": grows(0.01 * LEAK, 0.9 * MB), "source": "page"}, True, False),
        ({"waiting_bytes": grows(LEAK, 300 * MB), "source": "page"}, True, False),
    ],
    ids=[
        "a hundredth of the growth", "less than half of it", "more than half of it", "half of what is used", "its bytes are not told",
        "whose group it is is not known", "the group is another's", "a collector", "a collector as large as the group",
    ],
)  # fmt: skip
def test_only_what_waits_in_the_app_and_is_large_enough_fills_its_memory(
    queue: dict[str, Any], owns: bool | None, explains: bool
) -> None:
    logs = Logs().run(60, **{"kind": "stdout", **queue}).at_once().memory(60, used=grows(LEAK, 420 * MB), owns=owns)
    report, _ = Engine(logs.history, rules=LOG_RULES, clock=logs.clock).evaluate(AgentSelf("", 0.0, 0.0, 0))
    found = {finding.rule: finding for finding in report.findings}
    assert found["memory_near_limit"].explained_by == ("log_queue_in_memory" if explains else None)
    assert report.findings[0].rule == ("log_queue_in_memory" if explains else "memory_near_limit")
    assert found["log_queue_in_memory"].severity == ("critical" if explains else "warning")
    assert any("at its limit" in each.text for each in found["log_queue_in_memory"].evidence) is explains
    named = any("orders/log" in each.text for each in found["memory_near_limit"].evidence)
    assert named is (owns is True and "source" not in queue)


@pytest.mark.parametrize(
    ("files", "shared", "explains"),
    [
        ({"waiting_bytes": 70 * MB}, 70 * MB, False),
        ({"waiting_bytes": grows(0.4 * LEAK, 70 * MB)}, 100 * MB, False),
        ({"waiting_bytes": grows(0.6 * LEAK, 10 * MB)}, 50 * MB, True),
        ({"waiting_bytes": 250 * MB}, 250 * MB, True),
        ({"waiting_bytes": 10 * MB, "deleted_bytes": 240 * MB}, 250 * MB, True),
    ],
    ids=[
        "beside a leak", "less than half of the growth", "more than half of it", "half of what is used",
        "most of it in deleted files",
    ],
)  # fmt: skip
def test_only_files_that_are_large_enough_fill_the_memory(files: dict[str, Any], shared: float, explains: bool) -> None:
    logs = _files(**files).at_once().memory(60, used=grows(LEAK, 420 * MB), shared=shared)
    report, _ = Engine(logs.history, rules=LOG_RULES, clock=logs.clock).evaluate(AgentSelf("", 0.0, 0.0, 0))
    found = {finding.rule: finding for finding in report.findings}
    assert found["memory_near_limit"].explained_by == ("log_files_in_memory" if explains else None)
    assert found["log_files_in_memory"].explained_by is None


def test_a_leak_that_has_just_begun_is_not_small_beside_the_queue() -> None:
    """Its floor has not risen yet: a queue of a tenth of it would be larger than that."""
    logs = Logs().run(60, kind="stdout", waiting_bytes=grows(0.1 * MB, 0.9 * MB)).at_once()
    logs.memory(60, used=lambda s: 470 * MB + MB * max(0.0, s - 32))
    assert present(logs, "memory_near_limit").cases == ()


@pytest.mark.parametrize(
    ("kind", "first"), [("pino", "log_pipe_blocked"), ("stdout", "log_pipe_blocked"), ("logging-winston", None)]
)
def test_a_reader_that_stands_explains_the_queue_that_writes_to_it_and_no_other(kind: str, first: str | None) -> None:
    logs = growing(kind=kind).at_once().run(kind="pipe", source="stdout", queue="stdout", full=1.0, blocked=0.0)
    report, _ = Engine(logs.history, rules=LOG_RULES, clock=logs.clock).evaluate(AgentSelf("", 0.0, 0.0, 0))
    found = {finding.rule: finding for finding in report.findings}
    assert found["log_queue_in_memory"].explained_by == first
    assert "log_pipe_blocked" in found


@pytest.mark.parametrize(
    ("ended", "text"), [(60, "for 4 s without a break"), (30, "for 4 s without a break, over for 30 s")]
)
def test_a_stop_of_its_reader_that_is_over_is_told_as_such(ended: int, text: str) -> None:
    judgement = _pipe(full=0.0, full_ratio=0.07, full_seconds=lambda s: 4.0 * (s == ended)).judge("log_pipe_blocked")
    assert isinstance(judgement, Present)
    assert [evidence.text for evidence in judgement.evidence if "without a break" in evidence.text] == [text]


def test_a_source_that_is_silent_is_named_with_its_remedy() -> None:
    judgement = Logs().silent("vector", "logs.metrics_urls.vector: connection refused").judge("log_queue_in_memory")
    assert judgement == Unknown("logs.metrics_urls.vector: connection refused", "load it")


@pytest.mark.parametrize(
    ("loggers", "because", "remedy"),
    [
        (SENDS, "no logger that its hook knows was found in process 'orders' (7), and it sends by http, tcp", KNOWN["node"]),
        (UNREAD, "winston's LokiTransport in process 'orders' (7)", TO_STDOUT_ALONE),
        (Loggers(7, "", elsewhere=("?",)), "its hook is too old to tell", NEWER_HOOK),
    ],
)  # fmt: skip
def test_where_the_hook_speaks_nobody_is_told_to_load_it(loggers: Loggers, because: str, remedy: str) -> None:
    judgement = Logs().run(kind="", loggers=loggers).judge("log_queue_in_memory")
    assert isinstance(judgement, Unknown)
    assert because in judgement.because
    assert remedy in judgement.remedy


def test_every_kind_of_queue_has_its_own_advice() -> None:
    assert CHANGES.keys() >= KINDS
    collectors = {row.kind for row in ROWS} - {"promtail", "alloy"}  # they read files, and have no setting of the kind
    assert collectors <= CHANGES.keys()


@given(st.lists(st.tuples(st.floats(0, 1e4), st.none() | st.floats(0, 1e12)), max_size=12))
def test_a_slope_is_a_number_or_nothing(points: list[tuple[float, float | None]]) -> None:
    found = slope(points)
    assert found is None or math.isfinite(found)


@given(rate=st.floats(-1e6, 1e6), start=st.floats(0, 1e9))
def test_the_slope_of_a_line_is_its_rate(rate: float, start: float) -> None:
    points = [(float(x), start + rate * x) for x in range(0, 60, 10)]
    assert slope(points) == pytest.approx(rate, rel=1e-3, abs=1e-2)


def test_the_oldest_has_waited_at_least_since_fewer_left_than_waited() -> None:
    """Of 40 entries 6 leave every ten seconds: after 60 s 36 of them have left, after 70 s more than there were."""
    found = queues(_collector(kind="vector", unit="", entries=40, drained=6).history, 60.0)
    assert [queue.stuck_seconds for queue in found] == [60.0]


def test_time_to_drain_is_of_a_queue_that_shrinks() -> None:
    logs = Logs().run(entries=lambda s: 6000 - 50 * s)
    (queue,) = queues(logs.history, 60.0)
    assert queue.seconds_to_drain == pytest.approx(60.0, rel=0.05)
    (queue,) = queues(growing().history, 60.0)
    assert queue.seconds_to_drain is None


def test_the_time_to_the_limit_is_what_the_growth_says() -> None:
    logs = Logs().memory(used=grows(1 * MB, 100 * MB))
    found = group_memory(logs.history, 120.0, "")
    assert isinstance(found, Memory)
    assert found.seconds_to_limit == pytest.approx((512 - 220) / 1.0, rel=0.1)


def test_the_breakdown_has_what_waits_how_fast_it_grows_and_when_the_memory_is_full() -> None:
    logs = growing().at_once().memory(60, used=grows(1 * MB, 420 * MB))
    logs.at_once().run(60, kind="fluent-bit", source="fluent", queue="input tail", unit="chunks", entries=3.0)
    report, _ = Engine(logs.history, rules=LOG_RULES, clock=logs.clock).evaluate(AgentSelf("", 0.0, 0.0, 0))
    queue = report.breakdown.logs["hooks: orders/log"]
    assert queue == {
        "entries": 20400, "oldest_seconds": pytest.approx(40.8), "growth_entries": pytest.approx(340), "backing": "memory",
    }  # fmt: skip
    assert report.breakdown.logs["fluent: input tail"]["chunks"] == 3
    own = report.breakdown.memory["own"]
    assert own["seconds_to_limit"] == pytest.approx((512 - 480) / 1.0, rel=0.1)
    text = render(to_json(report))
    assert "Logs waiting in hooks: orders/log: 20400 entries, in memory, the oldest for 40.8 s\n" in text
    assert "Memory of this container: 480 of 512 MB, at its limit in 1 min\n" in text


def test_a_queue_that_drains_says_when_it_is_empty() -> None:
    logs = Logs().run(entries=lambda s: 6000 - 50 * s)
    report, _ = Engine(logs.history, rules=LOG_RULES, clock=logs.clock).evaluate(AgentSelf("", 0.0, 0.0, 0))
    assert report.breakdown.logs["hooks: orders/log"]["seconds_to_drain"] == pytest.approx(60.0, rel=0.05)
    assert report.breakdown.memory == {}
