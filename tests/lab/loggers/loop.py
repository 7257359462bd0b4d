"""`python loop.py WHAT URL RATE SECONDS`: an asyncio server's loop, held up or not; it knows nothing of any hook."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from importlib import import_module


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def main(what: str, seconds: float) -> None:
    if what == "threads":  # others compute, the loop is idle
        for _ in range(2):
            threading.Thread(target=spin, args=[seconds * 10], daemon=True).start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what == "computes":
            spin(0.3)
        elif what == "sleeps":
            time.sleep(0.3)
        elif what == "pieces":  # as much work, given back every 2 ms
            for _ in range(150):
                spin(0.002)
                await asyncio.sleep(0)
        await asyncio.sleep(0.7)


if __name__ == "__main__":
    if "uvloop" in sys.argv[1]:
        import_module("uvloop").run(main(sys.argv[1].partition("-")[2], float(sys.argv[4])))
    else:
        asyncio.run(main(sys.argv[1], float(sys.argv[4])))
