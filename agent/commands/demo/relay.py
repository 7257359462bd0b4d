"""A TCP relay that holds every byte for a while, as a long way does: the slow network of ``stallscope demo``.

A process of its own, run as a script, stdlib only: ``demo_relay.py HOST PORT``.  It writes the port where it
listens on standard output; each line of standard input is the new delay of one direction in seconds.  It ends
with its standard input.  Order is kept, and what is under way keeps the delay that it met.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

CHUNK_BYTES, CHUNKS = 65536, 64


class Relay:
    """Carries connections to ``HOST PORT``."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self.delay = 0.0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until one of its sides ends."""
        with suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            try:
                ways = [self._way(reader, far_writer), self._way(far_reader, writer)]
                with suppress(OSError, ExceptionGroup):
                    await asyncio.gather(*ways)
            finally:
                far_writer.close()
        writer.close()

    async def _way(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From one side to the other: reading goes on while chunks are held."""
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS)
        loop = asyncio.get_running_loop()

        async def take() -> None:
            chunk = b"-"
            while chunk:
                chunk = await reader.read(CHUNK_BYTES)
                await held.put((loop.time() + self.delay, chunk))

        async with asyncio.TaskGroup() as group:
            taking = group.create_task(take())
            while (got := await held.get())[1]:
                await asyncio.sleep(got[0] - loop.time())
                writer.write(got[1])
                await writer.drain()
            await taking
            writer.close()


async def _serve(host: str, port: int) -> None:
    relay = Relay(host, port)
    server = await asyncio.start_server(relay.carry, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        relay.delay = float(line)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
