"""The wheel in a fresh environment, with an app's folders of the same names in front of it: every command runs.

Only the dependencies are those of this environment; the wheel is built and installed for this test, without any registry.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

from agent.commands.hooks import LOADED_BY
from tests.integration.conftest import ROOT
from tests.unit.agent.commands.test_cli import COMMANDS

#: Whoever imports one of these dies of it: the command's packages, one that it depends on, one of the standard library.
APP = ("agent/__init__.py", "probes/__init__.py", "exporters/__init__.py", "pydantic/__init__.py", "calendar.py")
TRAP = 'raise RuntimeError(f"the app\'s {__file__} was imported")\n'

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target), cwd=ROOT)
    (found,) = target.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of the fresh environment."""
    environment = tmp_path_factory.mktemp("fresh") / "venv"
    uv = shutil.which("uv", path=f"{os.environ['PATH']}{os.pathsep}{ROOT / '.tools/bin'}")
    assert uv, "make install brings it"
    _run(uv, "venv", "--quiet", "--python", sys.executable, str(environment))
    _run(uv, "pip", "install", "--quiet", "--no-deps", "--no-index", "--python", str(environment), str(wheel))
    (packages,) = environment.glob("lib/python*/site-packages")
    # A path in a .pth file brings what lies there, and not the .pth files there: of this checkout nothing is found.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin"


@pytest.fixture
def app(tmp_path: Path) -> Path:
    for name in APP:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(TRAP)
    return tmp_path


@pytest.fixture(params=["PYTHONPATH", "working directory", "both"])
def command(request: pytest.FixtureRequest, installed: Path, app: Path) -> Command:
    """Runs the installed command in front of which the app's folders stand so."""
    by_path, by_cwd = request.param != "working directory", request.param != "PYTHONPATH"
    words = [str(installed / "python"), "-m", "stallscope"] if by_cwd else [str(installed / "stallscope")]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environ = {"PATH": os.environ["PATH"], **({"PYTHONPATH": str(app)} if by_path else {})}
        done = subprocess.run(
            [*words, *arguments], cwd=app if by_cwd else "/", env=environ, capture_output=True, text=True, timeout=180,
            check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


def _run(*words: str, cwd: Path | None = None) -> None:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"


def test_the_wheel_holds_the_packages_their_types_and_the_hooks_and_nothing_else(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"stallscope.py", "agent", "probes", "exporters", "stallscope_hooks"}
    assert {"agent/py.typed", "probes/py.typed", "exporters/py.typed"} <= {*names}
    assert {"exporters/page/style.css", "exporters/page/script.js"} <= {*names}
    hooks = [path.relative_to(ROOT / "hooks").as_posix() for path in (ROOT / "hooks").rglob("*.js")]
    hooks += [path.relative_to(ROOT / "hooks").as_posix() for path in (ROOT / "hooks").rglob("stallscope_hook.p*[yh]")]
    hooks += [path.relative_to(ROOT / "hooks").as_posix() for path in (ROOT / "hooks/go").iterdir()]
    assert len(hooks) == 5
    assert {f"stallscope_hooks/{name}" for name in hooks} <= {*names}


def test_every_command_finds_its_own_packages(command: Command) -> None:
    for name in COMMANDS:
        assert command(name, "--help").stdout.startswith(f"usage: stallscope {name}")


def test_what_needs_no_other_process_answers(command: Command) -> None:
    assert "cpu_stolen" in command("explain").stdout
    assert "[suspension]" in command("check-config").stdout
    assert command("--version").stdout.startswith("stallscope ")


@pytest.mark.parametrize("language", LOADED_BY)
def test_the_hooks_are_where_it_says(language: str, command: Command, installed: Path) -> None:
    (line,) = command("hooks", "--path", language).stdout.splitlines()
    assert Path(line).is_relative_to(installed.parent)
    assert line in command("hooks").stdout
    originals = {path.name: path.read_bytes() for path in (ROOT / "hooks" / language).iterdir() if path.is_file()}
    assert {path.name: path.read_bytes() for path in Path(line).iterdir() if path.is_file()} == originals


@pytest.mark.core
def test_it_measures_with_its_child_and_writes_a_page(command: Command, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = command("doctor", "-v", "--for", "3s", "--html", str(page))
    assert done.returncode in {0, 1, 2}, done.stderr
    assert "met here in the last minute" in done.stdout
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_the_demos_processes_find_them_too(installed: Path, app: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(app)}
    words = [str(installed / "python"), "-m", "stallscope", "demo", "lock"]
    done = subprocess.run(words, cwd=app, env=environ, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_a_sitecustomize_of_the_apps_imported_is_not_taken_for_its_own(installed: Path, app: Path) -> None:
    (app / "agent/__init__.py").write_text("")
    (app / "sitecustomize.py").write_text("import agent\n")
    words = [str(installed / "stallscope"), "explain"]
    done = subprocess.run(words, env={"PYTHONPATH": str(app)}, capture_output=True, text=True, timeout=60, check=False)
    assert "cpu_stolen" in done.stdout, done.stderr
