"""``stallscope fleet``: from the command line's words to what is printed."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Iterator, Sequence

from agent.commands.fleet import selector
from agent.commands.fleet.engine import Engine, printable_ascii
from agent.commands.fleet.fleet_report import FleetReport
from agent.commands.fleet.judged import report
from agent.commands.fleet.look import Look
from agent.commands.fleet.text import render
from agent.rules import BY_ID
from probes.store.place import secret_from

_HEADER = re.compile(r"([A-Za-z0-9-]+):[ \t]*(.*)")


class Unusable(Exception):
    """What the command was given cannot be used; the arguments are all that is wrong with it."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """What the command line says, checked."""

    engine: Engine
    matchers: tuple[selector.Matcher, ...]
    by: str


def check(arguments: argparse.Namespace) -> Asked:
    """Raises Unusable with all faults."""
    faults: list[str] = []
    headers: dict[str, str] = {}
    matchers: tuple[selector.Matcher, ...] = ()
    try:
        headers.update(_headers(arguments.header))
    except ValueError as fault:
        faults.append(f"--header: {fault}")
    try:
        if arguments.bearer_token_file:
            headers["Authorization"] = f"Bearer {_token(arguments.bearer_token_file)}"
    except OSError as fault:
        faults.append(f"--bearer-token-file {arguments.bearer_token_file}: {fault.strerror}")
    except ValueError as fault:
        faults.append(f"--bearer-token-file: {fault}")
    try:
        matchers = selector.parse(arguments.match)
    except ValueError as fault:
        faults.append(f"--match: {fault}")
    try:
        selector.label(arguments.by)
    except ValueError as fault:
        faults.append(f"--by: {fault}")
    engine = None
    try:
        engine = Engine(arguments.url, headers)
    except ValueError as fault:
        faults.append(f"PROMETHEUS-URL: {fault}")
    if faults or engine is None:
        raise Unusable(*faults)
    return Asked(engine, matchers, arguments.by)


def _headers(given: Sequence[str]) -> Iterator[tuple[str, str]]:
    for each in given:
        match = _HEADER.fullmatch(each)
        if match is None or not printable_ascii(match[2].replace(" ", "")):
            raise ValueError("one of them is not NAME: VALUE in printable characters")
        yield match[1], match[2]


def _token(path: str) -> str:
    token = secret_from(f"file:{path}", {})()
    if not printable_ascii(token):
        raise ValueError(f"{path} holds more than a token: one line without spaces")
    return token


def look(asked: Asked, seconds: float) -> FleetReport:
    """Ask and judge.  Raises NoAnswer."""
    vital = [rule.id for rule in BY_ID.values() if rule.vital]
    seen = Look(asked.engine, asked.matchers, asked.by, seconds, vital).take()
    return report(seen, BY_ID, asked.engine.warnings)


def show(asked: Asked, found: FleetReport, *, as_json: bool, width: int) -> str:
    """What is printed."""
    engine = asked.engine
    if as_json:
        cost = {
            "url": engine.url,
            "questions": engine.asked,
            "bytes": engine.bytes,
            "seconds": round(engine.seconds, 3),
        }
        return json.dumps({**dataclasses.asdict(found), "engine": cost}, indent=2) + "\n"
    kind = "recorded" if found.recorded else "the instances' own"
    foot = f"asked {engine.url}: {engine.asked} questions of {kind} series, {engine.bytes / 1e3:.0f} kB, {engine.seconds:.1f} s; at {found.generated}"
    return render(found, foot, width)
