"""A way on which packets are really late, as a process of its own; the script is stdlib only.

A TCP proxy ends one connection and begins another, so the kernel measures the way to the proxy. Here the
connection is one from client to server, and what holds it up lies below TCP: the kernel's own round-trip time
(tcp_info min_rtt) is the delay. No netem is needed, no namespace, and no server has to listen elsewhere.

One TUN device gives this machine three addresses: the client's own, one at which it finds the server, and one
that the server sees as its client. The last two are nobody's, so what is sent to them goes out by the device, to us.
We hold it, put the other pair of addresses into it, and the same device hands it back as if it came from outside:

    client  198.18.N.1 -> 198.18.N.2        held        198.19.X.Y -> 127.0.0.1  server
    client  198.18.N.1 <- 198.18.N.2        held        198.19.X.Y <- 127.0.0.1  server

198.18.0.0/15 is set apart for benchmarks (RFC 2544). N is the device's number. X.Y is chosen such that both pairs have
the same sum, so no checksum changes (RFC 1071). The device may route to the loopback (route_localnet), so the server
keeps listening on 127.0.0.1; it only has to admit clients from NETWORK. The kernel leaves cutting data into segments
to the device (virtio header, TSO), so 64 KiB are one read here, and 45 segments for who counts them.

The device is not persistent: it, its addresses and its routes are gone with this process, however that ends, and
this process ends with its standard input. Commands, one per line, each answered with one line of JSON:

| command | then |
|---|---|
| ``delay THERE BACK`` | packets taken from now on are held this many seconds: to the server, to the client |
| ``packets`` | answers with those of the last 10,000 packets that were not told before |

Delays apply to open connections too; but min_rtt is the least of five minutes, so connect after a delay has grown.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

if TYPE_CHECKING:
    from tests.lab.process import Running

#: Where the server listens, and from where it sees its clients.
HOST, NETWORK = "127.0.0.1", "198.18.0.0/15"
PREFIX = "st-route"
#: Of one direction; what is more is lost, as in any router.
HELD_BYTES = 64 << 20
REMEMBERED = 10_000
MOST_SECONDS = 60.0
_MOST_PACKET, _PACKETS_AT_ONCE = 70_000, 64

# linux/if_tun.h
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02
#: struct virtio_net_hdr; the addresses stand behind it and 12 bytes of the IPv4 header.
_VNET_HEADER = 10
_ADDRESSES = slice(_VNET_HEADER + 12, _VNET_HEADER + 20)
#: The IPv4 and TCP headers at their longest.
_HEADERS = _VNET_HEADER + 120


class Packet(NamedTuple):
    """One that was carried. Seconds of time.monotonic()."""

    way: Literal["there", "back"]
    taken: float
    """When we had it from the sender's kernel."""
    given: float
    """When we gave it to the receiver's."""
    payload: int
    """Bytes of TCP data; 0 for one that only acknowledges."""


class RouteDelay:
    """`with RouteDelay() as route: connect(host=route.address)` reaches what listens on 127.0.0.1, at any port.

    Raises Unavailable where there is no TUN device, or no right to have one.
    """

    def __init__(self, *, prompt: bool = False) -> None:
        """With `prompt` no packet waits for a CPU: for exact delays, not for bulk."""
        self.prompt = prompt
        self.address = ""
        """At which a client finds the server."""
        self.client_address = ""
        """The client's own; both ends are of this machine's network namespace."""
        self.seen_as = ""
        """The client's, as the server sees it."""
        self.device = ""
        self._running: Running | None = None

    def __enter__(self) -> Self:
        from tests.lab import Unavailable  # noqa: PLC0415 - the script has no package around it
        from tests.lab.process import Running  # noqa: PLC0415

        words = [sys.executable, "-I", "-S", "-B", str(Path(__file__).resolve()), *(["prompt"] if self.prompt else [])]
        self._running = Running(words, tell=True)
        try:
            said = next(self._running.records())
            if "unavailable" in said:
                raise Unavailable(said["unavailable"])
            self.address, self.client_address, self.seen_as = (said[key] for key in ("address", "client", "seen_as"))
            self.device = said["device"]
        except BaseException:
            self._running.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._running is not None:
            self._running.close()

    @property
    def pid(self) -> int:
        """Of the process that carries the packets."""
        assert self._running is not None
        return self._running.pid

    def set_delay(self, there: float, back: float | None = None) -> None:
        """Hold what goes to the server for `there` seconds, and what comes back for `back` (default: the same).

        Returns when it is in force. Raises ValueError for what is no delay.
        """
        delays = {"there": there, "back": there if back is None else back}
        for name, seconds in delays.items():
            if not 0 <= seconds < MOST_SECONDS:
                raise ValueError(
                    f"set_delay({name}): {seconds}; at least 0 and below {MOST_SECONDS:g} seconds are allowed"
                )
        self._ask(f"delay {delays['there']} {delays['back']}")

    def packets(self) -> list[Packet]:
        """What was carried since the last call, at most the last REMEMBERED; in the order in which it was given."""
        return [Packet(*each) for each in self._ask("packets")]

    def _ask(self, command: str) -> Any:
        assert self._running is not None
        self._running.tell(command)
        return next(self._running.records())["done"]


