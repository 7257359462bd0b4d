"""What each runtime makes of a limit: the numbers of their own documentation, and where they are not known."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.app.cpu_count import Belief, How, believed
from probes.app.procfs import Runtime
from probes.app.program import Program
from probes.host.cgroup_files import Quota
from probes.reading import Code, Unseen

REFUSED = Unseen("its environment may not be read", Code.NOT_PERMITTED)
OFF = {"containermaxprocs": "0"}


def go(version: str = "1.25", **known: Any) -> Program:
    return Program("go", version, **known)


def quota(cores: float | None) -> Quota | None:
    return None if cores is None else Quota(round(cores * 100_000), 100_000)


def ask(program: Program, cores: float | None, *, mask: int = 8, cgroup: int = 2) -> Belief:
    return believed(program, quota(cores), cgroup, mask, 16)


@pytest.mark.parametrize(
    ("program", "cores", "how", "counts"),
    [
        (go(), 0.5, How.ROUNDED_UP, 2),
        (go(), 1.0, How.ROUNDED_UP, 2),
        (go(), 1.94, How.ROUNDED_UP, 2),
        (go(), 2.05, How.ROUNDED_UP, 3),
        (go(), 12.5, How.MASK, 8),
        (go(), None, How.MASK, 8),
        (go("1.24"), 0.5, How.MASK, 8),
        (go(godebug=OFF), 0.5, How.MASK, 8),
        (go(counts={"GOMAXPROCS": 3}), 0.5, How.SET, 3),
        (go(automaxprocs="v1.6.0"), 0.5, How.ROUNDED_DOWN, 1),
        (go(automaxprocs="v1.6.0"), 1.94, How.ROUNDED_DOWN, 1),
        (go(automaxprocs="v1.6.0"), 2.0, How.ROUNDED_DOWN, 2),
        (go("1.20", automaxprocs="v1.6.0"), 2.5, How.ROUNDED_DOWN, 2),
        (go("1.20", automaxprocs="v1.4.0"), 2.5, How.MASK, 8),  # it does not know cgroup v2
        (go("1.20", automaxprocs="v1.6.0"), None, How.MASK, 8),
        (go(automaxprocs="v1.6.0", counts={"GOMAXPROCS": 4}), 1.94, How.SET, 4),  # which it leaves alone
        (go(no_modules=True, counts={"GOMAXPROCS": 4}), 1.94, How.SET, 4),
        (Program("java", "17.0.15"), 1.5, How.ROUNDED_UP, 2),
        (Program("java", "17.0.15"), 0.2, How.ROUNDED_UP, 1),
        (Program("java", "17.0.15", container_support=False), 0.2, How.MASK, 8),
        (Program("java", "11.0.15"), 1.5, How.MASK, 8),
        (Program("java", "11.0.16"), 1.5, How.ROUNDED_UP, 2),
        (Program("java", "8.0.372"), 1.5, How.ROUNDED_UP, 2),
        (Program("java", "", {"ActiveProcessorCount": 5}), 1.5, How.SET, 5),
        (Program("dotnet", "8.0.1"), 1.5, How.ROUNDED_UP, 2),
        (Program("dotnet", "8.0.1", {"DOTNET_PROCESSOR_COUNT": 5}), 1.5, How.SET, 5),
        (Program("node", "20.20.2"), 0.25, How.ONE_THREAD, 8),
        (Program("node", "22.12.0"), 0.25, How.ONE_THREAD, None),
        (Program("python", "3.11"), 0.25, How.ONE_THREAD, 16),
        (Program("python", "3.13", {"PYTHON_CPU_COUNT": 2}), 0.25, How.ONE_THREAD, 2),
        (Program("ruby"), 0.25, How.ONE_THREAD, None),
    ],
)  # fmt: skip
def test_a_limit_is_rounded_as_the_runtime_does(
    program: Program, cores: float | None, how: How, counts: int | None
) -> None:
    made = ask(program, cores)
    assert (made.how, made.counts, made.because) == (how, counts, None)


@pytest.mark.parametrize(
    "program",
    [
        go(no_modules=True),
        Program("go"),
        go(unread=REFUSED),
        Program("go", unknown=REFUSED),
        Program("java"),
        Program("java", "11"),
        Program("java", "17.0.15", more_options=True),
        Program("java", "17.0.15", unread=REFUSED),
        Program("dotnet"),
        Program("dotnet", "8.0.1", {"DOTNET_PROCESSOR_COUNT": 10}),
        Program("other", unknown=Unseen("none that is known", Code.NOT_APPLICABLE)),
    ],
)
def test_what_is_not_sure_is_not_known_and_says_why(program: Program) -> None:
    made = ask(program, 1.5)
    assert made[:4] == (None, None, None, None)
    assert made.because


@pytest.mark.parametrize(
    "program", [go(), go(automaxprocs="v1.6.0"), Program("java", "17.0.15"), Program("dotnet", "8.0.1")]
)
def test_a_limit_that_cannot_be_seen_is_not_none(program: Program) -> None:
    unseen = Unseen("no mount shows it", Code.UNREACHABLE)
    made = believed(program, unseen, 2, 8, 16)
    assert made.because == unseen
    assert made.counts is None


def test_a_node_whose_environment_is_hidden_still_runs_its_code_on_one_thread() -> None:
    made = ask(Program("node", "20.20.2", unread=REFUSED), 1.5)
    assert (made.usable, made.at_once, made.because) == (1, None, REFUSED)
    assert ask(Program("node", "20.20.2"), 0.25).at_once == 5
    assert ask(Program("node", "20.20.2", {"UV_THREADPOOL_SIZE": 5000}), 0.25).at_once == 1025


def test_an_interpreter_without_a_lock_is_bounded_by_nothing() -> None:
    made = ask(Program("python", "3.13t"), 1.5)
    assert (made.usable, made.because) == (None, None)


def test_only_what_follows_the_limit_is_asked_again() -> None:
    assert ask(go(), 1.5).follows
    assert not ask(go(godebug={"updatemaxprocs": "0"}), 1.5).follows
    assert not ask(go(automaxprocs="v1.6.0"), 1.5).follows


RUNTIMES: list[Runtime] = ["go", "java", "node", "python", "dotnet", "ruby", "nginx"]


@given(
    runtime=st.sampled_from(RUNTIMES), version=st.sampled_from(["", "1.24", "1.25", "17.0.1", "22.12.1", "3.13t", "8"]),
    cores=st.none() | st.floats(0.01, 64), mask=st.integers(1, 64), cgroup=st.integers(0, 2),
    linked=st.sampled_from(["", "v1.4.0", "v1.6.0", "(devel)"]),
)  # fmt: skip
def test_nobody_uses_more_than_it_may_and_every_blank_has_a_reason_or_means_no_bound(
    runtime: Runtime, version: str, cores: float | None, mask: int, cgroup: int, linked: str
) -> None:
    made = ask(Program(runtime, version, automaxprocs=linked), cores, mask=mask, cgroup=cgroup)
    assert made.usable is None or 1 <= made.usable <= mask
    assert made.at_once is None or made.at_once >= 1
    assert (made.at_once is not None) == (made.because is None)
    assert made.usable is not None or made.because is not None or runtime in ("java", "dotnet", "python")
