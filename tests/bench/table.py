"""Goals, figures and the one table."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that is wanted: at most `most`; None for a figure that is only told."""

    title: str
    unit: str
    most: float | None = None
    digits: int = 2


#: "Must show 6" of the issue. The keys are those of the results.
GOALS: dict[str, Goal] = {
    "cpu": Goal("CPU, agent + child, scraped every 15 s", "CPU-s/h", 8, 1),
    "cpu_parent": Goal("of it the agent", "CPU-s/h", digits=1),
    "cpu_child": Goal("of it the child", "CPU-s/h", digits=1),
    "switches": Goal("wake-ups (context switches)", "per s", digits=1),
    "pss": Goal("memory after 200 scrapes: PSS", "MB", 62, 1),
    "pss_child": Goal("of it the child", "MB", digits=1),
    "alone": Goal("the same, file pages counted in full", "MB", 62, 1),
    "rss": Goal("the same, RSS summed", "MB", digits=1),
    "row_metrics_p50": Goal("/metrics p50, scrapes in a row", "ms"),
    "row_health_p50": Goal("/health p50, scrapes in a row", "ms"),
    "metrics_p50": Goal("/metrics p50, scrapes 0.3 to 0.5 s apart", "ms", 0.5),
    "metrics_p99": Goal("/metrics p99", "ms", 1),
    "metrics_max": Goal("/metrics max", "ms"),
    "health_p50": Goal("/health p50, scrapes 0.3 to 0.5 s apart", "ms", 0.5),
    "health_p99": Goal("/health p99", "ms", 1),
    "health_max": Goal("/health max", "ms"),
    "quota_metrics_p50": Goal("/metrics p50 at a 5 % quota", "ms"),
    "quota_metrics_p99": Goal("/metrics p99 at a 5 % quota", "ms", 5),
    "quota_metrics_max": Goal("/metrics max at a 5 % quota", "ms"),
    "quota_health_p50": Goal("/health p50 at a 5 % quota", "ms"),
    "quota_health_p99": Goal("/health p99 at a 5 % quota", "ms", 5),
    "quota_health_max": Goal("/health max at a 5 % quota", "ms"),
    "quota_lost": Goal("work that a busy app in a 5 % group loses to the agent, paired", "%", 5, 1),
    "quota_used": Goal("the same by CPU: agent + child of the group's", "%", 5, 1),
    "database_cpu": Goal("with one database: CPU more, agent + child", "CPU-s/h", digits=1),
    "database_server_cpu": Goal("with one database: CPU of its server for it", "CPU-s/h", digits=1),
    "database_pss": Goal("with one database: memory more, PSS", "MB", digits=1),
    "ready": Goal("ready after exec (median)", "s", 0.5),
    "quota_ready": Goal("ready after exec at a 5 % quota (worst)", "s", 8),
}

Figures = dict[str, float]


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: a value that was really measured."""
    ranked = sorted(values)
    return ranked[max(0, min(len(ranked) - 1, round(share * len(ranked) + 0.5) - 1))]


def latencies(prefix: str, seconds: Sequence[float]) -> Figures:
    return {
        f"{prefix}_p50": median(seconds) * 1e3,
        f"{prefix}_p99": percentile(seconds, 0.99) * 1e3,
        f"{prefix}_max": max(seconds) * 1e3,
    }


def markdown(agent: Figures, peer: Figures, notes: Sequence[str]) -> str:
    """One row per figure of the agent; the peer beside it where it has the same."""
    rows = ["| figure | goal | measured | met | node_exporter | ratio |", "|---|---|---|---|---|---|"]
    for key, goal in GOALS.items():
        if key not in agent:
            continue
        value, other = agent[key], peer.get(key)
        met = "" if goal.most is None else "yes" if value <= goal.most else "**no**"
        rows.append(
            f"| {goal.title} | {'' if goal.most is None else f'<= {goal.most:g} {goal.unit}'} "
            f"| {value:.{goal.digits}f} {goal.unit} | {met} "
            f"| {'' if other is None else f'{other:.{goal.digits}f}'} "
            f"| {f'{value / other:.2f}' if other else ''} |"
        )
    return "\n".join([*rows, "", *(f"- {note}" for note in notes)])


def save(directory: Path, figures: dict[str, Figures], notes: Sequence[str], raw: dict[str, list[float]]) -> Path:
    """One file per run, named by its time; figures in the units of GOALS, `raw_seconds` as measured."""
    directory.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    path = directory / f"bench-{now:%Y%m%dT%H%M%SZ}.json"
    body = {
        "at": now.isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
        "goals": {key: asdict(goal) for key, goal in GOALS.items()},
        "figures": figures,
        "notes": list(notes),
        "raw_seconds": raw,
    }
    path.write_text(json.dumps(body, indent=1) + "\n")
    return path
