"""Fetch the report of a running agent: ``stallscope report URL``."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

TIMEOUT_SECONDS = 10.0
MOST_BYTES = 4 * 2**20


class Unreachable(Exception):
    """There is no report to be had at that address; the message says why."""


def get_report(url: str) -> dict[str, Any]:
    """The ``/health`` report behind a base address or a full one.  Raises Unreachable."""
    if not url.startswith(("http://", "https://")):
        url = f"http://{url}"
    if not url.rstrip("/").endswith("/health"):
        url = url.rstrip("/") + "/health"
    try:
        body = _get(url)
        report = json.loads(body)
    except OSError as error:
        raise Unreachable(f"{url}: {getattr(error, 'reason', error)}") from None
    except ValueError:
        raise Unreachable(f"{url}: the answer is not a report") from None
    if not isinstance(report, dict) or "findings" not in report:
        raise Unreachable(f"{url}: the answer is not a report, or the agent is still starting")
    return report


def _get(url: str) -> bytes:
    request = urllib.request.Request(url, headers={"Accept": "application/health+json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            return bytes(answer.read(MOST_BYTES))
    except urllib.error.HTTPError as error:
        if error.code == 503:  # status "fail" is an answer, and a valuable one
            return error.read(MOST_BYTES)
        raise
