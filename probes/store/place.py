"""Where an address with a password in it may stand: an environment variable or a file, never the settings, which are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping

MOST_BYTES = 8192
PLACES = ("env:", "file:")


def is_place(text: str) -> bool:
    """Whether this is ``env:VARIABLE`` or ``file:PATH``."""
    return any(text.startswith(prefix) and text != prefix for prefix in PLACES)


def secret_from(place: str, environ: Mapping[str, str]) -> Callable[[], str]:
    """What stands at ``env:VARIABLE`` or ``file:PATH``, as a function that reads it anew each time: it may be rotated.

    The function raises OSError or ValueError, whose texts hold no part of it.
    """
    kind, _, where = place.partition(":")

    def read() -> str:
        if kind == "file":
            with open(where, "rb") as file:
                text = file.read(MOST_BYTES).decode("utf-8", "replace")
        else:
            text = environ.get(where, "")
        if not text.strip():
            raise ValueError(f"{place} is empty or not set")
        return text.strip()

    return read
