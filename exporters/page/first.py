"""What somebody who is tired must see within five seconds: the cause and its share, the change to copy, and the four suspects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from exporters import words
from exporters.page.markup import Markup, cut, escaped, h

#: Characters of the longest change that is shown whole; no command is as long.
MOST_CHANGE = 4000
#: Changes of the first cause that stand here, and causes beside it; the rest is in the details.
MOST_CHANGES, MOST_OTHERS = 3, 3
#: Characters of a headline, of what stands under it, and of a line in a list: all of it stands in the details.
MOST_HEADLINE, MOST_LEAD, MOST_LINE = 120, 400, 120
#: State of a suspect -> word, sign, what it is about.
_STATES = {
    "convicted": ("Guilty", "✕"), "cleared": ("Cleared", "✓"), "unknown": ("Unknown", "?"), "not looked at": ("Not looked at", "\u2013"),
}  # fmt: skip


def headline(report: Mapping[str, Any]) -> str:
    """The cause, or what stands in its place."""
    cause = words.first_cause(report)
    if cause is not None:
        return str(cause["title"])
    if not report["conclusive"]:
        return "Cannot tell yet"
    return (
        "No cause found in what is looked at"
        if report["status"] == "pass"
        else "CPU is missing, and no cause was found"
    )


def opening(report: Mapping[str, Any]) -> Markup:
    """Everything above the charts."""
    cause = words.first_cause(report)
    return h(
        "section",
        h("p", h("span", words.status(report), cls="badge"), " ", _worth_knowing(cause), cls="status"),
        h("h1", cut(headline(report), MOST_HEADLINE)),
        _share(cause, words.of_the_app(report)) if cause is not None else None,
        h("p", _sentence(cause["evidence"][0]["text"]) if cause is not None else report["verdict"], cls="lead"),
        list(_others(report, cause)),
        _change(cause) if cause is not None else None,
        _suspects(report),
        cls="opening",
    )


def _sentence(text: Any) -> str:
    words_ = cut(text, MOST_LEAD)
    return f"{words_[:1].upper()}{words_[1:]}."


def _worth_knowing(cause: Mapping[str, Any] | None) -> str:
    return (
        "nothing is seen to be held up now, but this is worth knowing"
        if cause is not None and cause["severity"] == "info"
        else ""
    )


def _share(cause: Mapping[str, Any], of_the_app: bool) -> Markup | None:
    """How much is lost to it: of the app's work in progress, or, where that is not seen, of the time or the connections."""
    for key, meaning in (
        ("stalled_share", "of the app's work in progress stands still for it"),
        ("share", "lost to it"),
    ):
        if cause.get(key) is not None and (of_the_app or key == "share"):
            return h("p", h("strong", f"{cause[key]:.0%}"), f" {meaning}", cls="share")
    return None


def _others(report: Mapping[str, Any], first: Mapping[str, Any] | None) -> Iterator[Markup]:
    """Further causes, and what the first one looks like."""
    others = [cause for cause in words.causes(report) if cause is not first]
    explained = first["rule"] if first is not None else ""
    effects = [
        finding["title"] for finding in report["findings"] if explained and finding.get("explained_by") == explained
    ]
    if effects:
        yield h(
            "p",
            h("b", "It looks like: "),
            "; ".join(cut(effect, MOST_LINE) for effect in effects[:MOST_OTHERS]),
            cls="also",
        )
    if others:
        rows = []
        for other in others[:MOST_OTHERS]:
            size = next((s for s in (other.get("stalled_share"), other.get("share")) if s is not None), None)
            rows.append(
                h(
                    "li",
                    h("a", cut(other["title"], MOST_LINE), href=f"#{other['rule']}"),
                    f", {size:.0%}" if size is not None else "",
                )
            )
        more = len(others) - MOST_OTHERS
        if more > 0:
            rows.append(h("li", f"and {more} more, below"))
        yield h("div", h("b", "Beside it: "), h("ul", rows), cls="also")


def _change(cause: Mapping[str, Any]) -> Markup:
    advice = cause["advice"]
    changes = advice["changes"]
    codes = [copyable(change, f"change-{n}") for n, change in enumerate(changes[:MOST_CHANGES], 1)]
    more = len(changes) - MOST_CHANGES
    terms = [
        (h("dt", name), h("dd", text))
        for name, text in (("Costs", advice["cost"]), ("Will not help", advice["will_not_help"]))
        if text
    ]
    return h(
        "section", h("h2", "What to change"), h("p", advice["summary"]), codes,
        h("p", h("a", f"{more} more", href=f"#{cause['rule']}")) if more > 0 else None,
        h("dl", terms) if terms else None, cls="change",
    )  # fmt: skip


def copyable(change: Any, name: str) -> Markup:
    """A line to be copied: text that anybody can select, and a button for who has a script."""
    text = str(change)
    if len(text) > MOST_CHANGE:
        return h("p", "A change that is too long for this page stands in /report.txt.")
    return h(
        "div",
        h("pre", h("code", escaped(text, None), id=name)),
        h("button", "Copy", type="button", cls="copy", data_copy=name, hidden=True),
        cls="code",
    )


def _suspects(report: Mapping[str, Any]) -> Markup:
    rows = []
    for suspect in report.get("suspects", ()):
        word, sign = _STATES.get(suspect["state"], (suspect["state"], "?"))
        kind = suspect["state"].replace(" ", "-") if suspect["state"] in _STATES else "unknown"
        text = suspect["text"] or ("looked at, and cannot be judged" if kind == "unknown" else "")
        how = h("p", h("b", "To look: "), text) if kind == "not-looked-at" else h("p", text)
        rows.append(
            h(
                "li",
                h("h3", suspect["name"]),
                h("p", h("span", sign, aria_hidden="true"), f" {word}", cls="state"),
                how,
                cls=kind,
            )
        )
    return h("section", h("h2", "The four suspects"), h("ul", rows, cls="suspects")) if rows else Markup("")
