"""`stallscope bench` from the command line: its help, its refusals, two results beside each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.commands import cli
from agent.commands.exits import HEALTHY, USAGE
from tests.unit.agent.commands.bench.made import cell, whole
from tests.unit.golden import fixed

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.mark.parametrize("what", ["postgres", "compare"])
def test_its_help_is_the_golden_one(what: str, capsys: Output) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", what, "--help"])
    fixed.same_as_golden(f"help-bench-{what}.txt", capsys.readouterr().out)


def test_every_fault_of_its_flags_is_told_at_once(capsys: Output) -> None:
    assert cli.main(["bench", "postgres", "--clients", "0", "--scale", "many", "--script", "/nowhere"]) == USAGE
    said = capsys.readouterr().err
    assert all(flag in said for flag in ("--clients 0", "--scale many", "--script /nowhere"))


def test_without_a_database_it_says_how_to_name_one(capsys: Output, tmp_path: Path) -> None:
    program = tmp_path / "pgbench"
    program.write_text("#!/bin/sh\necho 'pgbench (PostgreSQL) 15.1'\n")
    program.chmod(0o755)
    words = ["bench", "postgres", "--pgbench", str(program)]
    assert cli.main(words) == USAGE
    assert "--embedded-postgres" in capsys.readouterr().err
    assert cli.main([*words, "--dsn", "env:NOT_SET_HERE"]) == USAGE
    assert "NOT_SET_HERE is empty or not set" in capsys.readouterr().err
    assert cli.main([*words, "--dsn", "postgresql://me:hunter2@a@b/x"]) == USAGE
    assert "hunter2" not in capsys.readouterr().err


def test_two_results_are_compared(capsys: Output, tmp_path: Path) -> None:
    for name, tps in (("a", [100.0, 101.0, 99.0]), ("b", [150.0, 151.0, 149.0])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps(whole([cell(1, tps)])))
    words = ["bench", "compare", str(tmp_path / "a"), str(tmp_path / "b")]
    assert cli.main(words) == HEALTHY
    assert "faster" in capsys.readouterr().out
    assert cli.main([*words, "--json"]) == HEALTHY
    assert json.loads(capsys.readouterr().out)["cells"][0]["change"] == "faster"
    assert cli.main(["bench", "compare", str(tmp_path / "a"), str(tmp_path / "c")]) == USAGE
    assert "No such file" in capsys.readouterr().err
