"""The other ends of the watched connections: which are asked for, what each is called, and how many connections stand there.

An endpoint goes by the name that the settings give it, any other by ``ip:port``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from probes.labels import OTHER
from probes.sockets.tcp_info import Remote, Socket, format_address, pack_address

#: Endpoints with a label of their own; the rest is ``OTHER``.
MOST_ENDPOINTS = 32

T = TypeVar("T")


def _itself(found: Any) -> Any:
    return found


class Endpoints:
    """Every address with one of ``ports``, and the addresses of ``targets`` by their names.

    ``wanted`` is what to ask the kernel for, ``named`` are the names, ``shared`` those by which connections of another name go, because
    both have an address: two databases of one server.  Raises ValueError for an address that is none and for
    more than ``MOST_ENDPOINTS`` names.
    """

    def __init__(self, ports: Collection[int], targets: Mapping[str, Collection[Remote]]) -> None:
        if len(targets) > MOST_ENDPOINTS:
            raise ValueError(f"{len(targets)} endpoints are named, more than {MOST_ENDPOINTS}")
        # Of fe80::1%eth0 the kernel tells the interface apart.
        ends = {
            name: {(format_address(*pack_address(host.partition("%")[0])), port) for host, port in remotes}
            for name, remotes in targets.items()
        }
        self._names: dict[Remote, str] = {remote: name for name, remotes in ends.items() for remote in remotes}
        others = {remote for remote in self._names if remote[1] not in ports}
        self.wanted: list[Remote] = sorted({("", port) for port in ports} | others)
        self.named = frozenset(targets)
        by_name = {name: {self._names[remote] for remote in remotes} - {name} for name, remotes in ends.items()}
        self.shared = {name: tuple(sorted(beside)) for name, beside in by_name.items() if beside}

    def sort(self, things: Iterable[T], socket_of: Callable[[T], Socket] = _itself) -> dict[str, list[T]]:
        """The named and then the busiest endpoints by their labels, all others together."""
        found: dict[str, list[T]] = {}
        labels: dict[Remote, str] = {}
        for thing in things:
            s = socket_of(thing)
            remote = s.destination, s.destination_port
            if (label := labels.get(remote)) is None:
                host = f"[{s.destination}]" if ":" in s.destination else s.destination
                label = labels[remote] = self._names.get(remote) or f"{host}:{s.destination_port}"
            found.setdefault(label, []).append(thing)
        ranked = sorted(found, key=lambda label: (label not in self.named, -len(found[label]), label))
        kept = {label: found[label] for label in ranked[:MOST_ENDPOINTS]}
        for label in ranked[MOST_ENDPOINTS:]:
            kept.setdefault(OTHER, []).extend(found[label])
        return kept


def weigh(found: Iterable[Socket], scale: Mapping[Remote, float]) -> float:
    """How many connections these stand for, of which some were counted and not read (:class:`probes.sockets.tcp_info.Dump`)."""
    return sum(scale.get((s.destination, s.destination_port), 1.0) for s in found)
