"""What a hook inside the app tells: one JSON object, believed only where it is exactly of the agreed form.

Anybody who reaches the socket may write to it, so every type, length and number is checked and a message with one fault
is refused whole.  Keys that are not known are passed over: a newer hook may tell more.  The form stands in
docs/architecture.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from probes.labels import printable
from probes.logs.reading import TOTALS
from probes.metrics_page.samples import MOST_VALUE

#: Largest message, in bytes.
MOST_BYTES = 8192
MOST_QUEUES = 16
MOST_POOLS = 16
MOST_LOGGERS = 16
#: Handlers whose calls are timed, and event loops.
MOST_TIMED = 8
HOOKS = frozenset(("go", "node", "python"))
#: A hook with anything to tell speaks this often.
EVERY_SECONDS = 2.0
_MOST_PID = 2**31
_MOST_NAME, _MOST_QUEUE_NAME = 40, 60

KINDS = frozenset((
    "google-cloud-logging", "queue-handler", "otel-batch", "logging-winston", "pino", "stdout", "winston", "bunyan", "go",
    "memory-handler", "app-queue", "loguru", "logtail", "sentry",
))  # fmt: skip
#: The numbers of a queue: key in the message to the reading's field.
_NUMBERS = {
    "entries": "entries", "bytes": "waiting_bytes", "most_entries": "most_entries", "most_bytes": "most_bytes",
    "oldest_seconds": "oldest_seconds", "arrived": "arrived", "drained": "drained", "dropped": "dropped",
    "errors": "errors", "refused": "refused",
}  # fmt: skip
AFTER_RESPONSE = ("now", "pieces", "seconds")
TIMERS = ("late", "late_seconds")
_RUNTIME = ("cpus", "machine_cpus", "goroutines")
POOL_GAUGES = ("size", "checked_out", "waiting")
POOL_TOTALS = ("wait_seconds", "acquires", "waits")
#: From this length on a log call is slow: hooks count those apart, and tell the slowest of them.
SLOW_CALL_SECONDS = 0.01
#: Of log calls by what took them: totals, and the slowest since the message before.
CALL_TOTALS = ("calls", "seconds", "slow_calls", "slow_seconds")
#: Of an event loop, by looks at how late it is; late is 50 ms and more.  The last three are of its thread.
LOOP_TOTALS = ("looks", "late_looks", "late_seconds", "cpu_seconds", "run_delay_seconds", "collecting_seconds")
#: Of the hook's own thread, which does nothing but wait: how late it was woken.
WAKE_TOTALS = ("looks", "late_seconds")
SLOWEST = "slowest_seconds"
LOOPS = frozenset(("node", "asyncio"))


class QueueReport(NamedTuple):
    """One queue: numbers of this moment, and totals since the process began, by the reading's fields."""

    kind: str
    gauges: Mapping[str, float]
    totals: Mapping[str, float]


class LoggersReport(NamedTuple):
    """Of which loggers the hook says what: :class:`probes.logs.reading.Loggers`."""

    hook: str
    known: tuple[str, ...]
    unread: tuple[str, ...]
    elsewhere: tuple[str, ...]


class RuntimeReport(NamedTuple):
    """What a process's runtime says of itself; a number that it does not say is None."""

    name: str
    """Such as "go"."""
    version: str = ""
    cpus: float | None = None
    """How many it uses at once: GOMAXPROCS."""
    machine_cpus: float | None = None
    """How many it sees: runtime.NumCPU()."""
    goroutines: float | None = None


class Timed(NamedTuple):
    """Log calls by what took them, or one event loop: totals since the process began, and the slowest since the message before."""

    totals: Mapping[str, float]
    slowest: float = 0.0
    kind: str = ""


class Message(NamedTuple):
    """What one process raw; ``lost`` is None unless this is its last word."""

    pid: int
    name: str
    queues: Mapping[str, QueueReport]
    in_flight: int | None
    pools: Mapping[str, Mapping[str, float]]
    lost: float | None
    pid_namespace: str = ""
    """As /proc/self/ns/pid names it; "" where the hook does not say."""
    start: str = ""
    """A random token of this start of the process; "" of an older hook."""
    loggers: LoggersReport | None = None
    """None of an older hook."""
    runtime: RuntimeReport | None = None
    after_response: Mapping[str, float] = MappingProxyType({})
    """Work that goes on although its response is sent: ``now``, and the totals ``pieces`` and ``seconds``."""
    timers: Mapping[str, float] = MappingProxyType({})
    """The hook's own timers that came a second late or more: the totals ``late`` and ``late_seconds``."""
    calls: Mapping[str, Timed] = MappingProxyType({})
    """Log calls by the class of the handler that took them."""
    loops: Mapping[str, Timed] = MappingProxyType({})
    """Event loops by name."""
    wakes: Timed | None = None
    """The hook's own thread; None where it has none."""

    @property
    def stuck(self) -> float:
        """Entries that an end soon after would lose; a younger queue may have been delivered in the time between."""
        queues = (queue.gauges for queue in self.queues.values())
        return sum(q.get("entries", 0.0) for q in queues if q.get("oldest_seconds", EVERY_SECONDS) >= EVERY_SECONDS)


