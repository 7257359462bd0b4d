"""Clients that mean harm, or are merely many, in a process of their own: `python -m tests.lab.hostile_clients KIND PORT SECONDS`.

Only on loopback, bounded in time and number.  Each prints one JSON object of what it did and what it was answered.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import random
import resource
import ssl
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
RATE, CONNECTIONS = 1000, 16
#: What is asked for, in turns: mostly what scrapers and load balancers ask.
PATHS = ("/metrics", "/health", "/livez", "/metrics", "/health", "/livez", "/metrics", "/health", "/", "/no-such-page")
SLOW, DRIP_SECONDS = 200, 0.3
IDLE, FEW_IDLE = 10_000, 1_500
SCRAPERS = 50
#: Processes with the hook, one after the other, and how long the longest lives.
HOOKS, HOOK_SECONDS = 200, 6.0
BODY_BYTES = 10**9
PIECE = b"x" * 65536
LOGINS_PER_SECOND = 50

_POST = f"POST /requests-in-flight HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
_BEGINNINGS = (
    b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ",
    (_POST + "Content-Length: 1000\r\n\r\n").encode(),
    b"GET /" + b"a" * 200,
    b"",
)


async def flood(port: int, seconds: float) -> dict[str, Any]:
    """RATE requests a second over CONNECTIONS connections that are kept; one that is closed is opened again."""
    statuses: Counter[str] = Counter()
    took: list[float] = []
    begin = time.monotonic()

    async def one(number: int) -> None:
        reader = writer = None
        for turn in range(int(seconds * RATE / CONNECTIONS)):
            due = begin + (turn + number / CONNECTIONS) * CONNECTIONS / RATE
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            path = PATHS[(turn + number) % len(PATHS)]
            try:
                if writer is None or reader is None:
                    reader, writer = await asyncio.open_connection(HOST, port)
                asked = time.monotonic()
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length")
                )
                await reader.readexactly(length)
                took.append(time.monotonic() - asked)
                statuses[head.split()[1].decode()] += 1
                if b"connection: close" in head:
                    writer.close()
                    writer = None
            except (OSError, asyncio.IncompleteReadError):
                statuses["no answer"] += 1
                writer = None

    await asyncio.gather(*(one(number) for number in range(CONNECTIONS)))
    took.sort()
    passed = time.monotonic() - begin
    return {
        "requests": sum(statuses.values()), "per_second": sum(statuses.values()) / passed, "statuses": statuses,
        "p50": took[len(took) // 2], "p99": took[int(len(took) * 0.99)], "longest": took[-1],
    }  # fmt: skip


async def slow(port: int, seconds: float) -> dict[str, Any]:
    """SLOW clients that send a byte now and then, and come again when they are closed."""
    done: Counter[str] = Counter()
    end = time.monotonic() + seconds

    async def one(number: int) -> None:
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(HOST, port)
                done["connections"] += 1
                try:
                    writer.write(_BEGINNINGS[number % len(_BEGINNINGS)])
                    while time.monotonic() < end:
                        await asyncio.sleep(DRIP_SECONDS)
                        writer.write(b"a")
                        await writer.drain()
                        done["drips"] += 1
                finally:
                    writer.transport.abort()

    await asyncio.gather(*(one(number) for number in range(SLOW)))
    return dict(done)


async def idle(port: int, seconds: float, number: int = IDLE) -> dict[str, Any]:
    """So many connections that say nothing, all held to the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + 100
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
    held: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    refused = 0
    begin = time.monotonic()
    for _ in range(number):
        try:
            async with asyncio.timeout(10):
                held.append(await asyncio.open_connection(HOST, port))
        except (OSError, TimeoutError):
            refused += 1
    opened = time.monotonic() - begin
    await asyncio.sleep(max(0.0, seconds - opened))
    still = sum(not reader.at_eof() and not writer.is_closing() for reader, writer in held)
    for _, writer in held:
        writer.transport.abort()
    return {"opened": len(held), "refused": refused, "seconds_to_open": opened, "open_at_the_end": still}


