"""Two results beside each other: is what changed a difference, or noise?

Cells with the same settings are compared by Welch's test over their repeats; the probabilities are corrected for the number of
cells (Holm), because of twenty cells one is "significant" by chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agent.commands.bench.statistics import difference, holm
from exporters.bench.words import LABELS

#: What became of a cell, in a word: the code, and how it is told.
TOLD: Final = {"faster": "faster", "slower": "slower", "noise": "noise", "unknown": "cannot tell: measured once"}
#: Below this a difference is not noise.
SIGNIFICANT: Final = 0.05


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What changed between two results, cell by cell, and what makes them unlike each other."""
    sides = [{cell["key"]: cell for cell in result["cells"]} for result in (before, after)]
    keys = [key for key in sides[0] if key in sides[1]]
    rows = []
    for key in keys:
        one, two = sides[0][key], sides[1][key]
        rate = difference([run["tps"] for run in one["runs"]], [run["tps"] for run in two["runs"]])
        time = difference([run["cycle_seconds"] for run in one["runs"]], [run["cycle_seconds"] for run in two["runs"]])
        base = one["tps"]["mean"]
        rows.append({
            "key": key, "before": base, "after": two["tps"]["mean"], "ratio": rate.mean / base if base else None,
            "low": None if rate.low is None or not base else rate.low / base,
            "high": None if rate.high is None or not base else rate.high / base,
            "p": rate.p, "seconds": time.mean, "limits": [one["limit"]["part"], two["limit"]["part"]],
        })  # fmt: skip
    tested = [row for row in rows if row["p"] is not None]
    for row, p in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["p_corrected"] = p
    for row in rows:
        row["change"] = _change(row)
    only = [sorted(set(sides[0]) - set(sides[1])), sorted(set(sides[1]) - set(sides[0]))]
    return {"cells": rows, "only_before": only[0], "only_after": only[1], "unlike": _unlike(before, after)}


def _change(row: Mapping[str, Any]) -> str:
    p = row.get("p_corrected")
    if p is None:
        return "unknown"
    if p >= SIGNIFICANT:
        return "noise"
    return "faster" if row["ratio"] > 0 else "slower"


def _unlike(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What else differs: a comparison is of one change alone."""
    found = []
    for section in ("machine", "versions", "server", "settings"):
        one, two = before.get(section) or {}, after.get(section) or {}
        names = [name for name in sorted({*one, *two} - {"seed", "repeats"}) if one.get(name) != two.get(name)]
        found += [f"{section}.{name}: {one.get(name)!r:.80} before, {two.get(name)!r:.80} after" for name in names]
    return found


def as_text(found: Mapping[str, Any]) -> str:
    """For a terminal, ending in a newline."""
    lines = []
    if found["cells"]:
        wide = max(len(row["key"]) for row in found["cells"])
        lines.append(f"{'cell':<{wide}}  {'before':>9}  {'after':>9}  change (95 % interval)       p (Holm)  verdict")
        for row in found["cells"]:
            ratio = f"{row['ratio']:+.1%}" if row["ratio"] is not None else "-"
            spread = f" ({row['low']:+.1%} to {row['high']:+.1%})" if row["low"] is not None else ""
            p = f"{row['p_corrected']:.3f}" if "p_corrected" in row else "-"
            limits = row["limits"]
            moved = (
                f"; limit: {LABELS.get(limits[0], '?')} -> {LABELS.get(limits[1], '?')}"
                if limits[0] != limits[1]
                else ""
            )
            lines.append(
                f"{row['key']:<{wide}}  {row['before']:>9.1f}  {row['after']:>9.1f}  {ratio + spread:<27}  {p:>8}  {TOLD[row['change']]}{moved}"
            )
    real = [row for row in found["cells"] if row["change"] in ("faster", "slower")]
    if not found["cells"]:
        lines.append("no cell is in both results")
    elif not real:
        lines.append("no difference beyond the noise in any cell")
    else:
        lines.append(f"{len(real)} of {len(found['cells'])} cells differ beyond the noise")
    lines += [f"only before: {key}" for key in found["only_before"]] + [
        f"only after: {key}" for key in found["only_after"]
    ]
    lines += [f"unlike: {each}" for each in found["unlike"]]
    return "\n".join(lines) + "\n"
