"""The file itself: its syntax, and the two ways to load it without a change of code."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.hooks.python.conftest import FILE


@pytest.mark.parametrize("name", ["stallscope_hook.py", "auto/sitecustomize.py"])
def test_it_is_written_in_the_syntax_of_python_3_8_and_needs_the_standard_library_only(name: str) -> None:
    tree = ast.parse((FILE.parent / name).read_text(), feature_version=(3, 8))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
    assert "logging" not in names  # nothing that is looked at is imported


def test_what_every_python_on_the_path_reads_is_written_in_the_syntax_of_2_7() -> None:
    tree = ast.parse((FILE.parent / "auto" / "sitecustomize.py").read_bytes().decode("ascii"))
    nodes = list(ast.walk(tree))
    assert not [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    newer = ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Nonlocal, ast.AsyncFunctionDef, ast.YieldFrom
    assert not [node for node in nodes if isinstance(node, newer)]
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            assert node.returns is None
            assert not [each for each in ast.walk(node.args) if isinstance(each, ast.arg) and each.annotation]
            assert not node.args.kwonlyargs + node.args.posonlyargs


@pytest.mark.parametrize("own", [True, False], ids=["the app has one", "the app has none"])
@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7"])
def test_a_python_that_is_too_old_runs_as_ever(tmp_path: Path, version: str, own: bool) -> None:
    python = shutil.which(f"python{version}")
    if python is None or Path(python).read_bytes().startswith(b"#!"):  # a mere shim, with or without one behind it
        pytest.skip(f"no Python {version} here")
    if own:
        (tmp_path / "sitecustomize.py").write_text("import sys; sys.stdout.write('own\\n')\n")
    path = os.pathsep.join((str(FILE.parent / "auto"), str(tmp_path)))
    done = subprocess.run(
        [python, "-c", "import sys; print('stallscope_hook' in sys.modules)"],
        env={"PYTHONPATH": path, "STALLSCOPE_HOOK": "udp:127.0.0.1:9", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (done.stdout.splitlines(), done.stderr) == ([*(["own"] if own else []), "False"], "")


@pytest.mark.parametrize("own", [True, False], ids=["the app has one", "the app has none"])
@pytest.mark.parametrize(("value", "loaded"), [("", False), ("off", True)])
def test_on_the_path_it_is_loaded_and_the_app_s_own_sitecustomize_is_run(
    tmp_path: Path, value: str, loaded: bool, own: bool
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('own')\n" if own else "")
    program = "import sys; import sitecustomize; print('stallscope_hook' in sys.modules, sitecustomize.__file__)"
    path = os.pathsep.join((str(FILE.parent / "auto"), str(tmp_path)))
    environ = {"PYTHONPATH": path, "STALLSCOPE_HOOK": value, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    own_lines = ["own"] if own else []
    assert done.stdout.splitlines() == [*own_lines, f"{loaded} {tmp_path / 'sitecustomize.py'}"]


@pytest.mark.parametrize(("value", "loads"), [(None, False), ("", False), ("udp:127.0.0.1:9769", True), ("off", True)])
def test_the_pth_file_loads_it_only_where_the_environment_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, value: str | None, loads: bool
) -> None:
    (line,) = FILE.with_suffix(".pth").read_text().splitlines()
    assert line.startswith("import ")  # else site.py takes it for a directory
    monkeypatch.delenv("STALLSCOPE_HOOK", raising=False)
    if value is not None:
        monkeypatch.setenv("STALLSCOPE_HOOK", value)
    stand_in = ModuleType("stallscope_hook")
    monkeypatch.setitem(sys.modules, "stallscope_hook", stand_in)
    names: dict[str, Any] = {}
    assert (eval(line.partition("; ")[2], {"os": os}, names) is stand_in) == loads  # noqa: S307 - as site.py does
