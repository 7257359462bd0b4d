"""Every command line and every setting in deploy/ and in its pages is one that the product takes."""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from agent.commands import cli
from agent.commands.exec import parse as parse_exec
from agent.commands.parser import build_parser
from agent.rules import BY_ID
from agent.settings.load import load
from agent.settings.settings_file import read_settings_file
from tests.unit.deploy.files import DEPLOY, FILES, PAGES, code_blocks, documents, relative, walk
from tests.unit.golden.fixed import HERE as GOLDEN

#: A word that ends a command line in a shell, or begins a comment.
ENDS = {"&", "&&", "||", "|", ";", "#", ">", "2>&1"}
COMMAND = re.compile(r"(?:^|[\s\"'`(=/])(stallscope (?!stallscope)[a-z][a-z-]*(?=\s|$|\").*)", re.MULTILINE)
#: In comments, where "stallscope" is a word of sentences, too.
KNOWN = re.compile(rf"(?:^|[\s/])(stallscope (?:{'|'.join(filter(None, cli._HANDLERS))})(?=\s|$|\").*)", re.MULTILINE)


def of_line(line: str) -> list[str]:
    """The words after `stallscope`, as a shell would take them apart; a quotation ends with the one that began before it."""
    if line.count('"') % 2:
        line = line.partition('"')[0]
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words = list(lexer)
    for at, word in enumerate(words):
        if word in ENDS:
            words = words[:at]
            break
    return words[1:]


def of_text(text: str, pattern: re.Pattern[str] = COMMAND) -> Iterator[list[str]]:
    yield from map(of_line, pattern.findall(text.replace("\\\n", " ")))


def of_lists(path: Path) -> Iterator[list[str]]:
    """Commands as lists, as containers have them: `command` and `args` of one belong together, and ENTRYPOINT wants an app's."""
    if path.suffix in {".yaml", ".yml", ".json"} and "templates" not in path.parts:
        for node in (node for document in documents(path) for node in walk(document) if isinstance(node, dict)):
            parts = [node[key] for key in ("command", "args") if isinstance(node.get(key), list)]
            words = [str(word) for part in parts for word in part]
            if words and words[0].endswith("/stallscope"):
                yield words[1:]
    for text in re.findall(r"^ENTRYPOINT (\[.*\])$", path.read_text("utf-8"), re.MULTILINE):
        yield [*ast.literal_eval(text)[1:], "your-app"]


@cache
def command_lines() -> list[tuple[str, tuple[str, ...]]]:
    found: list[tuple[str, list[str]]] = []
    for page in PAGES:
        text = page.read_text("utf-8")
        inline = re.findall(r"`(?:/opt/stallscope/bin/)?(stallscope [a-z-][^`]*)`", text)
        found += [(relative(page), words) for words in (*map(of_line, inline), *of_text("\n".join(code_blocks(page))))]
    for path in FILES:
        text = path.read_text("utf-8")
        comments = "\n".join(
            line.lstrip().removeprefix("#")
            for line in text.splitlines()
            if line.lstrip().startswith(("#", "ExecStart"))
        )
        found += [(relative(path), words) for words in (*of_text(comments, KNOWN), *of_lists(path))]
    # What overlays and templates become: a patch is a text of its own.
    found += [
        (relative(path), words) for path in sorted((GOLDEN / "deploy").glob("*.yaml")) for words in of_lists(path)
    ]
    return [
        (where, tuple(words))
        for where, words in found
        if words and not any("[" in word or word == "..." for word in words)
    ]


def test_there_are_commands_to_check() -> None:
    assert {words[0] for _, words in command_lines()} >= {"run", "exec", "doctor", "report", "check-config"}
    assert {where for where, _ in command_lines()} >= {
        "deploy/in-app/Dockerfile", "deploy/systemd/stallscope.service", "deploy/fly/fly.toml", "docs/deploying.md",
        "tests/unit/golden/deploy/kustomize-in-app.yaml",
    }  # fmt: skip


