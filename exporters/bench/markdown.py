"""A bench as Markdown: answers first, then the table, then what it was measured on.

It takes the result's plain dicts, as the JSON has them.  What comes from outside (names of files, the server's version) stands in
back quotes without any of its own, or is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from exporters.bench.words import LABELS, in_all, milliseconds
from exporters.page.markup import visible

#: Shares below this are left out of a line.
LEAST_SHARE = 0.03
_MOST_TEXT = 200
#: Letters of the longest bar.
_BAR = 30


def render(result: Mapping[str, Any]) -> str:
    """The whole, ending in a newline."""
    parts = [
        _head(result),
        _answers(result),
        _bars(result),
        _table(result),
        _where(result),
        _ways(result),
        _foot(result),
    ]
    return "\n".join(line for part in parts for line in part) + "\n"


def limit_words(cell: Mapping[str, Any]) -> str:
    """What limits a cell, with its share."""
    limit = cell["limit"]
    label = LABELS.get(limit["part"], LABELS["unknown"])
    if limit["part"] == "none":
        return label
    spread = f" ({limit['low']:.0%} to {limit['high']:.0%})" if _spreads(limit) else ""
    return f"{label} {limit['share']:.0%}{spread}{in_all(limit)}"


def _spreads(limit: Mapping[str, Any]) -> bool:
    low, high = limit.get("low"), limit.get("high")
    return low is not None and high is not None and low >= 0 and high <= 1 and high - low >= 0.01


def _head(result: Mapping[str, Any]) -> Iterator[str]:
    settings = result["settings"]
    yield "# How fast this database is from here, and what stands in the way"
    yield ""
    state = "" if result["complete"] else " **Not complete:** only what is here was measured."
    yield (
        f"Script {_code(settings['script']['name'])}, scale {settings['scale']}, {settings['repeats']} x {settings['seconds']} s for each cell in random order "
        f"(seed {settings['seed']}), {settings['warm_up_seconds']} s of warm-up before each.{state}"
    )
    yield ""


def _answers(result: Mapping[str, Any]) -> Iterator[str]:
    if result["answers"]:
        yield "## Answers"
        yield ""
        yield from (f"- {_text(each['text'])}" for each in result["answers"])
        yield ""


def _bars(result: Mapping[str, Any]) -> Iterator[str]:
    """Throughput, where nothing can draw: a bar for each cell, and its limit."""
    cells = result["cells"]
    if not cells:
        return
    most = max(cell["tps"]["mean"] for cell in cells) or 1.0
    names = [f"{cell['way']}, TLS {cell['tls']}, {cell['mode']}" for cell in cells]
    wide = max(map(len, names))
    yield "## Transactions per second"
    yield ""
    yield "```text"
    for name, cell in zip(names, cells, strict=True):
        mean = cell["tps"]["mean"]
        bar = "█" * max(1, round(_BAR * mean / most))
        yield f"{visible(name):<{wide}} {cell['clients']:>4} {bar:<{_BAR}} {mean:>8,.0f}  {LABELS.get(cell['limit']['part'], '?')}".rstrip()
    yield "```"
    yield ""


def _table(result: Mapping[str, Any]) -> Iterator[str]:
    yield "## Cells"
    yield ""
    yield "| way | TLS | connections | clients | tps | sd | latency, ms | p50 | p95 | p99 | set-up, ms | limit |"
    yield "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|"
    for cell in result["cells"]:
        rate = cell["tps"]
        spread = f" ± {(rate['high'] - rate['low']) / 2:.0f}" if rate["sd"] is not None else ""
        sd = f"{rate['sd']:.0f}" if rate["sd"] is not None else "-"
        times = [
            _ms(cell[name])
            for name in ("latency_seconds", "p50_seconds", "p95_seconds", "p99_seconds", "connection_seconds")
        ]
        yield (
            f"| {_text(cell['way'])} | {_text(cell['tls'])} | {_text(cell['mode'])} | {cell['clients']} | {rate['mean']:.0f}{spread} | {sd} | "
            f"{' | '.join(times)} | {limit_words(cell)} |"
        )
    yield ""
    yield "tps: mean ± half of its 95 % interval. Latency: of the transaction, without setting up its connection."
    yield ""


def _ms(series: Mapping[str, Any] | None) -> str:
    if series is None:
        return "-"
    value = 1e3 * series["mean"]
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _where(result: Mapping[str, Any]) -> Iterator[str]:
    yield "## Where the clients' time went"
    yield ""
    yield "| cell | shares, 100 % in all |"
    yield "|---|---|"
    for cell in result["cells"]:
        shares = sorted(cell["shares"].items(), key=lambda each: -each[1])
        told = [f"{LABELS.get(part, part)} {share:.0%}" for part, share in shares if share >= LEAST_SHARE]
        rest = 1 - sum(share for _, share in shares if share >= LEAST_SHARE)
        more = [f"others {rest:.0%}"] if rest >= 0.005 else []
        yield f"| {_text(cell['key'])} | {', '.join(told + more)} |"
    yield ""


def _ways(result: Mapping[str, Any]) -> Iterator[str]:
    yield "## The way, while nothing ran"
    yield ""
    for way in result["ways"]:
        phases = ", ".join(
            f"{name} {milliseconds(seconds)}" for name, seconds in way["phases"].items() if seconds >= 5e-6
        )
        opening = f"; opening a connection {milliseconds(sum(way['phases'].values()))} ({phases})" if phases else ""
        yield f"- {_text(way['way'])}, TLS {_text(way['tls'])}: a round trip {milliseconds(way['round_trip_seconds'])}{opening}"
    yield ""


def _foot(result: Mapping[str, Any]) -> Iterator[str]:
    yield "## What it was measured on"
    yield ""
    versions, machine = result["versions"], result["machine"]
    limit = machine.get("cpu_limit_cores")
    yield f"- client: {machine.get('usable_cpus')} CPUs{f', limited to {limit:g} cores' if limit else ', no limit seen'}, kernel {_code(versions['kernel'])}"
    yield f"- {_code(versions['server'])}, pgbench {_code(versions['pgbench'])}, stallscope {_code(versions['stallscope'])}"
    yield f"- server: {', '.join(f'{_text(name)} {_code(value)}' for name, value in result['server'].items())}"
    yield f"- {_text(result['generated'])}, worked in: {_text(result['place'])}"
    yield from (f"- {_text(remark)}" for remark in result["remarks"])


def _text(value: Any) -> str:
    """In a line or a cell of a table, without being taken for markup."""
    text = visible(str(value)).replace("\n", " ")[: _MOST_TEXT * 5]
    return "".join(f"\\{c}" if c in "|<>`\\" else c for c in text)


def _code(value: Any) -> str:
    text = visible(str(value)).replace("`", "'").replace("\n", " ").replace("|", "/")[:_MOST_TEXT]
    return f"`{text}`" if text else "-"
