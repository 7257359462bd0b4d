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

HERE, CONNECTIONS = "127.0.0.1", 6
SLOTS, MOST_SLOTS, SLOT = 5, 25, 0.6
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


def judged(*, closes: bool, slow: bool, wanted: type) -> Judgement:
    """What is said of such clients of a MySQL: what is wanted, or else the last that was said while others took the CPU."""
    history, rule = History(600.0), BY_ID["waiting_for_database"]

    async def watch(port: int) -> Judgement:
        probe = ConnectionsProbe([], services={port: "mysql"}, own_inodes=set, samples=3)
        for slot in range(MOST_SLOTS):
            history.add(await probe.read())
            if slot >= SLOTS and isinstance(judgement := rule.judge(history), wanted):
                return judgement
            await asyncio.sleep(SLOT)
        return rule.judge(history)

    with clients(closes=closes, slow=slow) as port:
        return asyncio.run(watch(port))


def test_a_connection_that_has_closed_a_statement_waits_for_nothing() -> None:
    judgement = judged(closes=True, slow=False, wanted=Unknown)
    assert isinstance(judgement, Unknown), judgement
    assert "or for nothing" in judgement.because
    assert "are answered" in judgement.because


@pytest.mark.parametrize(("slow", "verdict"), [(True, Present), (False, Absent)])
def test_a_mysql_that_answers_each_message_is_judged_as_any_server(slow: bool, verdict: type) -> None:
    assert isinstance(judgement := judged(closes=False, slow=slow, wanted=verdict), verdict), judgement