def parse(data: bytes) -> Message:
    """Raises ValueError for anything that is not a message, with what is wrong."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES} bytes")
    try:
        raw = json.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(raw, dict) or raw.get("v") != 1 or isinstance(raw["v"], bool):
        raise ValueError("no message of version 1")
    in_flight, farewell = raw.get("in_flight"), raw.get("exit")
    queues: dict[str, QueueReport] = {}
    for item in _list(raw.get("queues", [])):
        name = _name(item.get("queue"), _MOST_QUEUE_NAME)
        if name in queues:
            raise ValueError("two queues of one name")
        queues[name] = _queue(item)
    return Message(
        pid=int(_number(raw.get("pid"), _MOST_PID, least=1, whole=True)),
        name=_name(raw.get("name"), _MOST_NAME),
        queues=queues,
        in_flight=None if in_flight is None else int(_number(in_flight, MOST_VALUE, whole=True)),
        pools=_pools(raw.get("pool", {})),
        lost=None if farewell is None else _number(_dict(farewell).get("pending", 0), MOST_VALUE),
        pid_namespace=_name(raw.get("pid_ns", "?"), _MOST_NAME).strip("?"),
        start=_name(raw.get("start", "?"), _MOST_NAME).strip("?"),
        loggers=_loggers(_dict(raw["log"])) if "log" in raw else None,
        runtime=_runtime(_dict(raw["runtime"])) if "runtime" in raw else None,
        after_response=_numbers(raw, "after_response", AFTER_RESPONSE),
        timers=_numbers(raw, "timers", TIMERS),
        calls=_timed(raw.get("calls", []), "handler", CALL_TOTALS),
        loops=_timed(raw.get("loops", []), "loop", LOOP_TOTALS),
        wakes=_times(_dict(raw["wakes"]), WAKE_TOTALS) if "wakes" in raw else None,
    )


def _queue(item: Mapping[str, Any]) -> QueueReport:
    kind = item.get("kind", "other")
    numbers = {field: _number(item[key], MOST_VALUE) for key, field in _NUMBERS.items() if key in item}
    gauges = {field: value for field, value in numbers.items() if field not in TOTALS}
    totals = {field: value for field, value in numbers.items() if field in TOTALS}
    return QueueReport(kind if isinstance(kind, str) and kind in KINDS else "other", gauges, totals)


def _timed(raw: Any, by: str, totals: Sequence[str]) -> dict[str, Timed]:
    items = _list(raw, MOST_TIMED)
    found = {_name(item.get(by), _MOST_QUEUE_NAME): _times(item, totals) for item in items}
    if len(found) < len(items):
        raise ValueError(f"two of one {by}")
    return found


def _times(item: Mapping[str, Any], totals: Sequence[str]) -> Timed:
    numbers = {name: _number(item[name], MOST_VALUE) for name in totals if name in item}
    kind = item.get("kind")
    return Timed(
        numbers, _number(item.get(SLOWEST, 0), MOST_VALUE), kind if isinstance(kind, str) and kind in LOOPS else ""
    )


def _loggers(raw: Mapping[str, Any]) -> LoggersReport:
    hook = raw.get("hook")
    known, unread, elsewhere = (_names(raw.get(key, [])) for key in ("known", "unread", "elsewhere"))
    return LoggersReport(hook if isinstance(hook, str) and hook in HOOKS else "other", known, unread, elsewhere)


def _runtime(raw: Mapping[str, Any]) -> RuntimeReport:
    numbers = {key: _number(raw[key], MOST_VALUE, whole=True) for key in _RUNTIME if key in raw}
    return RuntimeReport(
        _name(raw.get("name"), _MOST_NAME), _name(raw.get("version", "?"), _MOST_NAME).strip("?"), **numbers
    )


def _numbers(raw: Mapping[str, Any], key: str, names: tuple[str, ...]) -> dict[str, float]:
    numbers = _dict(raw.get(key, {}))
    return {name: _number(numbers[name], MOST_VALUE) for name in names if name in numbers}


def _names(raw: Any) -> tuple[str, ...]:
    if not isinstance(raw, list) or len(raw) > MOST_LOGGERS:
        raise ValueError(f"loggers must be a list of at most {MOST_LOGGERS}")
    return tuple(_name(each, _MOST_QUEUE_NAME) for each in raw)


def _pools(raw: Any) -> dict[str, dict[str, float]]:
    pools = _dict(raw)
    if len(pools) > MOST_POOLS:
        raise ValueError(f"more than {MOST_POOLS} pools")
    names = (*POOL_GAUGES, *POOL_TOTALS)
    return {_name(pool, _MOST_QUEUE_NAME): _numbers(pools, pool, names) for pool in pools}


def _list(raw: Any, most: int = MOST_QUEUES) -> list[Mapping[str, Any]]:
    if not isinstance(raw, list) or len(raw) > most:
        raise ValueError(
            f"queues, calls and loops must be lists of at most {MOST_QUEUES}, {MOST_TIMED} and {MOST_TIMED}"
        )
    return [_dict(item) for item in raw]


def _dict(raw: Any) -> Mapping[str, Any]:
    if not isinstance(raw, dict):
        raise ValueError("an object was expected")
    return raw


def _name(raw: Any, most: int) -> str:
    if not isinstance(raw, str) or not 0 < len(raw) <= most:
        raise ValueError(f"a name must be a text of 1 to {most} characters")
    return printable(raw)


def _number(raw: Any, most: float, *, least: float = 0, whole: bool = False) -> float:
    """A number as JSON has it: no text, no boolean, not negative or NaN, and not larger than anything real."""
    if isinstance(raw, bool) or not isinstance(raw, int if whole else (int, float)) or not least <= raw <= most:
        raise ValueError(f"a number of {least:g} to {most:g} was expected")
    return float(raw)
