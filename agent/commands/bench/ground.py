"""The database, or the schema, that a bench makes for itself, and takes away again.

What says whose it is stands on the server, in its name and its comment, so that the next start knows it from anywhere:
after a SIGKILL nobody here is left to tell.  Of a bench that goes on a session is open whose application has the same token,
and what it works in is left alone.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any, Final, NamedTuple, Self

from agent.commands.bench.runner import RunFailed
from agent.commands.bench.safety import Place
from agent.commands.bench.target import KEEPER, Target
from agent.commands.bench.words_of_failure import told

PREFIX: Final = "stallscope_bench_"
_PATTERN = f"^{PREFIX}[0-9a-f]{{8}}$"
MARK: Final = "made by stallscope bench, which removes it"
#: Ours that nobody uses: kind, name.
_LEFT = f"""
WITH ours AS (
  SELECT 'DATABASE' AS kind, datname::text AS name, shobj_description(oid, 'pg_database') AS said, datdba AS owner FROM pg_database
  UNION ALL
  SELECT 'SCHEMA', nspname::text, obj_description(oid, 'pg_namespace'), nspowner FROM pg_namespace)
SELECT kind, name FROM ours WHERE name ~ '{_PATTERN}' AND said LIKE '{MARK}%%' AND pg_has_role(owner, 'USAGE')
  AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = '{KEEPER} ' || right(name, 8) OR datname = name)
"""  # noqa: S608 - text of ours


class Left(NamedTuple):
    """What an ended bench has left behind."""

    kind: str
    name: str


def fresh_name() -> str:
    """Of a database or schema that nobody has."""
    return f"{PREFIX}{secrets.token_hex(4)}"


async def remove_leftovers(connection: Any) -> list[Left]:
    """Remove what benches that were killed have left on this server.  Returns it.  Raises psycopg.Error."""
    found = [Left(*row) for row in await (await connection.execute(_LEFT)).fetchall()]
    for each in found:
        await _remove(connection, each)
    return found


async def _remove(connection: Any, what: Left) -> None:
    from psycopg import sql  # noqa: PLC0415 - loaded with the connection

    command = "DROP DATABASE IF EXISTS {}" if what.kind == "DATABASE" else "DROP SCHEMA IF EXISTS {} CASCADE"
    await connection.execute(sql.SQL(command).format(sql.Identifier(what.name)))


class Ground:
    """``async with Ground(target, place, name): ...``: what is made there is gone afterwards.

    Entering raises psycopg.Error.  Leaving does not: what cannot be removed, because the server is gone, is in ``left``,
    and the next start removes it.
    """

    def __init__(self, target: Target, place: Place, name: str) -> None:
        self._target, self._place, self.name = target, place, name
        self._keeper: Any = None
        self.left: str | None = None

    @property
    def _what(self) -> Left | None:
        kinds = {"own database": "DATABASE", "own schema": "SCHEMA"}
        return Left(kinds[self._place.kind], self.name) if self._place.kind in kinds else None

    async def __aenter__(self) -> Self:
        from psycopg import sql  # noqa: PLC0415 - same

        what = self._what
        if what is None:
            return self
        self._keeper = await self._target.connect(application=f"{KEEPER} {self.name[-8:]}")
        name = sql.Identifier(what.name)
        try:
            await self._keeper.execute(sql.SQL(f"CREATE {what.kind} {{}}").format(name))
            await self._keeper.execute(
                sql.SQL(f"COMMENT ON {what.kind} {{}} IS {{}}").format(name, sql.Literal(f"{MARK} when it ends"))
            )
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def keep(self) -> None:
        """Open the session anew that says that this is in use, where the server has been restarted.  Raises RunFailed."""
        if self._what is not None and (self._keeper is None or self._keeper.closed):
            with told("the server does not let us back in"):
                self._keeper = await self._target.connect(application=f"{KEEPER} {self.name[-8:]}")

    async def back(self, seconds: float) -> None:
        """Return when the server lets us in again.  Raises RunFailed when it has not within this time."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                with told("the server did not come back"):
                    connection = await self._target.connect()
                    await connection.close()
                if self._keeper is not None:
                    await self._keeper.close()
                    self._keeper = None
                return await self.keep()
            except RunFailed as reason:
                if not reason.gone or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(1.0)

    async def __aexit__(self, *_: object) -> None:
        import psycopg  # noqa: PLC0415 - same

        what = self._what
        if what is None or self._keeper is None:
            return
        try:
            try:
                await _remove(self._keeper, what)
            except (
                psycopg.OperationalError
            ):  # a session of a pgbench that was ended may need a moment; a server may be back
                if not self._keeper.closed:
                    await self._keeper.execute(
                        "SELECT pg_terminate_backend(pid), pg_sleep(0.2) FROM pg_stat_activity WHERE datname = %s AND usename = current_user",
                        [what.name],
                    )
                    await _remove(self._keeper, what)
                else:
                    again = await self._target.connect()
                    await _remove(again, what)
                    await again.close()
        except psycopg.Error:
            self.left = what.name
        await self._keeper.close()
