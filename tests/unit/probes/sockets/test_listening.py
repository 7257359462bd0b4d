"""Who waits to be accepted: queues and counters as the kernel gives them, and whose listener each port is."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from probes.reading import Code, NoData
from probes.sockets import netlink, proc_net
from probes.sockets.listening import MORE_SAMPLES, SOON_SECONDS, ListeningProbe, ListeningReading
from probes.sockets.tcp_info import LISTEN, Dump, Socket
from tests.unit.builders import FakeClock
from tests.unit.fake_kernel import FakeKernel, FakeProcess

NETSTAT = "TcpExt: SyncookiesSent ListenOverflows ListenDrops TCPx\nTcpExt: 1 {} {} 4\nIpExt: a\nIpExt: 1\n"


def listener(port: int, queued: int = 0, backlog: int = 128, inode: int = 0) -> Socket:
    return Socket(socket.AF_INET, LISTEN, "0.0.0.0", port, "0.0.0.0", 0, queued, backlog, 0, inode or port)


class Stage:
    """A kernel whose listeners are what ``samples`` says, one after the other; the last one stays."""

    def __init__(self, tmp_path: Path) -> None:
        self.kernel, self.clock = FakeKernel(tmp_path), FakeClock()
        self.samples: list[Sequence[Socket] | OSError] = [[]]
        self.clients: list[Socket] = []
        self.pids: tuple[int, ...] = ()
        self.asked = 0
        self.count(0, 0)

    def count(self, overflows: int, drops: int) -> None:
        self.kernel.write("/proc/net/netstat", NETSTAT.format(overflows, drops))

    def app(self, pid: int, *inodes: int) -> None:
        process = FakeProcess(self.kernel, pid)
        for number, inode in enumerate(inodes):
            os.symlink(f"socket:[{inode}]", process.directory / "fd" / str(number))
        self.pids = (*self.pids, pid)

    def probe(self, ports: Collection[int] = (), **given: Any) -> ListeningProbe:
        async def sleep(seconds: float) -> None:
            self.clock.advance(seconds)

        usual = {
            "ask": self._ask, "table": self._refuse, "table_unaccepted": _refused,
            "unaccepted": lambda ports: Dump(tuple(s for s in self.clients if s.source_port in ports)),
        }  # fmt: skip
        return ListeningProbe(
            ports, pids=lambda: self.pids, own=lambda: {9768}, root=self.kernel.root, clock=self.clock, sleep=sleep,
            **(usual | given),
        )  # fmt: skip

    def _ask(self) -> Dump:
        found = self.samples[min(self.asked, len(self.samples) - 1)]
        self.asked += 1
        if isinstance(found, OSError):
            raise found
        return Dump(tuple(found))

    @staticmethod
    def _refuse() -> Dump:
        raise FileNotFoundError(2, "No such file or directory", "/proc/net/tcp")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def read(probe: ListeningProbe) -> ListeningReading:
    return asyncio.run(probe.read())


def test_an_empty_queue_is_sampled_once_and_is_a_zero(stage: Stage) -> None:
    stage.samples = [[listener(80), listener(9768)]]
    found = read(stage.probe())
    assert stage.asked == 1
    assert found.queued == {"80": 0.0}, "the agent's own listener is left out"
    assert found.most_queued == {"80": 128.0}
    assert (found.overflows, found.drops, found.seconds) == (0, 0, 0)


def test_where_somebody_waits_it_is_sampled_again_and_a_burst_shows_as_one(stage: Stage) -> None:
    stage.samples = [[listener(80, 40)], [listener(80)]]
    found = read(stage.probe())
    assert stage.asked == 1 + MORE_SAMPLES
    assert found.queued == {"80": 40 / (1 + MORE_SAMPLES)}
    assert found.waiting_ratio == {"80": 1 / (1 + MORE_SAMPLES)}


def test_a_queue_is_full_with_one_more_than_its_bound(stage: Stage) -> None:
    stage.samples = [[listener(80, 5, 5), listener(81, 6, 5)]]
    assert read(stage.probe()).full_ratio == {"80": 0.0, "81": 1.0}


def test_clients_that_have_left_are_told_from_those_who_wait(stage: Stage) -> None:
    stage.samples = [[listener(80, 3)]]
    stage.clients = [listener(80)._replace(inode=0), listener(81)._replace(inode=0)]
    probe = stage.probe()
    first = read(probe)
    assert first.waiting_clients == {"80": 1.0}
    assert first.waited_seconds is not None
    assert first.waited_seconds["80"] >= 0.9, "from the first sample of the slot to its last"
    stage.clock.advance(10.0)
    assert (read(probe).waited_seconds or {})["80"] >= 10.9


def test_a_busy_server_never_has_the_same_one_in_its_queue(stage: Stage) -> None:
    stage.samples = [[listener(80, 1)]]
    probe = stage.probe(
        unaccepted=lambda _: Dump(
            (listener(80)._replace(inode=0, destination_port=int(stage.clock() * 1000) % 60_000),)
        )
    )
    for _ in range(3):
        found = read(probe)
        stage.clock.advance(10.0)
    assert found.waiting_ratio == {"80": 1.0}
    assert found.waited_seconds == {"80": 0.0}


def test_where_somebody_waits_long_the_next_two_slots_are_wanted_soon(stage: Stage) -> None:
    stage.samples = [[listener(80, 1)]]
    probe, wanted = stage.probe(), list[float | None]()
    assert probe.sooner is None
    for clients in ([], *[[listener(80)._replace(inode=0)]] * 4, []):
        stage.clients = clients
        read(probe)
        wanted.append(probe.sooner)
        stage.clock.advance(5.0)
    assert wanted == [None, SOON_SECONDS, SOON_SECONDS, None, None, None], "one that lasts is told by three"
    stage.count(7, 7)
    read(probe)
    assert probe.sooner == SOON_SECONDS, "or handshakes are dropped"


def test_sockets_of_one_port_are_added_up(stage: Stage) -> None:
    stage.samples = [[listener(80, 1, 10, 1), listener(80, 12, 10, 2)]]
    found = read(stage.probe())
    assert (found.queued, found.most_queued, found.full_ratio) == ({"80": 13.0}, {"80": 20.0}, {"80": 1.0})


def test_the_counters_of_before_the_agent_began_are_not_its(stage: Stage) -> None:
    stage.samples = [[listener(80)]]
    stage.count(1000, 2000)
    probe = stage.probe()
    assert read(probe).overflows == 0
    stage.clock.advance(10.0)
    stage.count(1003, 2010)
    found = read(probe)
    assert (found.overflows, found.drops) == (3, 10)
    stage.count(1, 1)
    assert read(probe).overflows == 0, "a namespace made anew"


@pytest.mark.parametrize("text", [None, "", "TcpExt: ListenOverflows\n", "TcpExt: ListenOverflows\nTcpExt: many\n"])
def test_counters_that_cannot_be_read_are_unknown(stage: Stage, text: str | None) -> None:
    stage.samples = [[listener(80)]]
    stage.kernel.write("/proc/net/netstat", text or "")
    if text is None:
        stage.kernel.break_file("/proc/net/netstat")
    found = read(stage.probe())
    assert found.overflows is None
    assert found.unseen["overflows"].code is Code.CANNOT_COUNT
    assert found.queued == {"80": 0.0}


def test_whose_listener_it_is_comes_from_the_descriptors_of_the_apps_processes(stage: Stage) -> None:
    stage.samples = [[listener(80), listener(81)]]
    assert read(stage.probe()).whose == {"80": "unknown", "81": "unknown"}
    stage.app(7, 80, 555)
    assert read(stage.probe()).whose == {"80": "app", "81": "other"}
    assert read(stage.probe([81])).whose == {"80": "other", "81": "app"}, "what the settings name wins"


def test_descriptors_that_may_not_be_read_make_nobody_another(stage: Stage) -> None:
    stage.samples = [[listener(80), listener(81)]]
    stage.app(7, 80)
    stage.pids = (7, 8)
    assert read(stage.probe()).whose == {"80": "app", "81": "unknown"}


def test_an_app_that_the_settings_name_and_that_is_not_there_is_said_to_be_absent(stage: Stage) -> None:
    stage.samples = [[listener(80)]]
    assert read(stage.probe(named=True)).app_absent
    assert not read(stage.probe()).app_absent
    stage.app(7, 80)
    assert not read(stage.probe(named=True)).app_absent


def test_an_app_in_another_network_namespace_is_said_to_be(stage: Stage) -> None:
    stage.samples = [[listener(80)]]
    stage.app(7)
    for pid, number in (("self", 1), ("7", 2)):
        directory = stage.kernel.root / "proc" / pid / "ns"
        directory.mkdir(parents=True)
        os.symlink(f"net:[{number}]", directory / "net")
    assert read(stage.probe()).app_elsewhere
    (stage.kernel.root / "proc/7/ns/net").unlink()
    assert not read(stage.probe()).app_elsewhere


def test_without_netlink_the_table_shows_queues_and_no_bounds(stage: Stage) -> None:
    stage.kernel.write(
        "/proc/net/tcp",
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000007 00:00000000 00000000  1000        0 4711 1 0 100 0\n"
        "   1: 0100007F:1F91 0100007F:C000 01 00000000:00000009 00:00000000 00000000  1000        0 4712 1 0 100 0\n",
    )
    stage.samples = [PermissionError(1, "Operation not permitted")]
    found = read(stage.probe(table=lambda: proc_net.dump_listening(root=stage.kernel.root), unaccepted=_refused))
    assert found.queued == {"8080": 7.0}
    assert found.most_queued is found.full_ratio is found.waiting_clients is None
    assert found.unseen["full_ratio"].code is Code.CANNOT_COUNT
    assert found.unseen["waiting_clients"].code is Code.NOT_PERMITTED, "both were refused"


def test_without_netlink_the_table_shows_who_waits_and_since_when(stage: Stage) -> None:
    def table(client: int) -> None:
        lines = [
            f"   {n}: {local} {remote} {state} 00000000:0000000{queue} 00:00000000 00000000  1000        0 {inode} 1 0 100 0\n"
            for n, (local, remote, state, queue, inode) in enumerate((
                ("0100007F:1F90", "00000000:0000", "0A", 2, 4711),
                ("0100007F:1F90", "0100007F:C000", "01", 0, 0),
                ("0100007F:1F90", f"0100007F:{client:04X}", "01", 0, 0),
                ("0100007F:1F90", "0100007F:C003", "01", 0, 4712),  # accepted
                ("0100007F:1F90", "0100007F:C004", "08", 0, 0),  # its client has left
                ("0100007F:1F91", "0100007F:1F90", "01", 0, 0),  # another's queue
            ))
        ]  # fmt: skip
        header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        stage.kernel.write("/proc/net/tcp", header + "".join(lines))

    stage.samples = [PermissionError(1, "Operation not permitted")]
    root = stage.kernel.root
    probe = stage.probe(
        table=lambda: proc_net.dump_listening(root=root), unaccepted=_refused,
        table_unaccepted=lambda ports: proc_net.dump_unaccepted(ports, root=root),
    )  # fmt: skip
    table(0xC001)
    assert read(probe).waiting_clients == {"8080": 2.0}
    stage.clock.advance(10.0)
    table(0xC002)
    found = read(probe)
    assert found.waiting_clients == {"8080": 2.0}
    assert (found.waited_seconds or {})["8080"] >= 10.9, "one of them is still there"


def test_where_the_table_is_cut_off_nobody_who_is_not_in_it_has_been_accepted(stage: Stage) -> None:
    stage.samples = [[listener(80, 1)]]
    found = read(stage.probe(unaccepted=lambda _: Dump((), "only the first bytes were read")))
    assert found.waiting_clients is None
    assert found.unseen["waited_seconds"].code is Code.PARTIAL
    stage.clients = [listener(80)._replace(inode=0)]
    found = read(stage.probe(unaccepted=lambda _: Dump(tuple(stage.clients), "only the first bytes were read")))
    assert found.waiting_clients == {"80": 1.0}


def _refused(_: Collection[int]) -> Dump:
    raise PermissionError(1, "Operation not permitted")


def test_without_both_and_in_gvisor_there_is_no_data(stage: Stage) -> None:
    stage.samples = [PermissionError(1, "Operation not permitted")]
    with pytest.raises(NoData) as caught:
        read(stage.probe())
    assert caught.value.code is Code.NOT_PERMITTED
    with pytest.raises(NoData) as caught:
        read(stage.probe(gvisor=lambda: True))
    assert caught.value.code is Code.CANNOT_COUNT


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=3) as made:
        yield made


def test_a_real_queue_is_seen_with_its_bound_and_those_who_left(server: socket.socket) -> None:
    port = server.getsockname()[1]
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    try:
        found = next(s for s in netlink.dump_listening().sockets if s.source_port == port)
        assert (found.rqueue, found.wqueue) == (3, 3)
        seen = next(s for s in proc_net.dump_listening().sockets if s.source_port == port)
        assert (seen.rqueue, seen.wqueue, seen.inode) == (3, 0, found.inode)
        assert len(netlink.dump_unaccepted([port]).sockets) == 3
        waiting = {(s.source_port, s.destination, s.destination_port) for s in netlink.dump_unaccepted([port]).sockets}
        table = proc_net.dump_unaccepted([port]).sockets
        assert {(s.source_port, s.destination, s.destination_port) for s in table} == waiting
        clients.pop().close()
        assert len(netlink.dump_unaccepted([port]).sockets) == len(proc_net.dump_unaccepted([port]).sockets) == 2
        accepted, _ = server.accept()
        accepted.close()
        assert next(s for s in netlink.dump_listening().sockets if s.source_port == port).rqueue == 2
    except OSError as error:
        pytest.skip(f"this kernel refuses NETLINK_SOCK_DIAG: {error}")
    finally:
        for client in clients:
            client.close()