class _Way:
    """One direction: packets that carry one pair of addresses, held, and given back with another."""

    def __init__(self, name: str, old: bytes, new: bytes) -> None:
        self.name, self.old, self.new = name, old, new
        self.delay = 0.0
        self.held: deque[tuple[float, float, bytes]] = deque()
        """Due, taken, packet. In the order in which they came, also when the delay shrinks."""
        self.bytes = 0

    def take(self, packet: bytes, now: float) -> None:
        if self.bytes > HELD_BYTES:
            return
        due = now + self.delay
        if self.held:
            due = max(due, self.held[-1][0])
        self.held.append((due, now, packet))
        self.bytes += len(packet)


class _Route:
    def __init__(self, tun: int, ways: tuple[_Way, _Way]) -> None:
        self._tun, self._ways = tun, ways
        self._by_addresses = {way.old: way for way in ways}
        self._carried: deque[tuple[str, float, float, bytes, int]] = deque(maxlen=REMEMBERED)
        self._unread = b""

    def run(self) -> None:
        """Until the standard input ends."""
        while True:
            self._give()
            due = [way.held[0][0] for way in self._ways if way.held]
            patience = max(0.0, min(due) - time.monotonic()) if due else None
            ready, _, _ = select.select([self._tun, 0], [], [], patience)
            if self._tun in ready:
                self._take()
            if 0 in ready and not self._listen():
                return

    def _take(self) -> None:
        for _ in range(_PACKETS_AT_ONCE):
            try:
                packet = os.read(self._tun, _MOST_PACKET)
            except BlockingIOError:
                return
            # What is not ours is what the kernel itself says to a new device, as router solicitations.
            if way := self._by_addresses.get(packet[_ADDRESSES]):
                way.take(packet, time.monotonic())

    def _give(self) -> None:
        for way in self._ways:
            while way.held and way.held[0][0] <= (now := time.monotonic()):
                _, taken, packet = way.held.popleft()
                way.bytes -= len(packet)
                os.write(self._tun, packet[: _ADDRESSES.start] + way.new + packet[_ADDRESSES.stop :])
                self._carried.append((way.name, taken, now, packet[:_HEADERS], len(packet)))

    def _listen(self) -> bool:
        said = os.read(0, 65536)
        *lines, self._unread = (self._unread + said).split(b"\n")
        for line in lines:
            _say(done=self._do(*line.decode().split()))
        return bool(said)

    def _do(self, word: str, *numbers: str) -> Any:
        if word == "delay":
            delays = [float(number) for number in numbers]
            for way, seconds in zip(self._ways, delays, strict=True):
                way.delay = seconds
            return delays
        carried = [(name, taken, given, _payload(head, size)) for name, taken, given, head, size in self._carried]
        self._carried.clear()
        return carried


def _payload(head: bytes, size: int) -> int:
    ip = (head[_VNET_HEADER] & 15) * 4
    tcp = (head[_VNET_HEADER + ip + 12] >> 4) * 4
    return size - _VNET_HEADER - ip - tcp


def partner(client: str, found_at: str) -> str:
    """The address in 198.19.0.0/16 that has with the server's the same one's complement sum as these two."""
    high = 0xC613
    low = (_sum(client) + _sum(found_at) - _sum(HOST) - high) % 0xFFFF
    return socket.inet_ntoa(struct.pack("!HH", high, low))


def _sum(address: str) -> int:
    return sum(struct.unpack("!HH", socket.inet_aton(address)))


def _pair(source: str, destination: str) -> bytes:
    return socket.inet_aton(source) + socket.inet_aton(destination)


def _open() -> tuple[int, str]:
    """A TUN device and its name. Raises OSError."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    answer = fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", f"{PREFIX}%d".encode(), flags))
    fcntl.ioctl(tun, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
    return tun, answer[:16].rstrip(b"\0").decode()


def _configure(device: str, client: str, found_at: str, seen_as: str) -> None:
    """Raises OSError, CalledProcessError."""
    Path(f"/proc/sys/net/ipv4/conf/{device}/route_localnet").write_text("1")
    for words in (
        f"link set dev {device} txqueuelen 10000 up",
        f"address add {client} peer {found_at}/32 dev {device}",
        f"route add {seen_as}/32 dev {device}",
    ):
        subprocess.run(["ip", *words.split()], check=True, capture_output=True, text=True)
    for address in (found_at, seen_as):  # what the kernel remembers of an earlier way with this number
        subprocess.run(["ip", "tcp_metrics", "delete", address], check=False, capture_output=True)


def _say(**record: Any) -> None:
    unsaid = (json.dumps(record) + "\n").encode()
    while unsaid:
        unsaid = unsaid[os.write(1, unsaid) :]


def _serve(prompt: bool) -> None:
    try:
        tun, device = _open()
        number = int(device.removeprefix(PREFIX))
        if number > 255:
            raise OSError("256 such ways are open, which is all that there are")
        client, found_at = f"198.18.{number}.1", f"198.18.{number}.2"
        seen_as = partner(client, found_at)
        _configure(device, client, found_at, seen_as)
    except subprocess.CalledProcessError as fault:
        _say(unavailable=f"{' '.join(fault.cmd)}: {fault.stderr.strip()}")
        return
    except OSError as fault:
        _say(
            unavailable=f"no TUN device here: {fault}; run as root, with /dev/net/tun and ip (apt-get install iproute2)"
        )
        return
    if prompt:
        with suppress(OSError):  # refused in some containers: then we wait for a CPU as others do
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    _say(address=found_at, client=client, seen_as=seen_as, device=device)
    there = _Way("there", _pair(client, found_at), _pair(seen_as, HOST))
    back = _Way("back", _pair(HOST, seen_as), _pair(found_at, client))
    _Route(tun, (there, back)).run()


if __name__ == "__main__":
    _serve(sys.argv[1:] == ["prompt"])
