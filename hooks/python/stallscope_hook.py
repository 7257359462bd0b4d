"""What waits inside this process - log entries, requests, clients of a pool - told to the stallscope agent beside it.

From outside nobody can read how deep a program's log queue is. Importing this file is enough: a daemon thread looks
every 2 s and sends a datagram when something changed or waits, else every 10 s, and one more at exit; where requests are
counted also when the first one came or the last one ended. It never raises, blocks or logs, and imports nothing of what it looks at.

A library is known by its attributes, never by its version; what is not there is left out, never 0. What sends a batch
(google-cloud-logging's worker, an OpenTelemetry exporter) is tapped once per batch, QueueHandler.handleError once per
failure; handle() of logging's classes is timed, which takes half a microsecond. Totals count from when the queue was found.

Python 3.8 or later, standard library only. How to load it, what it costs, how to switch it off: hooks/README.md.
Longer than a module of the agent may be: users copy one file.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import re
import socket
import sys
import threading
import time
import weakref
from array import array
from collections import deque
from datetime import datetime
from typing import Any, Callable, Iterator

EVERY_SECONDS, IDLE_SECONDS = 2.0, 10.0
#: Between two looks at an event loop, on average; a log call is slow, and a loop late, from so long on.
PULSE_SECONDS, SLOW_NS, LATE_LOOP_SECONDS = 1.0, 10_000_000, 0.05
MOST_TIMED = 8
#: That the first request came or the last one ended is told at once, this often in a row, and then twice a second.
AT_ONCE, SOON_SECONDS = 10, 0.5
#: The thread's own look is told as a timer that came late from so much on.
LATE_SECONDS = 1.0
MOST_HANDLERS, MOST_QUEUES, MOST_POOLS, MOST_LOGGERS = 200, 16, 8, 8  # a message then has at most 8192 bytes
MOST_NUMBER = 1e15  # a larger one is none that the agent believes
#: The texts of a message; those in its lists are names too.
_TEXTS = {"name", "start", "pid_ns", "queue", "kind", "handler", "loop", "hook"}
_ALLOWED = "udp:127.0.0.1:PORT, unix:/PATH, file:/PATH, off"
_TARGET = re.compile(r"udp:(127(?:\.\d{1,3}){3}|localhost|\[::1\]):(\d{1,5})|(unix|file):(/.+)")
_UNBOUNDED = 2**31 - 1  # what multiprocessing says for no limit
try:  # whose process ids these are: the agent looks for them only in its own namespace
    _pid_namespace = os.readlink("/proc/self/ns/pid")
except (OSError, AttributeError):
    _pid_namespace = ""
_start: list[Any] = [0, ""]  # the process's id, and its token
#: Packages whose handlers write at once, although they have an emit() of their own and no stream's class; Sentry's client queues.
_DIRECT = {"logging", "rich", "absl", "celery", "django", "sentry_sdk"}
#: Kinds of queues beyond which more may wait, or that are one way of several: they clear nobody.
_IN_PART = {"app-queue", "logtail", "sentry"}
#: Modules with which entries could be sent past all handlers; without them, and with no handler, there is nothing to know.
_SENDING = ("http.client", "ssl", "grpc")
#: Modules whose qsize() answers at once; somebody else's may be a question over the network.
_QUICK = {"_queue", "queue", "asyncio.queues", "multiprocessing.queues"}


class _Total:
    """A sum that any thread may add to without a lock: appending to a deque is atomic. It takes 0.5 MiB at most."""

    def __init__(self) -> None:
        self._new: deque[float] = deque(maxlen=65536)
        self._sum: float = 0
        self.add = self._new.append

    def __call__(self) -> float:
        while self._new:
            self._sum += self._new.popleft()
        return self._sum


class _Watched:
    """A queue or a pool. It refers, weakly, only to what holds it: a worker, a processor, or the queue or pool itself."""

    def __init__(self, kind: str, holder: Any, name: str, inside: str = "_queue") -> None:
        self.kind, self.name, self.inside = kind, name, inside
        self.holder: Callable[[], Any] = weakref.ref(holder)
        self.totals: dict[str, _Total] = {}  # those that can be counted here
        self.sending: dict[object, tuple[int, float | None]] = {}  # batches under way: entries, the oldest's time
        self.arrived: int | None = None  # when the main thread ended

    def queue(self, now: float) -> dict[str, Any]:
        """One of the message's `queues`; `now` and all times in seconds since the epoch."""
        found: dict[str, Any] = {"queue": self.name, "kind": self.kind}
        holder = self.holder()
        if self.kind == "loguru":
            return {**found, **(_quiet(_loguru_waits, holder) or {})}
        queue = _at(holder, self.inside) if self.inside else holder
        under_way, (length, items) = list(self.sending.values()), _look(queue)
        if length is not None:
            found["entries"] = length + sum(count for count, _ in under_way)
        limits = getattr(queue, "maxlen", None), _at(queue, "maxsize"), _at(queue, "_maxsize"), _at(holder, "capacity")
        if limit := next((each for each in limits if isinstance(each, int) and 0 < each < _UNBOUNDED), None):
            found["most_entries"] = limit
        # OpenTelemetry appends at the left; what a MemoryHandler keeps waits by intent, until an error comes
        first = _created(items, -1 if self.kind == "otel-batch" else 0) if self.kind != "memory-handler" else None
        if known := [when for when in (first, *(when for _, when in under_way)) if when is not None]:
            found["oldest_seconds"] = round(max(0.0, now - min(known)), 3)
        found.update({name: int(total()) for name, total in list(self.totals.items())})
        if "entries" in found and {"drained", "dropped"} <= found.keys():
            gone = found["drained"] + found["dropped"]
            # once the main thread has ended google-cloud-logging's worker throws away what it takes from its queue
            if self.arrived is not None and self.arrived - gone > found["entries"]:
                found["entries"] = self.arrived - gone
                found.pop("oldest_seconds", None)
            found["arrived"] = gone + found["entries"]
        if limit and "entries" in found:  # a batch under way has left the queue, and no longer counts for its limit
            found["entries"] = min(found["entries"], limit)
        return found

    def pool(self) -> dict[str, float]:
        """One of the message's `pool`; `size` is how many connections there may be."""
        pool = self.holder()
        if hasattr(pool, "get_stats"):  # psycopg_pool; a counter that was never raised is not in it
            got = {"requests_wait_ms": 0, "requests_num": 0, **pool.get_stats()}
            numbers = {"size": got["pool_max"], "checked_out": got["pool_size"] - got["pool_available"]}
            numbers.update(waiting=got["requests_waiting"], acquires=got["requests_num"])
            return {**numbers, "wait_seconds": got["requests_wait_ms"] / 1000}
        pool = _sqlalchemy(pool)
        queue, overflow = _at(pool, "_pool"), _at(pool, "_max_overflow")
        numbers = {"checked_out": pool.checkedout()}
        if isinstance(overflow, int) and overflow >= 0:  # -1: as many as are asked for
            numbers["size"] = pool.size() + overflow
        for waiters in (_at(queue, "not_empty", "_waiters"), _at(queue, "_queue", "_getters")):
            if waiters is not None:
                numbers["waiting"] = len(waiters)
        waits = self.totals.get("wait_seconds") or _Total()
        if _tap(queue, "get", lambda *_: functools.partial(_since, waits, time.monotonic())):
            self.totals["wait_seconds"] = waits
        return {**numbers, **{name: round(total(), 3) for name, total in self.totals.items()}}


