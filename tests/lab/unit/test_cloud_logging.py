"""What the lab's Cloud Logging makes of an entry, and the truth that follows from what was emitted and accepted."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud.logging_v2.types import LogEntry

from tests.lab.cloud_logging import Entry, Waiting, selected, sequence_of, waiting


@pytest.mark.parametrize(
    ("fields", "number"),
    [
        ({"text_payload": "hello seq=17"}, 17),
        ({"text_payload": "hello", "labels": {"seq": "18"}}, 18),
        ({"json_payload": {"seq": 19}}, 19),
        ({"json_payload": {"message": "m", "metadata": {"seq": 20}}}, 20),
        ({"json_payload": {"message": "seq=21 hello"}}, 21),
        ({"json_payload": {"message": "hello", "metadata": "seq"}}, None),
        ({"text_payload": "sseq=3"}, None),
        ({"labels": {"seq": "x"}}, None),
        ({}, None),
    ],
)
def test_the_sequence_number_is_found_where_the_clients_put_it(fields: dict[str, Any], number: int | None) -> None:
    assert sequence_of(LogEntry.pb(LogEntry(fields))) == number


def entry(sequence: int, answered: float, accepted: bool = True) -> Entry:
    return Entry(sequence, 0.0, 0.0, answered, accepted)


def test_what_waits_is_what_was_emitted_and_not_yet_answered() -> None:
    emitted = {1: 10.0, 2: 11.0, 3: 12.0, 4: 20.0}
    entries = [entry(1, 13.0), entry(2, 16.0)]
    assert waiting(emitted, entries, 12.5) == Waiting(3, 2.5)
    assert waiting(emitted, entries, 15.0) == Waiting(2, 4.0)
    assert waiting(emitted, entries, 16.0) == Waiting(1, 4.0)
    assert waiting(emitted, [*entries, entry(3, 16.0)], 17.0) == Waiting(0, None)


def test_a_refused_entry_waits_only_for_a_client_that_sends_it_again() -> None:
    emitted, entries = {1: 10.0}, [entry(1, 11.0, accepted=False)]
    assert waiting(emitted, entries, 12.0) == Waiting(0, None)
    assert waiting(emitted, entries, 12.0, lost=False) == Waiting(1, 2.0)


def listed(log: str, made: int, received: int, **labels: str) -> Any:
    entry = LogEntry.pb(LogEntry(log_name=f"projects/p/logs/{log}", labels=labels))
    entry.timestamp.FromSeconds(made)
    entry.receive_timestamp.FromSeconds(received)
    entry.resource.labels["service_name"] = labels.get("service", "shop")
    return entry


KEPT = [listed("a", 100, 200), listed("run%2Fb", 150, 160, x="y"), listed("c", 90, 95, service="bakery")]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ('logName="projects/p/logs/a"', [0]),
        ('logName=("projects/p/logs/a" OR "projects/p/logs/run%2Fb")', [0, 1]),
        ('timestamp>="1970-01-01T00:01:40.000Z"', [0, 1]),
        ('receiveTimestamp>="1970-01-01T00:02:41Z"', [0]),
        ('labels.x="y"', [1]),
        ('labels.x="y" OR logName="projects/p/logs/c"', [1, 2]),
        (
            '(receiveTimestamp>="1970-01-01T00:02:40Z" AND receiveTimestamp<"1970-01-01T00:03:20Z") OR timestamp<="1970-01-01T00:01:29Z"',
            [1],
        ),
        ('timestamp>="1970-01-01T00:01:31Z" AND (labels.x="y" OR (labels.x="z" OR logName="projects/p/logs/c"))', [1]),
        ('(resource.labels.service_name="bakery") AND timestamp>="1970-01-01T00:00:00Z"', [2]),
    ],
)
def test_a_query_of_the_probe_finds_what_it_names(query: str, wanted: list[int]) -> None:
    assert selected(query, KEPT) == [KEPT[number] for number in wanted]


@pytest.mark.parametrize(
    "query", ["", "severity>=ERROR", 'logName>="a"', 'timestamp="1970-01-01T00:00:00Z"', "a OR b", '(labels.x="y"']
)
def test_a_query_that_is_not_understood_is_refused_and_not_answered_wrongly(query: str) -> None:
    with pytest.raises(ValueError, match="not understood"):
        selected(query, KEPT)
