"""Which of a service's instances asks the log service, told by its configuration: nothing is elected here.

An election needs a place that all instances can write to, and a permission for it.  What is there without either: a name
that only one instance has (a StatefulSet's first pod ends in ``-0``), a variable that only one deployment sets, or a file
that whoever elects a leader already writes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import NamedTuple

_KINDS = ("host", "env", "file")
_YES = ("1", "true", "yes")


class Leader(NamedTuple):
    """``kind`` is always, never, host, env or file; ``value`` what stands behind the colon."""

    kind: str
    value: str


def parse_leader(text: str) -> Leader:
    """The parts of always, never, host:SUFFIX, env:VARIABLE, file:PATH.  Raises ValueError for anything else."""
    kind, colon, value = text.partition(":")
    if text in ("always", "never"):
        return Leader(text, "")
    if kind not in _KINDS or not colon or not value or (kind == "file" and not value.startswith("/")):
        raise ValueError("must be always, never, host:SUFFIX (like host:-0), env:VARIABLE or file:/PATH")
    return Leader(kind, value)


def leads(
    text: str, environ: Mapping[str, str], host: Callable[[], str] = socket.gethostname
) -> Callable[[], bool] | None:
    """Asks whether this instance leads; None when it never will.  Only a file can change while the agent runs."""
    kind, value = parse_leader(text)
    if kind == "file":
        return lambda: os.path.exists(value)
    found = {
        "always": True,
        "host": host().endswith(value),
        "env": environ.get(value, "").strip().lower() in _YES,
    }.get(kind, False)
    return (lambda: True) if found else None
