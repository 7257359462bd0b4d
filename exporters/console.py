"""The report for people: the same JSON that ``/health`` serves, as text.

It takes the contract's plain dicts, not the dataclasses, so that ``stallscope report URL`` and
``doctor`` are one code.  Colour is the caller's choice: only a terminal gets it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from agent.report import ready_shares
from exporters import words

WIDTH = 96
_COLOURS = {"pass": "32", "warn": "33", "fail": "31", "info": "36", "warning": "33", "critical": "31", "dim": "2", "bold": "1"}  # fmt: skip
#: The opening is read by somebody who is tired.
LINES, LEAST_WIDTH = 6, 60
#: Who is asked, by the key of the breakdown.
_ASKED = {"postgres": "database", "redis": "Redis"}
#: State of a suspect -> colour and word.
_STATES = {
    "convicted": ("fail", "GUILTY"), "cleared": ("pass", "ok"), "unknown": ("warn", "unknown"), "not looked at": ("dim", "not watched"),
}  # fmt: skip


class _Paint:
    def __init__(self, colour: bool, width: int = WIDTH) -> None:
        self._colour, self.width = colour, max(width, LEAST_WIDTH)

    def __call__(self, style: str, text: str) -> str:
        return f"\x1b[{_COLOURS[style]}m{text}\x1b[0m" if self._colour else text


def render(report: Mapping[str, Any], *, colour: bool = False, verbose: bool = True, width: int = WIDTH) -> str:
    """The report, ending in a newline: the opening alone, or, ``verbose``, everything.  ``width`` is in columns."""
    paint = _Paint(colour, width)
    parts: list[Iterable[str]] = [_opening(report, paint)]
    if verbose:
        parts += [
            [""],
            _breakdown(report, paint),
            _stalled(report, paint),
            _round_trips(report, paint),
            _database(report, paint),
            _logs(report, paint),
            _findings(report, paint),
            _list("Ruled out", report["ruled_out"], "rule", paint),
            _list("Cannot be judged here", report["unknown"], "rule", paint),
            _list("Out of sight from here", report["cannot_see"], "what", paint),
            _foot(report, paint),
        ]
    return "\n".join(line for part in parts for line in part) + "\n"


def headline(report: Mapping[str, Any], *, colour: bool = False) -> str:
    """The verdict alone: the first lines of the report."""
    return "\n".join(_head(report, _Paint(colour)))


def _opening(report: Mapping[str, Any], paint: _Paint) -> Iterator[str]:
    """At most six lines, unless the change itself is longer: the verdict, what to change, what it is not, and the four suspects."""
    suspects, more = _suspects(report, paint), list(_first_step(report, paint.width))
    yield from _head(report, paint, max(1, LINES - len(suspects) - len(more)))
    yield from more
    yield from suspects


def _first_step(report: Mapping[str, Any], width: int) -> Iterator[str]:
    """What to change for the first cause, and what it looks like, or would be changed in vain."""
    cause = words.first_cause(report)
    if cause is None:
        return
    advice = cause["advice"]
    yield f"{'do':<9} {next(iter(advice['changes']), advice['summary'])}"  # to be copied: never cut
    effects = [f["title"] for f in report["findings"] if f.get("explained_by") == cause["rule"]]
    if effects:
        yield _cut(f"{'looks as':<9} {'; '.join(effects)}", width)
    elif advice["will_not_help"]:
        yield _cut(f"{'in vain':<9} {advice['will_not_help']}", width)


def _suspects(report: Mapping[str, Any], paint: _Paint) -> list[str]:
    """Who is guilty, who is not and by which number, and who was not looked at."""
    said: list[tuple[str, str]] = []
    lines: list[str] = []
    used = width = paint.width
    for suspect in report.get("suspects", ()):
        style, word = _STATES.get(suspect["state"], ("dim", suspect["state"]))
        number = f" ({suspect['text']})" if suspect["text"] and suspect["state"] != "not looked at" else ""
        said.append((style, f"{suspect['name']} {word}{number}"))
    for style, text in said:
        if used + 3 + len(text) > width:
            lines.append(f"{'' if lines else 'suspects':<9} ")
            used = 10
        else:
            lines[-1] += " · "
            used += 3
        lines[-1] += paint(style, text)
        used += len(text)
    return lines


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 3]}..."


def _head(report: Mapping[str, Any], paint: _Paint, most: int = 100) -> Iterator[str]:
    width = paint.width
    word = words.status(report)
    lines = wrap(report["verdict"], width - 10)
    if len(lines) > most:
        lines = [*lines[: most - 1], _cut(f"{lines[most - 1]} {lines[most]}", width - 10)]
    yield f"{paint(report['status'], f'{word:<9}')} {paint('bold', lines[0])}"
    for line in lines[1:]:
        yield " " * 10 + paint("bold", line)


def _breakdown(report: Mapping[str, Any], paint: _Paint) -> Iterator[str]:
    """The chart: the app's own threads where they can be seen, else what work in this container would meet."""
    parts = report["breakdown"]
    shares, number = ready_shares(parts.get("threads_of", ""), parts["cpu"], parts.get("stalled", {}))
    title = f"What a thread that wants to run met here in the last minute (the app's own are not seen{words.error_of_cpu(parts)})"
    if number is not None:
        title = f"What the app's threads did in the last minute ({number:.2f} wanted to run at any moment)"
    if not shares:
        return
    yield from (paint("bold", line) for line in wrap(title, paint.width))
    for part, share in shares.items():
        if share >= 0.0005 or part == "running":
            bar = "█" * round(share * 40)
            name = part if part == "running" else f"held: {words.PARTS.get(part, part)}"
            yield f"  {name:<24} {share:7.1%}  {bar}".rstrip()
    yield ""


