"""What `stallscope fleet` costs and says: `python -m tests.lab.fleet forty|thousands [NUMBER]`, into lab-results/fleet-*.md.

*forty*: four real agents, two of them under a real quota beside a busy process, and their pages replayed by 36 more instances, scraped by a
real Prometheus for a minute.  *thousands*: 10,000 generated instances (or NUMBER) of twenty services, in blocks, from the
instances' own series and from recorded ones.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil

from agent.commands.fleet import questions
from agent.rules import RULES
from tests.lab import loads
from tests.lab.fleet_series import Found, Life, blocks
from tests.lab.process import Running
from tests.lab.prometheus import Pages, Prometheus, Target, recorded
from tests.lab.quota import CpuGroup

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "lab-results"
RECORDING = ROOT / "deploy" / "prometheus" / "recording.yaml"
INSTANCES, SERVICES = 10_000, 20
#: Rare enough to be made quickly, close enough for an engine's five minutes of looking back.
STEP = 240
WINDOW = 1200
SINCE = ("--since", f"{WINDOW}s")
ALL = 'count({job!=""})'


def asked(engine: Prometheus, *words: str) -> str:
    """A run of the command: what it said, and what it cost."""
    before, cpu = engine.seconds, resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    command = [sys.executable, "-m", "stallscope", "fleet", engine.url, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    own = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
    memory = psutil.Process(engine.process.pid).memory_info().rss
    cost = (
        f"exit code {done.returncode}, {wall:.2f} s, of its own {own:.2f} CPU-s; the engine's {engine.seconds - before:.2f} CPU-s, "
        f"its memory {memory / 2**20:.0f} MiB, the largest child so far {after.ru_maxrss / 1024:.0f} MiB"
    )
    return f"```\n{done.stdout}{done.stderr}```\n\n{cost}\n"


def forty() -> Iterator[str]:
    """Real agents, and their pages again."""
    with ExitStack() as stack:
        held = stack.enter_context(CpuGroup("fleet-held"))
        agents = [stack.enter_context(agent(group)) for group in (held, held, None, None)]
        lines = [each.wait_for("report http://", timeout=120).text for each in agents]
        addresses = [line.partition("http://")[2].partition("/")[0] for line in lines]
        held.set_quota(0.15)
        stack.enter_context(Running(loads.command("busy", seconds=240), group=held, timeout=300))
        pages = stack.enter_context(Pages())
        targets = [Target(address, labels(number)) for number, address in enumerate(addresses)]
        targets += [Target(pages.address, labels(number), f"/{number}") for number in range(4, 40)]
        engine = stack.enter_context(Prometheus(targets, [RECORDING]))
        ends = time.monotonic() + 75
        while time.monotonic() < ends:
            real = [urllib.request.urlopen(f"http://{each}/metrics", timeout=60).read() for each in addresses]
            for number in range(4, 40):
                pages[f"/{number}"] = real[0 if number < 37 else 2]  # revision 12 is held but for three
            time.sleep(1)
        found = engine.ask('stallscope_finding{instance=~"shop-[0-3]"}')
        yield f"findings of the real ones: {sorted(found)}\n"
        yield asked(engine, "--since", "5m")


def labels(number: int) -> dict[str, str]:
    return {"instance": f"shop-{number}", "job": "shop", "revision": "12"}


def agent(group: CpuGroup | None) -> Running:
    words = [
        "run",
        "--json",
        "--listen",
        "127.0.0.1:0",
        "--set",
        "suspension.every_seconds=2",
        "--set",
        "cgroup.every_seconds=2",
    ]
    return Running([sys.executable, "-m", "stallscope", *words], group=group, timeout=300, cwd=ROOT)


def thousands(instances: int = INSTANCES) -> Iterator[str]:
    """Generated ones, from twenty minutes ago until a while from now: to make the blocks takes minutes."""
    begun = time.time() // STEP * STEP
    with tempfile.TemporaryDirectory(prefix="st-fleet-") as scratch:
        times = [begun + STEP * n for n in range(-5, 7)]
        data = blocks(lives(begun, times, instances), times, Path(scratch))
        size = sum(each.stat().st_size for each in data.rglob("*") if each.is_file())
        yield f"blocks of {instances} instances: {size / 1e6:.0f} MB, made in {time.time() - begun:.0f} s\n"
        made = Path(scratch, "made")
        with Prometheus(data=data, flags=["--query.max-samples=500000000", "--query.timeout=10m"]) as engine:
            yield f"series now: {sum(engine.ask(ALL).values()):.0f}\n"
            yield "their own series, first and second time:\n\n" + asked(engine, *SINCE) + "\n" + asked(engine, *SINCE)
            yield "one question after the other: series, seconds, CPU-seconds\n\n"
            for each in questions.RECORDED:
                cpu, start = engine.seconds, time.monotonic()
                rows = len(engine.ask(questions.ask(each, questions.KEPT, ())))
                yield f"| `{each.recorded}` | {rows} | {time.monotonic() - start:.2f} | {engine.seconds - cpu:.2f} |\n"
            now = time.time()
            recorded(engine, RECORDING, made, now - WINDOW, now, 60)
            for block in engine.data.iterdir():
                if (block / "meta.json").exists():
                    shutil.move(block, made / block.name)
        with Prometheus(data=made) as engine:
            yield "\nrecorded, first and second time:\n\n" + asked(engine, *SINCE) + "\n" + asked(engine, *SINCE)


def lives(begun: float, times: Sequence[float], instances: int) -> Iterator[Life]:
    """Twenty services of two revisions each; a limit holds 30 % of the new ones of each, locks a few."""
    watched = {"cpu_quota_throttled", "cpu_stolen", "cpu_suspended", "cpu_contended", "instance_frozen"}
    unknown = {rule.id for rule in RULES} - watched
    for number in range(instances):
        service, kind = number % SERVICES, number // SERVICES
        new = kind % 2 == 0
        own = {
            "namespace": "prod",
            "job": f"service-{service}",
            "instance": f"10.{service}.{kind // 250}.{kind % 250}:9768",
        }
        found = {}
        if new and kind % 20 < 6:
            found["cpu_quota_throttled"] = Found(begun - 300 - 10 * service, share=0.3 + kind % 7 / 10, stalled=1.2)
        elif new and kind % 20 < 8:
            found["database_locked"] = Found(begun - 120, "warning", share=0.2, stalled=0.4)
        yield Life(
            {**own, "revision": f"{service}-{'b' if new else 'a'}"}, times[0], times[-1], found, unknown - found.keys()
        )


def main(name: str = "forty", *number: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"fleet-{name}.md").open("w") as file:
        for text in {"forty": forty, "thousands": thousands}[name](*map(int, number)):
            print(text, flush=True)
            file.write(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
