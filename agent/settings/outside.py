"""What the settings point at outside of themselves and that is not to be had here.

No fault: where the settings are checked may not be where the agent runs, and the agent runs without it and says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent.settings.schema import Config
from probes.postgres.dsn import parse
from probes.store.failures import LinkFailed
from probes.store.place import secret_from


def remarks(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each database whose DSN cannot be had or used; none holds a part of it."""
    for name, place in config.postgres.targets.items():
        where = f"postgres.targets.{name} = {place}"
        try:
            parse(secret_from(place, environ)())
        except LinkFailed as failed:
            yield f"{where}: {failed}; {failed.remedy}"
        except OSError as error:
            yield f"{where}: {error.strerror} (here)"
        except ValueError:
            yield f"{where}: empty or not set (here)"
