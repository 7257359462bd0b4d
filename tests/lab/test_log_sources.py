"""The sources of logs inside gVisor: what its kernel shows of pipes, sockets and file systems, and what it does not."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lab import gvisor

pytestmark = pytest.mark.lab

ROOT = Path(__file__).resolve().parents[2]
INSIDE = """
import asyncio, json, os, socket, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from probes.hooks.listener import parse_place
from probes.logs.storage import Backings
from probes.logs.files import FilesProbe
from probes.logs.stdout import PipeProbe
from probes.hooks.probe import HooksProbe
from probes.host.platform import find_sandbox, kernel_release
from probes.reading import NoData
from pathlib import Path

root = Path("/")
sandbox = find_sandbox(root, kernel_release(root))
backings = Backings(gvisor=lambda: sandbox == "gvisor")
fields = ("waiting_bytes", "most_bytes", "full", "blocked", "files", "entries", "arrived_bytes", "deleted_bytes")

def say(name, reading):
    told = {field: getattr(reading, field) for field in fields}
    backing = {queue: place.medium for queue, place in reading.backing.items()}
    print(json.dumps({"name": name, **told, "kinds": dict(reading.kinds), "medium": backing, "unseen": dict(reading.unseen)}))

def look(name, probe):
    try:
        say(name, asyncio.run(probe.read()))
    except NoData as reason:
        print(json.dumps({"name": name, "because": reason.because}))

writer = "import os\\nwhile True: os.write(1, b'x' * 3000)"
for name, ends in (("pipe", os.pipe()), ("socket", [each.detach() for each in socket.socketpair()])):
    app = subprocess.Popen([sys.executable, "-I", "-c", writer], stdout=ends[1], stderr=subprocess.DEVNULL)
    os.close(ends[1])
    probe = PipeProbe(lambda: [app.pid], backings=backings)
    for _ in range(100):
        time.sleep(0.1)
        found = asyncio.run(probe.read())
        if found.full and found.full.get("stdout"):
            break
    say(name, found)
    if name == "pipe":
        began = time.monotonic()
        os.close(ends[0])
        print(json.dumps({"name": "reader died", "status": app.wait(20), "seconds": time.monotonic() - began}))
    app.kill()
    app.wait()
look("own output", PipeProbe(lambda: [os.getpid()], backings=backings))
for directory in ("/var/tmp/logs", "/dev/shm/logs"):
    os.makedirs(directory)
    Path(directory, "app.log").write_text("x" * 10_000)
    look(directory, FilesProbe("logs", directory, backings=backings))
    with open(f"{directory}/gone.log", "wb") as file:
        file.write(b"x" * 1_000_000)
        file.flush()
        holder = subprocess.Popen(["sleep", "60"], stdout=file)
    os.unlink(f"{directory}/gone.log")
    sys.stdout.flush()
    if not (agent := os.fork()):  # else the holder would be the agent's own child, which does not count
        look(f"{directory}, one deleted", FilesProbe("logs", directory, backings=backings))
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(agent, 0)
    holder.kill()
    holder.wait()

async def hear():
    probe = HooksProbe([parse_place("udp:127.0.0.1:9769")])
    try:
        await probe.read()
    except NoData:
        pass
    queue = {"queue": "q", "kind": "pino", "entries": 7}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(json.dumps({"v": 1, "pid": 1, "name": "app", "queues": [queue]}).encode(), ("127.0.0.1", 9769))
    say("hook", await probe.read())
    await probe.aclose()

asyncio.run(hear())
"""


def records(env: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    with gvisor.run([sys.executable, "-c", INSIDE, str(ROOT)], env=env) as running:
        found = {record["name"]: record for record in running.records()}
        assert "hook" in found, running.tail()
    return found


def test_what_gvisor_shows_of_logs() -> None:
    found = records({})
    pipe = found["pipe"]
    assert pipe["full"] == {"stdout": 1, "stderr": 0}
    assert 0.7 * 65536 < pipe["waiting_bytes"]["stdout"] <= pipe["most_bytes"]["stdout"] == 65536
    assert pipe["blocked"] == {"stderr": 0}  # there is no wchan
    assert "does not show where" in pipe["unseen"]["blocked"]
    assert found["reader died"]["status"] not in (0, None)
    own = found["own output"]
    assert own["kinds"] == {"stdout": "pipe", "stderr": "pipe"}  # one pipe of the host, and gVisor gives it two inodes
    assert own["waiting_bytes"]["stdout"] >= 0
    assert own["most_bytes"] is None
    assert "gVisor" in own["unseen"]["most_bytes"]
    for directory in ("/var/tmp/logs", "/dev/shm/logs"):
        assert found[directory]["medium"] == {"logs": "unknown"}
        assert found[directory]["files"] == {"logs": 1}
        assert found[directory]["waiting_bytes"]["logs"] >= 10_000
        deleted = found[f"{directory}, one deleted"]
        assert deleted["files"] == {"logs": 1}
        assert deleted["deleted_bytes"]["logs"] >= 1_000_000
    assert found["hook"]["entries"] == {"app/q": 7}


def test_on_cloud_run_its_file_system_is_memory_by_contract() -> None:
    found = records({"K_SERVICE": "shop"})
    assert found["/var/tmp/logs"]["medium"] == {"logs": "memory"}
    assert found["/dev/shm/logs"]["medium"] == {"logs": "memory"}
