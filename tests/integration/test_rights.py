"""Which right opens what: another user's process, looked at with each capability that docs/deploy/rights.md speaks of."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from tests.integration.conftest import ROOT
from tests.unit.deploy.test_rights_page import rights

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")

THE_APPS, ANOTHER = 65534, 65533
#: include/uapi/linux/capability.h
DAC_READ_SEARCH, SYS_PTRACE = 1 << 2, 1 << 19

#: A container of its own, as far as it goes: its mounts do not show the app's control groups (unshare(2), umount2(2)).  Then
#: another user, who keeps the capabilities (prctl(2), PR_SET_KEEPCAPS) and has no others (capset(2)).
LOOK = """
import asyncio, ctypes, json, os, struct, sys
from pathlib import Path
from probes.app.program import read_program
from probes.app.search import Search, chosen
from probes.host.cgroup import CgroupProbe
from probes.logs.stdout import PipeProbe
from probes.reading import NoData

pid, inode, uid, gid, capabilities = map(int, sys.argv[1:])
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_REC_PRIVATE, MNT_DETACH, PR_SET_KEEPCAPS = 0x20000, 0x44000, 2, 8
assert libc.unshare(CLONE_NEWNS) == libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None) == 0
assert libc.umount2(b"/sys/fs/cgroup", MNT_DETACH) == 0
assert libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0
os.setgroups([]); os.setresgid(gid, gid, gid); os.setresuid(uid, uid, uid)
head, rights = struct.pack("Ii", 0x20080522, 0), struct.pack("6I", capabilities, capabilities, 0, 0, 0, 0)
assert libc.capset(head, rights) == 0, ctypes.get_errno()

async def look():
    owners = await Search(Path("/")).search_on({inode})
    told = {"owners": list(owners.pids), "owners_remedy": owners.remedy, "owners_because": str(owners.because)}
    told["environment"] = read_program(f"/proc/{pid}").unread is None
    told["named"] = pid in chosen(Path("/"), "sleep", None).pids
    for name, probe in (("pipe", PipeProbe(lambda: [pid])), ("cgroup", CgroupProbe("app", pid=str(pid)))):
        try:
            told[name] = bool(await probe.read())
        except NoData as reason:
            told[name], told[f"{name}_remedy"] = False, reason.remedy
    return told

print(json.dumps(asyncio.run(look())))
"""


class App(NamedTuple):
    pid: int
    inode: int


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    """A process of another user that holds a socket and writes into a pipe."""
    with ExitStack() as stack:
        held = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        user: dict[str, Any] = {"user": THE_APPS, "group": THE_APPS, "extra_groups": []}
        words = ["sleep", "300"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, pass_fds=[held.fileno()], **user)
        stack.enter_context(process)
        stack.callback(process.kill)
        inode = os.fstat(held.fileno()).st_ino
        held.close()  # or this very process would be an owner too
        yield App(process.pid, inode)


def look(app: App, uid: int, gid: int, capabilities: int) -> dict[str, Any]:
    words = [sys.executable, "-c", LOOK, *map(str, (app.pid, app.inode, uid, gid, capabilities))]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("uid", "gid", "capabilities", "descriptors", "group"),
    [
        (THE_APPS, THE_APPS, 0, True, True),
        (THE_APPS, ANOTHER, 0, False, False),
        (ANOTHER, ANOTHER, 0, False, False),
        (ANOTHER, ANOTHER, DAC_READ_SEARCH, False, False),
        (ANOTHER, ANOTHER, SYS_PTRACE, False, True),
        (ANOTHER, ANOTHER, SYS_PTRACE | DAC_READ_SEARCH, True, True),
        (0, 0, 0, False, False),
        (0, 0, SYS_PTRACE, False, True),
        (0, 0, SYS_PTRACE | DAC_READ_SEARCH, True, True),
    ],
    ids=[
        "its uid and gid", "its uid alone", "another uid", "DAC_READ_SEARCH alone", "SYS_PTRACE alone", "both",
        "root without capabilities", "root with SYS_PTRACE alone", "root with both",
    ],
)  # fmt: skip
def test_what_a_right_opens(app: App, uid: int, gid: int, capabilities: int, descriptors: bool, group: bool) -> None:
    found = look(app, uid, gid, capabilities)
    assert found["named"], "a name is anybody's to read"
    assert (found["owners"] == [app.pid], found["pipe"], found["environment"]) == (
        descriptors,
        descriptors,
        descriptors,
    )
    assert found["cgroup"] == group
    remedies = [found[f"{name}_remedy"] for name in ("owners", "pipe") if not descriptors]
    remedies += [] if group else [found["cgroup_remedy"]]
    for remedy in remedies:
        assert "runAsUser" in remedy
        assert "SYS_PTRACE" in remedy
    for remedy in remedies[: 2 * (not descriptors)]:
        assert "DAC_READ_SEARCH" in remedy


def test_the_page_says_what_the_kernel_does(app: App) -> None:
    asked = [(ANOTHER, 0), (THE_APPS, 0), (ANOTHER, SYS_PTRACE), (ANOTHER, SYS_PTRACE | DAC_READ_SEARCH)]
    found = [look(app, user, user, capabilities) for user, capabilities in asked]
    told = rights()
    assert told["names"] == [each["named"] for each in found]
    assert told["group"] == [each["cgroup"] for each in found]
    for what in ("pipe", "environment"):
        assert told["inside"] == [each[what] for each in found]


def test_the_same_user_does_not_see_into_a_process_with_more_rights_than_its_own() -> None:
    """An app that is root in its container has Docker's fourteen capabilities, a sidecar that is root and drops them none."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        inode = os.fstat(held.fileno()).st_ino
        with subprocess.Popen(["sleep", "300"], stdout=subprocess.PIPE, pass_fds=[held.fileno()]) as process:
            try:
                app = App(process.pid, inode)
                without, with_it = look(app, 0, 0, 0), look(app, 0, 0, SYS_PTRACE)
            finally:
                process.kill()
    assert (without["pipe"], without["cgroup"], with_it["pipe"], with_it["cgroup"]) == (False, False, True, True)
    assert "more rights" in without["owners_because"]
