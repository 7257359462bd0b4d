"""The marker of the lab, and a missing environment as a skip with its reason."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.lab import Unavailable


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "lab: needs a real quota, gVisor or a guest kernel; skipped where it is missing")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    return (yield from _skip_when_unavailable())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    return (yield from _skip_when_unavailable())


def _skip_when_unavailable() -> Generator[None, object, object]:
    try:
        return (yield)
    except Unavailable as reason:
        pytest.skip(str(reason))
