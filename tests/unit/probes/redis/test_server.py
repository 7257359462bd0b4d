"""What a server says of itself: the numbers, what it does not answer, and that no argument of a command is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.reading import Code
from probes.redis.resp import Refused, Value
from probes.redis.server import ServerView
from tests.unit.builders import FakeClock

SECRET = "the-argument"  # noqa: S105
NOPERM = Refused("NOPERM", "no permissions")


def info(seconds: float, **more: object) -> bytes:
    known: dict[str, object] = {
        "server_time_usec": round(seconds * 1e6), "role": "master", "connected_clients": 7, "blocked_clients": 2,
        "instantaneous_ops_per_sec": 30, "used_memory": 1000, "maxmemory": 0, "latest_fork_usec": 500_000, "total_forks": 0,
        "evicted_keys": 0, "rejected_connections": 0, "rdb_bgsave_in_progress": 0, "used_cpu_user_main_thread": 0.0,
        "used_cpu_sys_main_thread": 0.0,
    }  # fmt: skip
    return ("# Server\r\n" + "\r\n".join(f"{name}:{value}" for name, value in (known | more).items())).encode()


def stats(**commands: tuple[int, float]) -> bytes:
    lines = (
        f"cmdstat_{name}:calls={calls},usec={round(seconds * 1e6)},usec_per_call=1.00"
        for name, (calls, seconds) in commands.items()
    )
    return ("# Commandstats\r\n" + "\r\n".join(lines)).encode()


def entry(number: int, seconds: float, name: str = "KEYS") -> Value:
    return [number, 1, round(seconds * 1e6), [name.encode(), SECRET.encode()], b"1.2.3.4:5", b""]


class Server:
    """Answers from a table: a value, or one after the other."""

    def __init__(self, answers: Mapping[str, list[Value]]) -> None:
        self.answers = {question: list(values) for question, values in answers.items()}
        self.asked: list[str] = []

    async def ask_all(self, questions: Sequence[Sequence[str]]) -> list[Value]:
        return [self._answer(" ".join(words)) for words in questions]

    def _answer(self, question: str) -> Value:
        self.asked.append(question)
        values = self.answers.get(question, [Refused("ERR", "unknown command")])
        return values.pop(0) if len(values) > 1 else values[0]


def looks(server: Server, count: int = 2, every: float = 10.0) -> dict[str, Any]:
    clock = FakeClock()
    view = ServerView(clock)

    async def run() -> dict[str, Any]:
        for _ in range(count - 1):
            await view.ask(server)  # type: ignore[arg-type]
            clock.advance(every)
        return await view.ask(server)  # type: ignore[arg-type]

    return asyncio.run(run())


KEPT: list[Value] = [[b"slowlog-log-slower-than", b"10000"]]


def test_slow_commands_are_counted_by_the_servers_own_clock_and_named_without_arguments() -> None:
    fields = looks(Server({
        "INFO": [info(100.0), info(110.0, evicted_keys=5)],
        "INFO commandstats": [stats(get=(100, 0.001), keys=(1, 0.4)), stats(get=(900, 0.009), keys=(5, 2.4))],
        "CONFIG GET slowlog-log-slower-than": KEPT,
        "SLOWLOG GET 16": [[entry(3, 0.4)], [entry(8, 0.5), entry(7, 0.7), entry(6, 0.004), entry(3, 0.4)]],
    }))  # fmt: skip
    assert fields["busy_ratio"] == pytest.approx(0.2008)
    assert fields["standstill_ratio"] == pytest.approx(0.2)
    assert fields["slow_commands"] == 2.0
    assert fields["slowest"] == (("KEYS", 0.7),)
    assert fields["evicted"] == 5.0
    assert SECRET not in repr(fields)


@pytest.mark.parametrize(
    ("script", "keys", "once"),
    [
        pytest.param(2.0, 1.9, 2.0, id="what-a-script-calls"),
        pytest.param(0.1, 1.9, 1.9, id="and-what-others-ask-for"),
        pytest.param(0.0, 1.9, 1.9, id="those-alone"),
    ],
)
def test_what_a_script_or_a_transaction_calls_holds_everybody_up_once(script: float, keys: float, once: float) -> None:
    """Redis counts it as the time of EXEC, of EVAL and of what that calls, in commandstats and, but for EXEC, in the slow log."""
    before: Mapping[str, tuple[int, float]] = {"exec": (1, 0.0), "evalsha": (1, 0.0), "keys": (1, 0.0)}
    now: Mapping[str, tuple[int, float]] = {"exec": (3, script), "evalsha": (3, script), "keys": (3, keys)}
    of_stats = looks(Server({"INFO commandstats": [stats(**before), stats(**now)], "SLOWLOG GET 16": [NOPERM]}))
    assert of_stats["standstill_ratio"] == of_stats["busy_ratio"] == pytest.approx(once / 10.0)
    logged: list[Value] = [entry(9, script, "evalsha"), entry(8, keys)]
    of_log = looks(Server({"CONFIG GET slowlog-log-slower-than": KEPT, "SLOWLOG GET 16": [[entry(7, 0.1)], logged]}))
    assert of_log["standstill_ratio"] == pytest.approx(once / 10.0)


def test_of_more_slow_commands_than_are_fetched_the_rest_is_counted_by_their_numbers() -> None:
    many: Value = [entry(number, 0.1) for number in range(84, 100)]
    fields = looks(Server({"CONFIG GET slowlog-log-slower-than": KEPT, "SLOWLOG GET 16": [[entry(67, 0.1)], many]}))
    assert fields["slow_commands"] == pytest.approx(32.0)
    assert fields["standstill_ratio"] == pytest.approx(0.32)


MANY: list[Value] = [entry(100_016 - n, 0.012 if n else 0.02) for n in range(16)]


@pytest.mark.parametrize(
    ("before", "slow"),
    [
        pytest.param([[entry(100_000, 0.1)], []], 16.0, id="reset"),
        pytest.param([[], []], 16.0, id="reset-before-it-was-seen"),
        pytest.param([[entry(200_000, 0.1)]], 16.0, id="began-anew"),
        pytest.param([[entry(99_984, 0.1)], []], 16.0, id="reset-after-more"),
        pytest.param([[entry(99_984, 0.1)]], 32.0, id="neither"),
    ],
)
def test_what_was_not_fetched_counts_only_from_a_known_number_on(before: list[Value], slow: float) -> None:
    """SLOWLOG RESET empties the log and leaves its numbering, so behind an empty log any number may come next."""
    server = Server({"CONFIG GET slowlog-log-slower-than": KEPT, "SLOWLOG GET 16": [*before, MANY]})
    fields = looks(server, count=len(before) + 1)
    assert fields["slow_commands"] == pytest.approx(slow)
    assert fields["standstill_ratio"] == pytest.approx(slow / 16 * (15 * 0.012 + 0.02) / 10.0)


def test_a_slow_log_that_stays_empty_has_none() -> None:
    fields = looks(
        Server({"CONFIG GET slowlog-log-slower-than": KEPT, "SLOWLOG GET 16": [[entry(7, 1.0)], [], []]}), count=3
    )
    assert fields["slow_commands"] == 0.0
    assert fields["standstill_ratio"] == 0.0


def test_a_fork_holds_everybody_up() -> None:
    empty: list[Value] = [[]]
    fields = looks(Server({
        "INFO": [info(0.0), info(10.0, total_forks=2)], "INFO commandstats": [stats(get=(1, 0.0)), stats(get=(2, 0.0))],
        "SLOWLOG GET 16": empty,
    }))  # fmt: skip
    assert fields["standstill_ratio"] == pytest.approx(0.1)


def test_what_is_refused_is_unknown_with_the_reason_and_the_rest_goes_on() -> None:
    server = Server({"INFO": [info(0.0), info(10.0)], "INFO commandstats": [NOPERM], "SLOWLOG GET 16": [NOPERM]})
    fields = looks(server, count=5)
    assert fields["clients"] == 7.0
    assert "standstill_ratio" not in fields
    assert fields["unseen"]["standstill_ratio"].code is Code.NOT_PERMITTED
    assert "+slowlog" in fields["unseen"]["slow_commands"]
    assert server.asked.count("SLOWLOG GET 16") == 1, "a refusal stands in the server's log: not again within the hour"


def test_a_renamed_info_leaves_the_slow_log() -> None:
    fields = looks(Server({"CONFIG GET slowlog-log-slower-than": KEPT, "SLOWLOG GET 16": [[], [entry(0, 2.0)]]}))
    assert fields["standstill_ratio"] == pytest.approx(0.2)
    assert fields["unseen"]["clients"].code is Code.CANNOT_COUNT


@pytest.mark.parametrize("least", [b"-1", b"500000"])
def test_an_empty_slow_log_that_keeps_nothing_is_no_zero(least: bytes) -> None:
    fields = looks(
        Server({"CONFIG GET slowlog-log-slower-than": [[b"slowlog-log-slower-than", least]], "SLOWLOG GET 16": [[]]})
    )
    assert "slow_commands" not in fields
    assert fields["unseen"]["slow_commands"].code is Code.NOT_CONFIGURED
    assert "standstill_ratio" in fields["unseen"]


def test_a_server_that_began_anew_is_seen_for_the_first_time() -> None:
    fields = looks(Server({
        "INFO": [info(0.0, evicted_keys=9), info(10.0, evicted_keys=1)],
        "INFO commandstats": [stats(get=(900, 5.0)), stats(get=(1, 0.0))], "SLOWLOG GET 16": [[entry(9, 1.0)], [entry(0, 1.0)]],
    }))  # fmt: skip
    assert fields["evicted"] is None
    assert fields["busy_ratio"] is None
    assert fields["slow_commands"] == 1.0


@pytest.mark.parametrize("least", [b"10000", b"-1"], ids=["with a slow log", "without"])
def test_what_another_server_behind_the_name_has_counted_is_no_gain(least: bytes) -> None:
    """A reader endpoint leads each new connection to another replica, whose slow log and clock are others."""
    one, other = {"run_id": "a" * 40}, {"run_id": "b" * 40, "total_forks": 70}
    servers: list[tuple[Value, Value, Value]] = [
        (info(100.0, **one), stats(get=(100, 0.001), keys=(1, 0.4)), [entry(3, 0.4)]),
        (info(100.5, **other, evicted_keys=900), stats(get=(900, 0.009), keys=(99, 40.0)), [entry(n, 0.5) for n in range(84, 100)]),
        (info(110.5, **other, evicted_keys=902), stats(get=(950, 0.01), keys=(100, 40.5)), [entry(100, 0.5)]),
    ]  # fmt: skip
    answers: dict[str, list[Value]] = {
        "CONFIG GET slowlog-log-slower-than": [[b"slowlog-log-slower-than", least]],
        "INFO": [each for each, _, _ in servers],
        "INFO commandstats": [each for _, each, _ in servers],
        "SLOWLOG GET 16": [each for _, _, each in servers],
    }
    fields = looks(Server(answers))
    assert "standstill_ratio" not in fields
    assert fields["unseen"]["standstill_ratio"].code is Code.NOT_YET
    assert (fields["evicted"], fields["busy_ratio"], fields["slowest"]) == (None, None, ())
    after = looks(Server(answers), count=3)
    assert after["evicted"] == 2.0
    assert after["standstill_ratio"] == pytest.approx(0.05)


ODD: st.SearchStrategy[Value] = st.recursive(
    st.none() | st.integers(-(10**18), 10**18) | st.binary(max_size=60) | st.text(max_size=20) | st.just(NOPERM),
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=15,
)


@given(st.lists(ODD, min_size=4, max_size=4))
def test_no_answer_takes_the_view_down(answers: list[Value]) -> None:
    questions = ("INFO", "INFO commandstats", "CONFIG GET slowlog-log-slower-than", "SLOWLOG GET 16")
    looks(Server({question: [answer] for question, answer in zip(questions, answers, strict=True)}))
