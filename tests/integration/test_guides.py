"""docs/adding-a-probe.md and docs/adding-a-rule.md, followed to the letter in a copy of the repository.

The files that the guides show are written, the lines that they name are added, `make docs` is run; what the checks then ask
for is added as their messages say.  Nothing else may be needed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent

import pytest

from tests.integration.conftest import ROOT

#: Where every rule and every probe is checked; the tests of one rule or probe cannot fail by another.
CHECKS = (
    "tests/unit/test_*.py", "tests/unit/agent/rules/test_*.py", "tests/unit/agent/rules/cpu/test_scenes.py",
    "tests/unit/agent/commands/test_explain.py", "tests/unit/agent/settings/test_configuration_page.py",
    "tests/unit/deploy/test_*.py", "tests/unit/exporters/test_prometheus.py", "tests/unit/exporters/test_series.py", "tests/unit/probes/test_registration.py",
)  # fmt: skip
#: What is not of the repository; all else is copied, since some checks are over every file of a folder.
LEFT = shutil.ignore_patterns(
    ".git", ".venv", ".tools", ".*_cache", ".hypothesis", "__pycache__", "node_modules", "*-results", "build", "dist"
)


class Copy:
    """A copy of the repository in which somebody follows a guide."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copytree(ROOT, root, ignore=LEFT, symlinks=True)
        self.written: list[str] = []

    def follow(self, guide: str) -> None:
        """Write its files and add its line."""
        text = (self.root / "docs" / guide).read_text("utf-8")
        for path, code in re.findall(
            r"^## \d\. (?:The file|Test it): `(\S+)`\n.*?^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL
        ):
            file = self.root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(code, "utf-8")
            self.written.append(path)
        (section,) = re.findall(r"^## \d\. Register it.*?(?=^## )", text, re.MULTILINE | re.DOTALL)
        (path,) = re.findall(r"`((?:agent|probes)/\S*__init__\.py)`", section)
        (line,) = re.findall(r'`("[\w.]+",)`', section)
        table = self.root / path
        before, opening, after = table.read_text("utf-8").partition("load(\n")
        rows, closing, rest = after.partition("\n)")
        table.write_text(f"{before}{opening}{rows}\n    {line}{closing}{rest}", "utf-8")

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command as the Makefile has it, with this environment's tools."""
        tools = Path(sys.executable).parent
        given = dict(part.split("=", 1) for part in shlex.split(command) if re.match(r"[A-Z_]+=", part))
        words = [part for part in shlex.split(command) if part.partition("=")[0] not in given]
        words[0] = words[0].replace(".venv/bin", str(tools))
        environ = {**os.environ, **given, "PYTHONPATH": str(self.root)}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)  # it compiles the whole copy: once, and not for each command
        return subprocess.run(
            words, cwd=self.root, env=environ, capture_output=True, text=True, timeout=600, check=False
        )

    def make(self, target: str) -> None:
        """Run the recipe of a target."""
        makefile = (self.root / "Makefile").read_text("utf-8")
        (recipe,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
        for command in recipe.splitlines():
            done = self.run(command.strip())
            assert done.returncode == 0, done.stdout + done.stderr


def failed(output: str) -> set[str]:
    return {
        re.sub(r"\[.*", "", name) for name in re.findall(r"^(?:FAILED|ERROR) (?:\S+::)?(\S+)", output, re.MULTILINE)
    }


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    made = Copy(tmp_path_factory.mktemp("guides") / "stallscope")
    made.follow("adding-a-probe.md")
    made.follow("adding-a-rule.md")
    made.make("docs")
    return made


def test_a_probe_and_a_rule_are_two_files_with_their_tests_and_two_lines(copy: Copy) -> None:
    product = [path for path in copy.written if not path.startswith("tests/")]
    assert product == ["probes/host/entropy.py", "agent/rules/app/entropy_low.py"]
    assert len(copy.written) == 4
    (copy.root / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text("utf-8"), "utf-8")
    for tool in ("ruff check", "ruff format --check", "mypy --follow-imports=silent --cache-dir=/dev/null"):
        done = copy.run(f".venv/bin/{tool} {' '.join(copy.written)}")
        assert done.returncode == 0, done.stdout + done.stderr


def test_what_else_is_needed_is_printed_and_enough(copy: Copy) -> None:
    tests = [path for path in copy.written if path.startswith("tests/")]
    for pattern in CHECKS:
        found = [str(path.relative_to(copy.root)) for path in sorted(copy.root.glob(pattern))]
        assert found, f"{pattern} has moved"
        tests += found
    # The long tests of other readings' labels say nothing of this one, and take most of the time.
    checks = f".venv/bin/pytest -q -p no:cacheprovider -k 'not a_thousand_labels' {' '.join(tests)}"
    said = copy.run(checks).stdout
    asking = {"test_every_rule_has_an_alert_and_every_alert_a_rule", "test_each_finding_is_in_the_table_once"}
    assert failed(said) == asking, said

    lines = re.search(r"add to deploy/prometheus/rules\.yaml:\n((?:^E .*\n)+?)(?=^E +assert)", said, re.MULTILINE)
    assert lines is not None, said
    with (copy.root / "deploy/prometheus/rules.yaml").open("a") as rules:
        rules.write(indent(dedent(re.sub(r"^E", "", lines[1], flags=re.MULTILINE)), " " * 6))
    (right,) = re.findall(r"such as (\| `entropy_low` \|.*\|)$", said, re.MULTILINE)[:1]
    rights = copy.root / "docs/deploy/rights.md"
    rights.write_text(
        rights.read_text("utf-8").replace("| `instance_frozen` |", f"{right}\n| `instance_frozen` |"), "utf-8"
    )
    again = copy.run(f".venv/bin/pytest -q -p no:cacheprovider -k '{' or '.join(sorted(asking))}' tests/unit/deploy")
    assert again.returncode == 0, again.stdout
    assert f"{len(asking)} passed" in again.stdout
