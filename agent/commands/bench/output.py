"""What pgbench says: its summary, and its log of single transactions.

Formats: PostgreSQL's documentation of pgbench, "Per-Transaction Logging", and the summaries of versions 9.6 to 18.  A run
under load may end in the middle of a line, so a line that is no whole record is counted and left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

_VERSION = re.compile(r"pgbench \(PostgreSQL\) (\d+)(?:\.(\d+))?")
_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_TPS = re.compile(rf"^tps = {_NUMBER} ?(?:\((.*?)\))?", re.MULTILINE)
_CONNECTION = re.compile(rf"^average connection time = {_NUMBER} ms", re.MULTILINE)
_DONE = re.compile(r"^number of transactions actually processed: (\d+)", re.MULTILINE)
_FAILED = re.compile(r"^number of failed transactions: (\d+)", re.MULTILINE)
#: Latencies that are kept of one run; what is more is thinned out evenly.
MOST_LATENCIES: Final = 200_000
_MOST_SECONDS = 86_400.0


class Summary(NamedTuple):
    """One run, as pgbench sums it up; rates are per second, times in seconds."""

    transactions: int
    tps: float
    connection_seconds: float | None
    """Mean of setting up one connection; known where each transaction has one (PostgreSQL 14 and later)."""
    failed: int


class Log(NamedTuple):
    """The transactions of one run."""

    latencies: list[float]
    """Seconds of each, without setting up its connection."""
    transactions: int
    malformed: int


def version(text: str) -> tuple[int, int] | None:
    """Of ``pgbench --version``: major and minor; ``None`` of something else."""
    found = _VERSION.search(text)
    return (int(found[1]), int(found[2] or 0)) if found else None


def summary(text: str) -> Summary:
    """The summary at the end of a run.  Raises ValueError that says what is missing."""
    done, rates = _DONE.search(text), _TPS.findall(text)
    if done is not None and int(done[1]) == 0:
        raise ValueError("not one transaction ended in the time of the run: more --seconds, or fewer clients")
    if done is None or not rates:
        missing = "the number of transactions" if done is None else "the throughput"
        raise ValueError(f"pgbench's summary lacks {missing}")
    # Until version 13 there are two: what includes establishing connections stands first, what excludes it last.
    rate = float(rates[0][0] if len(rates) > 1 and "reconnection" in rates[0][1] else rates[-1][0])
    connection, failed = _CONNECTION.search(text), _FAILED.search(text)
    return Summary(
        int(done[1]),
        rate,
        float(connection[1]) / 1e3 if connection else None,
        int(failed[1]) if failed else 0,
    )


def read_log(lines: Iterable[str]) -> Log:
    """Lines of ``pgbench --log``: client, number, microseconds, script, then the time of day.

    A transaction that was skipped or failed has a word instead of its microseconds: it counts as none.
    """
    latencies: list[float] = []
    transactions = malformed = 0
    step = 1
    for line in lines:
        words = line.split()
        if len(words) < 6 or not line.endswith("\n"):
            malformed += 1
            continue
        if words[2] in ("failed", "skipped", "serialization", "deadlock"):
            continue
        try:
            seconds = int(words[2]) / 1e6
        except ValueError:
            malformed += 1
            continue
        if not 0 <= seconds <= _MOST_SECONDS:
            malformed += 1
            continue
        transactions += 1
        if transactions % step == 0:
            latencies.append(seconds)
            if len(latencies) >= MOST_LATENCIES:
                del latencies[::2]
                step *= 2
    return Log(latencies, transactions, malformed)


#: What counts in a script: dollar quotes, quotes, comments, joined statements, the end of one, and everything else.
_TOKEN = re.compile(r"\$(\w*)\$.*?\$\1\$|'[^']*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/|\\;|;|[^\s;]", re.DOTALL)
#: Commands of pgbench after which it depends how many statements a transaction sends, or waits for.
_DEPENDS = re.compile(r"\\\s*(if|elif|else|endif|startpipeline|endpipeline|syncpipeline)\b")


def statements(script: str) -> int | None:
    r"""Round trips that one transaction of this script makes; ``None`` where it depends.

    A round trip is what ends with ``;``: pgbench sends the statement and waits.  ``\;`` joins statements into one.
    """
    lines = script.splitlines()
    if any(_DEPENDS.match(line.lstrip()) for line in lines):
        return None
    sql = "\n".join(line for line in lines if not line.lstrip().startswith("\\"))
    count, begun = 0, False
    for found in _TOKEN.finditer(sql):
        word = found[0]
        if word == ";":
            count, begun = count + begun, False
        elif not word.startswith(("--", "/*", "\\;")):
            begun = True
    return count + begun
