"""What /etc/resolv.conf says, and what one look-up costs by it.

Sources: resolv.conf(5) for the words and their bounds; resolver(3) for the order in which names are tried; RFC 1034, 3.1 for
the final dot.  A name with fewer dots than ``ndots`` is tried with each domain of the search list first and as it stands
last; with as many or more, as it stands first; with a final dot, only as it stands.  Each name tried is two questions, for
IPv4 and for IPv6.  Kubernetes sets ndots:5 and three or more domains, so ``db.example.com`` is asked for eight times and more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from probes.record import dataclass

#: resolv.conf(5): MAXNS, and the bounds of the options.
MOST_SERVERS = 3
MOST_NDOTS, MOST_TIMEOUT, MOST_ATTEMPTS = 15, 30, 5
#: Questions for one name tried: its A and its AAAA records.
QUESTIONS = 2
#: RFC 1035, 2.3.4.
MOST_NAME = 253
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ResolvConf:
    """The resolver's settings; times in seconds."""

    servers: tuple[str, ...] = ("127.0.0.1",)
    search: tuple[str, ...] = ()
    ndots: int = 1
    timeout: float = 5.0
    attempts: int = 2

    def tried(self, name: str) -> Iterator[str]:
        """The full names that a look-up of ``name`` tries until one is found, in their order, without the final dot."""
        bare = name.removesuffix(".")
        longer = [f"{bare}.{domain}" for domain in self.search if len(bare) + len(domain) < MOST_NAME]
        if name.endswith("."):
            yield bare
        elif bare.count(".") >= self.ndots:
            yield from (bare, *longer)
        else:
            yield from (*longer, bare)


def parse(text: str) -> ResolvConf:
    """The settings of a resolv.conf; unknown words and numbers that are none are left out, as the resolver does."""
    servers: list[str] = []
    search: tuple[str, ...] = ()
    options = {"ndots": 1, "timeout": 5, "attempts": 2}
    most = {"ndots": MOST_NDOTS, "timeout": MOST_TIMEOUT, "attempts": MOST_ATTEMPTS}
    for line in text.splitlines():
        word, *rest = line.split() or [""]
        if line[:1] in ("#", ";") or not rest:
            continue
        if word == "nameserver" and len(servers) < MOST_SERVERS:
            servers.append(rest[0])
        elif word in ("search", "domain"):
            found = (domain.rstrip(".") for domain in (rest if word == "search" else rest[:1]))
            search = tuple(domain for domain in found if is_name(domain))
        elif word == "options":
            for option in rest:
                key, _, value = option.partition(":")
                if key in options and value.isascii() and value.isdigit():
                    options[key] = min(int(value[:6]), most[key])
    return ResolvConf(
        tuple(servers) or ("127.0.0.1",),
        search,
        options["ndots"],
        float(max(1, options["timeout"])),
        max(1, options["attempts"]),
    )


def is_name(text: str) -> bool:
    """Whether this can be a host's name, with or without a final dot; an IP address cannot."""
    bare = text.removesuffix(".")
    labels = bare.split(".")
    sound = 0 < len(bare) <= MOST_NAME and all(_LABEL.fullmatch(label) for label in labels)
    return sound and not labels[-1].isdigit()


def hosts(text: str) -> frozenset[str]:
    """The names of an /etc/hosts, which are looked up in it and asked of nobody."""
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    return frozenset(name.lower() for words in lines for name in words[1:])
