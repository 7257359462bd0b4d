"""Prometheus' query API, asked without trusting who answers.

`query` and `query_range` by POST, as Prometheus, Managed Service for Prometheus, Mimir and Thanos have them
(https://prometheus.io/docs/prometheus/latest/querying/api/).  The engine may hang, send a byte now and then, redirect to somebody who
must not see the token, answer with anything at all and without end.  So each question has its time and its bytes, all of them together
have theirs, no redirect is followed, and nothing of what was sent is repeated but the question.
"""

from __future__ import annotations

import http.client
import json
import queue
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from probes.labels import printable

#: What one question may take; the engine is asked to give up a little earlier by itself.
QUESTION_SECONDS = 30.0
#: What all of them may take.
ALL_SECONDS = 120.0
#: Of one answer.  Read as JSON it takes some ten times as much memory.
MOST_BYTES = 8 * 2**20
#: No time is later (the year 2100), and nothing counts further; what is no number (NaN) is neither.
LAST, MOST_VALUE = 4.1e9, 1e15
MOST_WARNINGS = 5
MOST_DETAIL = 300
#: Pages of an engine: whoever copies the address of one of them means the engine.
_PAGES = ("/api/v1/query_range", "/api/v1/query", "/api/v1", "/graph", "/query")
_READ_CHUNK = 2**16


class NoAnswer(Exception):
    """The engine did not answer this question; the message says what was asked and why not."""


class Row(NamedTuple):
    """One series of an answer: its labels, and (unix seconds, value) by time."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]

    @property
    def value(self) -> float:
        """The newest value."""
        return self.points[-1][1]


#: An HTTP exchange: request and seconds to status and body, of which at most so many bytes are read.
Exchange = Callable[[urllib.request.Request, float, int], tuple[int, bytes]]


def address(url: str) -> str:
    """The engine's address without what stands behind its path prefix.  Raises ValueError for what is none."""
    if "://" not in url:
        url = f"http://{url}"
    parts = urllib.parse.urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "the address holds a password, which others can read in the list of processes: give --bearer-token-file"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or not printable_ascii(url):
        raise ValueError(f"{printable(url)!r} is no address: http://HOST:PORT/PREFIX or https://...")
    _ = parts.port  # raises ValueError where it is none
    path = parts.path.rstrip("/")
    for page in _PAGES:
        path = path.removesuffix(page)
    return f"{parts.scheme}://{parts.netloc}{path}"


def printable_ascii(text: str) -> bool:
    """Nothing that could end a line of a request."""
    return text.isascii() and text.isprintable() and " " not in text


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """None is followed: it would take the token along."""


_OPENER = urllib.request.build_opener(_NoRedirect)


def exchange(request: urllib.request.Request, seconds: float, most: int) -> tuple[int, bytes]:
    """Over HTTP.  Raises OSError, http.client.HTTPException.  ``seconds`` are of each step: the caller bounds the whole."""
    try:
        with _OPENER.open(request, timeout=seconds) as answer:
            return int(answer.status), bytes(answer.read(most))
    except urllib.error.HTTPError as error:
        with error:
            return error.code, bytes(error.read(most))


