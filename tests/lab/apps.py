"""The apps that a scenario starts, in one table: how each is started in a place, what it needs there, and what it would use.

A place has the files of this checkout and of the cache directory at their own paths, or, in a guest, what `files` names, flat in one
directory; `Where` says which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.lab import go_app, loads, node_app, redis, redis_app, waits

EVERYWHERE = frozenset({"plain", "gvisor", "guest"})


class Where(NamedTuple):
    """A place, as a command line sees it."""

    python: str
    directory: Path | None = None
    """That of the loads, where files do not lie at their own paths."""

    def at(self, file: Path) -> Path:
        """The path there of a file that is here."""
        return self.directory / file.name if self.directory else file


class App(NamedTuple):
    """What some kinds of apps have in common. All raise Unavailable for what this machine has not."""

    kinds: tuple[str, ...]
    command: Callable[[str, Sequence[str], float, Where], list[str]]
    """Of the kind, its options, seconds until it ends, and the place."""
    demand: Callable[[str, Sequence[str]], float]
    """Cores that it would use without any limit."""
    files: Callable[[str], Mapping[str, Path]] = lambda _kind: {}
    """Path in a guest -> file out here; beside those that every guest has."""
    environments: frozenset[str] = EVERYWHERE


def _load(kind: str, options: Sequence[str], seconds: float, where: Where) -> list[str]:
    return [*loads.command(kind, seconds=seconds, python=where.python, file=where.at(loads.FILE)), *options]


def _waits(kind: str, options: Sequence[str], seconds: float, where: Where) -> list[str]:
    return waits.command(kind, options, seconds=seconds, python=where.python, file=where.at(waits.FILE))


def _go(kind: str, options: Sequence[str], seconds: float, where: Where) -> list[str]:
    return go_app.command(kind, options, seconds=seconds, program=where.at(go_app.built(kind)))


def _node(_kind: str, options: Sequence[str], seconds: float, _where: Where) -> list[str]:
    return node_app.command(options, seconds=seconds)


def _redis(_kind: str, options: Sequence[str], seconds: float, where: Where) -> list[str]:
    libraries = ":".join(sorted({str(where.at(each).parent) for each in redis.needed()}))
    server = where.at(redis.server())
    return redis_app.command(
        options, seconds=seconds, python=where.python, at=where.at, server=server, libraries=libraries
    )


def _redis_files(_kind: str) -> Mapping[str, Path]:
    found = (redis_app.FILE, redis_app.CLIENT, redis.server(), *redis.needed())
    return {f"/lab/{each.name}": each for each in found}


APPS = (
    App(loads.KINDS, _load, loads.demand),
    App(waits.KINDS, _waits, waits.demand, lambda _kind: {f"/lab/{waits.FILE.name}": waits.FILE}),
    App(go_app.KINDS, _go, go_app.demand, go_app.files),
    App(node_app.KINDS, _node, lambda _kind, options: node_app.demand(options), environments=frozenset({"plain"})),
    App(redis_app.KINDS, _redis, redis_app.demand, _redis_files),
)
BY_KIND: Mapping[str, App] = {kind: app for app in APPS for kind in app.kinds}


def command(app: str, seconds: float, where: Where, name: str = "") -> list[str]:
    """The command line of an app as a timeline has it: `command("sparse --burn-ms 5 --every-ms 50", 60, Where("python3"))`."""
    kind, *options = app.split()
    words = BY_KIND[kind].command(kind, options, seconds, where)
    return [*words, "--name", name] if name else words


def demand(app: str) -> float:
    """Cores that it would use without any limit."""
    kind, *options = app.split()
    return BY_KIND[kind].demand(kind, options)


def files(apps: Sequence[str]) -> dict[str, Path]:
    """What these need in a guest."""
    kinds = {app.split()[0] for app in apps if app}
    return {path: file for kind in sorted(kinds) for path, file in BY_KIND[kind].files(kind).items()}
