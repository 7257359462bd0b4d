"""What holds for all tests: what this machine lacks is a skip that says so."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.lab import Unavailable
from tests.lab.builds import NODE
from tests.lab.debian import cache_directory

# These machines are shared: whoever takes the CPU away for 200 ms would fail an example that takes none of that.
# What passed passes again: a change is not refused for an example that it did not make worse.  `--hypothesis-profile=explore`
# looks for new ones, and each that it finds becomes an `@example`.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("shared", settings.get_profile("explore"), derandomize=True)
settings.load_profile("shared")


UNIT = Path(__file__).with_name("unit")
#: Of a test that measures real time: these machines are shared, and a host that takes the CPU away for a second spoils one
#: attempt, not three.  The summary prints each that was made again; a name that comes often there is a fault.
RERUNS = 2


def pytest_configure() -> None:
    """A Node that `make test-tools` brought is on the path of all, as that of a system would be: npm's programs ask for it there."""
    if shutil.which("node") is None:
        os.environ["PATH"] += f"{os.pathsep}{cache_directory() / NODE / 'bin'}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What the markers of pyproject.toml mean.  Raises UsageError for a second attempt without a reason."""
    for item in items:
        timing = item.get_closest_marker("timing")
        if item.get_closest_marker("flaky") or (timing and not timing.kwargs.get("reason")):
            raise pytest.UsageError(f"{item.nodeid}: only timing(reason='why it measures real time') may be run again")
        if timing:
            item.add_marker(pytest.mark.flaky(reruns=RERUNS, reruns_delay=2))
        if (timing or item.get_closest_marker("quota")) and not item.get_closest_marker("gentle"):
            item.add_marker(pytest.mark.alone)
        if item.path.is_relative_to(UNIT):
            item.add_marker(pytest.mark.core)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """Skip a test whose fixture raises Unavailable."""
    return (yield from _skip_when_unavailable())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """The same for the test itself."""
    return (yield from _skip_when_unavailable())


def _skip_when_unavailable() -> Generator[None, object, object]:
    try:
        return (yield)
    except Unavailable as reason:
        pytest.skip(str(reason))
