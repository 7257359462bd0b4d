"""The document: of a report's JSON form and a timeline's, as the agent serves it or as one file to send to somebody.

The served page takes its style and script from the agent and allows nothing else (:data:`exporters.page.POLICY`).  The file holds both, allowed by
their hashes, and asks nobody for anything.  It is at most ``MOST_BYTES`` long, whatever was found: what does not fit is left to
``/report.txt``, and the page says so; cause, change, suspects and charts always fit.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from exporters import words
from exporters.page import REFRESH_SECONDS, details, first
from exporters.page.charts import charts, marks, span_of
from exporters.page.markup import Markup, cut, h, visible

HERE = Path(__file__).parent
MOST_BYTES = 150_000
#: Left for style and script of the file, the foot and the head.
_ROOM = MOST_BYTES - 30_000


@cache
def asset(name: str) -> str:
    """A file that lies beside this one."""
    return (HERE / name).read_text("utf-8")


def served(report: Mapping[str, Any], timeline: Mapping[str, Any]) -> bytes:
    """The page of a running agent."""
    head = [
        h("link", rel="stylesheet", href="page.css"),
        h("script", src="page.js", defer=True),
    ]
    renew = h(
        "p",
        h("button", "Renew: on", id="renew", type="button", hidden=True, data_seconds=REFRESH_SECONDS),
        h(
            "noscript",
            f"Renew each {REFRESH_SECONDS} s: ",
            h("a", "on", href="?refresh"),
            " ",
            h("a", "off", href="./"),
        ),
        cls="renew",
    )
    return _document(report, timeline, head, renew=renew, others=("report.txt", "health", "timeline", "metrics"))


def file(report: Mapping[str, Any], timeline: Mapping[str, Any]) -> bytes:
    """The same as one file.  Raises LookupError, TypeError, ValueError, AttributeError of what is no whole report."""
    style, script = asset("style.css"), asset("script.js")
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; base-uri 'none'; form-action 'none'"
    head = [
        h("meta", http_equiv="Content-Security-Policy", content=policy),
        h("style", Markup(style)),
    ]
    return _document(report, timeline, head, end=h("script", Markup(script)))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _document(
    report: Mapping[str, Any], timeline: Mapping[str, Any], head: list[Markup], *,
    renew: Markup | None = None, others: Sequence[str] = (), end: Markup | None = None,
) -> bytes:  # fmt: skip
    word, title = words.status(report), first.headline(report)
    parts = [
        h(
            "header",
            h("p", "stallscope", cls="brand"),
            h("p", f"as of {_when(report['generated'])}", cls="when"),
            renew,
        ),
        first.opening(report),
        _hour(report, timeline),
    ]
    room = _ROOM - sum(len(part.encode()) for part in parts)
    shown, left = [], 0
    for part in details.sections(report):
        size = len(part.encode())
        if size > room:
            left += 1
            continue
        room -= size
        shown.append(part)
    if left:
        shown.append(h("p", f"{left} more do not fit here: they stand in /report.txt", cls="left-out"))
    body = h(
        "body", h("p", id="news", role="status", cls="heard"),
        h("main", parts, h("section", h("h2", "Details"), shown, cls="details"), details.foot(report, others), cls=_tone(report)), end,
    )  # fmt: skip
    top = h(
        "head", h("meta", charset="utf-8"), h("title", f"{word}: {title} (stallscope)"),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h("meta", name="color-scheme", content="light dark"), h("meta", name="referrer", content="no-referrer"),
        h("link", rel="icon", href="data:,"), head,
    )  # fmt: skip
    return f"<!DOCTYPE html>\n{h('html', top, body, lang='en')}\n".encode()


def _tone(report: Mapping[str, Any]) -> str:
    return f"is-{report['status'] if report['conclusive'] else 'unknown'}"


def _when(stamp: str) -> str:
    return visible(str(stamp)).replace("T", " ").replace("Z", " UTC")


def _hour(report: Mapping[str, Any], timeline: Mapping[str, Any]) -> Markup:
    """The charts, and the list of what is marked in them."""
    minutes = span_of(timeline).seconds / 60
    title = "The last hour" if minutes == 60 else f"The last {minutes:.0f} minutes"
    return h("section", h("h2", title), list(_charts(report, timeline)), cls="hour")


def _charts(report: Mapping[str, Any], timeline: Mapping[str, Any]) -> Iterator[Markup]:
    if not timeline.get("series"):
        yield h("p", "Nothing has been measured yet: each step of 15 s is drawn when it is over.", cls="calm")
        return
    yield h("p", "Each point is the mean of the minute before it. Times are UTC. Grey: not seen.", cls="hint")
    span = span_of(timeline)
    numbered = marks(timeline, span)
    if numbered:
        rows = []
        for each in numbered:
            ended = each["ended_seconds_ago"]
            until = "and goes on" if ended is None else f"over {_ago(ended)}"
            rows.append(
                h(
                    "li",
                    h("b", cut(each["title"], first.MOST_LINE)),
                    f", began {_ago(each['began_seconds_ago'])}, {until}",
                    cls=each["severity"],
                )
            )
        yield h("ol", rows, cls="marks")
    yield from charts(timeline, report["breakdown"].get("threads_of") == "the app")


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s ago" if seconds < 90 else f"{seconds / 60:.0f} min ago"