def _since(total: _Total, began: float, _: Any) -> None:
    total.add(time.monotonic() - began)


def _at(thing: Any, *names: str) -> Any:
    """The attribute of an attribute, None when one is missing; no property or __getattr__ of the app is run.

    To ask for __dict__ would do the same and make every later access to the object slower (5 % of a log call, 3.11).
    """
    for name in names:
        found = (vars(base).get(name) for base in type(thing).__mro__)
        if any(hasattr(each, "__get__") and type(each).__name__ != "member_descriptor" for each in found):
            return None
        thing = _quiet(object.__getattribute__, thing, name)
    return thing


def _look(queue: Any) -> tuple[int | None, Any]:
    """How many items a queue holds, and the deque or list inside, which is read without the queue's lock."""
    items = next((each for each in (queue, _at(queue, "queue")) if isinstance(each, (deque, list))), None)
    if items is not None:
        return len(items), items
    known = not _QUICK.isdisjoint(base.__module__ for base in type(queue).__mro__)
    return (_quiet(queue.qsize) if known and hasattr(queue, "qsize") else None), None


def _created(items: Any, index: int) -> float | None:
    """When an item was logged: of a LogRecord, of google's dictionaries and entries, of OpenTelemetry's records."""
    try:
        item = getattr(items[index], "log_record", items[index])
        get: Any = item.get if isinstance(item, dict) else functools.partial(getattr, item)
        when = get("created", None) or get("timestamp", None) or get("observed_timestamp", None)
        seconds = when.timestamp() if isinstance(when, datetime) else when
        seconds = seconds / 1e9 if seconds > 1e17 else seconds  # OpenTelemetry counts nanoseconds
        return float(seconds) if 1e9 < seconds < 1e10 else None  # from 2001 to 2286: else it is no such time
    except Exception:
        return None


