"""What is folded: every finding with its numbers, where the time went, what is ruled out, unknown and out of sight, and the agent itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agent.report import ready_shares
from exporters import words
from exporters.page.first import copyable
from exporters.page.markup import Markup, h

#: Rows of a list or table; their number is told.
MOST_ROWS = 64
_BAR = 200


def sections(report: Mapping[str, Any]) -> Iterator[Markup]:
    """One folded part after the other, the most telling first."""
    for finding in report["findings"]:
        yield _finding(finding)
    yield from _went(report)
    for name, title, key in (
        ("ruled_out", "Ruled out", "rule"), ("unknown", "Cannot be judged here", "rule"), ("cannot_see", "Out of sight from here", "what"),
    ):  # fmt: skip
        if report[name]:
            rows = [(names, because) for names, because in words.alike(report[name], key)]
            yield _folded(name, f"{title} ({len(report[name])})", _terms(rows))


def foot(report: Mapping[str, Any], others: Sequence[str] = ()) -> Markup:
    """Who says so, from where, at what cost; and links to the ``others``, further forms of the report."""
    agent = report["agent"]
    told = f"stallscope {agent['version']}, up {agent['uptime_seconds']:.0f} s, cost {words.cost(agent)}, on {words.place(report['platform'])}"
    links = [(h("a", name, href=name), " ") for name in others]
    return h("footer", h("p", told), h("p", "The same for programs and terminals: ", links) if links else None)


def _folded(name: str, title: str, *body: Any, tone: str | None = None) -> Markup:
    return h("details", h("summary", title), *body, id=name, cls=tone)


def _finding(finding: Mapping[str, Any]) -> Markup:
    advice = finding["advice"]
    share = f", {finding['share']:.0%}" if finding.get("share") is not None else ""
    rows: list[tuple[str, Any]] = []
    if finding.get("explained_by"):
        rows.append(("the mechanism of", finding["explained_by"]))
    if finding.get("contributing"):
        rows.append(("contributing, too small to explain it alone", ", ".join(map(str, finding["contributing"]))))
    rows.append(("seen by", h("ul", [h("li", each["text"]) for each in finding["evidence"]])))
    if not finding.get("explained_by"):
        codes = [copyable(change, f"{finding['rule']}-{n}") for n, change in enumerate(advice["changes"], 1)]
        rows.append(("do", [h("p", advice["summary"]), codes]))
        rows += [
            (name, text)
            for name, text in (("costs", advice["cost"]), ("will not help", advice["will_not_help"]))
            if text
        ]
    rows += [
        ("proved wrong if", finding["disproof"]),
        ("since", finding["since"]),
        ("about", f"{finding['scope']}, confidence {finding['confidence']:.2f}, {finding['rule']}"),
    ]
    title = f"{finding['severity']}: {finding['title']}{share}"
    return _folded(finding["rule"], title, _terms(rows), tone=finding["severity"])


def _went(report: Mapping[str, Any]) -> Iterator[Markup]:
    """Where the time and the memory went in the last minute."""
    parts = report["breakdown"]
    tables = [
        table
        for table in (*_threads(parts), *_stalled(parts), *_trips(parts), *_sessions(parts), *_kept(parts))
        if table
    ]
    if tables:
        yield _folded("went", "Where the time went in the last minute", *tables)


def _threads(parts: Mapping[str, Any]) -> Iterator[Markup]:
    shares, number = ready_shares(parts.get("threads_of", ""), parts["cpu"], parts.get("stalled", {}))
    title = f"A thread that wants to run, in this container (the app's own are not seen{words.error_of_cpu(parts)})"
    if number is not None:
        title = f"The app's threads ({number:.2f} wanted to run at any moment)"
    if shares:
        yield _table(
            title, ("", "share", ""),
            [
                (part if part == "running" else f"held: {words.PARTS.get(part, part)}", f"{share:.1%}", _bar(share))
                for part, share in shares.items() if share >= 0.0005 or part == "running"
            ],
        )  # fmt: skip


def _stalled(parts: Mapping[str, Any]) -> Iterator[Markup]:
    for group, numbers in parts.get("stalled", {}).items():
        if group != "threads" and numbers:
            rows = [
                (words.PARTS.get(part, part), f"{number:.1f}") for part, number in numbers.items() if number >= 0.05
            ]
            yield _table(f"Mean number of {group}", ("", "number"), rows)


def _trips(parts: Mapping[str, Any]) -> Iterator[Markup]:
    for target, operations in parts.get("postgres", {}).items():
        names = list(dict.fromkeys(name for numbers in operations.values() for name in numbers))
        rows = [
            (operation, *(f"{1e3 * n.get(name, 0.0):.1f}" for name in names)) for operation, n in operations.items()
        ]
        if rows:
            yield _table(f"Round trips to database {target}, in ms", ("", *names), rows)


def _sessions(parts: Mapping[str, Any]) -> Iterator[Markup]:
    for target, numbers in parts.get("sessions", {}).items():
        rows = [(what, f"{number:.1f}") for what, number in numbers.items() if number >= 0.05]
        if rows:
            yield _table(f"Sessions of database {target}", ("", "number"), rows)


def _kept(parts: Mapping[str, Any]) -> Iterator[Markup]:
    rows = [
        (f"Logs in {queue}", waits)
        for queue, numbers in parts.get("logs", {}).items()
        if (waits := words.waiting(numbers))
    ]
    rows += [words.memory(whose, numbers) for whose, numbers in parts.get("memory", {}).items()]
    if rows:
        yield _table("Logs and memory", ("", "now"), rows)


def _bar(share: float) -> Markup:
    width = round(_BAR * min(1.0, max(0.0, share)))
    return h("svg", h("rect", width=width, height=10, cls="bar"), width=_BAR, height=10, aria_hidden="true")


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Markup:
    body = [h("tr", h("th", row[0], scope="row"), [h("td", cell) for cell in row[1:]]) for row in rows[:MOST_ROWS]]
    caption = f"{title} ({len(rows) - MOST_ROWS} more are left out)" if len(rows) > MOST_ROWS else title
    names = h("tr", [h("th", name, scope="col") if name else h("td") for name in head])
    return h("div", h("table", h("caption", caption), h("thead", names), h("tbody", body)), tabindex="0", cls="wide")


def _terms(rows: Iterable[tuple[Any, Any]]) -> Markup:
    return h("dl", [(h("dt", name), h("dd", value)) for name, value in rows])
