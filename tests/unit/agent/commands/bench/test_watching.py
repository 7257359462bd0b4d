"""What is seen of a run from both ends, and what pgbench's complaints become."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.commands.bench import threads
from agent.commands.bench.options import Script
from agent.commands.bench.programs import find_pgbench
from agent.commands.bench.runner import PREFIX, Scratch, explain, words_of
from agent.commands.bench.server_watch import SAMPLES, Seen
from agent.commands.bench.target import Target
from agent.commands.embedded_postgres import NotAvailable
from probes.app.procfs import ProcessSample, Stat, Thread

STAT = Stat("pgbench", "S", 0.0, 2, 1, 0)


def sample(at: float, threads_: dict[int, Thread], machine: float | None = None) -> threads.Sample:
    return threads.Sample(ProcessSample(at, STAT, threads_, cut=False), machine)


def test_threads_between_two_moments() -> None:
    first = sample(10.0, {1: Thread("S", 1.0, 0.5), 2: Thread("S", 0.0, 0.0)}, 100.0)
    last = sample(20.0, {1: Thread("S", 3.0, 4.5), 2: Thread("S", 2.0, 0.0), 3: Thread("R", 9.0, 9.0)}, 110.0)
    found = threads.between(first, last)
    assert found == threads.Shares(10.0, 0.2, 0.2, 0.6)


def test_a_kernel_without_run_delay() -> None:
    first, last = sample(0.0, {1: Thread("S", 1.0, None)}), sample(1.0, {1: Thread("S", 1.5, None)})
    assert threads.between(first, last) == threads.Shares(1.0, 0.5, None, None)


def test_no_threads_in_common_tell_nothing() -> None:
    assert threads.between(sample(0.0, {1: Thread("S", 1.0, 0.0)}), sample(1.0, {2: Thread("S", 1.0, 0.0)})) is None
    assert threads.between(sample(1.0, {1: Thread("S", 1.0, 0.0)}), sample(1.0, {1: Thread("S", 1.0, 0.0)})) is None


def test_this_process_is_sampled(tmp_path: Path) -> None:
    assert threads.take(1, 5).process.threads
    with pytest.raises(OSError, match="No such"):
        threads.take(1, 5, root=tmp_path)


def test_sessions_at_many_moments() -> None:
    seen = Seen()
    seen.add([
        (1, "active", "Lock", "tuple", 11, [12]), (1, "active", "", "", 12, None), (1, "idle", "Client", "ClientRead", 13, None),
        (2, "active", "Lock", "tuple", 11, [14]), (2, "idle in transaction", "Client", "ClientRead", 14, None),
        (3, "active", "Client", "ClientWrite", 11, None), (3, "active", "IO", "WALSync", 12, None),
    ])  # fmt: skip
    assert seen.moments == SAMPLES
    assert seen.sessions == 3
    assert seen.locked == pytest.approx(2 / 4)
    assert seen.at_work == pytest.approx(1 / 2)
    assert seen.for_client == pytest.approx(1 / 5)
    assert seen.held_by_idle == pytest.approx(1 / 2)
    assert seen.mean_active == pytest.approx(5 / SAMPLES)


def test_nothing_seen_is_nothing_known() -> None:
    seen = Seen()
    assert {seen.locked, seen.at_work, seen.for_client, seen.held_by_idle, seen.starved, seen.mean_active} == {None}


@pytest.mark.parametrize(
    ("text", "part", "gone"),
    [
        (
            'pgbench: error: connection to server failed: FATAL:  password authentication failed for user "app"',
            "does not accept this user",
            False,
        ),
        ("pgbench: error: could not write: No space left on device", "disk is full", False),
        ("ERROR:  cannot execute UPDATE in a read-only transaction", "--allow-write", False),
        ("FATAL:  unsupported startup parameter: options", "pooler", False),
        ("server closed the connection unexpectedly", "closed", True),
        ("connection refused? Connection refused", "nothing listens", True),
        ("pgbench: error: script.sql:1: syntax error", "syntax error", False),
        ("", "said nothing", False),
    ],
)
def test_what_pgbench_complains_of(text: str, part: str, gone: bool) -> None:
    found = explain(text, 1)
    assert part in f"{found}"
    assert found.gone is gone


def test_no_password_is_told() -> None:
    for text in ("odd: postgresql://me:hunter2@db/app", "odd: host=db password=hunter2 x", "odd: password = hunter2"):
        assert "hunter2" not in f"{explain(text, 1)}"


def test_no_password_stands_in_a_command_line_or_a_result(tmp_path: Path) -> None:
    target = Target.of("postgresql://me:hunter2@db:5433/app?sslmode=verify-full", ("pooler", 6432))
    words = words_of(
        Path("/bin/pgbench"), Script("tpcb"), tmp_path, clients=4, mode="per-transaction", seconds=5, scale=1, log=True
    )
    assert "hunter2" not in f"{words} {target!r} {target.told()}"
    assert {"--connect", "--client=4", "--jobs=4", "--time=5"} <= set(words)
    environ = target.environment("direct", "off", "made", settings={"search_path": "made"})
    assert (environ["PGPASSWORD"], environ["PGDATABASE"], environ["PGSSLMODE"]) == ("hunter2", "made", "disable")
    assert "-c search_path=made" in environ["PGOPTIONS"]
    through = target.environment("proxy", "on", None)
    assert (through["PGHOST"], through["PGPORT"], through["PGDATABASE"], through["PGSSLMODE"]) == (
        "pooler",
        "6432",
        "app",
        "verify-full",
    )


def test_a_long_run_logs_a_share(tmp_path: Path) -> None:
    words = words_of(
        Path("pgbench"), Script("tpcb"), tmp_path, clients=1, mode="pooled", seconds=300, scale=1, log=True
    )
    assert any(word.startswith("--sampling-rate=0.1") for word in words)


def test_what_a_killed_bench_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}999999999-x").mkdir()
    (tmp_path / f"{PREFIX}other").mkdir()
    with Scratch(tmp_path) as path:
        assert sorted(each.name for each in tmp_path.iterdir()) == sorted([path.name, f"{PREFIX}other"])
    assert [each.name for each in tmp_path.iterdir()] == [f"{PREFIX}other"]


def test_a_program_that_is_none_is_told(tmp_path: Path) -> None:
    file = tmp_path / "pgbench"
    file.write_text("#!/bin/sh\necho 'pgbench (PostgreSQL) 9.5.1'\n")
    with pytest.raises(NotAvailable, match="ermission denied"):
        find_pgbench(str(file))
    file.chmod(0o755)
    with pytest.raises(NotAvailable, match="too old"):
        find_pgbench(str(file))
    file.write_text("#!/bin/sh\necho 'pgbench (PostgreSQL) 15.18 (Debian)'\n")
    assert find_pgbench(str(file)).told == "15.18"
