"""The real agent tells a real receiver: after an outage, at its end, and an API server that speaks TLS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from exporters.push.alerts import Alert, Place
from exporters.push.kubernetes import KubernetesOutput
from exporters.push.post import Client
from tests.integration.conftest import FAST, Start, eventually
from tests.lab.quota import CpuGroup
from tests.unit.golden.fixed import finding, report

#: So long an agent at a twentieth of a core may take to end on a crowded machine; what is asserted is what arrived before.
END_SECONDS = 60.0
OTLP = (*FAST, "--set", "otlp.enabled=true")


class Receiver:
    """An HTTP server that keeps what it is sent; ``status`` is what it answers."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.status = 200
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.refused = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if receiver.status < 300:
                    receiver.got.append((self.path, dict(self.headers), body))
                else:
                    receiver.refused += 1
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def moments(self) -> list[int]:
        """When each report of metrics was made, nanoseconds."""
        requests = [
            ExportMetricsServiceRequest.FromString(body) for path, _, body in list(self.got) if path == "/v1/metrics"
        ]
        metrics = [each.resource_metrics[0].scope_metrics[0].metrics for each in requests]
        return [
            next(m for m in each if m.name == "stallscope_agent_cpu_seconds").sum.data_points[0].time_unix_nano
            for each in metrics
        ]

    def events(self) -> list[Any]:
        requests = [ExportLogsServiceRequest.FromString(body) for path, _, body in list(self.got) if path == "/v1/logs"]
        return [record for each in requests for record in each.resource_logs[0].scope_logs[0].log_records]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with contextlib.closing(Receiver()) as found:
        yield found


def environ(receiver: Receiver, milliseconds: int = 1000) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}",
        "OTEL_METRIC_EXPORT_INTERVAL": str(milliseconds),
        "OTEL_SERVICE_NAME": "shop",
    }


@pytest.mark.core
def test_nothing_is_missing_after_an_outage_and_the_last_report_comes_before_the_end(
    start: Start, receiver: Receiver
) -> None:
    receiver.status = 503
    agent = start(*OTLP, environ=environ(receiver))
    eventually(lambda: receiver.refused >= 2, 60, "two refused attempts")
    eventually(lambda: agent.get("/metrics").body.count(b'stallscope_push_waiting{output="otlp metrics"} 0.0') == 0, 30)
    assert receiver.got == []
    receiver.status = 200
    eventually(lambda: len(receiver.moments()) >= 4, 60, "what waited")
    assert agent.end(seconds=END_SECONDS) == 0
    moments = receiver.moments()
    assert moments == sorted(set(moments)), "in order, and none twice"
    assert receiver.events()[-1].event_name == "stallscope.report"
    assert receiver.events()[-1].time_unix_nano >= moments[-2]
    assert "not delivered" not in agent.stderr
    said = [line for line in agent.stderr.splitlines() if "answered 503" in line]
    assert sum("otlp metrics" in line for line in said) == 1, "an outage is one line"
    assert len(said) <= 2, "and one of the events, where these met it too"


@pytest.mark.quota
@pytest.mark.timing(reason="an agent at a twentieth of a core has three seconds to send its last words")
def test_an_agent_that_is_told_to_end_at_a_twentieth_of_a_core_sends_its_last_report(
    start: Start, receiver: Receiver, group: CpuGroup
) -> None:
    agent = start(*OTLP, environ=environ(receiver, 3_600_000)).wait_for_report()
    eventually(lambda: len(receiver.moments()) == 1, 30, "the first metrics")
    group.add(agent.pid)
    child = agent.child
    assert child
    group.add(child.pid)
    group.set_quota(0.05)
    time.sleep(1.0)  # what was saved of its quota is used up
    assert agent.end(seconds=END_SECONDS) == 0
    assert len(receiver.moments()) == 2
    assert receiver.events()[-1].event_name == "stallscope.report"


def certificate(directory: Path) -> Path:
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"]
    words += [
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-out",
        str(directory / "ca.crt"),
        "-keyout",
        str(directory / "key.pem"),
    ]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    return directory / "ca.crt"


def test_events_go_to_the_api_server_with_the_pods_own_account_until_it_says_that_it_may_not(tmp_path: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate(tmp_path), tmp_path / "key.pem")
    (tmp_path / "token").write_text("one\n")
    (tmp_path / "namespace").write_text("prod")
    with contextlib.closing(Receiver(tls)) as api:
        at = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT_HTTPS": str(api.port),
            "POD_NAME": "shop-1",
        }
        place = Place("shop", "", "prod.shop-1", "kubernetes", "1.2.3")
        told = [Alert(finding(), report("fail", "v", finding()))]

        async def settled(output: KubernetesOutput, done: Callable[[], bool]) -> None:
            output.take(told, report())
            async with asyncio.timeout(30):
                while not done():  # noqa: ASYNC110 - a server in a thread has no event
                    await asyncio.sleep(0.01)

        async def run() -> None:
            output = KubernetesOutput(10.0, place, Client(), at, account=tmp_path)
            await settled(output, lambda: output.outbox.delivered == 1)
            (tmp_path / "token").write_text("two\n")
            await settled(output, lambda: output.outbox.delivered == 2)
            api.status = 403
            await settled(output, lambda: output.outbox.off == "answered 403")
            await settled(output, lambda: True)
            assert (output.outbox.waiting, output.outbox.refused) == (0, 2)

        asyncio.run(run())
    (path, first, body), (_, second, _) = api.got
    assert path == "/apis/events.k8s.io/v1/namespaces/prod/events"
    assert [headers["Authorization"] for headers in (first, second)] == ["Bearer one", "Bearer two"]
    assert json.loads(body)["regarding"]["name"] == "shop-1"
    assert api.refused == 1
