"""Look-ups against a real name server on UDP: what the kernel stamps, and what is lost."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from probes.names import lookup
from probes.names.lookup import Asked
from probes.names.message import NO_ERROR, NO_NAME, Answer, question
from probes.names.resolv_conf import ResolvConf
from tests.lab.name_server import NameServer

NAME = "db.example.com"
YES = Answer(NO_ERROR, 1)


@pytest.fixture
def server() -> Iterator[NameServer]:
    with NameServer({NAME}) as made:
        yield made


def test_a_real_answer_is_timed_by_the_kernel_even_when_nobody_was_there_to_read_it(server: NameServer) -> None:
    async def busy() -> Asked:
        async with lookup.stamping():
            asking = asyncio.ensure_future(lookup.ask(server.address, question(7, NAME), 5.0, server.port))
            await asyncio.sleep(0)
            time.sleep(1.0)  # noqa: ASYNC251 - held up, as by a CPU limit
            return await asking

    found = asyncio.run(busy())
    if not found.stamped:
        pytest.skip("this kernel stamps no datagrams")
    assert found.answer == YES
    assert found.seconds < 0.5


def test_an_answer_from_before_the_kernel_began_to_stamp_has_the_time_of_reading_which_is_no_stamp() -> None:
    """The answer is there at once; the kernel's work item waits for this thread, which may not be preempted on its CPU."""

    async def held(server: socket.socket) -> Asked:
        packet = question(7, NAME)
        asking = asyncio.ensure_future(lookup.ask("127.0.0.1", packet, 5.0, server.getsockname()[1]))
        await asyncio.sleep(0)
        _, client = server.recvfrom(2048)
        server.sendto(packet[:2] + b"\x81\x83" + packet[4:], client)  # NXDOMAIN
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            pass
        return await asking

    def alone() -> Asked:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
            server.bind(("127.0.0.1", 0))
            return asyncio.run(held(server))

    with ThreadPoolExecutor(1) as pool:  # its CPU and its priority end with its thread
        try:
            found = pool.submit(alone).result()
        except PermissionError:
            pytest.skip("needs CAP_SYS_NICE")
    assert found.answer == Answer(NO_NAME, 0)
    # Somebody else on this machine may have the kernel stamp all the time.
    assert found.stamped == (found.seconds < 0.09), found


def test_an_answer_that_came_while_this_process_was_held_past_the_time_out_counts(server: NameServer) -> None:
    async def held() -> Asked:
        asking = asyncio.ensure_future(lookup.ask(server.address, question(7, NAME), 0.1, server.port))
        await asyncio.sleep(0)
        time.sleep(0.4)  # noqa: ASYNC251
        return await asking

    assert asyncio.run(held()).answer == YES


def test_a_port_where_nobody_is_refuses() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(OSError, match="refused"):
        asyncio.run(lookup.ask("127.0.0.1", question(7, NAME), 1.0, port))


def test_a_real_name_server_that_drops_costs_time_outs_and_one_that_fails_is_asked_again(server: NameServer) -> None:
    conf = ResolvConf((server.address,), ("a.local",), 5, timeout=0.2)
    ask = partial(lookup.ask, port=server.port)
    server.set(drop_every=2)
    lost = asyncio.run(lookup.look_up(NAME, conf, ask))
    assert lost.found
    assert lost.unanswered >= 1
    assert lost.seconds >= 0.95 * 0.2
    assert server.asked[:2] == [f"{NAME}.a.local", NAME]
    server.set(fails=True)
    assert not asyncio.run(lookup.look_up(NAME, conf, ask)).found
