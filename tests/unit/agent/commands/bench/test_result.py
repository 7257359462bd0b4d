"""The file that another bench is compared with, and the journal from which an interrupted one goes on."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from agent.commands.bench import result
from tests.unit.agent.commands.bench.made import cell, run, shares, whole


def test_a_result_is_what_its_schema_says() -> None:
    found = whole([cell(1, [100.0, 102.0]), cell(4, [300.0], mode="per-transaction", connection=0.001)])
    jsonschema.Draft202012Validator(result.SCHEMA).validate(json.loads(json.dumps(found)))
    each = found["cells"][0]
    assert each["limit"]["part"] == "client_quota"
    assert sum(each["shares"].values()) == pytest.approx(1)
    assert each["tps"]["sd"] > 0


def test_it_is_read_from_its_file_and_from_its_directory(tmp_path: Path) -> None:
    found = whole([cell(1, [100.0])])
    (tmp_path / "result.json").write_text(json.dumps(found))
    assert result.read(tmp_path) == result.read(tmp_path / "result.json") == json.loads(json.dumps(found))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No such file"),
        ("{", "no JSON"),
        ("[1]", "no result"),
        ('{"kind": "other"}', "no result"),
        (json.dumps({"kind": result.KIND, "version": 99}), "version is 99"),
        (json.dumps({"kind": result.KIND, "version": 1, "cells": [{"key": "a"}]}), "not whole"),
        (json.dumps({"kind": result.KIND, "version": 1, "cells": 5}), "not whole"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str | None, why: str) -> None:
    file = tmp_path / "a.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(result.Unreadable, match=why):
        result.read(file)


def test_a_journal_goes_on_after_half_a_line(tmp_path: Path) -> None:
    journal = result.Journal(tmp_path / "out")
    header = {"settings": {"clients": (1, 2)}, "target": {}}
    journal.begin(header)
    one = run(100.0, 1, shares(network=0.9))
    journal.add("a", 0, one)
    journal.add("a", 1, {**one, "repeat": 1})
    with journal.file.open("a") as file:
        file.write('{"cell": "a", "rep')
    found = journal.resume(header)
    assert [(each["cell"], each["repeat"], each["tps"]) for each in found] == [("a", 0, 100.0), ("a", 1, 100.0)]
    journal.add("b", 0, one)
    assert len(journal.resume(header)) == 3


def test_a_journal_of_other_settings_is_refused(tmp_path: Path) -> None:
    journal = result.Journal(tmp_path)
    journal.begin({"settings": {"clients": [1]}})
    with pytest.raises(result.Unreadable, match="other settings"):
        journal.resume({"settings": {"clients": [2]}})
    with pytest.raises(FileExistsError):
        journal.begin({})


@pytest.mark.parametrize("text", [None, "", "5\n", "\x00"])
def test_what_is_no_journal_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "journal.jsonl").write_text(text)
    with pytest.raises(result.Unreadable):
        result.Journal(tmp_path).resume({})
