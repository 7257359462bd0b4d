"""Pages of log collectors: the queues of each as they really look, and pages that lie."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.logs.collector_names import ROWS, own_row
from probes.logs.collector_page import CollectorPage
from probes.logs.collectors import CollectorProbe
from probes.logs.reading import MOST_QUEUES, NUMBERS, BacklogReading
from probes.metrics_page.samples import MOST_TEXT
from probes.reading import NoData
from tests.unit.builders import FakeClock

#: Shapes of real pages: https://docs.fluentbit.io, a Vector of 0.45 and one of 0.53, a Collector of 0.120, a Promtail, an Alloy.
FLUENT_BIT = """\
# HELP fluentbit_input_storage_memory_bytes Memory bytes used by the chunks.
# TYPE fluentbit_input_storage_memory_bytes gauge
fluentbit_input_storage_memory_bytes{name="tail.0"} 2056 1509150350542
fluentbit_input_storage_chunks{name="tail.0"} 3
fluentbit_input_storage_overlimit{name="tail.0"} 0
fluentbit_input_ingestion_paused{name="tail.0"} 1
fluentbit_input_records_total{name="tail.0"} 57 1509150350542
fluentbit_input_bytes_total{name="tail.0"} 18069
fluentbit_storage_fs_chunks 7
fluentbit_output_proc_records_total{name="stackdriver.0"} 54
fluentbit_output_proc_bytes_total{name="stackdriver.0"} 17118
fluentbit_output_errors_total{name="stackdriver.0"} 1
fluentbit_output_retries_total{name="stackdriver.0"} 4
fluentbit_output_dropped_records_total{name="stackdriver.0"} 2
"""
VECTOR_OLD = """\
vector_buffer_events{buffer_id="loki",component_id="loki",stage="0"} 5
vector_buffer_events{buffer_id="loki",component_id="loki",stage="1"} 7
vector_buffer_byte_size{buffer_id="loki",component_id="loki",stage="0"} 500
vector_buffer_max_event_size{component_id="loki",stage="0"} 500
vector_buffer_received_events_total{buffer_id="loki",component_id="loki",stage="0"} 100
vector_buffer_discarded_events_total{buffer_id="loki",component_id="loki",intentional="true"} 3
vector_buffer_discarded_events_total{buffer_id="loki",component_id="loki",intentional="false"} 1
"""
VECTOR = """\
vector_buffer_size_events{buffer_id="out",buffer_type="disk",component_id="out"} 9
vector_buffer_events{buffer_id="out",buffer_type="disk",component_id="out"} 8
vector_buffer_size_bytes{buffer_id="out",buffer_type="disk",component_id="out"} 5242880
vector_buffer_max_size_bytes{buffer_id="out",buffer_type="disk",component_id="out"} 268435488
vector_buffer_size_events{buffer_id="es",buffer_type="memory",component_id="es"} 1
"""
COLLECTOR = """\
otelcol_exporter_queue_capacity{data_type="logs",exporter="otlp"} 1000
otelcol_exporter_queue_capacity{data_type="traces",exporter="otlp"} 50
otelcol_exporter_queue_size{data_type="logs",exporter="otlp"} 990
otelcol_exporter_queue_size{data_type="traces",exporter="otlp"} 40
otelcol_exporter_queue_size{data_type="metrics",exporter="prom"} 4
otelcol_exporter_sent_log_records_total{exporter="otlp"} 300
otelcol_exporter_send_failed_log_records{exporter="otlp"} 6
otelcol_exporter_enqueue_failed_log_records_total{exporter="otlp"} 5
"""
FLUENTD = """\
fluentd_output_status_buffer_total_bytes{hostname="h",plugin_id="loki",type="forward"} 5242880.0
fluentd_output_status_buffer_stage_length{hostname="h",plugin_id="loki",type="forward"} 1.0
fluentd_output_status_buffer_queue_length{hostname="h",plugin_id="loki",type="forward"} 12.0
fluentd_output_status_emit_records{hostname="h",plugin_id="loki",type="forward"} 90000.0
fluentd_output_status_num_errors{hostname="h",plugin_id="loki",type="forward"} 7.0
fluentd_output_status_emit_records{hostname="h",plugin_id="object:898",type="stdout"} 3.0
"""
PROMTAIL = """\
promtail_encoded_bytes_total{host="loki:3100"} 7700
promtail_sent_bytes_total{host="loki:3100"} 797
promtail_dropped_bytes_total{host="loki:3100",reason="ingester_error",tenant=""} 6000
promtail_dropped_bytes_total{host="loki:3100",reason="rate_limited",tenant=""} 3
promtail_sent_entries_total{host="loki:3100"} 10
promtail_dropped_entries_total{host="loki:3100",reason="ingester_error",tenant=""} 86
"""
ALLOY_NEW = """\
loki_write_sent_bytes_total{component_id="loki.write.default",host="loki:3100"} 797
loki_write_sent_entries_total{component_id="loki.write.default",host="loki:3100"} 10
loki_write_dropped_entries_total{component_id="loki.write.default",host="loki:3100",reason="rate_limited",tenant=""} 2
"""


def told(page: str, **options: Any) -> dict[str, dict[str, float]]:
    queues, _ = CollectorPage(**options).queues(page)
    return {label: {**q.queue.numbers, **q.totals} for label, q in queues.items()}


def media(page: str, **options: Any) -> dict[str, str]:
    queues, _ = CollectorPage(**options).queues(page)
    return {label: q.queue.backing.medium for label, q in queues.items() if q.queue.backing}


def test_fluent_bit() -> None:
    assert told(FLUENT_BIT) == {
        "input tail.0": {"waiting_bytes": 2056, "entries": 3, "full": 1, "arrived": 57, "arrived_bytes": 18069},
        "filesystem": {"entries": 7},
        "output stackdriver.0": {"drained": 54, "drained_bytes": 17118, "errors": 5, "dropped": 2},
    }
    assert media(FLUENT_BIT) == {"input tail.0": "memory", "filesystem": "disk", "output stackdriver.0": "unknown"}
    queues, _ = CollectorPage().queues(FLUENT_BIT)
    assert {q.queue.unit for label, q in queues.items() if label != "output stackdriver.0"} == {"chunks"}


def test_vector_by_its_old_names_with_its_stages_and_losses_added_up() -> None:
    assert told(VECTOR_OLD) == {
        "loki": {"entries": 12, "waiting_bytes": 500, "most_entries": 500, "arrived": 100, "dropped": 4}
    }
    assert media(VECTOR_OLD) == {"loki": "unknown"}
    assert media(VECTOR_OLD, medium="memory") == {"loki": "memory"}


def test_vector_by_its_new_names_which_go_first_with_the_kind_of_its_buffers() -> None:
    assert told(VECTOR)["out"] == {"entries": 9, "waiting_bytes": 5242880, "most_bytes": 268435488}
    assert media(VECTOR, medium="memory") == {"out": "disk", "es": "memory"}


def test_the_opentelemetry_collectors_queues_of_logs_and_no_others() -> None:
    assert told(COLLECTOR) == {
        "otlp": {"entries": 990, "most_entries": 1000, "drained": 300, "errors": 6, "dropped": 11}
    }
    queues, _ = CollectorPage().queues(COLLECTOR)
    assert queues["otlp"].queue.unit == "batches"
    assert media(COLLECTOR) == {"otlp": "unknown"}


def test_counters_that_come_with_their_first_event_are_zero_before_it() -> None:
    page = 'otelcol_exporter_queue_size{data_type="logs",exporter="otlp"} 4\n'
    assert told(page) == {"otlp": {"entries": 4, "drained": 0, "dropped": 0, "errors": 0}}


def test_a_buffer_of_vector_that_counts_has_dropped_nothing_before_it_says_so() -> None:
    gauge = 'vector_buffer_size_events{buffer_id="out",component_id="out"} 9\n'
    assert "dropped" not in told(gauge)["out"]
    assert (
        told(gauge + 'vector_buffer_sent_events_total{buffer_id="out",component_id="out"} 7\n')["out"]["dropped"] == 0
    )


def test_what_an_exporter_with_a_queue_gave_up_is_lost_though_the_queue_took_all() -> None:
    queue = 'otelcol_exporter_queue_size{data_type="logs",exporter="otlp"} 4\n'
    failed = 'otelcol_exporter_send_failed_log_records{exporter="otlp"} 6\n'
    assert told(queue + failed)["otlp"]["dropped"] == 6
    # without a queue the receiver is told, which may try again
    assert told(failed) == {"otlp": {"errors": 6}}


def test_a_collector_before_the_label_of_the_data_is_read_as_well() -> None:
    assert told('otelcol_exporter_queue_size{exporter="otlp"} 4\n') == {"otlp": {"entries": 4}}


def test_fluentd_counts_its_chunks_and_does_not_say_where_they_are() -> None:
    assert told(FLUENTD)["output loki"] == {
        "waiting_bytes": 5242880, "entries": 13, "arrived": 90000, "errors": 7
    }  # fmt: skip
    assert told(FLUENTD)["output object:898"] == {"arrived": 3}
    assert media(FLUENTD)["output loki"] == "unknown"


def test_promtail_waits_for_what_was_encoded_and_neither_sent_nor_given_up() -> None:
    assert told(PROMTAIL)["loki:3100"] == {
        "waiting_bytes": 900, "arrived_bytes": 7700, "drained_bytes": 797, "drained": 10, "dropped": 86
    }  # fmt: skip
    assert media(PROMTAIL) == {"loki:3100": "memory"}


def test_an_alloy_that_no_longer_tells_what_it_encoded_has_no_depth() -> None:
    assert told(ALLOY_NEW) == {"loki.write.default": {"drained_bytes": 797, "drained": 10, "dropped": 2}}
    assert CollectorPage().queues(ALLOY_NEW)[1] == ""


def test_bytes_that_are_counted_in_two_ways_are_no_depth_and_the_reason_is_given() -> None:
    page = PROMTAIL.replace("} 797", "} 79700")
    queues, unseen = CollectorPage().queues(page)
    assert "waiting_bytes" not in queues["loki:3100"].queue.numbers
    assert unseen == "promtail counts the bytes that come and those that go differently"


def test_names_of_ones_own_with_their_label_and_medium() -> None:
    row = own_row({"entries": 'mine{kind="log"}|theirs', "dropped": "lost_total"}, "shard")
    page = (
        'mine{kind="log",shard="a"} 4\nmine{kind="trace",shard="a"} 9\nlost_total{shard="a"} 2\ntheirs{shard="b"} 1\n'
    )
    assert told(page, rows=[row]) == {"a": {"entries": 4, "dropped": 2}, "b": {"entries": 1}}
    assert media(page, rows=[row], medium="disk") == {"a": "disk", "b": "disk"}
    assert told("mine 4\ntheirs 7\n", rows=[own_row({"entries": "mine"}, "")]) == {"queue": {"entries": 4}}


def test_the_rows_are_numbers_of_the_reading_and_tell_what_is_looked_for() -> None:
    for row in ROWS:
        assert set(row.fields) <= set(NUMBERS)
        assert row.because
    assert CollectorPage().telling == (
        "fluentbit_input_storage_memory_bytes", "fluentd_output_status_buffer_total_bytes", "vector_buffer_size_events", "otelcol_exporter_queue_size",
        "promtail_encoded_bytes_total", "loki_write_sent_entries_total",
    )  # fmt: skip


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "1e999", "x", "", "0x10"])
def test_a_number_that_is_none_is_left_out(value: str) -> None:
    assert told(
        f'vector_buffer_events{{component_id="a"}} {value}\nvector_buffer_byte_size{{component_id="a"}} 1\n'
    ) == {"a": {"waiting_bytes": 1}}


@given(st.text())
@settings(max_examples=200)
def test_any_name_of_a_queue_becomes_one_printable_label(name: str) -> None:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    for label in told(f'vector_buffer_events{{component_id="{escaped}"}} 1\n'):
        assert label.isprintable()
        label.encode()


# ---- the probe


class Pages:
    """A probe whose page is what the test says."""

    def __init__(self, text: str | Exception) -> None:
        self.text = text
        self.clock = FakeClock()
        self.probe = CollectorProbe(
            "shipper", "http://shipper/metrics", CollectorPage(), get=self._get, clock=self.clock
        )

    async def _get(self, _url: str) -> str:
        if isinstance(self.text, Exception):
            raise self.text
        return self.text

    def read(self, text: str | None = None) -> BacklogReading:
        self.text = self.text if text is None else text
        self.clock.advance(10.0)
        return asyncio.run(self.probe.read())


def test_counters_become_increments_from_the_second_page_on() -> None:
    pages = Pages(FLUENT_BIT)
    first = pages.read()
    assert first.arrived == {"input tail.0": 0}
    second = pages.read(FLUENT_BIT.replace("} 57 ", "} 60 "))
    assert (second.arrived, second.dropped, second.seconds) == ({"input tail.0": 3}, {"output stackdriver.0": 0}, 10)
    assert (second.target, second.kinds["filesystem"]) == ("shipper", "fluent-bit")


def test_a_collector_that_was_started_anew_counts_from_zero() -> None:
    pages = Pages(FLUENT_BIT)
    pages.read()
    found = pages.read(FLUENT_BIT.replace("} 57 ", "} 5 ").replace("} 18069", "} 90"))
    assert (found.arrived, found.arrived_bytes) == ({"input tail.0": 5}, {"input tail.0": 90})


def test_a_queue_that_appears_counts_from_zero() -> None:
    pages = Pages(VECTOR_OLD)
    pages.read()
    found = pages.read(VECTOR_OLD + 'vector_buffer_received_events_total{component_id="new"} 8\n')
    assert found.arrived == {"loki": 0, "new": 8}


def test_a_depth_that_cannot_be_told_has_its_reason() -> None:
    found = Pages(PROMTAIL.replace("} 797", "} 79700")).read()
    assert found.waiting_bytes is None
    assert found.unseen["waiting_bytes"] == "promtail counts the bytes that come and those that go differently"
    assert found.unseen["oldest_seconds"] == "not among the metrics of the collector on the page"


def test_more_queues_than_are_shown_are_counted() -> None:
    found = Pages("".join(f'vector_buffer_events{{component_id="c{n:03}"}} 1\n' for n in range(50))).read()
    assert found.entries is not None
    assert (len(found.entries), found.left_out) == (MOST_QUEUES, 50 - MOST_QUEUES)


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("", "no metric of a log collector is on the page; looked for fluentbit_input_storage_memory_bytes, "),
        ("up 1\n", "no metric of a log collector"),
        (OSError("refused"), "logs.metrics_urls.shipper: refused"),
        (TimeoutError(), "no whole page in time"),
        (ValueError("answered 404, not 200"), "answered 404, not 200"),
        ("vector_buffer_events 1\n" * (MOST_TEXT // 20), "more than 100000 characters"),
    ],
)  # fmt: skip
def test_a_page_that_cannot_be_used_is_no_data_with_its_reason(text: str | Exception, because: str) -> None:
    with pytest.raises(NoData) as caught:
        Pages(text).read()
    assert because in caught.value.because
    assert caught.value.remedy
