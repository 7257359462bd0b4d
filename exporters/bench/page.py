"""A bench as one HTML file: answers, plots, every number as a table; it asks nobody for anything.

Style and escaping are those of the agent's own page.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from exporters.bench.markdown import limit_words
from exporters.bench.plots import STYLE, Plot, plots
from exporters.bench.words import LABELS, milliseconds
from exporters.page.markup import Markup, cut, h
from exporters.page.render import asset

_TIMES = ("latency_seconds", "p50_seconds", "p95_seconds", "p99_seconds", "connection_seconds")
_TITLE = "How fast this database is from here, and what stands in the way"
_OWN = "ul.answers{padding-left:1.2rem}ul.answers li{margin:.35rem 0}"


def page(result: Mapping[str, Any]) -> bytes:
    """The whole document."""
    style = asset("style.css") + STYLE + _OWN
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    head = h(
        "head", h("meta", charset="utf-8"), h("meta", http_equiv="Content-Security-Policy", content=policy), h("title", f"{_TITLE} (stallscope)"),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"), h("meta", name="color-scheme", content="light dark"),
        h("meta", name="referrer", content="no-referrer"), h("link", rel="icon", href="data:,"), h("style", Markup(style)),
    )  # fmt: skip
    body = h(
        "main",
        _opening(result),
        [_figure(plot) for plot in plots(result)],
        _cells(result),
        _shares(result),
        _foot(result),
    )
    return f"<!DOCTYPE html>\n{h('html', head, h('body', body), lang='en')}\n".encode()


def _opening(result: Mapping[str, Any]) -> Markup:
    settings = result["settings"]
    said = (
        f"Script {cut(settings['script']['name'], 80)}, scale {settings['scale']}, {settings['repeats']} x {settings['seconds']} s for each cell in "
        f"random order, {settings['warm_up_seconds']} s of warm-up before each."
    )
    return h(
        "section", h("header", h("p", "stallscope", cls="brand"), h("p", f"as of {result['generated']}", cls="when")), h("h1", _TITLE), h("p", said),
        None if result["complete"] else h("p", h("b", "Not complete: "), "only what is here was measured."),
        h("h2", "Answers"), h("ul", [h("li", each["text"]) for each in result["answers"]], cls="answers"),
    )  # fmt: skip


def _figure(plot: Plot) -> Markup:
    rows = []
    for cls, label in plot.legend:
        swatch = h("svg", h("rect", width=12, height=12, cls=cls), width=12, height=12, aria_hidden="true")
        rows.append(h("li", swatch, f" {label}"))
    return h("figure", h("figcaption", h("h3", plot.title), h("ul", rows, cls="legend")), plot.picture)


def _cells(result: Mapping[str, Any]) -> Markup:
    rows = []
    for cell in result["cells"]:
        rate = cell["tps"]
        half = f" ± {(rate['high'] - rate['low']) / 2:,.0f}" if rate["sd"] is not None else ""
        numbers = [milliseconds(cell[name]["mean"]) if cell[name] else "-" for name in _TIMES]
        rows.append(h(
            "tr", h("th", f"{cell['way']}, TLS {cell['tls']}, {cell['mode']}", scope="row"), h("td", cell["clients"]), h("td", f"{rate['mean']:,.0f}{half}"),
            [h("td", number) for number in numbers], h("td", limit_words(cell)),
        ))  # fmt: skip
    names = ("cell", "clients", "tps", "latency", "p50", "p95", "p99", "set-up", "limit")
    head = h("tr", [h("th", name, scope="col") for name in names])
    caption = h("caption", "Every cell: tps with half of its 95 % interval; latency without setting up the connection")
    table = h("table", caption, h("thead", head), h("tbody", rows))
    return h("section", h("h2", "Cells"), h("div", table, tabindex="0", cls="wide"))


def _shares(result: Mapping[str, Any]) -> Markup:
    parts = [part for part in LABELS if any(cell["shares"].get(part, 0.0) >= 0.005 for cell in result["cells"])]
    head = h("tr", h("th", "cell", scope="col"), [h("th", LABELS[part], scope="col") for part in parts])
    rows = [
        h("tr", h("th", cell["key"], scope="row"), [h("td", f"{cell['shares'].get(part, 0.0):.0%}") for part in parts])
        for cell in result["cells"]
    ]
    caption = h("caption", "Where the clients' time went; each row adds up to 100 %")
    table = h("table", caption, h("thead", head), h("tbody", rows))
    return h("details", h("summary", "The shares as a table"), h("div", table, tabindex="0", cls="wide"))


def _facts(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    machine, versions = result["machine"], result["versions"]
    limit = machine.get("cpu_limit_cores")
    yield (
        "client",
        f"{machine.get('usable_cpus')} CPUs, {f'limited to {limit:g} cores' if limit else 'no limit seen'}, kernel {versions['kernel']}",
    )
    yield "server", str(versions["server"])
    yield "programs", f"pgbench {versions['pgbench']}, stallscope {versions['stallscope']}"
    yield "server settings", ", ".join(f"{name} {value}" for name, value in result["server"].items())
    for way in result["ways"]:
        opening = f", opening a connection {milliseconds(sum(way['phases'].values()))}" if way["phases"] else ""
        yield (
            f"{way['way']}, TLS {way['tls']}",
            f"a round trip {milliseconds(way['round_trip_seconds'])}{opening}, while nothing ran",
        )
    yield "order", f"random, seed {result['settings']['seed']}"
    yield "worked in", result["place"]


def _foot(result: Mapping[str, Any]) -> Markup:
    facts = [(h("dt", name), h("dd", value)) for name, value in _facts(result)]
    remarks = [h("p", remark, cls="hint") for remark in result["remarks"]]
    return h("section", h("h2", "What it was measured on"), h("dl", facts), remarks)
