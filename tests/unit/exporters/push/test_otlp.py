"""What is sent by OTLP: all of /metrics, each finding, and the OTEL_* variables as OpenTelemetry's own exporters read them."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.sdk.metrics.export import MetricsData
from prometheus_client.parser import text_string_to_metric_families

from agent.diagnosis import Change
from agent.settings import otel_environ
from agent.settings.otel_environ import SIGNALS, Endpoint, Otel
from exporters.exposition import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from exporters.metrics_page import MetricsPage
from exporters.push import otlp_messages
from exporters.push.otlp import OtlpOutput
from exporters.push.post import Client
from exporters.push.resource import UNKNOWN_SERVICE, ask_metadata, attributes
from probes import READINGS
from tests.unit.exporters.push.receiver import Got, receiving
from tests.unit.golden import fixed

RESOURCE = {"service.name": "shop"}


def sent(*families: Metric) -> dict[str, Any]:
    raw = otlp_messages.metrics(families, RESOURCE, "1.2.3", start=5, now=9)
    (resource,) = ExportMetricsServiceRequest.FromString(raw).resource_metrics
    (scope,) = resource.scope_metrics
    return {metric.name: metric for metric in scope.metrics}


def plain(points: Any) -> dict[tuple[tuple[str, str], ...], Any]:
    return {tuple(sorted((each.key, each.value.string_value) for each in point.attributes)): point for point in points}


def test_every_series_of_metrics_is_sent_with_its_number() -> None:
    page = MetricsPage(fixed.state(fixed.failing()), READINGS)
    for kind in READINGS:
        page.readings.observe(fixed.reading(kind))
    text = page.render().decode()
    metrics = sent(*page.families())
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
            if family.type == "histogram":
                point = plain(metrics[family.name].histogram.data_points)[labels]
                if sample.name.endswith("_count"):
                    assert point.count == sum(point.bucket_counts) == sample.value
                    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
                elif sample.name.endswith("_sum"):
                    assert point.sum == sample.value
            else:
                metric = metrics[
                    family.name.removesuffix("_info") + "_info" if family.name.endswith("_info") else family.name
                ]
                assert (
                    plain((metric.sum if family.type == "counter" else metric.gauge).data_points)[labels].as_double
                    == sample.value
                )


def test_kinds_units_and_times() -> None:
    histogram = HistogramMetricFamily("h_seconds", "h", labels=["a"])
    histogram.add_metric(("x",), [("0.1", 2), ("1.0", 2), ("+Inf", 5)], 7.5)
    info = InfoMetricFamily("i", "i")
    info.add_metric((), {"v": "1"})
    empty = GaugeMetricFamily("nothing", "n", labels=["a"])
    found = sent(
        CounterMetricFamily("c_bytes_total", "c", value=3),
        GaugeMetricFamily("g_ratio", "g", value=0.5),
        histogram,
        info,
        empty,
    )
    assert {name: metric.unit for name, metric in found.items()} == {
        "c_bytes": "By",
        "g_ratio": "1",
        "h_seconds": "s",
        "i_info": "",
    }
    (total,) = found["c_bytes"].sum.data_points
    assert (total.as_double, total.start_time_unix_nano, total.time_unix_nano, found["c_bytes"].sum.is_monotonic) == (
        3,
        5,
        9,
        True,
    )
    (point,) = found["h_seconds"].histogram.data_points
    assert (list(point.bucket_counts), list(point.explicit_bounds), point.count, point.sum) == (
        [2, 0, 3],
        [0.1, 1.0],
        5,
        7.5,
    )


@given(text=st.text(alphabet=st.characters(codec=None, exclude_categories=())))
@settings(max_examples=40, deadline=None)
def test_whatever_a_name_holds_it_can_be_sent(text: str) -> None:
    family = GaugeMetricFamily("g", "g", labels=["a"])
    family.add_metric((text,), 1.0)
    assert sent(family)["g"].gauge.data_points[0].as_double == 1.0


def to(url: str, gzipped: bool = False) -> Otel:
    endpoints = {signal: Endpoint(f"{url}/v1/{signal}", {"x-key": "k"}, 10.0, gzipped) for signal in SIGNALS}
    return Otel(endpoints, 60.0, "", {}, ())


class Told:
    """An output and the requests that came."""

    def __init__(self, otel: Otel) -> None:
        self.now = 0.0
        self.page = MetricsPage(fixed.state(fixed.failing()), READINGS)
        self.output = OtlpOutput(
            otel, RESOURCE, "1.2.3", self.page.families, Client(), clock=lambda: self.now, wall=lambda: self.now
        )  # fmt: skip

    async def settle(self) -> None:
        while any(box.waiting for box in self.output.outboxes):  # noqa: ASYNC110 - bounded by what is sent
            await asyncio.sleep(0.001)


def records(got: list[Got]) -> list[Any]:
    requests = [ExportLogsServiceRequest.FromString(each.body) for each in got if each.path == "/v1/logs"]
    return [record for each in requests for record in each.resource_logs[0].scope_logs[0].log_records]


def named(record: Any) -> dict[str, Any]:
    return {
        each.key: each.value.string_value
        or each.value.double_value
        or [v.string_value for v in each.value.array_value.values]
        for each in record.attributes
    }


@pytest.mark.parametrize("gzipped", [False, True])
def test_metrics_are_sent_each_interval_and_nothing_is_caught_up(gzipped: bool) -> None:
    async def run() -> None:
        async with receiving() as receiver:
            told = Told(to(receiver.url, gzipped))
            for told.now, _ in ((0.0, 1), (59.0, 1), (60.0, 2), (400.0, 3), (419.0, 3), (420.0, 4)):
                told.output.take(fixed.failing(), ())
                await told.settle()
                assert len(receiver.got) == _
        first = receiver.got[0]
        assert first.headers["x-key"] == "k"
        assert first.headers["content-type"] == "application/x-protobuf"
        assert first.headers.get("content-encoding", "") == ("gzip" if gzipped else "")
        body = gzip.decompress(first.body) if gzipped else first.body
        (resource,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
        assert plain([resource.resource]) == {(("service.name", "shop"),): resource.resource}

    asyncio.run(run())


def rejecting(number: int, because: str = "limit\n") -> bytes:
    answer = ExportMetricsServiceResponse()
    answer.partial_success.rejected_data_points, answer.partial_success.error_message = number, because
    return bytes(answer.SerializeToString())


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (rejecting(3), "refused"), (rejecting(0, "a remark"), "delivered"), (b"", "delivered"),
        (b"{}", "delivered"), (b"\n<html>", "delivered"), (rejecting(3)[:-1], "delivered"),
    ],
)  # fmt: skip
def test_what_a_collector_rejects_in_part_is_refused_and_told_once(
    body: bytes, outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> Mapping[str, int]:
        raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        async with receiving(lambda _: raw) as receiver:
            told = Told(to(receiver.url))
            for told.now in (0.0, 60.0):
                told.output.take(fixed.failing(), ())
                await told.settle()
            assert len(receiver.got) == 2
            return next(box.counts for box in told.output.outboxes if box.name == "otlp metrics")

    assert asyncio.run(run())[outcome] == 2
    said = [record.getMessage() for record in caplog.records]
    assert said == (["otlp metrics: 3 of the metrics rejected: limit?; not sent again"] if outcome == "refused" else [])


def test_an_event_may_be_rejected_too() -> None:
    answer = ExportLogsServiceResponse()
    answer.partial_success.rejected_log_records = 1
    assert otlp_messages.refused("logs", answer.SerializeToString()).startswith("1 of the logs rejected")


def test_a_finding_is_told_at_its_begin_when_its_cause_is_known_and_at_its_end() -> None:
    async def run() -> None:
        effect = fixed.finding("pool_exhausted", "warning")
        explained = fixed.finding("pool_exhausted", "warning", "cpu_quota_throttled")
        async with receiving() as receiver:
            told = Told(to(receiver.url))
            told.output.take(fixed.report("warn", "v", effect), [Change("pool_exhausted", "absent", "present", effect)])
            told.output.take(fixed.report("warn", "v", explained), [])
            told.output.take(fixed.report("warn", "v", explained), [])
            told.output.take(
                fixed.healthy(),
                [
                    Change("pool_exhausted", "present", "unknown", None, "no pool"),
                    Change("x", "unknown", "absent", None),
                ],
            )
            told.output.end(fixed.healthy())
            await told.settle()
        begun, known, over, last = records(receiver.got)
        assert [each.event_name for each in (begun, known, over, last)] == [
            "stallscope.finding.started", "stallscope.finding.explained", "stallscope.finding.ended", "stallscope.report",
        ]  # fmt: skip
        assert (begun.severity_text, over.severity_text) == ("WARN", "INFO")
        assert named(begun)["stallscope.share"] == 0.95
        assert "stallscope.explained_by" not in named(begun)
        assert (
            named(known)["stallscope.explained_by"] == named(over)["stallscope.explained_by"] == "cpu_quota_throttled"
        )
        assert named(over)["stallscope.verdict"] == "unknown"
        assert (named(over)["stallscope.because"], "stallscope.because" in named(begun)) == ("no pool", False)
        assert len(named(begun)["stallscope.changes"]) == 2
        assert json.loads(named(last)["stallscope.report"])["status"] == "pass"

    asyncio.run(run())


@pytest.mark.parametrize(
    "environ",
    [
        {"ENDPOINT": "{url}/"},
        {"ENDPOINT": "{url}/otlp", "HEADERS": "api-key=a%20b, X-B = c==,"},
        {"METRICS_ENDPOINT": "{url}/x", "ENDPOINT": "{url}"},
        {"ENDPOINT": "{url}", "LOGS_HEADERS": "a=1", "HEADERS": "b=2", "COMPRESSION": "gzip"},
        {"ENDPOINT": "{url}", "METRICS_COMPRESSION": "none", "COMPRESSION": "gzip"},
    ],
    ids=range(5),
)
def test_the_variables_say_what_they_say_to_opentelemetrys_own_exporters(
    environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with receiving() as receiver:
            for name, value in environ.items():
                monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value.format(url=receiver.url))
            await asyncio.to_thread(OTLPMetricExporter().export, MetricsData([]))
            await asyncio.to_thread(OTLPLogExporter().export, [])
            ours = otel_environ.read(os.environ)
            assert ours.faults == ()
            told = Told(ours)
            told.output.end(fixed.healthy())
            await told.settle()
        theirs, mine = ({each.path: each.headers for each in part} for part in (receiver.got[:2], receiver.got[2:]))
        assert theirs.keys() == mine.keys()
        for path, headers in theirs.items():
            for name in ("api-key", "x-b", "a", "b", "content-type", "content-encoding"):
                assert mine[path].get(name, "identity") == headers.get(name, "identity")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("environ", "signals", "fault"),
    [
        ({"OTEL_SDK_DISABLED": "true"}, [], ""),
        ({"OTEL_METRICS_EXPORTER": "none"}, ["logs"], ""),
        ({"OTEL_LOGS_EXPORTER": "console"}, ["metrics"], "must be otlp or none; logs are not sent"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, [], "must be http/protobuf (collectors take it at port 4318)"),
        ({"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/json"}, ["logs"], "must be http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, [], "must be http://HOST"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317"}, [], "port 4317 is that of gRPC"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://u:hunter2@a"}, [], "without a user or a password"),
        ({"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://[a"}, ["metrics"], "must be http://HOST"),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "10"}, [], "must be milliseconds, 100 to"),
        ({"OTEL_EXPORTER_OTLP_COMPRESSION": "deflate"}, [], "must be gzip or none"),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "1m"}, ["metrics", "logs"], "60000 is taken"),
        ({"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta"}, ["metrics", "logs"], "sums are cumulative here"),
    ],
)  # fmt: skip
def test_what_is_switched_off_or_cannot_be_sent(environ: Mapping[str, str], signals: list[str], fault: str) -> None:
    found = otel_environ.read(environ)
    assert list(found.endpoints) == signals
    assert bool(found.faults) == bool(fault)
    assert all(fault in each and "hunter2" not in each for each in found.faults)


@given(text=st.text())
@settings(max_examples=60, deadline=None)
def test_no_variable_is_too_strange(text: str) -> None:
    names = ("ENDPOINT", "HEADERS", "TIMEOUT", "COMPRESSION", "PROTOCOL")
    otel_environ.read({**{f"OTEL_EXPORTER_OTLP_{name}": text for name in names}, "OTEL_METRIC_EXPORT_INTERVAL": text})
    assert all(otel_environ.pairs(text))


def test_who_speaks_on_cloud_run() -> None:
    platform = {"environment": "cloud_run_service", "service": "shop", "revision": "shop-12"}
    found = attributes(platform, {}, {"faas.instance": "abc", "cloud.region": "europe-west1"})
    assert found.items() >= {
        "service.name": "shop", "service.instance.id": "abc", "cloud.provider": "gcp", "cloud.platform": "gcp_cloud_run",
        "cloud.region": "europe-west1", "faas.name": "shop", "faas.version": "shop-12",
    }.items()  # fmt: skip


def test_who_speaks_on_kubernetes(tmp_path: Path) -> None:
    container = "a" * 64
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "proc/self/mountinfo").write_text(
        f"9 8 0:1 /var/lib/containers/{container}/hostname /etc/hostname rw - ext4 a rw\n"
    )
    environ = {
        "POD_NAME": "shop-1",
        "POD_NAMESPACE": "prod",
        "CONTAINER_NAME": "stallscope",
        "OTEL_SERVICE_NAME": "shop",
    }
    found = attributes({"environment": "kubernetes"}, environ, {}, root=tmp_path)
    assert found.items() >= {
        "service.name": "shop", "service.instance.id": "prod.shop-1.stallscope", "k8s.pod.name": "shop-1",
        "k8s.namespace.name": "prod", "container.id": container,
    }.items()  # fmt: skip
    assert "k8s.pod.name" not in attributes({"environment": "none"}, environ, {}, root=tmp_path)


def test_what_the_user_says_goes_first_and_an_empty_value_takes_nothing_away() -> None:
    given_ = {"OTEL_RESOURCE_ATTRIBUTES": "service.name=other,deployment.environment.name=lab,host.name="}
    found = attributes({"environment": "none"}, given_, {})
    assert (found["service.name"], found["deployment.environment.name"]) == ("other", "lab")
    assert found["host.name"]
    assert attributes({"environment": "none"}, {}, {})["service.name"] == UNKNOWN_SERVICE


def test_the_metadata_server_is_asked_where_there_is_one_and_else_left_alone() -> None:
    async def run() -> None:
        answers = iter((b"projects/1/regions/europe-west1", b"00abc", b""))

        def answer(_: int) -> bytes:
            text = next(answers)
            return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)

        async with receiving(answer) as receiver:
            found = await ask_metadata(Client(), {"GCE_METADATA_HOST": f"127.0.0.1:{receiver.port}"})
        assert found == {"cloud.region": "europe-west1", "faas.instance": "00abc"}
        assert receiver.got[0].headers["metadata-flavor"] == "Google"
        assert await ask_metadata(Client(), {"GCE_METADATA_HOST": f"127.0.0.1:{receiver.port}"}) == {}

    asyncio.run(run())
