"""The release workflow only ever runs when a release is made: what it names must be there, and it may do no more than it needs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
WORKFLOW = ROOT / ".github/workflows/release.yml"
TEXT = WORKFLOW.read_text()
#: BaseLoader: YAML 1.1 takes the key `on` for a boolean.
RELEASE: dict[str, Any] = yaml.load(TEXT, Loader=yaml.BaseLoader)  # noqa: S506 - it makes strings, lists and dicts alone
JOBS: dict[str, dict[str, Any]] = RELEASE["jobs"]


def steps() -> list[tuple[str, dict[str, Any]]]:
    return [(name, step) for name, job in JOBS.items() for step in job["steps"]]


def test_only_a_tag_of_this_repository_starts_it() -> None:
    assert RELEASE["on"] == {"push": {"tags": ["v*"]}}


def test_each_job_has_the_rights_it_needs_and_no_others() -> None:
    assert RELEASE["permissions"] == {}
    writes = {
        name: {right for right, what in job["permissions"].items() if what == "write"} for name, job in JOBS.items()
    }
    assert writes == {
        "test": set(), "wheel": set(), "pypi": {"id-token"}, "image": {"packages", "id-token", "attestations"},
    }  # fmt: skip
    kept = [step for _, step in steps() if step.get("uses", "").startswith("actions/checkout")]
    assert all(step["with"]["persist-credentials"] == "false" for step in kept)
    assert "secrets." not in TEXT


def test_nothing_is_published_that_was_not_tested() -> None:
    def before(name: str) -> set[str]:
        needs = JOBS[name].get("needs", [])
        direct = {needs} if isinstance(needs, str) else {*needs}
        return direct.union(*map(before, direct))

    assert {name for name in JOBS if "test" in before(name)} == JOBS.keys() - {"test"}
    assert any(step.get("run") == ".ci/run" for name, step in steps() if name == "test")


def test_actions_are_those_of_a_major_version() -> None:
    used = [step["uses"] for _, step in steps() if "uses" in step]
    assert len(used) > 8
    assert not [each for each in used if not re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", each)]


def test_what_a_step_reads_of_another_is_written_there() -> None:
    for name, step in steps():
        for identity, output in re.findall(r"steps\.(\w+)\.outputs\.(\w+)", str(step)):
            earlier = [other for job, other in steps() if job == name and other.get("id") == identity]
            assert earlier, f"{name}: no step {identity}"
            assert "uses" in earlier[0] or f"{output}=" in earlier[0]["run"], output


@pytest.mark.parametrize("word", re.findall(r"run: make ([\w-]+)", TEXT))
def test_the_words_for_make_exist(word: str) -> None:
    assert re.search(rf"^{word}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_files_and_the_arguments_of_the_build_exist() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    (build,) = [step["with"] for _, step in steps() if step.get("uses", "").startswith("docker/build-push-action")]
    for line in build["build-args"].splitlines():
        assert re.search(rf"^ARG {line.partition('=')[0]}=", dockerfile, re.MULTILINE), line
    assert build["platforms"] == "linux/amd64,linux/arm64"
    (bill,) = set(re.findall(r":(/opt/stallscope/\S+\.json)", TEXT))
    assert Path(bill).name in (ROOT / "deploy/image/sbom.py").read_text()
    assert (ROOT / ".ci/run").exists()
