"""Which charts there are, made of the timeline's JSON form, each with its legend and as a table.

Every number is looked at before it is drawn: a timeline may have come over the network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from exporters import words
from exporters.page.markup import Markup, h
from exporters.page.svg import Chart, Clock, Part, Values, draw, nice
from probes.record import dataclass

#: So many minutes are shown, and a word of the clock stands at every so many: the shortest that holds all.
SPANS = ((5, 1), (15, 5), (30, 10), (60, 15))
#: Marks beyond these would hide what they mark.
MOST_MARKS = 6
#: Rows of a table.
ROWS = 12
#: What is never more than this is not told.
LEAST_SHARE, LEAST_SECONDS = 0.0005, 5e-5
_HOUR = 3600.0
#: From below to above: those that a setting mends first.
_CPU = ("quota", "hypervisor", "freeze", "contention", "unknown")
_TRIP = {
    "server": "server",
    "network": "network",
    "suspended": "our CPU was away",
    "client": "our own work",
    "unknown": "unknown",
}


@dataclass(frozen=True, slots=True)
class Span:
    """The time that is shown: so many of the newest steps, which end now."""

    steps: int
    seconds: float
    every: float
    end: datetime | None

    def at(self, step: int) -> str:
        """The clock at the end of a step."""
        if self.end is None:
            return f"{(self.steps - 1 - step) * self.seconds / self.steps / 60:.0f} min ago"
        return f"{self.end - timedelta(seconds=(self.steps - 1 - step) * self.seconds / self.steps):%H:%M}"

    def place(self, ago: float) -> float:
        """Where an instant so many seconds ago stands, 0 to 1 when it is within."""
        return 1 - ago / self.seconds


def span_of(timeline: Mapping[str, Any]) -> Span:
    """The shortest span that holds what is known."""
    step, known = float(timeline["step_seconds"]), int(timeline["steps"])
    if not 1 <= step <= _HOUR or not 0 <= known <= _HOUR:
        raise ValueError("a timeline has steps of a second to an hour")
    minutes, every = next((each for each in SPANS if each[0] * 60 >= known * step), SPANS[-1])
    steps = max(1, round(minutes * 60 / step))
    return Span(steps, steps * step, every * 60.0, _moment(timeline["generated"]))


def marks(timeline: Mapping[str, Any], span: Span) -> list[Mapping[str, Any]]:
    """The findings that are numbered: causes that began within the span, the latest where there are too many."""
    found = [
        each for each in timeline["findings"]
        if not each["explained_by"] and each["severity"] != "info" and 0 <= span.place(each["began_seconds_ago"]) <= 1
    ]  # fmt: skip
    return found[-MOST_MARKS:]


def charts(timeline: Mapping[str, Any], of_the_app: bool) -> Iterator[Markup]:
    """Every chart that there are numbers for."""
    span = span_of(timeline)
    clock = Clock(
        span.steps,
        list(_ticks(span)),
        [(span.place(mark["began_seconds_ago"]), n) for n, mark in enumerate(marks(timeline, span), 1)],
    )
    found = [each for each in _found(timeline["series"], span, of_the_app) if each[3]]
    for number, (title, told, top, parts, calm) in enumerate(found, 1):
        name = f"chart-{number}"
        chart = Chart(name, title, parts, top, told, _summary(parts, told, span, calm), gaps=told is not _minutes)
        yield h(
            "figure",
            h("figcaption", h("h3", title), _legend(parts, told, calm)),
            draw(chart, clock),
            h("details", h("summary", "The same as a table"), _table(parts, told, span, title), id=f"{name}-table"),
        )


_Found = tuple[str, Callable[[float], str], float, list[Part], str]


def _found(series: Mapping[str, Any], span: Span, of_the_app: bool) -> Iterator[_Found]:
    """(title, how a value is written, upper edge, parts, what is said where all is calm)."""
    if cpu := series.get("cpu", {}).get(""):
        whose = "the app's threads" if of_the_app else "a thread in this container"
        parts = [Part(f"cpu-{part}", words.PARTS[part], _last(cpu[part], span)) for part in _CPU if part in cpu]
        yield f"CPU taken away from {whose}, by cause", _share, 1.0, _told(parts, LEAST_SHARE), "nothing was taken away"
    for target, trip in series.get("postgres", {}).items():
        parts = [Part(f"trip-{part}", label, _last(trip[part], span)) for part, label in _TRIP.items() if part in trip]
        title = f"A round trip (SELECT 1) to database {target}, by where its time went"
        yield title, _milliseconds, nice(_highest(parts)), _told(parts, LEAST_SECONDS), "no round trip was seen"
    yield from _backlog(series.get("logs", {}).get("", {}), span)
    for whose, numbers in series.get("memory", {}).items():
        name = "the app" if whose == "app" else "this container"
        if used := numbers.get("used_ratio"):
            yield f"Memory of {name}, of its limit", _share, 1.0, [Part("memory", "in use", _last(used, span))], ""
        if left := numbers.get("seconds_to_limit"):
            part = Part("left", "until it is full", _last(left, span))
            top = min(_HOUR, nice(_highest([part]) / 60) * 60)
            yield f"Time until the memory of {name} is full, as it grew then", _minutes, top, [part], ""


def _backlog(logs: Mapping[str, Any], span: Span) -> Iterator[_Found]:
    for name, unit, told in (("entries", "entries", _count), ("bytes", "bytes", _bytes)):
        if name in logs:
            part = Part("logs", unit, _last(logs[name], span))
            if name == "entries" or "entries" not in logs or _highest([part]):
                yield f"Log {unit} that wait", told, nice(_highest([part])), [part], "none wait"


def _last(values: Sequence[Any], span: Span) -> Values:
    """The newest values of the span, nothing before the first, and nothing for what is no number."""
    newest = [v if isinstance(v, float | int) and math.isfinite(v) else None for v in values[-span.steps :]]
    return [None] * (span.steps - len(newest)) + newest


def _told(parts: list[Part], least: float) -> list[Part]:
    """Those that are ever worth a word; the first where none is."""
    return [part for part in parts if max((v for v in part.values if v is not None), default=0.0) >= least] or parts[:1]


def _highest(parts: Sequence[Part]) -> float:
    return max(
        (sum(v for v in column if v is not None) for column in zip(*(p.values for p in parts), strict=True)),
        default=0.0,
    )


def _peak(part: Part) -> tuple[float, int] | None:
    """The highest value and the step at which it came first."""
    known = [(v, n) for n, v in enumerate(part.values) if v is not None]
    return max(known, key=lambda each: each[0], default=None)


def _newest(part: Part) -> float | None:
    return part.values[-1]


def _legend(parts: Sequence[Part], told: Callable[[float], str], calm: str) -> Markup:
    rows = []
    for part in parts:
        now, peak = _newest(part), _peak(part)
        text = f"{told(now) if now is not None else 'not known'} now"
        if peak is not None and (now is None or told(peak[0]) != told(now)):
            text += f", {told(peak[0])} at most"
        swatch = h("svg", h("rect", width=12, height=12, cls=part.colour), width=12, height=12, aria_hidden="true")
        rows.append(h("li", swatch, f" {part.label} ", h("b", text)))
    if calm and not any((_peak(part) or (0.0,))[0] > 0 for part in parts):
        return h("p", calm, cls="calm")
    return h("ul", rows, cls="legend")


def _summary(parts: Sequence[Part], told: Callable[[float], str], span: Span, calm: str) -> str:
    """The chart in a sentence, for whoever hears it."""
    said = []
    for part in parts:
        if (peak := _peak(part)) is not None and peak[0] > 0:
            now = _newest(part)
            said.append(
                f"{part.label}: {told(now) if now is not None else 'not known'} now, at most {told(peak[0])} at {span.at(peak[1])}"
            )
    return f"The last {span.seconds / 60:.0f} minutes. {'; '.join(said) or calm or 'nothing is known'}."


def _table(parts: Sequence[Part], told: Callable[[float], str], span: Span, title: str) -> Markup:
    width = math.ceil(span.steps / ROWS)
    rows = []
    for begin in range(0, span.steps, width):
        cells = []
        for part in parts:
            known = [v for v in part.values[begin : begin + width] if v is not None]
            cells.append(h("td", told(sum(known) / len(known)) if known else "-"))
        if any(v is not None for part in parts for v in part.values[begin : begin + width]):
            rows.append(h("tr", h("th", span.at(min(begin + width, span.steps) - 1), scope="row"), cells))
    head = h("tr", h("th", "until", scope="col"), [h("th", part.label, scope="col") for part in parts])
    minutes = width * span.seconds / span.steps / 60
    caption = h("caption", f"{title}: means of {minutes:g} minutes, UTC")
    return h("div", h("table", caption, h("thead", head), h("tbody", rows)), tabindex="0", cls="wide")


def _ticks(span: Span) -> Iterator[tuple[float, str]]:
    if span.end is None:
        return
    back = span.end.timestamp() % span.every
    while back < span.seconds:
        yield span.place(back), f"{span.end - timedelta(seconds=back):%H:%M}"
        back += span.every


def _moment(stamp: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(stamp)
    except (ValueError, TypeError):
        return None


def _share(value: float) -> str:
    return f"{value:.0%}" if value >= 0.0995 or value < LEAST_SHARE else f"{value:.1%}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 99.5 or value == 0 else f"{value:.1f}"


def _milliseconds(value: float) -> str:
    return f"{_short(1e3 * value)} ms" if value < 1 else f"{_short(value)} s"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{_short(value)} {unit}"
        value /= 1000
    return f"{_short(value)} GB"


def _minutes(value: float) -> str:
    return (
        f"{value:.0f} s" if value < 90 else f"{value / 60:.0f} min" if value < 2 * _HOUR else f"{value / _HOUR:.0f} h"
    )
