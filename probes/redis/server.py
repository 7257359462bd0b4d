"""What a Redis says of itself: INFO, and the durations in its slow log.

One thread executes one command at a time: while a command, a fork or a script lasts, everybody waits.  What that took is counted
by the server on its own clock (commandstats, SLOWLOG, latest_fork_usec), so no client's
suspension and no network is in it.

Each question stands alone.  What this user, version or provider does not answer is ``None`` with the reason, and is asked again
in an hour: each refusal stands in the server's ACL LOG.  The arguments of commands come with the slow log; they are dropped where
they are read, and nothing but a command's name and its duration is kept.

Behind one name there may be several servers (a reader endpoint, a Service of replicas, a failover), each with totals and a slow log
of its own: what another one says (``run_id``) is compared with nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from probes.counters import Counters
from probes.reading import Code, Unseen
from probes.redis.link import RedisLink
from probes.redis.resp import Refused, Value

#: A command of so long holds up everybody in a way that a person could come to notice; Redis' own slowlog-log-slower-than.
SLOW_SECONDS: Final = 0.01
#: Entries that are fetched; the rest is counted by their ids.
MOST_ENTRIES: Final = 16
REFUSED_SECONDS: Final = 3600.0
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.|-]{0,31}")
_STATS: Final = re.compile(r"^cmdstat_([^:]{1,64}):calls=(\d{1,19}),usec=(\d{1,19})", re.MULTILINE)
_FIRST: Final = Unseen("this is the first reading of this server: nothing to compare with yet", Code.NOT_YET)
_OLD: Final = Unseen("this server does not count it: Redis does from 6.2 on", Code.CANNOT_COUNT)
_LOG_OFF: Final = Unseen("slowlog-log-slower-than of this server keeps no command of 10 ms", Code.NOT_CONFIGURED)
_ODD: Final = Unseen("the server answered something else", Code.MALFORMED)
#: Commands that call others, by what they are: a transaction may call a script, and no script another one.
_CALLERS: Final[Mapping[str, str]] = {"exec": "transaction"} | dict.fromkeys(
    ("eval", "evalsha", "eval_ro", "evalsha_ro", "fcall", "fcall_ro"), "script"
)
#: Field of the reading -> INFO's name, factor.
_NOW: Final[Mapping[str, tuple[str, float]]] = {
    "clients": ("connected_clients", 1.0), "blocked_clients": ("blocked_clients", 1.0),
    "commands_per_second": ("instantaneous_ops_per_sec", 1.0), "used_memory_bytes": ("used_memory", 1.0),
    "most_memory_bytes": ("maxmemory", 1.0), "fork_seconds": ("latest_fork_usec", 1e-6),
}  # fmt: skip
#: The same of totals.
_TOTALS: Final[Mapping[str, str]] = {
    "evicted": "evicted_keys", "rejected": "rejected_connections", "forks": "total_forks", "user": "used_cpu_user_main_thread", "system": "used_cpu_sys_main_thread",
}  # fmt: skip
INFO_FIELDS: Final = (*_NOW, "evicted", "rejected", "saving", "replica", "link_up", "cpu_ratio")
STATS_FIELDS: Final = ("busy_ratio",)
LOG_FIELDS: Final = ("slow_commands",)
SLOW_LOG, LOG_LIMIT = f"SLOWLOG GET {MOST_ENTRIES}", "CONFIG GET slowlog-log-slower-than"
#: What is asked, and the fields that are not known without an answer.
QUESTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "INFO": INFO_FIELDS,
    "INFO commandstats": STATS_FIELDS,
    SLOW_LOG: LOG_FIELDS,
}


class ServerView:
    """Asks one server what it says of itself; remembers its totals."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._server = ""
        self._counters = Counters()
        self._refused: dict[str, tuple[Unseen, float]] = {}
        self._looked: dict[str, float] = {}
        self._newest: int | None = None
        self._link: RedisLink | None = None
        self._log_keeps = True

    async def ask(self, link: RedisLink) -> dict[str, Any]:
        """The fields, and ``unseen`` for those that are not known.  Raises LinkFailed when the connection is lost."""
        self._unseen: dict[str, Unseen] = {}
        said = await self._ask_all(link)
        fields: dict[str, Any] = {}
        info = _pairs(said.get("INFO"))
        self._recognise(info.get("run_id", ""))
        fields |= self._info(info) if info else {}
        spans = {"fork": fields.pop("fork_span", 0.0)}
        stats = said.get("INFO commandstats")
        longest: dict[str, float] = {}
        stalled = None
        if isinstance(stats, bytes):
            fields["busy_ratio"], stalled, longest = self._stats(stats.decode("utf-8", "replace"))
        logged = self._log(said.get(SLOW_LOG))
        if logged is not None:
            number, held, entries = logged
            fields["slow_commands"] = number
            longest = entries or longest
            stalled = held if stalled is None else max(stalled, held)
        if stalled is None:
            told = next((self._unseen[name] for name in (*STATS_FIELDS, *LOG_FIELDS) if name in self._unseen), _FIRST)
            self._unseen["standstill_ratio"] = told
        else:
            fields["standstill_ratio"] = min(1.0, stalled + spans["fork"])
        fields["longest_seconds"] = max(longest.values(), default=None)
        if not longest:
            self._unseen["longest_seconds"] = Unseen("no command of 10 ms is known", Code.IDLE)
        fields["slowest"] = tuple(sorted(longest.items(), key=lambda each: -each[1])[:3])
        return {**fields, "unseen": self._unseen}

    def _recognise(self, server: str) -> None:
        """Forget the totals of another server, or of this one before it began anew."""
        if server and server != self._server:
            self._server = server
            self._counters.clear()
            self._looked.clear()
            self._newest = None

    async def _ask_all(self, link: RedisLink) -> dict[str, Value]:
        """The answers by question; of what is not answered here the reason for its fields."""
        questions = dict(QUESTIONS)
        if link is not self._link:
            questions[LOG_LIMIT] = ()
        refused = {
            question: self._refused[question][0]
            for question in questions
            if self._clock() < self._refused.get(question, (_FIRST, 0.0))[1]
        }
        asked = [question for question in questions if question not in refused]
        found = dict(zip(asked, await link.ask_all([question.split() for question in asked]), strict=True))
        for question, said in found.items():
            if isinstance(said, Refused):
                refused[question] = because = _why(question, said)
                if because.code is not Code.BUSY:
                    self._refused[question] = because, self._clock() + REFUSED_SECONDS
        for question, because in refused.items():
            self._unseen |= dict.fromkeys(questions[question], because)
        if link is not self._link:
            self._link = link
            kept = found.get(LOG_LIMIT)
            least = _number(_text(kept[1])) if isinstance(kept, list) and len(kept) == 2 else None
            self._log_keeps = least is None or 0 <= least <= SLOW_SECONDS * 1e6
        return {question: said for question, said in found.items() if question not in refused}

    def _info(self, info: Mapping[str, str]) -> dict[str, Any]:
        fields: dict[str, Any] = {
            name: None if (n := _number(info.get(key))) is None else n * by for name, (key, by) in _NOW.items()
        }
        if fields["most_memory_bytes"] == 0:
            fields["most_memory_bytes"] = None
            self._unseen["most_memory_bytes"] = Unseen("maxmemory is not set", Code.ABSENT)
        fields["saving"] = any(info.get(key) == "1" for key in ("rdb_bgsave_in_progress", "aof_rewrite_in_progress"))
        fields["replica"] = info.get("role") == "slave"
        fields["link_up"] = info["master_link_status"] == "up" if "master_link_status" in info else None
        if fields["link_up"] is None:
            self._unseen["link_up"] = Unseen("it is no replica", Code.NOT_APPLICABLE)
        totals = {name: n for name, key in _TOTALS.items() if (n := _number(info.get(key))) is not None}
        gained = self._counters.gained("info", totals)
        seconds = self._since("info", info)
        for name in ("evicted", "rejected"):
            fields[name] = gained.get(name) if gained else None
        used = None if not gained or "user" not in gained else gained["user"] + gained.get("system", 0.0)
        fields["cpu_ratio"] = None if used is None or not seconds else min(1.0, used / seconds)
        if fields["cpu_ratio"] is None:
            self._unseen["cpu_ratio"] = _FIRST if "user" in totals else _OLD
        self._unseen |= {
            name: _FIRST if not gained else _ODD for name in ("evicted", "rejected") if fields[name] is None
        }
        self._unseen |= {name: _ODD for name in _NOW if fields[name] is None and name not in self._unseen}
        forked = gained.get("forks", 0.0) * (fields["fork_seconds"] or 0.0) if gained and seconds else 0.0
        return {**fields, "fork_span": forked / seconds if forked and seconds else 0.0}

    def _stats(self, text: str) -> tuple[float | None, float | None, dict[str, float]]:
        """(share of the time in commands, in kinds of them that take 10 ms on average, these with their mean)."""
        totals = {
            f"{kind} {name}": float(n)
            for name, calls, usec in _STATS.findall(text)
            for kind, n in (("n", calls), ("t", usec))
        }
        gained = self._counters.gained("stats", totals)
        seconds = self._since("stats", {})
        if gained is None or not seconds:
            self._unseen["busy_ratio"] = _FIRST
            return None, None, {}
        slow = {
            name[2:]: took * 1e-6 / gained[f"n {name[2:]}"] for name, took in gained.items()
            if name[0] == "t" and gained.get(f"n {name[2:]}") and took * 1e-6 >= SLOW_SECONDS * gained[f"n {name[2:]}"]
        }  # fmt: skip
        busy = _together((name[2:], took * 1e-6) for name, took in gained.items() if name[0] == "t")
        held = _together((name, gained[f"t {name}"] * 1e-6) for name in slow)
        return min(1.0, busy / seconds), min(1.0, held / seconds), {_shown(name): mean for name, mean in slow.items()}

    def _log(self, said: Value) -> tuple[float, float, dict[str, float]] | None:
        """(commands of 10 ms since the look before, share of the time that they took, the longest of each name)."""
        if not self._log_keeps:
            self._unseen["slow_commands"] = _LOG_OFF
            return None
        if not isinstance(said, list):
            return None
        entries = [
            each
            for each in said
            if isinstance(each, list) and len(each) >= 4 and isinstance(each[0], int) and isinstance(each[2], int)
        ]
        newest = max((each[0] for each in entries if isinstance(each[0], int)), default=None)
        before, self._newest = self._newest, newest
        seconds = self._since("log", {})
        if not seconds:
            self._unseen["slow_commands"] = _FIRST
            return None
        if before is not None and newest is not None and newest < before:  # the server began anew, and at 0
            before = None
        # After an empty log all are new: from which number on is not known, as SLOWLOG RESET leaves the numbering.
        new = [(each[2] * 1e-6, _name(each[3])) for each in entries if before is None or each[0] > before]  # type: ignore[operator]
        slow = [(took, name) for took, name in new if took >= SLOW_SECONDS]
        unfetched = 1.0
        if before is not None and newest is not None and len(new) >= MOST_ENTRIES:
            unfetched = max(1.0, (newest - before) / len(new))
        longest: dict[str, float] = {}
        for took, name in slow:
            longest[name] = max(took, longest.get(name, 0.0))
        held = _together((name, took) for took, name in slow)
        return len(slow) * unfetched, min(1.0, held * unfetched / seconds), longest

    def _since(self, what: str, info: Mapping[str, str]) -> float | None:
        """Seconds since the same was asked before, on the server's clock where it tells it."""
        told = _number(info.get("server_time_usec"))
        now = self._clock() if told is None else told * 1e-6
        before, self._looked[what] = self._looked.get(what), now
        return now - before if before is not None and now > before else None


