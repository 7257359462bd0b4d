"""What ``stallscope bench postgres`` was asked for, checked as a whole: every fault is told at once."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from agent.commands.bench.output import statements

T = TypeVar("T")
MODES: Final = ("pooled", "per-transaction")
SCRIPTS: Final = ("tpcb", "select-only", "select1")
#: pgbench refuses more clients than it can wait for, and a matrix of more numbers than these is nobody's wish.
MOST_CLIENTS, MOST_NUMBERS, MOST_REPEATS, MOST_SECONDS, MOST_SCALE = 1000, 32, 50, 3600, 10_000
MOST_SCRIPT_BYTES = 100_000
#: Statements of one transaction: that of pgbench's own TPC-B-like script, and of the two that only read.
_TRIPS = {"tpcb": 7, "select-only": 1, "select1": 1}
#: What lets a script write although the session was told not to.
_UNLOCKS = re.compile(r"\bread\s+write\b|transaction_read_only|\breset\s+all\b|\bdiscard\s+all\b", re.IGNORECASE)
_TABLES = re.compile(r"\bpgbench_(accounts|branches|tellers|history)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Script:
    """What every transaction does.  ``text`` is empty of pgbench's own two."""

    name: str
    text: str = ""
    trips: int | None = None
    """Round trips of one transaction; ``None`` where it depends."""
    tables: bool = False
    """Whether it needs pgbench's tables, and so a database of ours."""
    writes: bool = False
    """Whether it may write; a user's own script is held from it unless its database is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One bench."""

    clients: tuple[int, ...]
    modes: tuple[str, ...]
    tls: tuple[str, ...]
    """``on``, ``off``; ``as given`` leaves the DSN's sslmode."""
    proxy: tuple[str, int] | None
    script: Script
    scale: int
    repeats: int
    seconds: int
    allow_write: str | None
    out: Path | None
    resume: bool
    seed: int

    @property
    def ways(self) -> tuple[str, ...]:
        """Over which the server is reached."""
        return ("direct", "proxy") if self.proxy else ("direct",)

    @property
    def warm_up(self) -> int:
        """Seconds that are run before each measured run and thrown away."""
        return max(1, min(10, self.seconds // 8))


#: Defaults of the three sizes: clients, repeats, seconds.
SIZES: Final = {
    "quick": ((1, 4, 16), 2, 8),
    "": ((1, 2, 4, 8, 16), 3, 10),
    "full": ((1, 2, 4, 8, 16, 32, 64), 5, 60),
}


class Faults(Exception):
    """The command line cannot be carried out, for these reasons."""

    def __init__(self, *faults: str) -> None:
        super().__init__(*faults)
        self.faults = faults


def check(arguments: argparse.Namespace, draw: Callable[[], int]) -> Options:
    """The options.  ``draw`` makes the seed where none was given.  Raises Faults with everything that is wrong."""
    faults: list[str] = []
    size = "quick" if arguments.quick else "full" if arguments.full else ""
    clients, repeats, seconds = SIZES[size]
    if arguments.quick and arguments.full:
        faults.append("--quick and --full: give one of the two")
    if arguments.resume and not arguments.out:
        faults.append("--resume: --out DIR says which bench goes on")

    def take(read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except ValueError as fault:
            faults.append(f"{fault}")
            return otherwise

    given = vars(arguments).get
    found = Options(
        clients=take(lambda: _numbers("--clients", given("clients"), clients), clients),
        modes=take(lambda: _words("--modes", given("modes"), MODES, MODES), MODES),
        tls=take(lambda: _words("--tls", given("tls"), ("on", "off"), ("as given",)), ("as given",)),
        proxy=take(lambda: _address(given("proxy")), None),
        script=take(lambda: _script(given("script") or "tpcb", given("allow_write")), Script("tpcb")),
        scale=take(lambda: _number("--scale", given("scale"), 10, MOST_SCALE), 10),
        repeats=take(lambda: _number("--repeats", given("repeats"), repeats, MOST_REPEATS), repeats),
        seconds=take(lambda: _number("--seconds", given("seconds"), seconds, MOST_SECONDS), seconds),
        allow_write=given("allow_write"),
        out=Path(arguments.out) if arguments.out else None,
        resume=arguments.resume,
        seed=take(lambda: _number("--seed", given("seed"), 0, 2**31) or draw(), 1),
    )
    if faults:
        raise Faults(*faults)
    return found


def _number(flag: str, text: str | None, default: int, most: int) -> int:
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise ValueError(f"{flag} {text}: must be a whole number of 1 to {most}")
    return int(text)


def _numbers(flag: str, text: str | None, default: tuple[int, ...]) -> tuple[int, ...]:
    if text is None:
        return default
    found = [_number(flag, part.strip(), 0, MOST_CLIENTS) for part in text.split(",")]
    if len(set(found)) != len(found) or len(found) > MOST_NUMBERS:
        raise ValueError(f"{flag} {text}: must be at most {MOST_NUMBERS} numbers, each once")
    return tuple(sorted(found))


def _words(flag: str, text: str | None, known: Sequence[str], default: tuple[str, ...]) -> tuple[str, ...]:
    if text is None:
        return default
    found = tuple(part.strip() for part in text.split(","))
    if not set(found) <= set(known) or len(set(found)) != len(found):
        raise ValueError(f"{flag} {text}: must be {' or '.join(known)}, or {','.join(known)}")
    return found


def _address(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or "@" in host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError("--proxy: must be HOST:PORT, like 127.0.0.1:6432")
    return host, int(port)


def _script(word: str, allowed: str | None) -> Script:
    if word == "select1":
        return Script(word, "SELECT 1;\n", 1)
    if word in SCRIPTS:
        return Script(word, "", _TRIPS[word], tables=True, writes=word == "tpcb")
    try:
        raw = Path(word).read_bytes()
    except OSError as error:
        raise ValueError(
            f"--script {word}: must be {', '.join(SCRIPTS)} or a file ({error.strerror or error})"
        ) from None
    if len(raw) > MOST_SCRIPT_BYTES or not raw.strip():
        raise ValueError(f"--script {word}: must be a file of 1 to {MOST_SCRIPT_BYTES} bytes")
    text = raw.decode("utf-8", "replace")
    tables = _TABLES.search(text) is not None
    if not tables and allowed is None and _UNLOCKS.search(text):
        raise ValueError(
            f"--script {word}: it unlocks writing; --allow-write NAME names the database that it may write to"
        )
    return Script(Path(word).name[:64], text, statements(text), tables=tables, writes=tables or allowed is not None)
