"""Which files an installed distribution and all that it requires consist of.

Requirements that only an extra asks for are left out: name those distributions yourself.
"""

from __future__ import annotations

import importlib.metadata
import re
from functools import cache
from pathlib import Path


@cache
def distribution_files(names: tuple[str, ...]) -> tuple[tuple[Path, str], ...]:
    """(file here, its name under site-packages) of the distributions and all that they require."""
    found: dict[str, Path] = {}
    queue, done = list(names), set[str]()
    for name in queue:
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in done:
            continue
        done.add(key)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        queue += [
            re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in distribution.requires or () if "extra" not in each
        ]
        for file in distribution.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts and file.suffix != ".pth":
                source = Path(str(file.locate()))
                if source.is_file() and not file.name.startswith("__editable__"):
                    found[str(file)] = source
    return tuple((source, name) for name, source in found.items())
