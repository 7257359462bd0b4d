"""How the limits of a cell are called, in a table and in a sentence, and what they mean for who pays for the database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: Part -> label.
LABELS: Final[Mapping[str, str]] = {
    "client_busy": "client CPU, busy",
    "client_quota": "client CPU limit (quota)",
    "client_hypervisor": "client CPU stolen (hypervisor)",
    "client_neighbours": "client CPU used by neighbours",
    "client_suspended": "client suspended, cause not seen",
    "server_executing": "server executes",
    "server_lock": "server: waiting for locks",
    "server_starved": "server waits for a CPU",
    "network": "network round trips",
    "connecting": "setting up connections",
    "connections": "waiting for a server connection (pooler)",
    "unknown": "unknown",
    "none": "no single limit",
}
#: Part -> what holds, as the subject of a sentence that goes on with "61 % of the time".
HOLDS: Final[Mapping[str, str]] = {
    "client_busy": "this client's own work takes",
    "client_quota": "the client's CPU limit holds",
    "client_hypervisor": "the hypervisor holds this client",
    "client_neighbours": "other processes on this machine's CPUs hold the client",
    "client_suspended": "this client is suspended, for a cause that cannot be seen here,",
    "server_executing": "the server executes",
    "server_lock": "transactions wait for each other's locks",
    "server_starved": "the server's processes wait for a CPU",
    "network": "the way there and back takes",
    "connecting": "setting up connections takes",
    "connections": "clients wait for one of the pooler's server connections",
    "unknown": "what takes",
    "none": "",
}
#: Part -> whether a larger database would help, and what would.
REMEDIES: Final[Mapping[str, tuple[str, str]]] = {
    "client_busy": ("would not help", "more CPU for the client, or fewer clients on it"),
    "client_quota": ("would not help", "raise the client's CPU limit"),
    "client_hypervisor": ("would not help", "a machine for the client whose CPU is not shared or not spent"),
    "client_neighbours": ("would not help", "give the client CPUs of its own"),
    "client_suspended": ("would not help", "find what suspends the client: stallscope doctor"),
    "server_executing": ("may help", "faster cores or storage, or less work in each transaction"),
    "server_lock": ("would not help", "shorter transactions, or fewer that change the same rows"),
    "server_starved": ("would help", "more CPUs for the server, or a higher CPU limit of its container"),
    "network": ("would not help", "bring client and server nearer, or make fewer round trips"),
    "connecting": ("would not help", "keep connections in a pool"),
    "connections": ("would not help by itself", "more server connections in the pooler (default_pool_size), as far as the server bears them"),
    "unknown": ("cannot be judged", "see what cannot be seen: stallscope doctor -v"),
    "none": ("helps only in part", "no single change brings much"),
}  # fmt: skip


def in_all(limit: Mapping[str, Any]) -> str:
    """What the whole group takes, where its limit is only a part of that: `` (the client in all: 94%)``."""
    share = limit.get("group_share")
    if share is None or share - limit["share"] < 0.05:
        return ""
    return f" (the {limit['group']} in all: {share:.0%})"


def milliseconds(seconds: float) -> str:
    """Three digits: ``0.063 ms``, ``12.4 ms``, ``1.24 s``."""
    if abs(seconds) >= 1:
        return f"{seconds:.3g} s"
    value = seconds * 1e3
    return f"{value:.0f} ms" if abs(value) >= 100 else f"{value:.3g} ms"
