"""A curve as SVG: a figure over the number of something, one line for each series.  For a page on GitHub: no style sheet, no script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from exporters.page.markup import Markup, h
from exporters.page.svg import nice

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 40, 44
#: They keep apart in black and white too: each line has its own dashes.
_COLOURS = (("#0b5cad", ""), ("#b5462a", "6 3"), ("#4d4d4d", "2 3"), ("#2c7d3f", "8 3 2 3"))
#: Words below the axis that would stand nearer than this to those before are left out.
_APART = 34
_BACKGROUND, _GRID, _WORDS = "#ffffff", "#d8d8d8", "#222222"


class Line(NamedTuple):
    """A series: (number, figure) pairs."""

    name: str
    points: Sequence[tuple[float, float]]


def curve(title: str, across: str, unit: str, lines: Sequence[Line]) -> Markup:
    """The picture.  Both axes are linear and begin at 0: what is flat looks flat, and what grows looks as steep as it is."""
    lines = [line for line in lines if line.points]
    if not lines:
        raise ValueError(f"{title}: nothing to draw")
    right = max(x for line in lines for x, _ in line.points) or 1.0
    top = nice(max(y for line in lines for _, y in line.points))
    parts: list[Markup] = [h("rect", width=WIDTH, height=HEIGHT, fill=_BACKGROUND)]
    for step in range(5):
        value = top * step / 4
        y = _y(value, top)
        parts += [_rule(LEFT, y, WIDTH - RIGHT, y), _word(f"{value:g}", LEFT - 6, y + 4, "end")]
    last = -float(_APART)
    for number in sorted({x for line in lines for x, _ in line.points}):
        if (x := _x(number, right)) - last >= _APART:
            parts.append(_word(f"{number:,.0f}", x, HEIGHT - BOTTOM + 18, "middle"))
            last = x
    parts.append(_word(across, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "middle"))
    parts.append(_word(f"{title}, {unit}", LEFT, 16, "start"))
    place = float(LEFT)
    for line, (colour, dashes) in zip(lines, _COLOURS, strict=False):
        points = [(_x(x, right), _y(y, top)) for x, y in sorted(line.points)]
        words = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(
            h("polyline", points=words, fill="none", stroke=colour, stroke_width=2, stroke_dasharray=dashes or None)
        )
        parts += [h("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=3, fill=colour) for x, y in points]
        parts.append(h("line", x1=f"{place:g}", y1=30, x2=f"{place + 22:g}", y2=30, stroke=colour, stroke_width=2,
                       stroke_dasharray=dashes or None))  # fmt: skip
        parts.append(_word(line.name, place + 27, 34, "start"))
        place += 40 + 7 * len(line.name)
    return h(
        "svg", h("title", f"{title} over {across}"), parts, xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {HEIGHT}", width=WIDTH, height=HEIGHT, font_family="sans-serif", font_size=12, role="img",
    )  # fmt: skip


def _x(number: float, right: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * number / right


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top


def _rule(x1: float, y1: float, x2: float, y2: float) -> Markup:
    return h("line", x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}", y2=f"{y2:.1f}", stroke=_GRID)


def _word(text: str, x: float, y: float, anchor: str) -> Markup:
    return h("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, fill=_WORDS)
