"""How sure a finding is: how often it was right in the lab when it was said.

The lab makes real stalls and look-alikes and scores every answer (docs/evidence/how-well-it-works.md, "By scenario").  Of the runs in
which a finding was said, ``right`` of ``said`` were so; the confidence is (right + 1) / (said + 2), Laplace's rule of
succession, so that two runs prove less than fifty.  Where kernels differ (this one, gVisor, a guest without a steal clock)
each has a number of its own.  What no run has met says "not measured", and why its number is no higher.
"""

from __future__ import annotations

from typing import Literal

from agent.history import History
from agent.views import place
from probes.record import dataclass

Where = Literal["plain", "gvisor", "guest"]


@dataclass(frozen=True, slots=True)
class Confidence:
    """How sure, 0 to 1; ``when``: in which case of the rule, "" where it has one only."""

    value: float
    source: str
    when: str = ""
    where: Where | None = None
    right: int | None = None
    said: int | None = None
    cells: tuple[str, ...] = ()
    """Patterns of the scenarios that were counted, with "!" of those that were not; none: all of them."""
    mended: int = 0
    """Wrong ones that are not counted, because what made them wrong is mended, as the page says."""

    def __str__(self) -> str:
        return f"{self.value:g}" + (f" {self.when}" if self.when else "") + f" ({self.source})"


def measured(
    right: int, said: int, *, when: str = "", where: Where | None = None, cells: tuple[str, ...] = (), mended: int = 0,
    note: str = "", at_most: Confidence | None = None,
) -> Confidence:  # fmt: skip
    """From so many runs of the lab; no surer than ``at_most``, which knows more."""
    places = {
        None: "",
        "plain": " on a plain kernel",
        "gvisor": " in gVisor",
        "guest": " in a guest without a steal clock",
    }
    names = ", ".join(cell.strip("!* ") for cell in cells)
    rows = (
        f"all rows but {names}"
        if any(cell.startswith("!") for cell in cells)
        else f"rows {names}"
        if cells
        else "all rows"
    )
    source = f"right in {right} of {said} lab runs that said it{places[where]}: docs/evidence/how-well-it-works.md, by scenario, {rows}"
    source += f"; {note}" if note else ""
    value = round((right + 1) / (said + 2), 2)
    if at_most is not None and value > at_most.value:
        value, source = at_most.value, f"{source}; no surer than {at_most.when}"
    return Confidence(value, source, when, where, right, said, cells, mended)


def not_measured(value: float, why: str, when: str = "") -> Confidence:
    """Of what the lab has no run."""
    return Confidence(value, f"not measured: {why}", when)


def by_kernel(history: History, *choices: Confidence) -> Confidence:
    """The one of the kernel that this runs on; the first where none is of it."""
    here = kernel(history)
    return next((each for each in choices if each.where == here), choices[0])


def kernel(history: History) -> Where:
    """Which of those that the lab has: a guest is one without a steal clock."""
    platform = place.where(history)
    if platform is None:
        return "plain"
    if platform.sandbox == "gvisor":
        return "gvisor"
    return "guest" if platform.virtualised and not platform.counters["steal"].counts else "plain"