def _stalled(report: Mapping[str, Any], paint: _Paint) -> Iterator[str]:
    """What connections and pool waiters do or wait for."""
    groups = {g: parts for g, parts in report["breakdown"].get("stalled", {}).items() if g != "threads" and parts}
    for group, parts in groups.items():
        shown = ", ".join(
            f"{words.PARTS.get(part, part)} {number:.1f}" for part, number in parts.items() if number >= 0.05
        )
        yield f"{paint('bold', f'Mean number of {group}')}: {sum(parts.values()):.1f}" + (
            f" = {shown}" if shown else ""
        )
    if groups:
        yield ""


def _round_trips(report: Mapping[str, Any], paint: _Paint) -> Iterator[str]:
    asked = [(name, *each) for key, name in _ASKED.items() for each in report["breakdown"].get(key, {}).items()]
    for name, target, operations in asked:
        if not operations:
            continue
        yield paint("bold", f"Where the time of a round trip to {name} {target!r} went, in ms")
        for operation, parts in operations.items():
            shown = [
                f"{part} {1e3 * seconds:.1f}" for part, seconds in parts.items() if part != "wall" and seconds >= 5e-5
            ]
            yield f"  {operation:<8} {1e3 * parts['wall']:8.1f} = {' + '.join(shown)}"
        yield ""


def _database(report: Mapping[str, Any], paint: _Paint) -> Iterator[str]:
    for target, numbers in report["breakdown"].get("sessions", {}).items():
        shown = ", ".join(f"{what} {number:.1f}" for what, number in numbers.items() if number >= 0.05)
        yield f"{paint('bold', f'Sessions of database {target!r}')}: {shown or 'none but the agent'}"
    if report["breakdown"].get("sessions"):
        yield ""


def _logs(report: Mapping[str, Any], paint: _Paint) -> Iterator[str]:
    anything = False
    for queue, numbers in report["breakdown"].get("logs", {}).items():
        if waits := words.waiting(numbers):
            anything = True
            yield f"{paint('bold', f'Logs waiting in {queue}')}: {waits}"
    for whose, numbers in report["breakdown"].get("memory", {}).items():
        anything = True
        name, used = words.memory(whose, numbers)
        yield f"{paint('bold', name)}: {used}"
    if anything:
        yield ""


def _findings(report: Mapping[str, Any], paint: _Paint) -> Iterator[str]:
    for finding in report["findings"]:
        head = f"{finding['severity']}: {finding['title']}"
        yield paint(finding["severity"], head) + paint(
            "dim",
            f"  [{finding['rule']}, {finding['scope']}, confidence {finding['confidence']:.2f}, "
            f"since {finding['since']}]",
        )
        if finding.get("explained_by"):
            yield f"  the mechanism of: {finding['explained_by']}"
        if finding.get("contributing"):
            yield f"  contributing, too small to explain it alone: {', '.join(finding['contributing'])}"
        for evidence in finding["evidence"]:
            yield from _bullet(paint, "-", evidence["text"])
        if finding.get("explained_by"):  # to be acted on is its cause
            yield ""
            continue
        advice = finding["advice"]
        yield from _bullet(paint, "do:", advice["summary"])
        for change in advice["changes"]:
            yield f"      {change}"
        if advice["cost"]:
            yield from _bullet(paint, "costs:", advice["cost"])
        if advice["will_not_help"]:
            yield from _bullet(paint, "will not help:", advice["will_not_help"])
        yield from _bullet(paint, "proved wrong if:", finding["disproof"])
        yield ""


def _bullet(paint: _Paint, mark: str, text: str) -> Iterator[str]:
    yield from wrap(f"{mark} {text}", paint.width, initial_indent="  ", subsequent_indent="    ")


def _list(title: str, items: Sequence[Mapping[str, Any]], key: str, paint: _Paint) -> Iterator[str]:
    if not items:
        return
    yield paint("bold", title)
    for names, because in words.alike(items, key):
        text = f"{names}: {because}"
        lines = wrap(text, paint.width - 4)
        yield f"  · {lines[0]}"
        for line in lines[1:]:
            yield f"    {line}"
    yield ""


def _foot(report: Mapping[str, Any], paint: _Paint) -> Iterator[str]:
    agent = report["agent"]
    pace = agent.get("pace", 1.0)
    seldom = f"  measures {pace:.1f} times less often, to keep its CPU budget" if pace >= 1.1 else ""
    text = (
        f"stallscope {agent['version']}  up {agent['uptime_seconds']:.0f} s  cost {words.cost(agent)}"
        f"{seldom}  on {words.place(report['platform'])}  at {report['generated']}"
    )
    yield from (paint("dim", line) for line in wrap(text, paint.width))


def change_line(event: Mapping[str, Any], *, colour: bool = False) -> str:
    """One line for a rule whose verdict changed."""
    paint = _Paint(colour)
    if event["now"] != "present":
        why = f" ({event['because']})" if event.get("because") else ""
        return f"{paint('dim', 'now ' + event['now'] + ':')} {event['rule']}{why}\n"
    text = event["evidence"][0] if event["evidence"] else ""
    cause = f" (because of {event['explained_by']})" if event.get("explained_by") else ""
    return f"{paint(event['severity'], event['severity'] + ':')} {event['rule']}{cause}: {text}\n"
