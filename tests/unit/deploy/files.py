"""What the tests of deploy/ and of its pages read: the files, and what stands in them."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
#: Written in Go's template language, which becomes YAML when it is rendered.
TEMPLATES = "helm/*/templates/*"
#: What `helm dependency build` and Python leave behind.
BUILT = {"charts", "Chart.lock", "__pycache__"}
#: deploy/grafana is made by a program, which has tests of its own.
FILES = sorted(
    path
    for path in DEPLOY.rglob("*")
    if path.is_file() and not BUILT & set(path.parts) and not path.is_relative_to(DEPLOY / "grafana")
)
YAML_FILES = [path for path in FILES if path.suffix in {".yaml", ".yml"} and not path.match(TEMPLATES)]
PAGES = [ROOT / "docs" / "deploying.md", *sorted((ROOT / "docs" / "deploy").glob("*.md"))]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def documents(path: Path) -> list[Any]:
    """What a YAML, JSON or TOML file holds."""
    text = path.read_text("utf-8")
    if path.suffix == ".toml":
        return [tomllib.loads(text)]
    return [json.loads(text)] if path.suffix == ".json" else list(yaml.load_all(text, Loader=yaml.CSafeLoader))


def walk(node: object) -> Iterator[Any]:
    """The node and all that is in it."""
    yield node
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for each in inner:
        yield from walk(each)


def code_blocks(page: Path) -> Iterator[str]:
    """The indented blocks of a page, without their indentation."""
    for block in re.findall(r"(?:^ {4,}\S.*\n(?:[ ]*\n(?= {4}))?)+", page.read_text("utf-8"), re.MULTILINE):
        indent = len(block) - len(block.lstrip(" "))
        yield re.sub(rf"^ {{1,{indent}}}", "", block, flags=re.MULTILINE)
