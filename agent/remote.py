"""Fetch the report of a running agent: ``stallscope report URL``."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

TIMEOUT_SECONDS = 10.0
MOST_BYTES = 4 * 2**20
#: What makes an answer a report: the contract's keys and their JSON types.
_KEYS: dict[str, type] = {
    "status": str, "verdict": str, "findings": list, "ruled_out": list, "unknown": list, "cannot_see": list,
    "breakdown": dict, "platform": dict, "agent": dict,
}  # fmt: skip


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
    except http.client.HTTPException as error:
        raise Unreachable(f"{url}: not an HTTP answer ({type(error).__name__})") from None
    except (ValueError, RecursionError):
        raise Unreachable(f"{url}: the answer is not a report") from None
    if not isinstance(report, dict) or any(not isinstance(report.get(key), kind) for key, kind in _KEYS.items()):
        raise Unreachable(f"{url}: the answer is not a report of stallscope")
    return report


def _get(url: str) -> bytes:
    request = urllib.request.Request(url, headers={"Accept": "application/health+json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            return bytes(answer.read(MOST_BYTES))
    except urllib.error.HTTPError as error:
        # "fail" is an answer, and a valuable one; its status is configurable, a proxy may change its type.
        if error.code == 503 or error.headers.get_content_type() == "application/health+json":
            return error.read(MOST_BYTES)
        raise
