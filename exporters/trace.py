"""Which trace a request belongs to, from the header that Cloud Run and Google's load balancers put on it.

``X-Cloud-Trace-Context: TRACE_ID/SPAN_ID;o=OPTIONS``: 32 hexadecimal digits, a decimal number of 64 bits, and 1 in the last
bit of OPTIONS when the trace is recorded.  A log entry wants the span as 16 hexadecimal digits, and the trace with its project.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

HEADER = b"x-cloud-trace-context"
_FORM = re.compile(rb"([0-9a-fA-F]{32})(?:/(\d{1,20}))?(?:;o=(\d{1,3}))?")


def fields(headers: Iterable[tuple[bytes, bytes]], project: str) -> dict[str, Any]:
    """The special fields of a log line for these (lower-case) ASGI headers; empty without a usable one or a project."""
    text = next((value for name, value in headers if name == HEADER), b"")
    found = _FORM.fullmatch(text.strip())
    if found is None or not project or not int(found[1], 16):
        return {}
    fields: dict[str, Any] = {"logging.googleapis.com/trace": f"projects/{project}/traces/{found[1].decode().lower()}"}
    if found[2] and 0 < int(found[2]) < 2**64:
        fields["logging.googleapis.com/spanId"] = f"{int(found[2]):016x}"
    if found[3]:
        fields["logging.googleapis.com/trace_sampled"] = bool(int(found[3]) & 1)
    return fields
