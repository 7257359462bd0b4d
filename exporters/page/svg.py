"""A chart over time as SVG: areas on top of each other, a scale, the clock, and marks.

Areas are stretched to whatever width there is (an inner viewport without an aspect ratio), texts and marks stand beside them at percentages, so
that they keep their size on a narrow screen.  Every colour is a class of style.css.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from exporters.page.markup import Markup, h
from probes.record import dataclass

#: Pixels: of the areas, above them for the numbers of the marks, below for the clock.
HEIGHT, ABOVE, BELOW = 96, 18, 18
#: Marks that are nearer than this to each other, of the width, share one.
NEAR = 0.04
#: Units from 0 to the top of the scale.
UNITS = 400

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Part:
    """One area.  ``colour`` is its class."""

    colour: str
    label: str
    values: Values


@dataclass(frozen=True, slots=True)
class Clock:
    """The steps that are shown and the clock below them: (place as 0 to 1, text)."""

    steps: int
    ticks: Sequence[tuple[float, str]]
    #: (place as 0 to 1, number) of what began then.
    marks: Sequence[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Chart:
    """Parts from below to above; ``top`` is the value at the upper edge, ``told`` writes a value."""

    name: str
    title: str
    parts: Sequence[Part]
    top: float
    told: Callable[[float], str]
    summary: str
    #: Whether a step without a value is one that nobody saw, and drawn as that.
    gaps: bool = True


def draw(chart: Chart, clock: Clock) -> Markup:
    """The picture; its words are in its title and description."""
    sums = _sums([part.values for part in chart.parts])
    areas = [
        h("path", cls=f"area {part.colour}", d=area(values, chart.top))
        for part, values in reversed(list(zip(chart.parts, sums, strict=True)))
    ]
    unseen = [1.0 if value is None and chart.gaps else None for value in sums[-1]]
    floor = ABOVE + HEIGHT
    lines = [
        _line("grid", "0", ABOVE, "100%", ABOVE),
        _line("grid", "0", ABOVE + HEIGHT / 2, "100%", ABOVE + HEIGHT / 2),
    ]
    marks = []
    for place, numbers in _apart(clock.marks):
        x = f"{100 * place:.1f}%"
        marks += [_line("mark", x, ABOVE - 3, x, floor), _text("number", x, ABOVE - 6, numbers, _anchor(place))]
    ticks = []
    for place, told in clock.ticks:
        x = f"{100 * place:.1f}%"
        ticks += [_line("grid", x, floor, x, floor + 4), _text("tick", x, floor + BELOW - 3, told, _anchor(place))]
    inner = h(
        "svg", h("path", cls="unseen", d=area(unseen, 1.0)), areas,
        viewBox=f"0 0 {clock.steps} {UNITS}", preserveAspectRatio="none", x="0", y=ABOVE, width="100%", height=HEIGHT,
    )  # fmt: skip
    return h(
        "svg", h("title", chart.title, id=f"{chart.name}-title"), h("desc", chart.summary, id=f"{chart.name}-desc"),
        inner, lines, _line("axis", "0", floor, "100%", floor), marks, ticks,
        _text("tick", "0", ABOVE - 5, chart.told(chart.top), "start"),
        cls="chart", role="img", width="100%", height=floor + BELOW,
        aria_labelledby=f"{chart.name}-title {chart.name}-desc",
    )  # fmt: skip


def area(values: Values, top: float) -> str:
    """The path of a step curve's area, one unit wide per value; a hole where a value is ``None``."""
    words: list[str] = []
    height, begun = None, 0
    for at, value in enumerate((*values, None)):
        new = None if value is None else UNITS - round(UNITS / top * (0.0 if value < 0 else min(top, value)))
        if new == height:
            continue
        if height is None:
            words.append(f"M{at} {UNITS}V{new}")
        else:
            words.append(f"h{at - begun}" + (f"V{UNITS}Z" if new is None else f"V{new}"))
        height, begun = new, at
    return "".join(words)


def nice(most: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is not below; 1 of nothing."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= most * (1 - 1e-9))


def _sums(rows: Sequence[Values]) -> list[list[float | None]]:
    """What stands below the upper edge of each part; nothing where no part is known."""
    found: list[list[float | None]] = []
    below: list[float | None] = [None] * len(rows[0])
    for row in rows:
        below = [b if v is None else v + (b or 0.0) for b, v in zip(below, row, strict=True)]
        found.append(below)
    known = [any(row[n] is not None for row in rows) for n in range(len(rows[0]))]
    return [[(v or 0.0) if here else None for v, here in zip(row, known, strict=True)] for row in found]


def _apart(marks: Sequence[tuple[float, int]]) -> list[tuple[float, str]]:
    """The marks, those that would stand on each other as one with all of their numbers."""
    found: list[tuple[float, str]] = []
    for place, number in sorted(marks):
        if found and place - found[-1][0] < NEAR:
            found[-1] = (found[-1][0], f"{found[-1][1]}, {number}")
        else:
            found.append((place, str(number)))
    return found


def _line(cls: str, x1: str, y1: float, x2: str, y2: float) -> Markup:
    return h("line", cls=cls, x1=x1, y1=f"{y1:g}", x2=x2, y2=f"{y2:g}")


def _text(cls: str, x: str, y: float, text: str, anchor: str) -> Markup:
    return h("text", text, cls=cls, x=x, y=f"{y:g}", text_anchor=anchor)


def _anchor(place: float) -> str:
    return "start" if place < 0.04 else "end" if place > 0.96 else "middle"
