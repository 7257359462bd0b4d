"""Who may ask: not a web page in somebody's browser, which reaches what the browser's machine reaches.

*DNS rebinding*: a page of evil.example lets that name point to 127.0.0.1 or to a pod's address and reads the answer as
its own.  The request then bears the page's name in ``Host``, so only names are answered that nobody can point elsewhere:
IP addresses (what the kubelet, Prometheus and load balancers send), names without a dot (of a Compose service, of a
Kubernetes Service in one namespace: no public zone has such), ``localhost`` and what is below it (RFC 6761), the names of
this host, and ``http.allowed_hosts``.  Without ``Host`` there is no browser.

*Cross-site requests*: a page may POST to any address as long as it need not read the answer.  Browsers say so in
``Origin`` and ``Sec-Fetch-Site`` (Fetch standard); older ones send neither, but only a "simple" type of body.  The app
itself posts from loopback, whatever type its HTTP client makes of a JSON text.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Collection, Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from exporters.sparing import Sparing

_HOST = re.compile(r"(\[[^\]\s]*\]|[^:@/\[\]\s]*)(:[0-9]*)?")
_SIMPLE_TYPES = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
_MOST_SHOWN = 80


class Refusal(NamedTuple):
    """Why a request is not answered."""

    status: int
    because: str
    headers: Mapping[str, str] = {}


class Hosts:
    """The names by which the pages may be asked for: ``http.allowed_hosts`` and those of this host."""

    def __init__(self, allowed: Iterable[str] = (), own: Collection[str] = ()) -> None:
        names = {name.lower().rstrip(".") for name in allowed}
        self._any = "*" in names
        self._names = frozenset(name for name in names if "*" not in name) | {name.lower() for name in own}
        self._below = tuple(name[1:] for name in names if name.startswith("*."))

    def allow(self, header: str) -> bool:
        """Whether a request with this Host is answered; empty: it bore none."""
        found = _HOST.fullmatch(header)
        if found is None:
            return False
        name = found[1].lower().removesuffix(".")
        if name.startswith("["):
            return _is_address(name[1:-1].partition("%")[0])
        if self._any or "." not in name or _is_address(name):
            return True
        return name in self._names or name.endswith((".localhost", *self._below))


def own_names(root: Path = Path("/")) -> set[str]:
    """The names of this host, as the kernel and /etc/hosts have them: no name server is asked."""
    names = {socket.gethostname()}
    try:
        for line in (root / "etc/hosts").read_text("utf-8", "replace").splitlines():
            _, *aliases = line.partition("#")[0].split() or ("",)
            if names.intersection(aliases):
                names.update(aliases)
    except OSError:
        pass  # an image without one
    return names


class Guard:
    """Says whether a request is answered, and tells now and then of those that are not."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._strangers = Sparing(
            "{count} requests refused that asked for another host, the last for {host!r}; is it a name of this agent? "
            "Then add it to http.allowed_hosts"
        )

    def page(self, headers: Mapping[bytes, bytes]) -> Refusal | None:
        """Any request."""
        host = headers.get(b"host", b"").decode("latin-1")
        if self._hosts.allow(host):
            return None
        shown = host[:_MOST_SHOWN]
        self._strangers.note(host=shown)
        return Refusal(
            421,
            f"Host {shown!r} is none of this agent's names: ask for its IP address, or add it to http.allowed_hosts",
        )

    def post(self, client: str, headers: Mapping[bytes, bytes]) -> Refusal | None:
        """A request that changes something."""
        if not _is_loopback(client):
            return Refusal(403, "only from loopback")
        site = headers.get(b"sec-fetch-site", b"none")
        origin = headers.get(b"origin")
        own = (b"http://" + headers.get(b"host", b""), b"https://" + headers.get(b"host", b""))
        if site not in (b"none", b"same-origin") or (origin is not None and origin not in own):
            return Refusal(
                403, "not for another site's page: Origin or Sec-Fetch-Site says that a browser sent it for one"
            )
        kind = headers.get(b"content-type", b"text/plain").partition(b";")[0].strip().lower().decode("latin-1")
        if headers.get(b"user-agent", b"").startswith(b"Mozilla/") and kind in _SIMPLE_TYPES:
            return Refusal(403, f"a browser may not send {kind}: Content-Type must be application/json")
        return None


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
