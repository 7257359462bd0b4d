"""A real Prometheus of one test, on the loopback, and pages of metrics for it to scrape."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import psutil
import yaml

from tests.lab import Unavailable, builds
from tests.lab.cleanup import forget, remember

START_SECONDS = 60.0


class Target(NamedTuple):
    """What is scraped: `host:port`, the page, and the labels that its series get."""

    address: str
    labels: Mapping[str, str]
    page: str = "/metrics"


class Prometheus:
    """`with Prometheus([Target("127.0.0.1:9768", {"instance": "a"})], rules=[path]) as engine: engine.ask("up")`"""

    def __init__(
        self, targets: Sequence[Target] = (), rules: Sequence[Path] = (), *, every: str = "1s", data: Path | None = None,
        flags: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """`data` are blocks that promtool made; they are moved."""
        self._program = builds.prometheus()
        self._scratch = tempfile.TemporaryDirectory(prefix="st-prometheus-")
        self._directory = Path(self._scratch.name)
        self._flags, self.port = flags, 0
        for number, file in enumerate(rules):
            shutil.copy(file, self._directory / f"rules{number}.yaml")
        if data is not None:
            shutil.move(data, self._directory / "data")
        groups = [
            {"targets": [each.address], "labels": {**each.labels, "__metrics_path__": each.page}} for each in targets
        ]
        jobs = [{"job_name": "stallscope", "static_configs": groups}] if groups else []
        config = {
            "global": {"scrape_interval": every, "evaluation_interval": every},
            "rule_files": ["rules*.yaml"], "scrape_configs": jobs,
        }  # fmt: skip
        (self._directory / "prometheus.yml").write_text(yaml.safe_dump(config))

    def __enter__(self) -> Self:
        remember(self.close)
        words = [
            f"--config.file={self._directory}/prometheus.yml", f"--storage.tsdb.path={self._directory}/data",
            "--web.listen-address=127.0.0.1:0", "--log.level=warn", *self._flags,
        ]  # fmt: skip
        with (self._directory / "log").open("wb") as log:
            self.process = subprocess.Popen([self._program, *words], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if time.monotonic() > deadline or self.process.poll() is not None:
                said = (self._directory / "log").read_text()[-500:]
                self.close()
                raise Unavailable(f"prometheus did not start: {said}")
            time.sleep(0.1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self._scratch.cleanup()
        forget(self.close)

    @property
    def data(self) -> Path:
        """Where its blocks are."""
        return self._directory / "data"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def seconds(self) -> float:
        """CPU that it used so far."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def _is_ready(self) -> bool:
        with suppress(psutil.Error, OSError):
            for each in psutil.Process(self.process.pid).net_connections("tcp"):
                if each.status == psutil.CONN_LISTEN:
                    self.port = each.laddr.port
        try:
            return bool(self.port) and self.request("GET", "/-/ready")[0] == 200
        except OSError:
            return False

    def request(self, method: str, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def answer(self, page: str, **form: str) -> dict[str, Any]:
        """The query API's answer."""
        _, body = self.request("GET", f"/api/v1/{page}?{urllib.parse.urlencode(form)}")
        found = json.loads(body)
        assert isinstance(found, dict)
        return found

    def ask(self, query: str) -> dict[tuple[str, ...], float]:
        """The values of a query by the values of its labels, in the order of their names."""
        answer = self.answer("query", query=query)
        assert answer["status"] == "success", answer
        return {
            tuple(each["metric"][name] for name in sorted(each["metric"])): float(each["value"][1])
            for each in answer["data"]["result"]
        }


class Pages:
    """`with Pages() as pages: pages["/a"] = text` is scraped at `pages.address`; one that is taken away answers 404."""

    def __init__(self) -> None:
        self._pages: dict[str, bytes] = {}
        pages = self._pages

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = pages.get(self.path)
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __setitem__(self, path: str, page: bytes) -> None:
        self._pages[path] = page

    def take(self, path: str) -> bytes:
        """This page is not answered any more."""
        return self._pages.pop(path)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"


def recorded(engine: Prometheus, rules: Path, made: Path, start: float, end: float, step_seconds: float) -> None:
    """Into ``made``: blocks of what these recording rules would have recorded from the engine's series (seconds since the epoch)."""
    command = [
        builds.promtool(), "tsdb", "create-blocks-from", "rules", f"--start={start:.0f}", f"--end={end:.0f}",
        f"--eval-interval={step_seconds:.0f}s", f"--url={engine.url}", f"--output-dir={made}", str(rules),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=3600)
