"""Metric families and findings as OTLP's messages.  Loads protobuf: only where OTLP is asked for.

The families are those of ``/metrics``, so there is no second list of what is measured, and names are the same after a collector
has handed them on to Prometheus: the suffix that its unit makes stands in the name already and is not added again.  Sums are
cumulative since the agent's start, so of an outage nothing is missing at its end but the steps between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from agent.settings.otel_environ import Signal
from exporters.exposition import Metric as Family
from probes.labels import printable

#: The units of our names in UCUM.
UNITS = {"seconds": "s", "bytes": "By", "ratio": "1", "cores": "{cpu}", "pages": "{page}"}
#: Of OTLP's logs: INFO, WARN, ERROR.
SEVERITIES = {"info": (9, "INFO"), "warning": (13, "WARN"), "critical": (17, "ERROR")}
#: Characters of a collector's reason in the agent's log.
MOST_REASON = 200
_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


def metrics(families: Iterable[Family], resource: Mapping[str, str], version: str, *, start: int, now: int) -> bytes:
    """An ExportMetricsServiceRequest.  ``start`` (of the sums) and ``now`` are nanoseconds since the epoch."""
    found = [metric for family in families if (metric := _metric(family, start, now)) is not None]
    scope = ScopeMetrics(scope=InstrumentationScope(name="stallscope", version=version), metrics=found)
    message = ExportMetricsServiceRequest(
        resource_metrics=[ResourceMetrics(resource=_resource(resource), scope_metrics=[scope])]
    )
    return bytes(message.SerializeToString())


def event(
    name: str,
    severity: str,
    body: str,
    attributes: Mapping[str, Any],
    resource: Mapping[str, str],
    version: str,
    *,
    now: int,
) -> bytes:
    """An ExportLogsServiceRequest of one event; ``now`` is nanoseconds since the epoch."""
    number, text = SEVERITIES.get(severity, SEVERITIES["info"])
    record = LogRecord(
        time_unix_nano=now,
        observed_time_unix_nano=now,
        severity_number=number,  # type: ignore[arg-type] # the stub wants the enum's member
        severity_text=text,
        body=AnyValue(string_value=body),
        attributes=_attributes(attributes),
        event_name=name,
    )
    scope = ScopeLogs(scope=InstrumentationScope(name="stallscope", version=version), log_records=[record])
    logs = ResourceLogs(resource=_resource(resource), scope_logs=[scope])
    return bytes(ExportLogsServiceRequest(resource_logs=[logs]).SerializeToString())


def refused(signal: Signal, answer: bytes) -> str:
    """What was not taken of what a 200 answers, and why; empty where all was, or the answer is none of OTLP's."""
    try:
        if signal == "metrics":
            points = ExportMetricsServiceResponse.FromString(answer).partial_success
            number, because = points.rejected_data_points, points.error_message
        else:
            records = ExportLogsServiceResponse.FromString(answer).partial_success
            number, because = records.rejected_log_records, records.error_message
    except DecodeError:
        return ""
    return f"{number} of the {signal} rejected: {printable(because, MOST_REASON)}" if number > 0 else ""


def _resource(attributes: Mapping[str, str]) -> Resource:
    return Resource(attributes=_attributes(attributes))


def _attributes(named: Mapping[str, Any]) -> list[KeyValue]:
    """What is None is left out."""
    return [KeyValue(key=name, value=_value(value)) for name, value in named.items() if value is not None]


def _value(value: Any) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, list | tuple):
        return AnyValue(array_value=ArrayValue(values=[_value(each) for each in value]))
    return AnyValue(string_value=_clean(str(value)))


def _clean(text: str) -> str:
    """Protobuf takes no lone surrogates, which names of files may have."""
    return text.encode("utf-8", "replace").decode()


def _metric(family: Family, start: int, now: int) -> Metric | None:
    """None where nothing of it is known now."""
    if not family.samples:
        return None
    name = family.samples[0].name if family.type == "info" else family.name
    metric = Metric(name=name, description=family.documentation, unit=UNITS.get(name.rpartition("_")[2], ""))
    if family.type == "histogram":
        metric.histogram.CopyFrom(
            Histogram(data_points=_histograms(family, start, now), aggregation_temporality=_CUMULATIVE)
        )
        return metric
    total = family.type == "counter"
    points = [
        NumberDataPoint(
            attributes=_attributes(sample.labels),
            start_time_unix_nano=start if total else 0,
            time_unix_nano=now,
            as_double=sample.value,
        )
        for sample in family.samples
    ]
    if total:
        metric.sum.CopyFrom(Sum(data_points=points, aggregation_temporality=_CUMULATIVE, is_monotonic=True))
    else:
        metric.gauge.CopyFrom(Gauge(data_points=points))
    return metric


def _histograms(family: Family, start: int, now: int) -> Sequence[HistogramDataPoint]:
    """Prometheus' buckets each hold those below; OTLP's do not."""
    points: dict[tuple[tuple[str, str], ...], HistogramDataPoint] = {}
    below: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        key = tuple(labels.items())
        point = points.get(key)
        if point is None:
            point = points[key] = HistogramDataPoint(
                attributes=_attributes(labels), start_time_unix_nano=start, time_unix_nano=now
            )
        if sample.name.endswith("_bucket"):
            point.bucket_counts.append(round(sample.value - below.get(key, 0.0)))
            below[key] = sample.value
            if (bound := sample.labels["le"]) != "+Inf":
                point.explicit_bounds.append(float(bound))
        elif sample.name.endswith("_count"):
            point.count = round(sample.value)
        else:
            point.sum = sample.value
    return list(points.values())
