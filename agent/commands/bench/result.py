"""A result: what was measured, cell by cell, as JSON that another bench can be compared with.

``version`` counts changes after which an older reader would read something wrong; :data:`SCHEMA` is what stands in it.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from agent.commands.bench import limits
from agent.commands.bench.plan import Cell
from agent.commands.bench.statistics import series

KIND: Final = "stallscope-bench-postgres"
VERSION: Final = 1
#: Numbers of a run that are summed up over its repeats; times in seconds.
NUMBERS: Final = (
    "tps",
    "latency_seconds",
    "cycle_seconds",
    "p50_seconds",
    "p95_seconds",
    "p99_seconds",
    "connection_seconds",
)
#: A result or journal that is longer is none.
MOST_BYTES: Final = 64 * 2**20

_SERIES: Final = {
    "type": ["object", "null"],
    "required": ["count", "mean", "sd", "low", "high"],
    "properties": {name: {"type": ["number", "null"]} for name in ("count", "mean", "sd", "low", "high")},
}
_SHARES: Final = {
    "type": "object",
    "required": list(limits.PARTS),
    "additionalProperties": {"type": "number", "minimum": 0, "maximum": 1},
}
SCHEMA: Final[Mapping[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "A bench of a PostgreSQL by stallscope",
    "type": "object",
    "required": ["kind", "version", "generated", "complete", "machine", "versions", "server", "settings", "ways", "cells", "answers", "remarks"],
    "properties": {
        "kind": {"const": KIND},
        "version": {"const": VERSION},
        "complete": {"type": "boolean"},
        "settings": {"type": "object", "required": ["clients", "modes", "tls", "ways", "script", "scale", "repeats", "seconds", "seed"]},
        "cells": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["key", "script", "way", "tls", "mode", "clients", "limit", "shares", "runs", *NUMBERS],
                "properties": {
                    **dict.fromkeys(NUMBERS, _SERIES),
                    "clients": {"type": "integer", "minimum": 1},
                    "shares": _SHARES,
                    "limit": {
                        "type": "object",
                        "required": ["part", "share"],
                        "properties": {"part": {"enum": [*limits.PARTS, "none"]}, "share": {"type": "number"}},
                    },
                    "runs": {"type": "array", "minItems": 1},
                },
            },
        },
        "answers": {"type": "array", "items": {"type": "object", "required": ["what", "text"]}},
    },
}  # fmt: skip


class Unreadable(Exception):
    """A file is no result of a bench that this version reads; the message says which and why."""


def cell_json(cell: Cell, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A cell with its repeats summed up, and its limit: that of the mean shares."""
    shares = {part: fmean(run["shares"][part] for run in runs) for part in limits.PARTS}
    part = limits.limit(shares)
    named = series([run["shares"].get(part, 0.0) for run in runs]) if part in limits.PARTS else None
    found: dict[str, Any] = {"key": cell.key, **cell._asdict()}
    for name in NUMBERS:
        values = [run[name] for run in runs if run.get(name) is not None]
        found[name] = series(values).as_json() if values else None
    group = limits.group_of(part)
    found["limit"] = {
        "part": part,
        "group": group,
        "group_share": sum(shares[each] for each in limits.GROUPS[group]) if group else None,
        "share": named.mean if named else max(shares.values()),
        "low": named.low if named else None,
        "high": named.high if named else None,
        "repeats": [limits.limit(run["shares"]) for run in runs],
    }
    return {**found, "shares": shares, "runs": list(runs)}


def cells_json(cells: Iterable[Cell], runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Those that were run at least once, in their order."""
    return [cell_json(cell, runs[cell.key]) for cell in cells if runs.get(cell.key)]


def read(path: Path) -> dict[str, Any]:
    """A result from its file, or from the directory of its bench.  Raises Unreadable."""
    file = path / "result.json" if path.is_dir() else path
    try:
        with file.open("rb") as opened:
            raw = opened.read(MOST_BYTES + 1)
        found = json.loads(raw) if len(raw) <= MOST_BYTES else None
    except OSError as error:
        raise Unreadable(f"{file}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise Unreadable(f"{file}: that is no JSON") from None
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise Unreadable(f"{file}: that is no result of stallscope bench postgres")
    if found.get("version") != VERSION:
        raise Unreadable(f"{file}: its version is {found.get('version')!r}, and this stallscope reads {VERSION}")
    with suppress(LookupError, TypeError, AttributeError, ValueError):
        for cell in found["cells"]:
            for name in ("key", "mode", "tls", "way", "script"):
                if not isinstance(cell[name], str):
                    raise TypeError(name)
            for run in cell["runs"]:
                if float(run["tps"]) <= 0 or float(run["cycle_seconds"]) <= 0:
                    raise ValueError
        return found
    raise Unreadable(f"{file}: a cell of it is not whole")


class Journal:
    """What was run, line by line as it came: a bench that was interrupted goes on from it."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "journal.jsonl"

    def must_be_new(self) -> None:
        """Raises FileExistsError where there is one."""
        if self.file.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self.file))

    def begin(self, header: Mapping[str, Any]) -> None:
        """A new one.  Raises OSError, FileExistsError where there is one."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("x", encoding="utf-8") as file:
            file.write(json.dumps(header) + "\n")

    def add(self, key: str, repeat: int, run: Mapping[str, Any]) -> None:
        """One run.  Raises OSError."""
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"cell": key, "repeat": repeat, **run}) + "\n")

    def resume(self, header: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The runs so far.  Raises Unreadable where it is of other settings; half a line at the end is left out."""
        try:
            lines = self.file.read_text("utf-8").splitlines()
            before = json.loads(lines[0]) if lines else None
        except OSError as error:
            raise Unreadable(f"{self.file}: {error.strerror or error}") from None
        except ValueError:
            raise Unreadable(f"{self.file}: that is no journal of a bench") from None
        if not isinstance(before, dict):
            raise Unreadable(f"{self.file}: that is no journal of a bench")
        if others := [name for name, value in header.items() if before.get(name) != json.loads(json.dumps(value))]:
            raise Unreadable(
                f"{self.file}: that bench had other settings ({', '.join(others)}); give them as they were, or another --out"
            )
        found = []
        for line in lines[1:]:
            with suppress(ValueError):
                run = json.loads(line)
                if isinstance(run, dict) and {"cell", "repeat", "tps", "shares"} <= run.keys():
                    found.append(run)
        whole = "\n".join([lines[0], *(json.dumps(run) for run in found)]) + "\n"
        self.file.write_text(whole, "utf-8")  # what comes next must not go on in half a line
        return found