def _quiet(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except Exception:
        return None


def _sqlalchemy(pool: Any) -> Any:
    """The pool of an Engine or an AsyncEngine, else itself; an Engine that was disposed of has a new one."""
    engine = getattr(pool, "sync_engine", pool)
    return getattr(engine, "pool", engine)


def _tap(owner: Any, name: str, told: Callable[..., Any]) -> bool:
    """Call `told(*args)` before a method of this one object, and what it gave with the answer, or the error, after it."""
    original = getattr(owner, name, None)
    if original is None or hasattr(original, "_stallscope"):
        return False

    @functools.wraps(original)
    def tapped(*args: Any, **named: Any) -> Any:
        done = _quiet(told, *args)
        try:
            answer = original(*args, **named)
        except BaseException as error:
            _quiet(done, error)
            raise
        _quiet(done, answer)
        return answer

    tapped._stallscope = True  # type: ignore[attr-defined]
    _quiet(setattr, owner, name, tapped)
    return getattr(owner, name, None) is tapped


def _is_429(error: Any) -> bool:
    """Want of quota: google's exceptions and HTTP's have it as `code`, gRPC's as what code() returns."""
    code = getattr(error, "code", None)
    code = _quiet(code) if callable(code) else code
    return code == 429 or getattr(code, "name", "") == "RESOURCE_EXHAUSTED"


def _tap_sender(found: _Watched, owner: Any, name: str) -> None:
    """Count what a method that takes a batch sends and fails to send, and how often for want of quota where that is told."""

    def refusal(answer: Any) -> None:
        if _is_429(answer):
            found.totals.setdefault("refused", refused).add(1)

    def told(batch: Any, *_: Any) -> Callable[[Any], None]:
        token, entries = object(), getattr(batch, "entries", batch)
        count = len(entries)
        if entries is not batch and _tap(batch, "commit", lambda *_: refusal):
            found.totals["refused"] = refused  # known from now on
        found.sending[token] = count, _created(entries, 0)

        def done(answer: Any) -> None:
            del found.sending[token]
            refusal(answer)
            _quiet(delattr, batch, "commit")  # else the batch would refer to itself
            failed = isinstance(answer, BaseException) or getattr(answer, "name", "") == "FAILURE"
            # google's batch empties its list when it is sent; when it is not, its caller swallows the error
            left = len(entries) if entries is not batch else count * failed
            drained.add(count - left)
            dropped.add(left)
            errors.add(left > 0)

        return done

    drained, dropped, errors, refused = _Total(), _Total(), _Total(), _Total()
    if _tap(owner, name, told):
        found.totals = {"drained": drained, "dropped": dropped, "errors": errors}


class _After:
    """Work that goes on although its response is sent. Any thread adds and takes; it is told once it has outlived a look.

    The last lines of a handler end before the next look, and are none.
    """

    def __init__(self) -> None:
        self.begun: dict[object, float] = {}
        self._told: dict[object, float] = {}
        self._pieces, self._seconds, self._looked = 0, _Total(), time.monotonic()

    def end(self, token: object) -> None:
        self.begun.pop(token, None)
        told = self._told.pop(token, None)
        if told is not None:
            self._seconds.add(time.monotonic() - told)

    def look(self) -> dict[str, float]:
        """The message's `after_response`."""
        now, held = time.monotonic(), 0
        for token, began in list(self.begun.items()):
            if began <= self._looked:
                held, self._pieces = held + 1, self._pieces + (token not in self._told)
                self._seconds.add(now - self._told.get(token, began))
                self._told[token] = now
                if token not in self.begun:  # it ended meanwhile
                    self._told.pop(token, None)
        self._looked = now
        return {"now": held, "pieces": self._pieces, "seconds": round(self._seconds(), 3)}


class _Piece:
    """What runs inside is work after the response."""

    def __init__(self, hook: _Hook | None) -> None:
        self._hook = hook

    def __enter__(self) -> None:
        if self._hook is not None:
            self._hook.after.begun[self] = time.monotonic()

    def __exit__(self, *_: object) -> None:
        if self._hook is not None:
            self._hook.after.end(self)


class _Calls:
    """Time in log calls by the class of the handler that took them: [calls, ns, slow calls, ns of these, ns of the slowest].

    Sums only, without a lock: threads that add at the same instant may lose one another's (on 3.9 and older).
    """

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {}

    def find(self) -> None:
        """Time what hands an entry to a handler: of logging every class's handle(), of loguru emit()."""
        if (plain := _at(sys.modules.get("logging"), "Handler")) is not None:
            for owner in {plain, *(base for handler in _attached() for base in type(handler).__mro__)}:
                if "handle" in vars(owner) and issubclass(owner, plain) and owner.__name__ != "NullHandler":
                    self._time(owner, "handle", None)
        if (owner := _at(sys.modules.get("loguru._handler"), "Handler")) is not None:
            self._time(owner, "emit", _loguru_name)

    def _time(self, owner: Any, name: str, named: Any) -> None:
        original = vars(owner).get(name)
        if not callable(original) or hasattr(original, "_stallscope"):
            return
        rows, clock, new, slow = self.rows, time.perf_counter_ns, self._new, self._slow

        def handle(self: Any, record: Any) -> Any:
            began = clock()
            try:
                return original(self, record)
            finally:
                took = clock() - began
                row = rows.get(self.__class__.__name__) or new(None, self)
                row[0] += 1
                row[1] += took
                if took >= SLOW_NS:
                    slow(row, took, sys._getframe(1).f_code.co_name != "callHandlers")

        def emit(self: Any, *args: Any, **given: Any) -> Any:
            began = clock()
            try:
                return original(self, *args, **given)
            finally:
                took = clock() - began
                row = new(named, self)
                row[0] += 1
                row[1] += took
                if took >= SLOW_NS:
                    slow(row, took, False)

        timed: Any = functools.wraps(original)(emit if named else handle)
        timed._stallscope = True
        _quiet(setattr, owner, name, timed)

    def _new(self, named: Any, handler: Any) -> list[int]:
        name = str(_quiet(named, handler) if named else type(handler).__name__)[:60]
        if name not in self.rows and len(self.rows) >= MOST_TIMED - 1:
            name = "other"
        return self.rows.setdefault(name, [0] * 5)

    @staticmethod
    def _slow(row: list[int], took: int, nobody: bool) -> None:
        """`nobody`: it was no log call, but a listener's own thread, or another handler that empties its buffer."""
        if nobody:
            row[0] -= 1
            row[1] -= took
            return
        row[2] += 1
        row[3] += took
        row[4] = max(row[4], took)

    def take(self) -> list[dict[str, Any]]:
        """The message's `calls`."""
        found = []
        for name, row in list(self.rows.items()):
            slowest, row[4] = row[4], 0
            found.append({
                "handler": name, "calls": max(0, row[0]), "seconds": round(max(0, row[1]) / 1e9, 6), "slow_calls": row[2],
                "slow_seconds": round(row[3] / 1e9, 3), "slowest_seconds": round(slowest / 1e9, 3),
            })  # fmt: skip
        return found


class _Loop:
    """An event loop that a thread runs, and how late it is for what it is given."""

    def __init__(self, loop: Any, thread: Any) -> None:
        self.loop, self.thread = weakref.ref(loop), thread.ident
        self.name, self.tid = str(thread.name)[:56] or "?", getattr(thread, "native_id", None)
        self.sent: float | None = None
        self.told: deque[float] = deque(maxlen=64)
        self.sums, self.slowest = [0, 0, 0.0], 0.0

    def pulse(self, due: float) -> None:
        """Give it something that was due then; while it has not done the last it is late, and gets nothing."""
        if self.sent is None:
            loop: Any = self.loop()
            self.sent = due
            loop.call_soon_threadsafe(self._arrive)
        else:
            self._add(due - self.sent, min(PULSE_SECONDS, due - self.sent))

    def _arrive(self) -> None:
        """In the loop's thread."""
        sent, self.sent = self.sent, None
        if sent is not None:
            self.told.append(time.monotonic() - sent)

    def _add(self, late: float, share: float) -> None:
        self.sums[0] += 1
        self.sums[1] += late >= LATE_LOOP_SECONDS
        self.sums[2] += max(0.0, share)
        self.slowest = max(self.slowest, late)

    def row(self, collecting: list[int]) -> dict[str, Any]:
        """One of the message's `loops`."""
        while self.told:
            late = self.told.popleft()
            self._add(late, late)
        looks, late_looks, seconds = self.sums
        slowest, self.slowest = self.slowest, 0.0
        found = {"loop": self.name, "kind": "asyncio", "looks": looks, "late_looks": late_looks}
        found.update(late_seconds=round(seconds, 4), slowest_seconds=round(slowest, 4))
        if times := _quiet(_thread_times, self.tid):
            found.update(cpu_seconds=round(times[0] / 1e9, 3), run_delay_seconds=round(times[1] / 1e9, 3))
        return {**found, "collecting_seconds": round(collecting[0] / 1e9, 3)}


class _Times:
    """How late this hook's own thread is woken, which does nothing but wait, and the event loops. Its thread alone uses it."""

    def __init__(self) -> None:
        self.due = float("inf")
        self.loops: list[_Loop] = []
        self.wakes, self.late, self._count = 0, 0.0, 0
        self._seen: list[Any] = []
        self._collecting = [0, 0]  # ns in full collections, and when one began

    def woken(self, late: float) -> None:
        self.wakes += 1
        self.late += max(0.0, late)

    def find(self) -> None:
        """Loops that run now and ran at the look before too: one that ends soon is nobody's server."""
        self.loops = [each for each in self.loops if _quiet(_runs, each.loop())]
        known = {each.thread for each in self.loops}
        before, self._seen = [ref() for ref in self._seen], []
        for thread, loop in _running_loops(known) if len(self.loops) < MOST_TIMED and "asyncio" in sys.modules else ():
            if any(loop is each for each in before):
                self.loops.append(_Loop(loop, thread))
            else:
                self._seen.append(weakref.ref(loop))
        if bool(self.loops) == (self.due < float("inf")):
            return
        self.due = time.monotonic() if self.loops else float("inf")
        if self.loops:
            gc.callbacks.append(self._collected)
        else:
            gc.callbacks.remove(self._collected)

    def pulse(self) -> None:
        """The times between are as long as a second on average, and never a multiple of anything."""
        due, now = self.due, time.monotonic()
        self._count += 1
        self.due = max(now, due) + PULSE_SECONDS * (0.5 + self._count * 0.6180339887 % 1)
        for each in self.loops:
            if _quiet(_runs, each.loop()):
                _quiet(each.pulse, due)
            else:
                each.sent = None  # what it answers later says nothing

    def _collected(self, phase: str, info: Any) -> None:
        if info["generation"] == 2:
            if phase == "start":
                self._collecting[1] = time.perf_counter_ns()
            elif self._collecting[1]:
                self._collecting[0] += time.perf_counter_ns() - self._collecting[1]

    def message(self) -> dict[str, Any]:
        """The message's `wakes` and `loops`."""
        loops = [each.row(self._collecting) for each in self.loops]
        names = [each["loop"] for each in loops]
        for place, each in enumerate(loops):
            each["loop"] += f"-{place + 1}" if names.count(each["loop"]) > 1 else ""
        return {
            "wakes": {"looks": self.wakes, "late_seconds": round(self.late, 4)},
            **({"loops": loops} if loops else {}),
        }


def _runs(loop: Any) -> bool:
    return loop is not None and bool(loop.is_running())


def _thread_times(tid: int) -> list[int]:
    """Nanoseconds for which a thread ran, and waited for a CPU: proc_pid_schedstat. Where it is missing nothing is told."""
    with open(f"/proc/self/task/{tid}/schedstat", "rb") as file:
        return [int(word) for word in file.read().split()[:2]]


#: Packages in whose run...() a loop is a local variable, or belongs to its self.
_RUNNERS = {"asyncio", "uvloop", "uvicorn", "aiohttp", "hypercorn"}


def _running_loops(known: Any) -> list[tuple[Any, Any]]:
    """Threads with the loop that each runs, by the frames of their stacks: asyncio tells its running loop to its own thread alone."""
    found = []
    frames: dict[int, Any] = sys._current_frames()
    frames.pop(threading.get_ident(), None)  # it would hold itself, and all others, until garbage is collected
    for thread in threading.enumerate():
        frame = None if thread.ident in known else frames.pop(thread.ident or 0, None)
        for _ in range(1000):
            if frame is None:
                break
            code = frame.f_code
            if "run" in code.co_name and str(frame.f_globals.get("__name__")).partition(".")[0] in _RUNNERS:
                own = frame.f_locals.get("self") if "self" in code.co_varnames else None
                local = frame.f_locals.get("loop") if "loop" in code.co_varnames else None
                loop = next(
                    (each for each in (local, own, _at(own, "_loop")) if hasattr(each, "call_soon_threadsafe")), None
                )
                if _quiet(_runs, loop):
                    found.append((thread, loop))
                    break
            frame = frame.f_back
    return found


def _loguru_name(handler: Any) -> str:
    """What a handler of loguru writes to."""
    sink = _at(handler, "_sink")
    inside = next(
        (each for each in (_at(sink, name) for name in ("_handler", "_function", "_stream")) if each is not None), sink
    )
    return f"loguru {getattr(inside, '__qualname__', '') or type(inside).__name__}"


class _Ledger:
    """When the entries were put that wait in a queue of loguru: a pipe to its thread, which says nothing but its bytes."""

    def __init__(self, queue: Any) -> None:
        self.put: deque[float] = deque(maxlen=16384)  # a pipe holds fewer
        self.whole = False  # it was empty since: before, entries waited that were not seen to come
        _tap(queue, "put", lambda *_: self.put.append(time.time()))
        _tap(queue, "get", lambda *_: self._got)

    def _got(self, _: Any) -> None:
        if self.put:
            self.put.popleft()


def _loguru_waits(queue: Any) -> dict[str, Any]:
    import fcntl  # noqa: PLC0415 - not everywhere

    reader, waiting = queue._reader.fileno(), array("i", [0])
    fcntl.ioctl(reader, 0x541B, waiting)  # FIONREAD
    most = _quiet(fcntl.fcntl, reader, 1032)  # F_GETPIPE_SZ
    found = {"bytes": waiting[0], **({"most_bytes": most} if most else {})}
    ledger = _ledgers[queue]
    put = ledger.put
    if not waiting[0]:
        ledger.whole = True
        put.clear()
    if ledger.whole and (put or not waiting[0]):  # else they are another process's
        found["entries"] = len(put)
    if ledger.whole and put:
        found["oldest_seconds"] = round(max(0.0, time.time() - put[0]), 3)
    return found


_ledgers: weakref.WeakKeyDictionary[Any, _Ledger] = weakref.WeakKeyDictionary()


class _Hook:
    """What the hook knows. Only its own thread changes it, save watch_pool() and the end."""

    def __init__(self, target: tuple[str, Any]) -> None:
        self.target = target
        self.queues: dict[int, _Watched] = {}
        self.pools: dict[str, _Watched] = {}
        self.requests: dict[object, None] = {}
        self.counts_requests = False
        self.after = _After()
        self.late, self.late_seconds = 0, 0.0
        self.calls, self.times = _Calls(), _Times()
        self._lock, self._said, self._said_at = threading.Lock(), "", -IDLE_SECONDS
        self._newest: dict[str, Any] = {}
        self._spare, self._spared_at = float(AT_ONCE), time.monotonic()
        self._every, self._due = EVERY_SECONDS / 8, time.monotonic()  # what is made at the start is found soon
        self._paused = self._due
        self._begin()

    def _begin(self) -> None:
        self._guard = threading.RLock()  # a child's own: its parent's may be held
        self._forking: set[int] = set()  # threads on their way to a fork
        self._start()

    def _start(self) -> None:
        now, paused = time.monotonic(), self._paused  # what a fork kept from running is not late for that
        self._due, self.times.due = (max(due, min(due, paused) + now - paused) for due in (self._due, self.times.due))
        self._wake, self._stop = threading.Event(), threading.Event()
        events = self._wake, self._stop
        self._thread = threading.Thread(target=self._run, args=events, name="stallscope-hook", daemon=True)
        _quiet(self._thread.start)

    def pause(self) -> None:
        """Before a fork: the child then inherits no lock that our thread holds, and Python has no thread to warn of."""
        with self._guard:
            self._paused = self._paused if self._forking else time.monotonic()
            self._forking.add(threading.get_ident())
            self._stop.set()
            self._wake.set()
        _quiet(self._thread.join, 0.5)

    def go_on(self) -> None:
        """After a fork, in the parent: once no other thread is on its way to a fork of its own."""
        with self._guard:
            self._forking.discard(threading.get_ident())
            if not self._forking and self._stop.is_set():
                self._start()

    def begin_child(self) -> None:
        """After a fork: what the parent counted is not the child's."""
        self._lock, self._said, self._newest = threading.Lock(), "", {}
        self.requests.clear()
        self.after, self.late, self.late_seconds = _After(), 0, 0.0
        self.calls.rows.clear()
        if self.times.loops:
            _quiet(gc.callbacks.remove, self.times._collected)
        self.times = _Times()
        for each in (*self.queues.values(), *self.pools.values()):
            each.sending.clear()
            for total in each.totals.values():
                total.__init__()  # type: ignore[misc]
        self._begin()

    def _run(self, wake: threading.Event, stop: threading.Event) -> None:
        while not stop.is_set():
            due = min(self._due, self.times.due)
            if wake.wait(max(0.0, due - time.monotonic())):
                if not stop.wait(SOON_SECONDS):
                    wake.clear()
                    _quiet(self.turn, True)
            else:
                self.times.woken(time.monotonic() - due)
            if time.monotonic() >= self.times.due and not stop.is_set():
                _quiet(self.times.pulse)
            if time.monotonic() >= self._due and not stop.is_set():
                self.note(time.monotonic() - self._due)
                self._due, self._every = time.monotonic() + self._every, min(EVERY_SECONDS, self._every * 2)
                _quiet(self.report)

    def note(self, late: float) -> None:
        """The thread's own timer came so late."""
        if late >= LATE_SECONDS:
            self.late, self.late_seconds = self.late + 1, round(self.late_seconds + late, 3)

    def begin(self, token: object) -> None:
        self.requests[token] = None
        if len(self.requests) == 1:
            _quiet(self.turn)

    def end(self, token: object) -> None:
        if self.requests.pop(token, token) is None and not self.requests:
            _quiet(self.turn)

    def turn(self, late: bool = False) -> None:
        """Requests in flight as they are now, the rest as it was told last; from the app's own thread unless `late`."""
        if not self.counts_requests or (self._wake.is_set() and not late):  # the thread tells it soon
            return
        now = time.monotonic()
        self._spare = min(AT_ONCE, self._spare + (now - self._spared_at) / SOON_SECONDS)
        self._spared_at = now
        at_once = late or (self._spare >= 1 and self.target[0] != "file")
        if not (at_once and self._lock.acquire(blocking=False)):
            self._wake.set()
            return
        try:
            self._spare -= 1
            message = {**self._newest, **_identity(), "in_flight": len(self.requests)}
            _send(self.target, message)
        finally:
            self._lock.release()

    def report(self, last: bool = False) -> None:
        """Look, and send what there is to say."""
        if not self._lock.acquire(timeout=0.2):
            return
        try:
            self.find()
            message = self._newest = self.message(last)
            pools, now = message.get("pool", {}), time.monotonic()
            said = json.dumps(
                [{**each, "oldest_seconds": 0} for each in message["queues"]]
                + [
                    pools,
                    message.get("in_flight"),
                    message.get("log"),
                    message.get("after_response"),
                    message["timers"],
                ]
            )
            trouble = [sum(each["slow_calls"] for each in message.get("calls", ()))]
            trouble += [each["late_looks"] for each in message.get("loops", ())]
            said += str(trouble)  # the rest of it moves all the time
            waits = [q.get("entries") or q.get("bytes") for q in message["queues"]] + [
                p.get("waiting") for p in pools.values()
            ]
            busy = last or any(waits) or message.get("in_flight") or message.get("after_response", {}).get("now")
            if busy or said != self._said or now - self._said_at >= IDLE_SECONDS:
                self._said, self._said_at = said, now
                _send(self.target, message)
            self.counts_requests = self.counts_requests and not last  # no word after the last one
        finally:
            self._lock.release()

    def leave(self) -> None:
        """The main thread has ended, and nothing is torn down yet."""
        for found in list(self.queues.values()):
            found.arrived = found.queue(0).get("arrived")

    def message(self, last: bool = False) -> dict[str, Any]:
        """The message of the protocol."""
        now = time.time()
        queues = [found.queue(now) for found in list(self.queues.values())]
        message: dict[str, Any] = {**_identity(), "queues": queues}
        message["timers"] = {"late": self.late, "late_seconds": self.late_seconds}
        after = _quiet(self.after.look)
        if after and (self.counts_requests or after["pieces"]):
            message["after_response"] = after
        if log := _quiet(self.loggers):
            message["log"] = log
        message["calls"] = self.calls.take()
        message.update(self.times.message())
        if self.counts_requests:
            message["in_flight"] = len(self.requests)
        pools = {found.name: _quiet(found.pool) for found in list(self.pools.values())}
        if pools := {name: numbers for name, numbers in pools.items() if numbers}:
            message["pool"] = pools
        if last:
            message["exit"] = {"pending": sum(each.get("entries", 0) for each in queues)} if queues else {}
        return {name: _believed(name, each) for name, each in message.items()}

    def loggers(self) -> dict[str, Any]:
        """The message's `log`: of the loggers here those that wait for nothing or are read, and those that keep to themselves."""
        if os.environ.get("STALLSCOPE_HOOK_LOGS") == "stdout":
            return {"hook": "python", "known": ["standard output"]}
        known: dict[str, None] = {each.kind: None for each in list(self.queues.values()) if each.kind not in _IN_PART}
        unread: dict[str, None] = {}
        for handler in _attached():
            holders = self._holders(handler)
            if not holders:
                (known if _is_direct(handler) else unread)[type(handler).__name__[:60]] = None
            elif not all(id(holder) in self.queues for holder in holders):
                unread[type(handler).__name__[:60]] = None
        for each in _of_loguru():
            queue, sink = _at(each, "_queue"), type(_at(each, "_sink")).__name__
            read = _at(each, "_enqueue") is False if queue is None else id(queue) in self.queues or not _owns(each)
            # a function may keep what it is given, a coroutine waits for its turn
            author = str(getattr(_at(each, "_sink", "_function"), "__module__", "")).partition(".")[0]
            direct = sink in ("StreamSink", "FileSink", "StandardSink") or author in _DIRECT
            (known if read and direct else unread)[_loguru_name(each)[:60] if read and not direct else "loguru"] = None
        found = {"hook": "python", "known": [*known][:MOST_LOGGERS], "unread": [*unread][:MOST_LOGGERS]}
        return {**found, "elsewhere": [name for name in _SENDING if name in sys.modules]}

    def _holders(self, handler: Any) -> list[Any]:
        """What holds the queues that a handler's entries wait in."""
        provider = (
            _at(handler, "_logger_provider"),
            _at(sys.modules.get("opentelemetry._logs._internal"), "_LOGGER_PROVIDER"),
        )
        processors = [each for one in provider[: 2 * (provider[0] is not None)] for each in _processors(one)]
        batches = [
            _at(each, "_batch_processor") or each
            for each in processors
            if type(each).__name__ != "SimpleLogRecordProcessor"
        ]
        memory = handler if isinstance(_at(handler, "buffer"), list) else None
        worker, queue = _at(handler, "transport", "worker"), _at(handler, "queue")
        return [each for each in (worker, queue, memory, *batches) if each is not None]

    def find(self) -> None:
        """Look for what is new, and forget what is gone."""
        tables: tuple[dict[Any, _Watched], ...] = self.queues, self.pools
        for table in tables:
            for key in [key for key, each in list(table.items()) if each.holder() is None]:
                table.pop(key, None)
        _quiet(self.calls.find)
        _quiet(self.times.find)
        _quiet(self._find_sentry)
        for handler in _of_loguru():
            _quiet(self._find_loguru, handler)
        for handler in _attached():
            _quiet(self._find_own, handler)
        finders = {"transport": self._find_worker, "queue": self._find_queue, "_logger_provider": self._find_processors}
        for ref in list(getattr(sys.modules.get("logging"), "_handlerList", ()))[:MOST_HANDLERS]:
            handler = ref()
            for name, find in finders.items():
                if _at(handler, name) is not None:
                    _quiet(find, handler)
        _quiet(self._find_processors, sys.modules.get("opentelemetry._logs._internal"), "_LOGGER_PROVIDER")
        for thread in threading.enumerate() if "psycopg_pool" in sys.modules else ():
            _quiet(self._find_psycopg_pool, _at(thread, "_target"))

    def _new(self, kind: str, holder: Any, queue: Any, inside: str = "_queue") -> _Watched | None:
        """An entry for a queue that was not known and can be read."""
        known = self.queues.get(id(holder))
        readable = kind == "loguru" or _look(queue)[0] is not None
        if (known and known.holder() is holder) or not readable or len(self.queues) >= MOST_QUEUES:
            return None
        names = {each.name for each in self.queues.values()}
        name = next(name for name in (kind, *(f"{kind}-{i}" for i in range(2, 99))) if name not in names)
        self.queues[id(holder)] = found = _Watched(kind, holder, name, inside)
        return found

    def _find_worker(self, handler: Any) -> None:
        """google-cloud-logging: a handler's transport has a worker with a queue of dictionaries."""
        worker = _at(handler, "transport", "worker")
        if found := self._new("google-cloud-logging", worker, _at(worker, "_queue")):
            _tap_sender(found, worker, "_safely_commit_batch")

    def _find_queue(self, handler: Any) -> None:
        """logging.handlers.QueueHandler; several may share a queue. One that puts in its own way may drop without a word."""
        plain, queue = sys.modules["logging.handlers"].QueueHandler, _at(handler, "queue")
        if not isinstance(handler, plain):
            return
        if new := self._new("queue-handler", queue, queue, ""):
            new.totals["dropped"] = _Total()
        totals = self.queues[id(queue)].totals

        def told(*_: Any) -> None:
            totals["dropped"].add("Full" in getattr(sys.exc_info()[0], "__name__", ""))

        known = hasattr(handler.handleError, "_stallscope")
        if not known and (type(handler).enqueue is not plain.enqueue or not _tap(handler, "handleError", told)):
            totals.pop("dropped", None)

    def _find_own(self, handler: Any) -> None:
        """MemoryHandler, and queues that a handler of somebody else made: they are told, and what lies beyond them is not known."""
        if isinstance(_at(handler, "buffer"), list) and isinstance(_at(handler, "capacity"), int):
            self._new("memory-handler", handler, handler.buffer, "buffer")
        elif not _is_direct(handler) and not self._holders(handler):
            kind = "logtail" if type(handler).__name__ == "LogtailHandler" else "app-queue"
            for queue in _queues_of(handler):
                self._new(kind, queue, queue, "")

    def _find_loguru(self, handler: Any) -> None:
        """enqueue=True: a pipe to a thread of the process that added the handler. A queue's own put() as a sink: that queue."""
        queue = _at(handler, "_queue")
        if queue is not None and _owns(handler) and self._new("loguru", queue, queue, ""):
            _ledgers[queue] = _Ledger(queue)
        function = _at(handler, "_sink", "_function")
        owner = getattr(function, "__self__", None)
        if owner is not None and _look(owner)[0] is not None:
            self._new("app-queue", owner, owner, "")

    def _find_sentry(self) -> None:
        """What its transport has not sent: events, and logs where these are enabled."""
        client = _at(sys.modules.get("sentry_sdk.scope"), "_global_scope", "client")
        worker = _at(client, "transport", "_worker")
        if worker is not None:
            self._new("sentry", worker, _at(worker, "_queue"))
        for name in ("log_batcher", "_log_batcher"):
            batcher = _at(client, name)
            for inside in ("_log_buffer", "_buffer") if batcher is not None else ():
                if isinstance(_at(batcher, inside), list):
                    self._new("sentry", batcher, _at(batcher, inside), inside)

    def _find_processors(self, owner: Any, name: str = "_logger_provider") -> None:
        """OpenTelemetry: a LoggerProvider's batch processors; newer ones keep the queue one object further."""
        for processor in _processors(_at(owner, name)):
            holder = _at(processor, "_batch_processor") or processor
            if found := self._new("otel-batch", holder, _at(holder, "_queue")):
                _tap_sender(found, _at(holder, "_exporter"), "export")
                dropped = found.totals.pop("dropped", _Total())  # a full queue drops too: known where that is told
                if _tap(_at(holder, "_metrics"), "drop_items", lambda count, *_, total=dropped: total.add(count)):
                    found.totals["dropped"] = dropped

    def _find_psycopg_pool(self, target: Any) -> None:
        """psycopg_pool's scheduler: a thread runs it, and its tasks refer, weakly, to their pool."""
        for task in list(_at(getattr(target, "__self__", None), "_queue") or ())[:8]:
            pool = _at(getattr(task.action, "__self__", None), "pool")()
            if hasattr(pool, "get_stats") and all(each.holder() is not pool for each in list(self.pools.values())):
                self.watch_pool(pool.name, pool)

    def watch_pool(self, name: str, pool: Any) -> None:
        found = _Watched("pool", pool, str(name)[:60] or "?")
        if (event := sys.modules.get("sqlalchemy.event")) and hasattr(_sqlalchemy(pool), "checkedout"):
            found.totals["acquires"] = acquires = _Total()
            event.listen(_sqlalchemy(pool), "checkout", lambda *_: acquires.add(1))
        for known in [known for known, each in list(self.pools.items()) if each.holder() is pool]:
            self.pools.pop(known, None)  # found before, by another name
        if len(self.pools) < MOST_POOLS:
            self.pools[found.name] = found


def _processors(provider: Any) -> Any:
    """OpenTelemetry's: what a provider of loggers hands its records to."""
    return _at(provider, "_multi_log_record_processor", "_log_record_processors") or ()


def _is_direct(handler: Any) -> bool:
    """Whether a handler that has no queue writes each entry before it returns; it is known by who wrote its emit()."""
    if _at(handler, "_logger_provider") is not None:
        return True  # to processors that do
    if _at(handler, "transport") is not None:
        return type(_at(handler, "transport")).__name__ == "SyncTransport"
    author = next((base for base in type(handler).__mro__ if "emit" in vars(base)), object)
    direct = author.__module__.partition(".")[0] in _DIRECT and author.__name__ != "BufferingHandler"
    return direct or isinstance(handler, sys.modules["logging"].StreamHandler)


def _queues_of(handler: Any) -> Iterator[Any]:
    """Queues among a handler's attributes, whose names are those in its classes' __init__: to ask for __dict__ is dear, see _at."""
    names = {
        name: None
        for base in type(handler).__mro__
        if not base.__module__.startswith("logging")
        for name in getattr(getattr(vars(base).get("__init__"), "__code__", None), "co_names", ())
    }
    for value in [_at(handler, name) for name in list(names)[:64]]:
        if isinstance(value, deque) or not _QUICK.isdisjoint(base.__module__ for base in type(value).__mro__):
            yield value


def _of_loguru() -> list[Any]:
    return list((_at(sys.modules.get("loguru"), "logger", "_core", "handlers") or {}).values())


def _owns(handler: Any) -> bool:
    """Whether the thread that empties loguru's pipe is in this process."""
    return _at(handler, "_owner_process_pid") in (None, os.getpid())


def _attached() -> list[Any]:
    """The handlers that entries reach, each once: those of loggers, those that MemoryHandlers empty into, loguru's."""
    root = _at(sys.modules.get("logging"), "root")
    loggers = [root, *list((_at(root, "manager", "loggerDict") or {}).values())]
    handlers = [handler for logger in loggers for handler in list(_at(logger, "handlers") or ())]
    handlers += [target for each in handlers if (target := _at(each, "target")) is not None]
    handlers += [handler for each in _of_loguru() if (handler := _at(each, "_sink", "_handler")) is not None]
    return list({id(each): each for each in handlers}.values())[:MOST_HANDLERS]


def _identity() -> dict[str, Any]:
    """What every message begins with; the token tells a process from another that has its number, before it or elsewhere."""
    if _start[0] != os.getpid():
        _start[:] = os.getpid(), os.urandom(6).hex()
    namespace = {"pid_ns": _pid_namespace} if _pid_namespace else {}
    return {"v": 1, "pid": _start[0], **namespace, "start": _start[1], "name": _name()}


def _name() -> str:
    """STALLSCOPE_HOOK_NAME, else the program: of `python -m package` the package."""
    path = str((getattr(sys, "argv", None) or [""])[0])
    path = os.path.dirname(path) if path.endswith("__main__.py") else path.rstrip("/")  # of `python directory/`
    return (os.environ.get("STALLSCOPE_HOOK_NAME") or os.path.basename(path) or "python")[:40]


def _believed(name: str, value: Any) -> Any:
    """A part of a message as the agent takes it, which for one fault refuses the whole of it.

    A limit that the app has as a text is its number; what is no number of 0 to 1e15, such as infinity, is not known.
    """
    if isinstance(value, dict):
        told = {each: _believed(each, inside) for each, inside in value.items()}
        return {each: inside for each, inside in told.items() if inside is not None}
    if isinstance(value, list):
        return [_believed("name", each) for each in value]
    if name in _TEXTS:
        return value
    number = value if type(value) in (int, float) else None if isinstance(value, bool) else _quiet(float, value)
    return number if number is not None and 0 <= number <= MOST_NUMBER else None


def _target(text: str) -> tuple[str, Any] | None:
    """Where STALLSCOPE_HOOK says that messages go, by the socket's family; None: nowhere."""
    found = _TARGET.fullmatch(text)
    if found is None or not 0 < int(found[2] or 1) < 65536:
        if text != "off":
            sys.stderr.write(f"stallscope_hook: STALLSCOPE_HOOK={text!r} is none of {_ALLOWED}; nothing is reported\n")
        return None
    if found[3]:
        return {"unix": "AF_UNIX", "file": "file"}[found[3]], found[4]
    host = found[1].replace("localhost", "127.0.0.1").strip("[]")
    return ("AF_INET6" if ":" in host else "AF_INET"), (host, int(found[2]))


def _send(target: tuple[str, Any], message: dict[str, Any]) -> None:
    """A socket is made for each datagram: when the program closes all descriptors, ours must not become one of its own."""
    data = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
    family, address = target
    if family == "file":
        path = f"{address}.{os.getpid()}"
        with open(f"{path}.tmp", "wb", opener=lambda *how: os.open(how[0], how[1] | os.O_NOFOLLOW, 0o644)) as file:
            file.write(data)
        os.replace(f"{path}.tmp", path)
        return
    with socket.socket(getattr(socket, family), socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.sendto(data, address)


class _Body:
    """A WSGI response that is made while it is sent: the request ends when the server closes it, and what closing does is work after it."""

    def __init__(self, body: Any, hook: _Hook, token: object) -> None:
        self._body, self._hook, self._token = body, hook, token

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        self._hook.end(self._token)
        with _Piece(self._hook):
            getattr(self._body, "close", bool)()


def asgi(app: Any) -> Any:
    """Count requests and websockets in flight: `app = stallscope_hook.asgi(app)`, or add_middleware(stallscope_hook.asgi).

    A request ends with the last of its response, as platforms see it; what the app does after that, such as its background
    tasks, is told as work after the response.
    """
    if _hook is None:
        return app
    hook, _hook.counts_requests = _hook, True

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        token = object()

        async def sent(message: Any) -> None:
            last = (
                type(message) is dict and message.get("type") == "http.response.body" and not message.get("more_body")
            )
            if last:
                hook.end(token)
            await send(message)
            if last:
                hook.after.begun[token] = time.monotonic()

        if scope.get("type") == "lifespan":
            await app(scope, receive, send)
            return
        hook.begin(token)
        try:
            await app(scope, receive, sent)
        finally:
            hook.end(token)
            hook.after.end(token)

    return counted


def wsgi(app: Any) -> Any:
    """Count requests in flight: `app = stallscope_hook.wsgi(app)`."""
    if _hook is None:
        return app
    hook, _hook.counts_requests = _hook, True

    def counted(environ: Any, start_response: Any) -> Any:
        token, body = object(), None
        hook.begin(token)
        try:
            body = app(environ, start_response)
        finally:
            # what is there already, and a file that the server sends in its own way, must reach the server as it is
            file = environ.get("wsgi.file_wrapper")
            whole = body is None or isinstance(body, (list, tuple, file if isinstance(file, type) else tuple))
            if whole:
                hook.end(token)
        return body if whole else _Body(body, hook, token)

    return counted


def after_response() -> _Piece:
    """`with stallscope_hook.after_response():` in a thread or a task that goes on when its request is answered."""
    return _Piece(_hook)


def watch_pool(name: str, pool: Any) -> None:
    """Report a psycopg_pool pool, or an Engine or QueuePool of SQLAlchemy, under this name; only a weak reference is kept."""
    if _hook is not None:
        _quiet(_hook.watch_pool, name, pool)


def _begin() -> _Hook | None:
    target = _target(os.environ.get("STALLSCOPE_HOOK") or "udp:127.0.0.1:9769")
    if target is None:
        return None
    hook = _Hook(target)
    atexit.register(_quiet, hook.report, True)
    if hasattr(threading, "_register_atexit"):
        _quiet(threading._register_atexit, _quiet, hook.leave)
    else:  # 3.8
        _quiet(_tap, threading, "_shutdown", hook.leave)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=hook.pause, after_in_parent=hook.go_on, after_in_child=hook.begin_child)
    return hook


_hook: _Hook | None = _quiet(_begin)
