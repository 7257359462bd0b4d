"""The plots of a bench as SVG: throughput and latency over clients with error bars, and who was the limit of each cell.

Places are percentages and texts keep their size, so a plot is as readable on a telephone as on a screen; as a file of its own
(:func:`standalone`) it carries its colours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from exporters.bench.words import LABELS, milliseconds
from exporters.page.markup import Markup, h
from exporters.page.svg import nice

#: Pixels: of the drawing, above it for the scale, below for the clients.
HEIGHT, ABOVE, BELOW = 220, 20, 40
#: Percent of the width that stay free on each side.
_SIDE = 6.0
#: Between two lines at the same number of clients.
_BESIDE = 0.7
_ROW, _BAR, _LETTERS = 40, 14, 7.0
#: More lines than colours could not be told apart.
MOST_LINES: Final = 8
_LEAST_SHARE = 0.001

STYLE: Final = """
.l0{--c:#2463d1}.l1{--c:#cf3a1e}.l2{--c:#2c8a43}.l3{--c:#a66a00}.l4{--c:#7c3aed}.l5{--c:#0f7f93}.l6{--c:#7a828c}.l7{--c:#b0307a}
.curve{stroke:var(--c);stroke-width:2;fill:none}.error{stroke:var(--c);stroke-width:1.5}.dot{fill:var(--c)}
.p-client_busy{fill:#d79b2e}.p-client_quota{fill:#cf3a1e}.p-client_hypervisor{fill:#7c3aed}.p-client_neighbours{fill:#b0307a}
.p-client_suspended{fill:#8d5a4a}.p-server_executing{fill:#2c8a43}.p-server_lock{fill:#8a9a00}.p-server_starved{fill:#135c2a}
.p-network{fill:#2463d1}.p-connecting{fill:#0f7f93}.p-connections{fill:#6a9ff5}.p-unknown{fill:#9aa2ac}
"""
_ALONE = """
text{font:12px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;fill:#1a1d21}.tick{fill:#535c66}
.grid{stroke:#d0d7de;stroke-dasharray:2 4}.axis{stroke:#535c66}.ground{fill:#fff}
"""


class Line(NamedTuple):
    """One curve: its name and, by clients, mean, lower and upper end of its interval."""

    name: str
    points: Sequence[tuple[int, float, float, float]]


class Plot(NamedTuple):
    """A picture, its title, and what the colours mean: (class, label)."""

    name: str
    title: str
    picture: Markup
    legend: Sequence[tuple[str, str]]
    height: int


def plots(result: Mapping[str, Any]) -> Iterator[Plot]:
    """All plots that there are numbers for."""
    cells = result["cells"]
    if not cells:
        return
    yield _curves("tps", "Transactions per second", _lines(cells, "tps"), lambda value: f"{value:,.0f}")
    yield _curves(
        "latency", "Time of a transaction, with setting up its connection", _lines(cells, "cycle_seconds"), milliseconds
    )
    yield _curves(
        "p99",
        "99th percentile of a transaction, without setting up its connection",
        _lines(cells, "p99_seconds"),
        milliseconds,
    )
    yield _limits(cells)


def _lines(cells: Sequence[Mapping[str, Any]], number: str) -> list[Line]:
    found: dict[str, list[tuple[int, float, float, float]]] = {}
    for cell in cells:
        series = cell[number]
        if series is None:
            continue
        name = ", ".join((cell["mode"], f"TLS {cell['tls']}", cell["way"]))
        low = max(0.0, series["low"])
        found.setdefault(name, []).append((cell["clients"], series["mean"], low, series["high"]))
    return [Line(name, sorted(points)) for name, points in found.items()][:MOST_LINES]


def _curves(name: str, title: str, lines: Sequence[Line], told: Callable[[float], str]) -> Plot:
    clients = sorted({point[0] for line in lines for point in line.points})
    means = [point[1] for line in lines for point in line.points]
    # An interval of two repeats can be many times its mean: the scale is the means', and what passes it is cut.
    top = nice(min(1.4 * max(means, default=0.0), max((p[3] for line in lines for p in line.points), default=0.0)))
    floor = ABOVE + HEIGHT

    def x(number: int, line: float) -> str:
        """Each line a little beside the next one, or their intervals would stand on each other."""
        share = clients.index(number) / (len(clients) - 1) if len(clients) > 1 else 0.5
        return f"{_SIDE + share * (100 - 2 * _SIDE) + _BESIDE * (line - (len(lines) - 1) / 2):.2f}%"

    def y(value: float) -> str:
        return f"{floor - HEIGHT * min(1.0, max(0.0, value / top)):.1f}"

    drawn = [
        h("line", cls="grid", x1="0", x2="100%", y1=y(top * step), y2=y(top * step)) for step in (0.25, 0.5, 0.75, 1.0)
    ]
    for at, line in enumerate(lines):
        parts = []
        for before, after in zip(line.points, line.points[1:], strict=False):
            parts.append(
                h("line", cls="curve", x1=x(before[0], at), y1=y(before[1]), x2=x(after[0], at), y2=y(after[1]))
            )
        for number, mean, low, high in line.points:
            parts.append(h("line", cls="error", x1=x(number, at), y1=y(low), x2=x(number, at), y2=y(high)))
            parts.append(h("circle", cls="dot", cx=x(number, at), cy=y(mean), r="3.5"))
        drawn.append(h("g", parts, cls=f"l{at}"))
    middle = (len(lines) - 1) / 2
    ticks = [
        h("text", str(number), cls="tick", x=x(number, middle), y=floor + 16, text_anchor="middle")
        for number in clients
    ]
    picture = h(
        "svg", h("title", title), h("desc", _summary(lines, told)), drawn,
        h("line", cls="axis", x1="0", x2="100%", y1=floor, y2=floor), ticks,
        h("text", told(top), cls="tick", x="0", y=ABOVE - 6), h("text", "clients", cls="tick", x="50%", y=floor + 34, text_anchor="middle"),
        cls="chart", role="img", width="100%", height=floor + BELOW,
    )  # fmt: skip
    return Plot(name, title, picture, [(f"l{at} dot", line.name) for at, line in enumerate(lines)], floor + BELOW)


def _summary(lines: Sequence[Line], told: Callable[[float], str]) -> str:
    words = []
    for line in lines:
        first, last = line.points[0], line.points[-1]
        words.append(f"{line.name}: {told(first[1])} at {first[0]} clients, {told(last[1])} at {last[0]}")
    return "; ".join(words)


def _limits(cells: Sequence[Mapping[str, Any]]) -> Plot:
    rows, used = [], {}
    for at, cell in enumerate(cells):
        top = at * _ROW
        limit = LABELS.get(cell["limit"]["part"], LABELS["unknown"])
        name = f"{cell['clients']} client{'s' if cell['clients'] > 1 else ''}, {cell['mode']}, TLS {cell['tls']}, {cell['way']}: {limit}"
        rows.append(h("text", name, cls="tick", x="0", y=top + 13))
        left = 0.0
        for part, share in cell["shares"].items():
            if share >= _LEAST_SHARE and math.isfinite(share):
                used[part] = LABELS.get(part, part)
                rows.append(h("rect", cls=f"p-{part}", x=f"{100 * left:.2f}%", y=top + 18,
                              width=f"{100 * share:.2f}%", height=_BAR))  # fmt: skip
                left += share
    title = "Who was the limit: where the clients' time went"
    height = len(cells) * _ROW
    said = "; ".join(f"{cell['key']}: {LABELS.get(cell['limit']['part'], '?')}" for cell in cells)
    picture = h("svg", h("title", title), h("desc", said), rows, cls="chart", role="img", width="100%", height=height)
    order = [part for part in LABELS if part in used]
    return Plot("limits", title, picture, [(f"p-{part}", used[part]) for part in order], height)


def standalone(plot: Plot, width: int = 760) -> bytes:
    """The plot as a file of its own, with its legend."""
    rows, left, line = [], 0.0, 0
    for cls, label in plot.legend:
        wide = 24 + _LETTERS * len(label)
        if left and left + wide > width:
            left, line = 0.0, line + 1
        y = 34 + 18 * line
        rows.append(h("rect", cls=cls, x=left, y=y - 10, width=12, height=12))
        rows.append(h("text", label, x=left + 16, y=y))
        left += wide
    begin = 46 + 18 * line
    inner = h("svg", h("g", plot.picture), x=10, y=begin, width=width - 20, height=plot.height)
    head = h("text", plot.title, x="0", y="14", font_weight="bold")
    whole = h(
        "svg", h("style", Markup(STYLE + _ALONE)), h("rect", cls="ground", x=0, y=0, width="100%", height="100%"),
        h("svg", head, rows, x=10, y=4, width=width - 20, height=begin), inner,
        xmlns="http://www.w3.org/2000/svg", width=width, height=begin + plot.height + 10,
    )  # fmt: skip
    return f"{whole}\n".encode()
