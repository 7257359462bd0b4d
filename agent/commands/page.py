"""Write a report as one HTML file: ``--html FILE`` of ``doctor`` and ``report``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.timeline import Timeline
from exporters.page import render


def write_page(path: Path, report: Mapping[str, Any], timeline: Mapping[str, Any]) -> None:
    """The page; without charts where the timeline is empty, as of an agent that is older than it.

    Raises OSError that names the file, and LookupError, TypeError, ValueError, ArithmeticError, AttributeError of what is no whole report.
    """
    page = render.file(report, timeline or Timeline().as_json())  # whole, before anything is written
    try:
        path.write_bytes(page)
    except OSError as error:
        raise OSError(error.errno, f"--html {path}: {error.strerror}") from None