def _together(took: Iterable[tuple[str, float]]) -> float:
    """Seconds that these commands took, at least.

    In the time of a script or a transaction is that of the commands that it calls, which is counted once more as theirs (call, server.c);
    who called them is not told.
    """
    sums: dict[str, float] = {}
    for name, seconds in took:
        caller = _CALLERS.get(name.lower(), "")
        sums[caller] = sums.get(caller, 0.0) + seconds
    return max(sums.values(), default=0.0)


def _why(question: str, said: Refused) -> Unseen:
    if said.code == "NOPERM":
        name = question.split(maxsplit=1)[0].lower()
        return Unseen(f"this user may not ask {question}: ACL SETUSER ... +{name}", Code.NOT_PERMITTED)
    if said.code in {"LOADING", "BUSY", "MASTERDOWN"}:
        return Unseen(f"the server refuses {question} for the moment", Code.BUSY)
    return Unseen(f"the server does not know {question}: renamed or switched off", Code.CANNOT_COUNT)


def _pairs(said: Value) -> dict[str, str]:
    text = _text(said)
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line and line[0] != "#")


def _text(said: Value) -> str:
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else said if isinstance(said, str) else ""


def _number(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"-?\d{1,19}(\.\d{1,9})?", text) else None


def _name(words: Value) -> str:
    """The command of a slow log's entry, without any argument."""
    return _shown(_text(words[0])) if isinstance(words, list) and words else "?"


def _shown(name: str) -> str:
    return name.upper() if _NAME.fullmatch(name) else "?"
