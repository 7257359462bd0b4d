"""What the settings point at outside of themselves and that is not to be had here.

No fault: where the settings are checked may not be where the agent runs, and the agent runs without it and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from agent.settings.schema import Config
from probes.postgres.dsn import parse as parse_dsn
from probes.store.failures import LinkFailed
from probes.store.place import secret_from


def remarks(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each database whose address cannot be had or used; none holds a part of it."""
    for name, place in config.postgres.targets.items():
        yield from _remark(f"postgres.targets.{name} = {place}", secret_from(place, environ), parse_dsn)
    if config.redis.targets:
        yield from _of_redis(config, environ)


def _of_redis(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    from probes.redis.address import address_from, parse  # noqa: PLC0415 - who watches no Redis does not pay its memory

    for name, place in config.redis.targets.items():
        address = address_from(place, config.redis.passwords.get(name, ""), environ)
        yield from _remark(f"redis.targets.{name} = {place}", address, parse)


def _remark(where: str, read: Callable[[], str], parse: Callable[[str], object]) -> Iterator[str]:
    try:
        parse(read())
    except LinkFailed as failed:
        yield f"{where}: {failed}; {failed.remedy}"
    except OSError as error:
        yield f"{where}: {error.strerror} (here)"
    except ValueError:
        yield f"{where}: empty or not set (here)"
