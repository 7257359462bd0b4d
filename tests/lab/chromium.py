"""A real browser without a window, told what to do over a pipe (Chrome DevTools Protocol, `--remote-debugging-pipe`).

Messages are JSON objects that end in a zero byte, on descriptors 3 (to it) and 4 (from it):
https://chromedevtools.github.io/devtools-protocol/. It has a profile of its own, which is removed with it, and asks nobody for anything.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.lab import Unavailable, builds

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PACKAGES = ("chromium", "fonts-dejavu-core")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--force-color-profile=srgb", "--remote-debugging-pipe",
)  # fmt: skip
#: It shares its machine with all others.
PATIENCE_SECONDS = 60.0
CHECKS = Path(__file__).parent / "page_checks"


def find_chromium() -> str:
    """Its path. Raises Unavailable."""
    for name in PROGRAMS:
        if found := shutil.which(name):
            return found
    raise Unavailable("no Chromium here: make test-tools, or apt-get install chromium")


def prepare_checks() -> str:
    """Bring axe-core into the cache. Raises Unavailable."""
    return builds.prepare(CHECKS, "page-checks", builds.install_packages)


def axe() -> str:
    """The script of axe-core. Raises Unavailable."""
    return Path(builds.built(CHECKS, "page-checks", "node_modules/axe-core/axe.min.js")).read_text("utf-8")


class Chromium:
    """The browser; leave the `with` to end it and all that it started."""

    def __enter__(self) -> Self:
        program = find_chromium()
        self._profile = tempfile.mkdtemp(prefix="st-chromium-")
        ours_in, its_out = os.pipe()
        its_in, ours_out = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (its_in, its_out)]

        def place() -> None:
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
            preexec_fn=place, close_fds=False,  # noqa: PLW1509 - the descriptors have to be 3 and 4
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        for end in (its_in, its_out, *ends):
            os.close(end)
        self._in, self._out = ours_in, ours_out
        self._number, self._rest = 0, b""
        self.events: list[dict[str, Any]] = []
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            self.ask("Browser.close")
            self._process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._profile, ignore_errors=True)

    def ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Its answer. Raises AssertionError for what it refuses, TimeoutError, OSError when it is gone."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self._out, json.dumps(message).encode() + b"\0")
        for told in self._messages():
            if told.get("id") == number:
                assert "error" not in told, f"{method}: {told['error']}"
                found: dict[str, Any] = told["result"]
                return found
            self.events.append(told)
        raise AssertionError("unreachable")

    def wait_for(self, method: str, session: str) -> dict[str, Any]:
        """The next event of this kind, also one that has come already."""
        for told in self._queued():
            if told.get("method") == method and told.get("sessionId") == session:
                return told
        raise AssertionError("unreachable")

    def _queued(self) -> Iterator[dict[str, Any]]:
        yield from list(self.events)
        for told in self._messages():
            self.events.append(told)
            yield told

    def _messages(self) -> Iterator[dict[str, Any]]:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            message, zero, rest = self._rest.partition(b"\0")
            if zero:
                self._rest = rest
                yield json.loads(message)
                continue
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            chunk = os.read(self._in, 1 << 20)
            if not chunk:
                raise OSError("the browser has ended")
            self._rest += chunk


class Tab:
    """One page: as wide, as dark and with or without scripts as asked."""

    def __init__(
        self, browser: Chromium, *, width: int = 1000, height: int = 800, dark: bool = False, scripts: bool = True
    ) -> None:
        self._browser = browser
        target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session: str = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Audits", "Network"):
            self.ask(f"{domain}.enable")
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.width = width

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.ask(method, self.session, **parameters)

    def open(self, url: str) -> Self:
        """Load it, with all that it asks for."""
        before = self._browser.events
        self._browser.events = [
            e for e in before if e.get("method") != "Page.loadEventFired" or e.get("sessionId") != self.session
        ]
        told = self.ask("Page.navigate", url=url)
        assert "errorText" not in told, told
        self._browser.wait_for("Page.loadEventFired", self.session)
        return self

    def value(self, expression: str) -> Any:
        """What this JavaScript gives, also where the page's own scripts are off."""
        told = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def press(self, key: str, number: int, text: str = "") -> None:
        """A key, by its name and its number (Tab is 9, Enter 13)."""
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=number, text=text)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=number)

    def complaints(self) -> list[str]:
        """Everything that the browser's console or its issues tab says, of this page."""
        self.value("1")  # all that came before has been told
        found = []
        for event in self._browser.events:
            if event.get("sessionId") == self.session and event["method"] in (
                "Log.entryAdded", "Audits.issueAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled",
            ):  # fmt: skip
                found.append(json.dumps(event["params"]))
        return found

    def violations(self) -> list[Any]:
        """What axe-core finds to be out of reach for somebody: rule, and the elements with what to mend.  Raises Unavailable."""
        self.value(axe() + ";0")
        found: list[Any] = json.loads(self.value(
            "axe.run(document, { resultTypes: ['violations'] }).then(r => JSON.stringify(r.violations.map(v => [v.id, v.nodes.map(n => n.html + n.failureSummary)])))"
        ))  # fmt: skip
        return found

    def asked_for(self) -> list[str]:
        """The address of everything that was loaded."""
        return [
            event["params"]["request"]["url"] for event in self._browser.events
            if event.get("sessionId") == self.session and event["method"] == "Network.requestWillBeSent"
        ]  # fmt: skip

    def picture(self, path: Path, most_height: int = 2000) -> None:
        """The whole page as PNG, cut below."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": self.width, "height": min(most_height, size["height"]), "scale": 1}
        told = self.ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(told["data"]))
