"""Clients of a MySQL, as far as the wire shows them: two messages with an answer, and with some drivers a third that has none.

The messages are as long as the real ones (a prepared statement, its execution, COM_STMT_CLOSE); the sockets and the kernel are real.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from agent.history import History
from agent.rules import BY_ID
from agent.rules.rule import Absent, Judgement, Present, Unknown
from probes.sockets.connections import ConnectionsProbe

HERE, CONNECTIONS, SLOTS, SLOT = "127.0.0.1", 6, 6, 0.6
PREPARE, EXECUTE, CLOSE, ANSWER = b"p" * 48, b"e" * 30, b"c" * 9, b"a" * 80
#: What a connection rests between two statements, or a slow one takes: more than waiting_for_database's 50 ms.
LONG = 0.15

pytestmark = pytest.mark.usefixtures("netlink")


def serve(connection: socket.socket, *, slow: bool) -> None:
    while message := connection.recv(100):
        if slow and message.endswith(EXECUTE):
            time.sleep(LONG)
        if not message.endswith(CLOSE):
            connection.sendall(ANSWER)


def ask(connection: socket.socket, over: threading.Event, *, closes: bool, rest: float) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while not over.wait(rest):
        for message in (PREPARE, EXECUTE):
            connection.sendall(message)
            connection.recv(100)
        if closes:
            connection.sendall(CLOSE)
    connection.close()


@contextmanager
def clients(*, closes: bool, slow: bool) -> Iterator[int]:
    """Six clients of one server; its port."""
    over, threads = threading.Event(), []
    asking = {"closes": closes, "rest": 0.02 if slow else LONG}
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server((HERE, 0)))
        for _ in range(CONNECTIONS):
            client = stack.enter_context(socket.create_connection(listener.getsockname()))
            server = stack.enter_context(listener.accept()[0])
            threads.append(threading.Thread(target=ask, args=(client, over), kwargs=asking))
            threads.append(threading.Thread(target=serve, args=(server,), kwargs={"slow": slow}))
        for thread in threads:
            thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            for thread in threads:
                thread.join(10)


def judged(service: str, *, closes: bool, slow: bool = False) -> Judgement:
    """What is said of such clients, of a server of this kind."""
    history = History(600.0)

    async def watch(port: int) -> None:
        probe = ConnectionsProbe([], services={port: service}, own_inodes=set, samples=3)
        for _ in range(SLOTS):
            history.add(await probe.read())
            await asyncio.sleep(SLOT)

    with clients(closes=closes, slow=slow) as port:
        asyncio.run(watch(port))
    return BY_ID["waiting_for_database"].judge(history)


def test_a_connection_that_has_closed_a_statement_waits_for_nothing() -> None:
    judgement = judged("mysql", closes=True)
    assert isinstance(judgement, Unknown), judgement
    assert "are answered" in judgement.because
    # The same of a server that answers each message would be a wait: that is what a slow one looks like.
    assert isinstance(judged("postgres", closes=True), Present)


def test_a_mysql_that_answers_each_message_is_judged_as_any_server() -> None:
    assert isinstance(judged("mysql", closes=False, slow=True), Present)
    assert isinstance(judged("mysql", closes=False), Absent)
