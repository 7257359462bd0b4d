"""Whatever the sources of logs do to the real agent: bounded time and memory, and the reason stands in its report."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from probes.logs.file_scan import MOST_ENTRIES
from probes.metrics_page.fetch import MOST_BYTES
from tests.integration.conftest import FAST, ROOT, RunningAgent, Start, eventually
from tests.integration.test_log_pipe import NOBODY
from tests.integration.test_log_sources import message, series, tell
from tests.integration.test_pool import FLOOD_BYTES, App, _drip, _flood, _hang, _redirect, _serve
from tests.lab.log_stage import free_udp_port
from tests.serving import running

OFTEN = (*FAST, "--set", "history.seconds=120", "--set", "logs.every_seconds=1", "--set", "logs.timeout_seconds=0.5")
#: What a look at a hostile source may cost: so much of a CPU, on a machine that others share.
MOST_CPU = 0.5
WATCHED_SECONDS = 8.0
MEBIBYTE = 1 << 20
FILES = 100_000


@contextmanager
def page(behave: Callable[[socket.socket, App], None]) -> Iterator[App]:
    server = App()
    server.behave = behave
    with running(server):
        yield server


def out_of_sight(agent: RunningAgent) -> dict[str, str]:
    """What the report says cannot be seen, of sources of logs: reasons by source."""
    found = agent.get("/health").json["cannot_see"]
    logs = [
        (each["what"].removeprefix("log_backlog "), each["because"]) for each in found if "log_backlog" in each["what"]
    ]
    assert len({what.partition(":")[0] for what, _ in logs}) == len(logs), "a line for each source at most"
    return {what.partition(":")[0]: because for what, because in logs}


def says(agent: RunningAgent, source: str, because: str) -> None:
    eventually(lambda: because in out_of_sight(agent).get(source, ""), 30.0, f"{source}: {because}")


@contextmanager
def bounded(agent: RunningAgent, memory: float) -> Iterator[None]:
    """The agent answers, and uses little, for some time at least."""
    process = psutil.Process(agent.pid)
    cpu, rss, began = sum(process.cpu_times()[:2]), process.memory_info().rss, time.monotonic()
    yield
    while time.monotonic() - began < WATCHED_SECONDS:
        asked = time.monotonic()
        assert agent.get("/livez").status == 200
        assert time.monotonic() - asked < 5
        time.sleep(0.2)
    assert (sum(process.cpu_times()[:2]) - cpu) / (time.monotonic() - began) < MOST_CPU
    assert process.memory_info().rss - rss < memory


PAGES: dict[str, tuple[Callable[[socket.socket, App], None], str]] = {
    "hangs": (_hang, "no whole page in time"),
    "drips": (_drip, "no whole page in time"),
    "endless": (_flood, "larger than"),
    "redirects": (_redirect, "answered 302"),
    "bytes": (_serve(b'\xff\xfe\x00 vector_buffer_size_events{a="\xff\xfe\n\x00\x80 1\n'), "no metric of a log collector"),
    "no-number": (_serve("vector_buffer_size_events NaN\nvector_buffer_size_events +Inf\n"), "no metric of a log collector"),
    "empty": (_serve(""), "no metric of a log collector"),
}  # fmt: skip


def test_hostile_pages_of_collectors_are_a_line_each_and_an_honest_one_is_read(start: Start, stack: ExitStack) -> None:
    apps = {name: stack.enter_context(page(behave)) for name, (behave, _) in PAGES.items()}
    apps["honest"] = stack.enter_context(page(_serve('vector_buffer_size_events{component_id="es"} 490\n')))
    urls = ",".join(f"{name}={app.url}" for name, app in apps.items())
    agent = start(*OFTEN, "--set", f"logs.metrics_urls={urls}", "--set", "logs.hook_listen=").wait_for_report()
    with bounded(agent, 24 * MOST_BYTES):
        for name, (_, because) in PAGES.items():
            says(agent, name, because)
        assert eventually(lambda: series(agent, "entries", "honest"), what="the honest page") == {"es": 490}
    assert "honest" not in out_of_sight(agent)
    assert apps["endless"].sent < FLOOD_BYTES
    assert max(app.most_open for app in apps.values()) <= 2
    assert set(apps["redirects"].paths) == {"/metrics"}


@pytest.mark.parametrize("kind", ["udp", "unix", "file"])
def test_garbage_from_hooks_is_said_and_an_honest_hook_is_heard(start: Start, tmp_path: Path, kind: str) -> None:
    port = free_udp_port()
    place = {"udp": f"udp:127.0.0.1:{port}", "unix": f"unix:{tmp_path}/hook.sock", "file": f"file:{tmp_path}/hook"}[
        kind
    ]
    agent = start(*OFTEN, "--set", f"logs.hook_listen={place}").wait_for_report()
    says(agent, "hooks", "no hook has spoken")

    def send(data: bytes) -> None:
        if kind == "udp":
            tell(port, data)
        elif kind == "unix":
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.sendto(data, f"{tmp_path}/hook.sock")
        else:
            (tmp_path / "fresh").write_bytes(data)
            (tmp_path / "fresh").rename(tmp_path / "hook.4711")

    garbage = (b"[" * 8192, b"\xff\x00" * 100, b"{}", b"x" * 60_000, b'{"v":1,"pid":NaN,"name":"a"}', message(queues=7))

    def noisy() -> bool:
        for data in garbage:
            send(data)
        return "the last one: " in out_of_sight(agent).get("hooks", "")

    with bounded(agent, 16 * MEBIBYTE):
        eventually(noisy, 30.0, "the reason")

    def honest() -> dict[str, float]:
        send(message())
        return series(agent, "entries", "hooks")

    assert eventually(honest, 30.0, "the honest hook") == {"orders/winston": 28504}


def test_a_hundred_thousand_log_files_cost_little_and_are_said_to_be_too_many(start: Start, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    try:
        for number in range(FILES):
            os.close(os.open(f"{logs}/{number}.log", os.O_CREAT | os.O_WRONLY))
        agent = start(*OFTEN, "--set", f"logs.files=many={logs}", "--set", "logs.hook_listen=").wait_for_report()
        with bounded(agent, 16 * MEBIBYTE):
            says(agent, "many", "only so many were counted")
        assert MOST_ENTRIES / 10 < series(agent, "files", "many")["many"] <= MOST_ENTRIES
    finally:
        shutil.rmtree(logs)


def python_for_nobody() -> str:
    """An interpreter of this version that any user may run."""
    version = "python{}.{}".format(*sys.version_info)
    for path in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        words = [path, "-c", "import asyncio, sqlite3"]
        try:
            run = subprocess.run(words, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, check=False)
        except OSError:
            continue
        if run.returncode == 0:
            return path
    pytest.skip("no Python here that another user may run")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_what_may_not_be_looked_at_is_said_with_what_would_make_it_visible(
    start: Start, stack: ExitStack, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "logs").mkdir()
    app = subprocess.Popen(["sleep", "300"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert app.stdout is not None
    for clean in (app.stdout.close, app.wait, app.kill):
        stack.callback(clean)
    packages = os.pathsep.join((str(ROOT), sysconfig.get_path("purelib")))
    agent = start(
        *OFTEN, "--set", f"app.pid={app.pid}", "--set", f"logs.files=closed={closed}/logs,gone=/nonexistent/logs",
        "--set", "logs.hook_listen=",
        python=python_for_nobody(), environ={"PYTHONPATH": packages}, user=NOBODY, group=NOBODY, extra_groups=[],
    ).wait_for_report()  # fmt: skip
    says(agent, "stdout", f"the descriptors of process {app.pid} may not be looked at")
    says(agent, "closed", "Permission denied")
    says(agent, "gone", "No such file or directory")
    remedies = {each["what"]: each["remedy"] for each in agent.get("/health").json["cannot_see"]}
    assert "SYS_PTRACE" in remedies["log_backlog stdout"]
    assert "logs.files.closed" in remedies["log_backlog closed"]
    text = agent.get("/report.txt").body.decode()
    assert re.search(r"log_backlog stdout.*may not be looked at", text)
