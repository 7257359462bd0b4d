"""What the queues of log collectors are called on their metrics pages: one table.

A row is a set of queues that are told apart by one label.  Its fields are those of the reading, and a field is a series,
a sum or a difference of several, as :mod:`probes.metrics_page.series` writes them.

Where the entries are: ``medium`` is known of the whole row, or the label ``medium_label`` tells it by its value, or it is
unknown and ``because`` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from probes.logs.reading import Medium


class Row(NamedTuple):
    """One set of queues.

    ``labels``: the first that a series has names the queue, ``name`` stands where there is none; ``prefix`` goes before.
    ``only`` is a label and the value that it must have on a series that has it.  ``unit`` is what ``entries`` counts
    where that is not single entries.  ``from_first``: totals that come on the page with their first event; before it they
    are zero where ``only``'s label says that the queue is one of logs, without an ``only`` where another total is there.
    ``errors_lose``: an entry counts in ``errors`` once it was tried to the end, so that where a queue held it it is lost.
    """

    kind: str
    name: str
    labels: tuple[str, ...]
    fields: Mapping[str, str]
    medium: Medium
    because: str
    medium_label: str = ""
    prefix: str = ""
    only: tuple[str, str] = ("", "")
    unit: str = ""
    from_first: tuple[str, ...] = ()
    errors_lose: bool = False


ROWS: tuple[Row, ...] = (
    # fluent/fluent-bit-docs, administration/monitoring.md, the pages /api/v1 and /api/v2/metrics/prometheus; the storage
    # gauges are on v2 with storage.metrics on.  src/flb_engine.c: a chunk that will be tried again counts as a retry, one
    # that will not as an error.
    Row(
        "fluent-bit", "input", ("name",),
        {
            "waiting_bytes": "fluentbit_input_storage_memory_bytes",
            "entries": "fluentbit_input_storage_chunks",
            "full": "fluentbit_input_ingestion_paused|fluentbit_input_storage_overlimit",
            "arrived": "fluentbit_input_records_total",
            "arrived_bytes": "fluentbit_input_bytes_total",
        },
        "memory", "Fluent Bit's own memory; with storage.type filesystem its chunks are in files as well",
        prefix="input ", unit="chunks",
    ),
    Row(
        "fluent-bit", "filesystem", (), {"entries": "fluentbit_storage_fs_chunks"},
        "disk", "files in Fluent Bit's storage.path", unit="chunks",
    ),
    Row(
        "fluent-bit", "output", ("name",),
        {
            "drained": "fluentbit_output_proc_records_total",
            "drained_bytes": "fluentbit_output_proc_bytes_total",
            "dropped": "fluentbit_output_dropped_records_total",
            "errors": "fluentbit_output_retries_total + fluentbit_output_errors_total",
        },
        "unknown", "what an output delivers waits in the inputs", prefix="output ",
    ),
    # fluent/fluent-plugin-prometheus, README.md "prometheus_output_monitor plugin" and lib/.../in_prometheus_output_monitor.rb.
    # A plugin that has no buffer tells no size.  num_errors counts every failed try; rollbacks are chunks put back to wait.
    Row(
        "fluentd", "output", ("plugin_id", "type"),
        {
            "waiting_bytes": "fluentd_output_status_buffer_total_bytes|fluentd_output_status_buffer_total_queued_size",
            "entries": "fluentd_output_status_buffer_queue_length + fluentd_output_status_buffer_stage_length",
            "arrived": "fluentd_output_status_emit_records",
            "errors": "fluentd_output_status_num_errors",
        },
        "unknown", "memory unless the buffer is @type file, which the page does not say", prefix="output ", unit="chunks",
    ),
    # vectordotdev/vector, lib/vector-buffers/src/internal_events.rs and docs/specs/buffer.md; 0.53 renamed the gauges and
    # keeps the old names for a while.  The label buffer_type is memory or disk.
    Row(
        "vector", "buffer", ("component_id", "buffer_id"),
        {
            "entries": "vector_buffer_size_events|vector_buffer_events",
            "waiting_bytes": "vector_buffer_size_bytes|vector_buffer_byte_size",
            "most_entries": "vector_buffer_max_size_events|vector_buffer_max_event_size",
            "most_bytes": "vector_buffer_max_size_bytes|vector_buffer_max_byte_size",
            "arrived": "vector_buffer_received_events_total",
            "arrived_bytes": "vector_buffer_received_bytes_total",
            "drained": "vector_buffer_sent_events_total",
            "drained_bytes": "vector_buffer_sent_bytes_total",
            "dropped": "vector_buffer_discarded_events_total",
        },
        "unknown", "this Vector does not label its buffers with their buffer_type", medium_label="buffer_type",
        from_first=("dropped",),
    ),
    # open-telemetry/opentelemetry-collector, exporter/exporterhelper/metadata.yaml and README.md (sizer, storage).  The
    # Prometheus exporter of some versions adds _total; the label data_type came in 0.110.  With another sizer than that of
    # requests both sizes count items or bytes, which the page does not say.  Counters come with their first event.
    # exporter/exporterhelper/internal/base_exporter.go: who counts a failure stands before who tries again (retry_on_failure).
    Row(
        "opentelemetry-collector", "exporter", ("exporter",),
        {
            "entries": "otelcol_exporter_queue_size",
            "most_entries": "otelcol_exporter_queue_capacity",
            "drained": "otelcol_exporter_sent_log_records_total|otelcol_exporter_sent_log_records",
            "dropped": "otelcol_exporter_enqueue_failed_log_records_total|otelcol_exporter_enqueue_failed_log_records",
            "errors": "otelcol_exporter_send_failed_log_records_total|otelcol_exporter_send_failed_log_records",
        },
        "unknown", "memory unless sending_queue.storage is set, which the page does not say",
        only=("data_type", "logs"), unit="batches", from_first=("drained", "dropped", "errors"),
        errors_lose=True,
    ),
    # grafana/loki, docs/sources/operations/observability.md.  Bytes encoded and neither sent nor given up are those of the
    # batch that is being tried; what waits before it stays in the files that it reads.
    Row(
        "promtail", "promtail", ("host",),
        {
            "waiting_bytes": "promtail_encoded_bytes_total - promtail_sent_bytes_total - promtail_dropped_bytes_total",
            "arrived_bytes": "promtail_encoded_bytes_total",
            "drained": "promtail_sent_entries_total",
            "drained_bytes": "promtail_sent_bytes_total",
            "dropped": "promtail_dropped_entries_total",
            "errors": "promtail_batch_retries_total",
        },
        "memory", "Promtail's own memory; what it has not read yet waits in the files that it reads",
    ),
    # grafana/alloy, loki.write; since February 2026 (pull request 5652) it no longer tells the encoded bytes, and later
    # versions count the sent ones before compression: then the difference is not known, or negative and left out.
    Row(
        "alloy", "loki.write", ("component_id", "host"),
        {
            "drained": "loki_write_sent_entries_total",
            "waiting_bytes": "loki_write_encoded_bytes_total - loki_write_sent_bytes_total - loki_write_dropped_bytes_total",
            "arrived_bytes": "loki_write_encoded_bytes_total",
            "drained_bytes": "loki_write_sent_bytes_total",
            "dropped": "loki_write_dropped_entries_total",
            "errors": "loki_write_batch_retries_total",
        },
        "memory", "Alloy's own memory; what it has not read yet waits in the files that it reads",
    ),
)  # fmt: skip

#: Kinds whose drops never were in the queue: a collector that refuses what does not fit (exporterhelper's queue), and
#: Vector's ``when_full: drop_newest``.
DROPS_AT_ENTRANCE = frozenset({"opentelemetry-collector", "vector"})

#: Labels that may name a queue of the settings' own series.
LABELS = ("queue", "name", "component_id", "exporter", "output", "sink", "buffer", "host")


def own_row(names: Mapping[str, str], label: str) -> Row:
    """The settings' own names as a row."""
    return Row(
        "own", "queue", (label,) if label else LABELS, names, "unknown", "set logs.medium to tell where it waits"
    )
