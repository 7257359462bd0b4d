"""Series of a fleet as Prometheus would have scraped them, made without agents: blocks for a real Prometheus.

Only the families that `stallscope fleet` and the recording rules read; their names and labels are those of
exporters/prometheus.py, which the test that uses real pages holds.
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from agent.rules import RULES
from tests.lab import builds


@dataclass(frozen=True)
class Found:
    """A finding from `since` (unix seconds) on."""

    since: float
    severity: str = "critical"
    explained_by: str = ""
    share: float | None = None
    stalled: float | None = None


@dataclass(frozen=True)
class Life:
    """One instance: its labels, when it was scraped (unix seconds), what it found and what it cannot judge."""

    labels: Mapping[str, str]
    begin: float
    end: float
    found: Mapping[str, Found] = field(default_factory=dict)
    unknown: Collection[str] = ()


def samples(life: Life, times: Iterable[float]) -> Iterator[str]:
    """Its samples, a line each."""
    labels = ",".join(f'{name}="{value}"' for name, value in life.labels.items())
    at = sorted(time for time in times if life.begin <= time <= life.end)

    def series(name: str, own: str, value: float, since: float = 0.0, until: float = 1e12) -> Iterator[str]:
        head = f"{name}{{{labels}{',' if own else ''}{own}}} {value:g}"
        return (f"{head} {time:.0f}\n" for time in at if since <= time < until)

    yield from series("up", "", 1)
    yield from series("stallscope_build_info", 'version="0.1.0"', 1)
    for rule, found in life.found.items():
        kind = f'rule="{rule}",severity="{found.severity}",explained_by="{found.explained_by}"'
        yield from series("stallscope_finding", kind, 1, found.since)
        for name, value in (("share_ratio", found.share), ("stalled", found.stalled)):
            if value is not None:
                yield from series(f"stallscope_finding_{name}", f'rule="{rule}"', value, found.since)
    for rule in (each.id for each in RULES):
        since = life.found[rule].since if rule in life.found else 1e12
        now = "unknown" if rule in life.unknown else "absent"
        for verdict in ("present", "absent", "unknown"):
            own = f'rule="{rule}",verdict="{verdict}"'
            yield from series("stallscope_rule_verdict", own, verdict == now, until=since)
            yield from series("stallscope_rule_verdict", own, verdict == "present", since)


def blocks(lives: Iterable[Life], times: Collection[float], directory: Path) -> Path:
    """Blocks with all of their samples; returns their directory."""
    text, data = directory / "openmetrics", directory / "blocks"
    with text.open("w") as file:
        _write(lives, times, file)
    command = [builds.promtool(), "tsdb", "create-blocks-from", "openmetrics", "-q", str(text), str(data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    if done.returncode:
        raise RuntimeError(f"promtool: {(done.stderr or done.stdout)[-500:]}")
    text.unlink()
    return data


def _write(lives: Iterable[Life], times: Collection[float], file: IO[str]) -> None:
    for life in lives:
        file.writelines(samples(life, times))
    file.write("# EOF\n")


def forty(now: float, instances: int = 40) -> list[Life]:
    """A roll-out: revision 12 began ten minutes after revision 11 had ended, and its limit holds most of it since 18 minutes.

    Of 40 instances of revision 12 37 are held, one has the limit and does not meet it, one is free of it and one cannot tell; one more
    does not answer since five minutes and more, and revision 11 had five, all free of it.
    """
    lives = []
    unknown = {rule.id for rule in RULES if rule.id.startswith(("redis", "postgres", "database"))}
    for number in range(instances):
        labels = {"job": "shop", "instance": f"10.0.0.{number}:9768", "revision": "12"}
        held = {
            "cpu_quota_throttled": Found(now - 1080, share=0.5 + number / 100, stalled=1.5),
            "pool_saturated": Found(now - 1020, "warning", "cpu_quota_throttled"),
        }
        idle = {"cpu_quota_throttled": Found(now - 1080, "info", share=0.0)}
        last = {instances - 3: idle, instances - 2: {}, instances - 1: {}}
        cannot = unknown | {"cpu_quota_throttled"} if number == instances - 1 else unknown
        lives.append(Life(labels, now - 1800, now, last.get(number, held), cannot))
    lives.append(Life({"job": "shop", "instance": "10.0.1.1:9768", "revision": "12"}, now - 1800, now - 900))
    lives += [
        Life({"job": "shop", "instance": f"10.0.2.{number}:9768", "revision": "11"}, now - 3600, now - 2400)
        for number in range(5)
    ]
    return lives
