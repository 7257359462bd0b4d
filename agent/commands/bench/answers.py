"""What a bench tells somebody who has to decide: costs with their intervals, the knee, a pool's size, and what would help.

Pure: cells of a result in, sentences with their numbers out.  A difference is told as one only where its interval does not hold 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from agent.commands.bench.statistics import Knee, knee, student_quantile, student_tail
from exporters.bench.words import HOLDS, LABELS, REMEDIES, in_all, milliseconds

Cell = Mapping[str, Any]


def answers(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """All that these cells answer."""
    return [*_lines(cells), *_costs(cells, "tls", "off", "on", "TLS"),
            *_costs(cells, "mode", "pooled", "per-transaction", "A connection per transaction"),
            *_costs(cells, "way", "direct", "proxy", "The way through the proxy"),
            *_larger(cells)]  # fmt: skip


def lines(cells: Sequence[Cell]) -> dict[tuple[str, str, str], list[Cell]]:
    """The cells by (way, TLS, mode): each is a line over the number of clients."""
    found: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell["way"], cell["tls"], cell["mode"]), []).append(cell)
    return {line: sorted(each, key=lambda cell: cell["clients"]) for line, each in found.items()}


def told_line(line: tuple[str, str, str], cells: Sequence[Cell]) -> str:
    """Its name, without what is the same in all."""
    way, tls, mode = line
    words = ["pooled" if mode == "pooled" else "a connection per transaction"]
    if len({cell["tls"] for cell in cells}) > 1:
        words.append("with TLS" if tls == "on" else "without TLS")
    if len({cell["way"] for cell in cells}) > 1:
        words.append("direct" if way == "direct" else "through the proxy")
    return ", ".join(words)


def _lines(cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    for line, found in lines(cells).items():
        where = knee({cell["clients"]: [run["tps"] for run in cell["runs"]] for cell in found})
        if where is None:
            continue
        name = told_line(line, cells)
        best = next(cell for cell in found if cell["clients"] == where.best)
        at_knee = next(cell for cell in found if cell["clients"] == where.clients)
        holds = _hold(at_knee)
        text = f"{name[0].upper()}{name[1:]}: {_knee_words(where)}. Best: {where.best} clients, {best['tps']['mean']:.0f} tps{holds}"
        yield {"what": "knee", "line": list(line), "clients": where.clients, "low": where.low, "high": where.high,
               "best": where.best, "beyond": where.beyond, "tps": best["tps"]["mean"], "text": text}  # fmt: skip
        if line[2] == "pooled":
            yield {
                "what": "pool size",
                "line": list(line),
                "size": where.clients,
                "text": _pool_words(name, where, at_knee),
            }


def _knee_words(where: Knee) -> str:
    if where.beyond:
        return f"throughput still grew at {where.clients} clients, the most that were tried"
    spread = f" (between {where.low} and {where.high})" if where.low != where.high else ""
    return f"from {where.clients} clients on{spread} more of them bring less than 5 %"


def _pool_words(name: str, where: Knee, cell: Cell) -> str:
    what = "at least " if where.beyond else ""
    why = LABELS[cell["limit"]["part"]]
    return f"A pool of {what}{where.clients} connections for one client process with this CPU ({name}): {why} stands in the way beyond it"


def _hold(cell: Cell) -> str:
    part, share = cell["limit"]["part"], cell["limit"]["share"]
    if part in ("none", "unknown"):
        return f"; at {cell['clients']} clients: {LABELS[part]}"
    return f"; at {cell['clients']} clients {HOLDS[part]} {share:.0%} of the time{in_all(cell['limit'])}"


def _costs(cells: Sequence[Cell], axis: str, cheap: str, dear: str, name: str) -> Iterator[dict[str, Any]]:
    """What one choice costs beside the other, cell by cell, at the fewest clients and where the cheap one is fastest."""
    sides = {side: {_without(cell, axis): cell for cell in cells if cell[axis] == side} for side in (cheap, dear)}
    groups: dict[tuple[str, ...], list[tuple[Cell, Cell]]] = {}
    for key, before in sides[cheap].items():
        if after := sides[dear].get(key):
            groups.setdefault(tuple(key[:-1]), []).append((before, after))
    for pairs in groups.values():
        fastest = max(pairs, key=lambda pair: pair[0]["tps"]["mean"])
        fewest = min(pairs, key=lambda pair: pair[0]["clients"])
        for before, after in dict.fromkeys(
            ((fewest[0]["key"], fewest[1]["key"]), (fastest[0]["key"], fastest[1]["key"]))
        ):
            pair = next(pair for pair in pairs if pair[0]["key"] == before and pair[1]["key"] == after)
            yield _cost(*pair, name=name, cells=cells, others=_others(pair[0], axis, cells))


def _cost(before: Cell, after: Cell, *, name: str, cells: Sequence[Cell], others: str) -> dict[str, Any]:
    """Of the time of a transaction, by its logarithm: a cell twice as slow scatters twice as much.

    The scatter is that of all cells around their own means: with two or three repeats one pair of cells knows next to nothing of it.
    """
    logs = [[math.log(run["cycle_seconds"]) for run in cell["runs"]] for cell in (before, after)]
    mean, base = fmean(logs[1]) - fmean(logs[0]), math.exp(fmean(logs[0]))
    error = _scatter(cells)
    low = high = p = None
    if error is not None:
        sd, freedom = error
        standard = sd * math.sqrt(sum(1 / len(each) for each in logs))
        half = student_quantile(freedom) * standard
        low, high = math.expm1(mean - half), math.expm1(mean + half)
        p = student_tail(mean / standard, freedom) if standard else float(mean == 0)
    ratio, clients = math.expm1(mean), before["clients"]
    times = (
        " (one repeat: no interval)"
        if low is None or high is None
        else f" ({milliseconds(base * low)} to {milliseconds(base * high)})"
    )
    shares = "" if low is None or high is None else f" ({low:+.0%} to {high:+.0%})"
    said = f"{name} costs {milliseconds(base * ratio)} a transaction{times}, {ratio:+.0%}{shares}, and {1 / (1 + ratio) - 1:+.0%} of throughput"
    if low is not None and high is not None and low <= 0 <= high:
        said = f"{name}: no difference beyond the noise ({milliseconds(base * ratio)} a transaction{times}, {ratio:+.0%}{shares})"
    return {"what": f"cost of {name.lower()}", "clients": clients, "seconds": base * ratio, "ratio": ratio, "ratio_low": low, "ratio_high": high,
            "low": None if low is None else base * low, "high": None if high is None else base * high, "p": p,
            "text": f"{said}, at {clients} client{'s' if clients > 1 else ''}{others}"}  # fmt: skip


def _scatter(cells: Sequence[Cell]) -> tuple[float, int] | None:
    """Standard deviation of the logarithm of a run's time around its cell's mean, and its degrees of freedom."""
    squares, freedom = 0.0, 0
    for cell in cells:
        logs = [math.log(run["cycle_seconds"]) for run in cell["runs"]]
        middle = fmean(logs)
        squares += sum((each - middle) ** 2 for each in logs)
        freedom += len(logs) - 1
    return (math.sqrt(squares / freedom), freedom) if freedom else None


def _without(cell: Cell, axis: str) -> tuple[Any, ...]:
    return (*(cell[name] for name in ("script", "way", "tls", "mode") if name != axis), cell["clients"])


def _others(cell: Cell, axis: str, cells: Sequence[Cell]) -> str:
    """Of the other choices those that differ in this bench."""
    words = []
    if axis != "mode" and len({each["mode"] for each in cells}) > 1:
        words.append("pooled" if cell["mode"] == "pooled" else "a connection per transaction")
    if axis != "tls" and len({each["tls"] for each in cells}) > 1:
        words.append("with TLS" if cell["tls"] == "on" else "without TLS")
    if axis != "way" and len({each["way"] for each in cells}) > 1:
        words.append(cell["way"])
    return f" ({', '.join(words)})" if words else ""


def _larger(cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """Would a larger database help?  Said of each line where it is fastest, once where all agree."""
    said: dict[str, list[str]] = {}
    for line, found in lines(cells).items():
        best = max(found, key=lambda cell: cell["tps"]["mean"])
        part, share = best["limit"]["part"], best["limit"]["share"]
        verdict, remedy = REMEDIES[part]
        why = (
            f"{HOLDS[part]} {share:.0%} of the time{in_all(best['limit'])}"
            if part not in ("none", "unknown")
            else _spread(best)
        )
        text = f"A larger database {verdict}: {why} at {best['clients']} clients. What would: {remedy}"
        said.setdefault(text, []).append(told_line(line, cells))
    for text, names in said.items():
        where = f" ({'; '.join(names)})" if len(said) > 1 else ""
        yield {"what": "larger database", "text": f"{text}{where}"}


def _spread(cell: Cell) -> str:
    shares: Counter[str] = Counter(cell["shares"])
    most = shares.most_common(3)
    return "the time goes to " + ", ".join(f"{LABELS[part]} {share:.0%}" for part, share in most)
