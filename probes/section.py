"""What the sections of the settings have in common: a probe's own stands beside the probe.

``agent/settings/schema.py`` gives each its name in the file, ``agent/settings/load.py`` reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from probes.reading import Stability

#: Values by their keys.
Preset = Mapping[str, Any]

#: The name of a target, which becomes a label.
NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
NO_NAME = "is no name: a small letter, then small letters, digits, _ or -, at most 32"


class Section(BaseModel):
    """One table of the settings: frozen, and an unknown key is a fault."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    #: What its keys promise to whoever sets them, but for those that ``otherwise`` names; every section declares its own.
    stability: ClassVar[Stability]
    otherwise: ClassVar[Mapping[str, Stability]] = {}
    #: What another value serves better in one short, attentive look (``stallscope doctor``): closer slots, as a rule.
    doctor: ClassVar[Preset] = {}

    def for_doctor(self) -> Preset:
        """The same where it hangs on what the user has set."""
        return self.doctor


def http_url(text: str) -> str:
    """An address without credentials, as it is.  Raises ValueError for anything else."""
    parts = urlsplit(text)  # raises ValueError itself for a broken address
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be http://HOST[:PORT]/PATH or https://...")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not hold a user or a password")
    _ = parts.port  # raises ValueError when out of range
    return text
