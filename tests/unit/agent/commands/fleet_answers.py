"""What a real Prometheus answered to the questions of `stallscope fleet`, replayed.

tests/integration/test_prometheus.py records it (UPDATE_GOLDEN=1) and holds that it is still what one answers.
"""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

ANSWERS = Path(__file__).resolve().parents[2] / "golden" / "fleet-answers.json"

#: An answer of the query API, by "query QUERY" or "query_range QUERY"; it may be changed.
Answers = dict[str, dict[str, Any]]


def recorded() -> Answers:
    """A copy."""
    found = json.loads(ANSWERS.read_text())
    assert isinstance(found, dict)
    return found


def replay(answers: Answers) -> Callable[[urllib.request.Request, float, int], tuple[int, bytes]]:
    """An exchange that gives these; what is not among them is an empty answer."""

    def exchange(request: urllib.request.Request, _seconds: float, _most: int) -> tuple[int, bytes]:
        assert isinstance(request.data, bytes)
        query = urllib.parse.parse_qs(request.data.decode())["query"][0]
        empty = {"status": "success", "data": {"resultType": "vector", "result": []}}
        return 200, json.dumps(answers.get(f"{request.full_url.rpartition('/')[2]} {query}", empty)).encode()

    return exchange
