"""Pictures of the page, of real agents that watch real stalls: `python -m tests.lab.screenshots [NAME ...]` (`make screenshots`).

Each stall follows a minute and a half of calm, so that the charts show both; the stalls are those of `stallscope demo`, and an app that
logs faster than its log service takes. All go on at once, some five minutes, into docs/images/. Very long names and forty findings do not come up
by themselves: that one picture is of a made-up report, through the real server's own code.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.commands.demo.stage import Demo, Plan
from agent.commands.demo.stalls import STALLS
from agent.commands.embedded_postgres import HOST, free_port
from agent.commands.report import get_report
from agent.report import Evidence, Report, to_json
from exporters import words
from exporters.page import render
from tests.lab.chromium import Chromium, Tab
from tests.lab.log_stage import LogStage
from tests.lab.process import Running
from tests.lab.tools import install_chromium, install_program
from tests.unit.golden import fixed, hour

IMAGES = Path(__file__).resolve().parents[2] / "docs/images"
WIDE, NARROW = 900, 400
#: Pixels; the rest of the page is folded or of less interest.
MOST_HEIGHT = 1500
CALM_SECONDS, STALL_SECONDS = 100.0, 110.0
#: As a user's agent remembers at least: a minute is what most rules look back.
PLAN = Plan(before=CALM_SECONDS, least=STALL_SECONDS, stall=STALL_SECONDS, after=1.0, history_seconds=60.0)
MIB = 2**20


class Camera:
    """One browser for all; pictures one after the other."""

    def __init__(self, browser: Chromium, wanted: list[str]) -> None:
        self._browser, self._wanted = browser, wanted
        self._lock = threading.Lock()

    def take(self, name: str, url: str, *, shows: str | None = None, width: int = WIDE, dark: bool = False) -> None:
        """``shows``: the rule that must come first, or "" for a healthy report. On a crowded machine something else may be true."""
        if self._wanted and name not in self._wanted:
            return
        if shows is not None:
            report = get_report(url)
            cause = words.first_cause(report)
            found = cause["rule"] if cause else "" if report["conclusive"] else "nothing yet"
            if found != shows:
                print(
                    f"{name}: NOT taken: {found or 'a healthy report'} comes first, and not {shows or 'a healthy report'}",
                    flush=True,
                )
                return
        with self._lock, tempfile.TemporaryDirectory() as scratch:
            raw = Path(scratch) / "raw.png"
            Tab(self._browser, width=width, dark=dark).open(url).picture(
                raw, MOST_HEIGHT if width == WIDE else 2 * MOST_HEIGHT
            )
            IMAGES.mkdir(exist_ok=True)
            subprocess.run(
                ["pngquant", "--force", "--strip", "--nofs", "--output", IMAGES / f"{name}.png", "96", raw], check=True
            )
        print(f"{name}: {(IMAGES / f'{name}.png').stat().st_size / 1000:.0f} kB", flush=True)


class Posed(Demo):
    """A demo that stays calm for as long as it may, and is looked at while it is calm and while it stalls."""

    def __init__(self, name: str, looks: list[Callable[[str], None]]) -> None:
        super().__init__(STALLS[name], PLAN)
        self._looks = looks

    def _settle(self, seconds: float) -> None:
        self._watch(lambda: False, seconds)

    def _show(self) -> None:
        if self._looks:
            self._looks.pop(0)(f"http://{HOST}:{self._port}/")


def demo(name: str, calm: Callable[[str], None], stalled: Callable[[str], None]) -> None:
    with ExitStack() as stack:
        Posed(name, [calm, stalled]).run(stack)


def growing_logs(look: Callable[[str], None]) -> None:
    """An app whose entries a slow service takes one after the other, within a memory limit."""
    seconds = CALM_SECONDS + STALL_SECONDS
    with (
        LogStage("node cloud --rate 500", seconds=seconds + 60, memory_bytes=300 * MIB) as stage,
        agent(seconds + 60, stage.settings()) as url,
    ):
        time.sleep(CALM_SECONDS)
        assert stage.service is not None
        stage.service.set(delay=2.0)
        time.sleep(STALL_SECONDS)
        look(url)


def nothing_configured(look: Callable[[str], None]) -> None:
    with agent(CALM_SECONDS * 2, {}) as url:
        time.sleep(CALM_SECONDS)
        look(url)


@contextmanager
def agent(seconds: float, settings: Mapping[str, Any]) -> Iterator[str]:
    """A real agent at its defaults but for these settings; gives its address."""
    listen = f"{HOST}:{free_port()}"
    words = [f"--set={key}={value}" for key, value in settings.items()]
    with Running([sys.executable, "-m", "stallscope", "run", "--listen", listen, *words], timeout=seconds) as run:
        run.wait_for("report.txt")
        yield f"http://{listen}/"


def crowded() -> Report:
    """More findings than there are rules, with names as long as any, and as hostile."""
    long = "orders-service-with-a-name-that-nobody-can-read-in-one-go-" * 4
    found = []
    for n in range(40):
        finding = fixed.finding(f"{fixed.finding().rule}_{n}", "critical" if n < 3 else "warning")
        evidence = Evidence(
            f"of the connections to {long}{n} 93% are held by <script>alert({n})</script>", 0.93, "ratio"
        )
        found.append(replace(finding, evidence=(evidence, *finding.evidence), stalled_share=0.9 / (n + 1)))
    return fixed.report("fail", "x", *found)


def long_names(camera: Camera) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "page.html"
        file.write_bytes(render.file(to_json(crowded()), hour.timeline(last=crowded()).as_json()))
        camera.take("long-names", file.as_uri())
        camera.take("long-names-narrow", file.as_uri(), width=NARROW)


def main(wanted: list[str]) -> int:
    install_chromium()
    install_program("pngquant", "pngquant")
    with Chromium() as browser, ThreadPoolExecutor() as side_by_side:
        camera = Camera(browser, wanted)

        def throttled(url: str) -> None:
            camera.take("throttled", url, shows="cpu_quota_throttled")
            camera.take("throttled-dark", url, shows="cpu_quota_throttled", dark=True)
            camera.take("throttled-narrow", url, shows="cpu_quota_throttled", width=NARROW)

        long_names(camera)
        scenes: dict[str, Callable[[], None]] = {
            "database-slow": lambda: demo(
                "slow-query",
                lambda url: camera.take("healthy", url, shows=""),
                lambda url: camera.take("database-slow", url, shows="database_slow"),
            ),
            "throttled": lambda: demo("throttle", lambda _: None, throttled),
            "logs-growing": lambda: growing_logs(
                lambda url: camera.take("logs-growing", url, shows="log_queue_in_memory")
            ),
            "nothing-configured": lambda: nothing_configured(lambda url: camera.take("nothing-configured", url)),
        }
        asked = [work for name, work in scenes.items() if not wanted or any(each.startswith(name) for each in wanted)]
        for done in [side_by_side.submit(work) for work in asked]:
            done.result()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