class Engine:
    """One engine, and what it cost to ask it.

    ``warnings`` are what it said of its own answers: a store that did not answer, a rate over a gauge.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        over: Exchange = exchange,
        clock: Callable[[], float] = time.monotonic,
        question_seconds: float = QUESTION_SECONDS,
    ) -> None:
        self.url = address(url)
        self._headers = {"Accept": "application/json", "User-Agent": "stallscope", **(headers or {})}
        self._over, self._clock, self._question_seconds = over, clock, question_seconds
        self._began = clock()
        self.asked = self.bytes = 0
        self.warnings: list[str] = []

    @property
    def seconds(self) -> float:
        """How long it has been asked."""
        return self._clock() - self._began

    def now(self, query: str, at: float | None = None) -> list[Row]:
        """What holds at that time (unix seconds), or at the engine's own now.  Raises NoAnswer."""
        return self._ask("query", query, {} if at is None else {"time": f"{at:.3f}"})

    def over(self, query: str, start: float, end: float, step: float) -> list[Row]:
        """What held from ``start`` to ``end``, each ``step`` seconds.  Raises NoAnswer."""
        return self._ask("query_range", query, {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"})

    def _ask(self, page: str, query: str, more: Mapping[str, str]) -> list[Row]:
        seconds = min(self._question_seconds, ALL_SECONDS - self.seconds)
        what = f"{self.url}/api/v1/{page}: {query}"
        if seconds <= 0:
            raise NoAnswer(f"{what}: not asked, because all questions together have taken {ALL_SECONDS:g} s")
        form = {"query": query, **more, "timeout": f"{max(1.0, seconds - 2):.0f}s"}
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked
            f"{self.url}/api/v1/{page}", urllib.parse.urlencode(form).encode(), dict(self._headers)
        )
        self.asked += 1
        try:
            status, body = _within(seconds, lambda: self._over(request, seconds, MOST_BYTES + 1))
        except TimeoutError:
            raise NoAnswer(f"{what}: no whole answer within {seconds:.0f} s") from None
        except http.client.HTTPException as error:
            raise NoAnswer(f"{what}: not an HTTP answer ({type(error).__name__})") from None
        except OSError as error:
            raise NoAnswer(f"{what}: {printable(str(getattr(error, 'reason', error)), MOST_DETAIL)}") from None
        self.bytes += len(body)
        if len(body) > MOST_BYTES:
            raise NoAnswer(
                f"{what}: the answer is larger than {MOST_BYTES // 2**20} MiB: narrow it by --match, or take a --by with fewer values"
            )
        return self._rows(what, status, body)

    def _rows(self, what: str, status: int, body: bytes) -> list[Row]:
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or answer.get("status") != "success":
            raise NoAnswer(f"{what}: {_refusal(status, answer)}")
        self._take_warnings(answer)
        try:
            rows = [_row(each) for each in answer["data"]["result"]]
        except (LookupError, TypeError, ValueError, AttributeError):
            raise NoAnswer(f"{what}: the answer is not one of Prometheus' query API") from None
        return [row for row in rows if row.points]

    def _take_warnings(self, answer: Mapping[str, Any]) -> None:
        said = answer.get("warnings")
        for each in said if isinstance(said, list) else ():
            text = printable(each, MOST_DETAIL) if isinstance(each, str) else ""
            if text and text not in self.warnings and len(self.warnings) < MOST_WARNINGS:
                self.warnings.append(text)


def _row(raw: Any) -> Row:
    """One of the answer's series.  Raises what a wrong shape raises."""
    points = [raw["value"]] if "value" in raw else raw["values"]
    read = [(float(at), float(value)) for at, value in points]
    labels = {name: value for name, value in raw["metric"].items() if isinstance(value, str)}
    return Row(labels, [(at, value) for at, value in read if 0 <= at <= LAST and abs(value) <= MOST_VALUE])


def _refusal(status: int, answer: Any) -> str:
    """Why there is no answer, in the engine's words where it has any."""
    said = answer.get("error") if isinstance(answer, dict) else None
    detail = f": {printable(said, MOST_DETAIL)}" if isinstance(said, str) and said else ""
    if status in (401, 403):
        return f"refused with {status}{detail}: does it want a --bearer-token-file, or a --header?"
    if status == 404:
        return f"no query API there (404){detail}: is its path prefix in the address?"
    if 300 <= status < 400:
        return f"answered {status}, which leads elsewhere: give that address (redirects are not followed, for the token's sake)"
    return f"answered {status}{detail or ', and not as the query API does'}"


def _within(seconds: float, work: Callable[[], tuple[int, bytes]]) -> tuple[int, bytes]:
    """Its result, waited for so long.  Raises TimeoutError, and what it raises.

    In a thread that nobody waits for: a look-up of a name, or an answer that comes byte by byte, heeds no time-out of its socket.
    """
    done: queue.SimpleQueue[tuple[int, bytes] | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put(work())
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            done.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        result = done.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(result, Exception):
        raise result
    return result
