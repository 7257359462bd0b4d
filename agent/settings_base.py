"""What the sections of the settings have in common."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

#: The name of a target, which becomes a label.
NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
NO_NAME = "is no name: a small letter, then small letters, digits, _ or -, at most 32"


class Section(BaseModel):
    """One table of the settings: frozen, and an unknown key is a fault."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def http_url(text: str) -> str:
    """An address without credentials, as it is.  Raises ValueError for anything else."""
    parts = urlsplit(text)  # raises ValueError itself for a broken address
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be http://HOST[:PORT]/PATH or https://...")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not hold a user or a password")
    _ = parts.port  # raises ValueError when out of range
    return text