@pytest.mark.parametrize("words", sorted({words for _, words in command_lines()}), ids=" ".join)
def test_the_command_line_is_accepted(words: tuple[str, ...]) -> None:
    if words[0] == "exec":
        bare = words[1:] or ("--",)
        options = parse_exec([*bare, "true"] if bare[-1] == "--" or "--" not in bare else list(bare))
        flags = [
            tuple(word.removeprefix("--set=").split("=", 1)) for word in options.passed if word.startswith("--set=")
        ]
    else:
        named = {("explain", "RULE"): ["explain", "cpu_stolen"], ("fleet",): ["fleet", "http://prometheus:9090"]}
        replaced = named.get(words, list(words))
        arguments = build_parser(cli._HANDLERS).parse_args(replaced)
        flags = getattr(arguments, "set", [])
    load(None, {}, [(key, value) for key, value in flags], known_rules=tuple(BY_ID))


VARIABLE = r"(STALLSCOPE_[A-Z]+__[A-Z_]+)"


def variables() -> Iterator[tuple[str, str, str]]:
    """(where, name, value) of every setting by variable, those in comments included."""
    for path in (*FILES, *PAGES):
        if "templates" in path.parts:
            continue  # test_rendered takes what they become
        text = re.sub(r"^(\s*)# ", r"\1", path.read_text("utf-8"), flags=re.MULTILINE)
        for name, value in re.findall(
            VARIABLE + r"(?:\"?, \"value\": |\n\s*value: | = |: |=)(\"[^\"\n]*\"|[^\s`,)}#]+)", text
        ):
            yield relative(path), name, value.strip('"')


def test_every_setting_by_variable_is_accepted() -> None:
    found = list(variables())
    named = {name for path in (*FILES, *PAGES) for name in re.findall(VARIABLE, path.read_text("utf-8"))}
    assert {where for where, *_ in found} >= {
        "deploy/compose/compose.yaml", "deploy/ecs/task-definition.json", "deploy/fly/fly.toml", "deploy/systemd/app.conf",
        "deploy/cloudrun/in-app.yaml", "docs/deploying.md",
    }  # fmt: skip
    beside = {"STALLSCOPE_REDIS__PASSWORDS": {"STALLSCOPE_REDIS__TARGETS": "cache=redis://10.0.0.3:6379"}}
    for _, name, value in found:
        load(None, {name: value.replace("%d", "/run/credentials"), **beside.get(name, {})}, known_rules=tuple(BY_ID))
    assert named <= set(_every_variable())


def _every_variable() -> Iterator[str]:
    from agent.settings.load import PREFIX, Config  # noqa: PLC0415 - only here

    for section, holder in Config.model_fields.items():
        for key in getattr(holder.annotation, "model_fields", ()):
            yield f"{PREFIX}{section.upper()}__{key.upper()}"


def test_every_setting_as_toml_is_accepted(tmp_path: Path) -> None:
    blocks = [block for page in PAGES for block in code_blocks(page) if re.match(r"\[[a-z_]+\]\n", block)]
    assert blocks
    for block in blocks:
        file = tmp_path / "stallscope.toml"
        file.write_text(block, "utf-8")
        assert read_settings_file(file)
        load(file, {}, known_rules=tuple(BY_ID))


def test_every_file_is_spoken_of_in_a_page() -> None:
    text = "".join(page.read_text("utf-8") for page in PAGES)
    for path in DEPLOY.iterdir():
        assert f"deploy/{path.name}" in text, f"no page says what {relative(path)} is for"


def test_the_pages_point_at_what_exists() -> None:
    for page in PAGES:
        text = page.read_text("utf-8")
        for link, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]*))?\)", text):
            target = page.parent / link if link else page
            assert os.path.exists(target), f"{relative(page)}: {link}"
            if anchor and target.suffix == ".md":
                headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE)
                anchors = {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
                assert anchor in anchors, f"{relative(page)}: {link}#{anchor}"