async def scrapers(port: int, seconds: float) -> dict[str, Any]:
    """SCRAPERS that ask for /metrics at the same instant, each second, over connections that are kept where they may be.

    As Go's client does, a question over a connection that turns out to be closed is asked once more over a new one.
    """
    statuses: Counter[str] = Counter()
    took: list[float] = []
    begin = time.monotonic()
    request = f"GET /metrics HTTP/1.1\r\nHost: {HOST}\r\nAccept-Encoding: gzip\r\n\r\n".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.startswith(b"content-length")]
        await reader.readexactly(int(lengths[0]))
        return head

    async def one() -> None:
        kept: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        for turn in range(int(seconds)):
            await asyncio.sleep(max(0.0, begin + turn - time.monotonic()))
            asked, head = time.monotonic(), b""
            for _ in range(2 if kept else 1):
                try:
                    async with asyncio.timeout(10):
                        kept = kept or await asyncio.open_connection(HOST, port)
                        head = await answer(*kept)
                    break
                except (OSError, TimeoutError, asyncio.IncompleteReadError):
                    if kept:
                        kept[1].transport.abort()
                    kept = None
            took.append(time.monotonic() - asked)
            statuses[head.split()[1].decode() if head else "no answer"] += 1

    await asyncio.gather(*(one() for _ in range(SCRAPERS)))
    took.sort()
    return {"statuses": statuses, "p50": took[len(took) // 2], "p99": took[int(len(took) * 0.99)]}


async def hooks(_port: int, seconds: float) -> dict[str, Any]:
    """HOOKS processes with the hook that log, each under a name that no other had, and end after up to HOOK_SECONDS."""
    begin = time.monotonic()
    gap = max(0.0, seconds - HOOK_SECONDS) / HOOKS
    ended: Counter[str] = Counter()

    async def one(number: int) -> None:
        await asyncio.sleep(max(0.0, begin + number * gap - time.monotonic()))
        env = {
            "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "hooks" / "python" / "auto"),
            "STALLSCOPE_HOOK": f"udp:{HOST}:9769", "STALLSCOPE_HOOK_NAME": f"job-{number}",
        }  # fmt: skip
        words = (
            str(ROOT / "tests" / "integration" / "hooked.py"),
            "steady",
            "20",
            f"{random.uniform(1, HOOK_SECONDS):.1f}",
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, env=env, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        ended[f"exit {await process.wait()}"] += 1

    await asyncio.gather(*(one(number) for number in range(HOOKS)))
    return dict(ended)


async def bodies(port: int, seconds: float) -> dict[str, Any]:
    """Bodies of BODY_BYTES: announced, in chunks, and to a page that takes none; each again and again."""
    sent: list[int] = []
    end = time.monotonic() + seconds
    heads = (
        f"{_POST}Content-Length: {BODY_BYTES}\r\n\r\n",
        f"{_POST}Transfer-Encoding: chunked\r\n\r\n",
        f"GET /metrics HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {BODY_BYTES}\r\n\r\n",
    )

    async def one(head: str) -> None:
        piece = f"{len(PIECE):x}\r\n".encode() + PIECE + b"\r\n" if "chunked" in head else PIECE
        while time.monotonic() < end:
            taken = 0
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(HOST, port)
                try:
                    writer.write(head.encode())
                    while taken < BODY_BYTES:
                        writer.write(piece)
                        await writer.drain()
                        taken += len(PIECE)
                finally:
                    writer.transport.abort()
            sent.append(taken)
            await asyncio.sleep(0.05)

    await asyncio.gather(*(one(head) for head in heads))
    return {"bodies": len(sent), "whole": sum(each >= BODY_BYTES for each in sent), "most_bytes": max(sent)}


async def logins(port: int, seconds: float) -> dict[str, Any]:
    """Wrong passwords over TLS, each on a connection of its own."""
    statuses: Counter[str] = Counter()
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # who attacks does not mind
    begin = time.monotonic()

    async def one(number: int) -> None:
        guess = base64.b64encode(f"ann:guess {number}".encode()).decode()
        try:
            async with asyncio.timeout(10):
                reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
                writer.write(f"GET /metrics HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Basic {guess}\r\n\r\n".encode())
                statuses[(await reader.readline()).split()[1].decode()] += 1
                writer.transport.abort()
        except (OSError, TimeoutError, IndexError):
            statuses["no answer"] += 1

    asked = []
    for number in range(int(seconds * LOGINS_PER_SECOND)):
        await asyncio.sleep(max(0.0, begin + number / LOGINS_PER_SECOND - time.monotonic()))
        asked.append(asyncio.create_task(one(number)))
    await asyncio.gather(*asked)
    return {"statuses": statuses}


KINDS: dict[str, Callable[[int, float], Awaitable[dict[str, Any]]]] = {
    "flood": flood, "slow": slow, "idle": idle, "few-idle": partial(idle, number=FEW_IDLE), "scrapers": scrapers, "hooks": hooks,
    "bodies": bodies, "logins": logins,
}  # fmt: skip


async def _main() -> None:
    kind, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    print(json.dumps(await KINDS[kind](port, seconds)))


if __name__ == "__main__":
    asyncio.run(_main())
