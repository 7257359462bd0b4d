"""Before anything is measured: the sockets that the pages are served on, and who may come in."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from agent.commands.exits import BAD_CONFIG, UNAVAILABLE
from agent.settings.load import Config, parse_addresses
from exporters.listen import CannotListen, listen

if TYPE_CHECKING:
    from exporters.login import Access, Login


class CannotServe(Exception):
    """The pages cannot be served as the settings want it, for these reasons."""

    def __init__(self, code: int, faults: list[str]) -> None:
        super().__init__(*faults)
        self.code, self.faults = code, faults


def open_doors(config: Config) -> tuple[list[socket.socket], Access | None]:
    """The listening sockets, and who may ask, where the settings say so.

    Raises CannotServe with every fault; nothing is then left open.
    """
    faults: list[str] = []
    socks: list[socket.socket] = []
    code, access = UNAVAILABLE, None
    try:
        socks = listen(parse_addresses(config.http.listen))
    except CannotListen as error:
        faults += [f"http.listen = {fault}; choose another with --listen" for fault in error.faults]
    if config.http.web_config:
        from exporters.login import Access  # noqa: PLC0415 - who asks for no login does not pay for it
        from exporters.web_config import WebConfigError  # noqa: PLC0415 - same

        try:
            access = Access(Path(config.http.web_config))
        except WebConfigError as error:
            code = BAD_CONFIG
            faults += [f"http.web_config {config.http.web_config}: {fault}" for fault in error.faults]
    if faults:
        for sock in socks:
            sock.close()
        raise CannotServe(code, faults)
    return socks, access


def login_of(config: Config, access: Access | None) -> Login | None:
    """What asks for a login, where one is asked for."""
    if access is None:
        return None
    from exporters.login import Login  # noqa: PLC0415 - same

    return Login(access, config.http.open_paths)


def web_config_remarks(config: Config) -> Iterator[str]:
    """What is wrong with the web configuration, here; where the settings are checked may not be where the agent runs."""
    if config.http.web_config:
        from exporters.web_config import WebConfigError, load_web_config  # noqa: PLC0415 - same

        try:
            load_web_config(Path(config.http.web_config))
        except WebConfigError as error:
            yield from (f"http.web_config {config.http.web_config}: {fault} (here)" for fault in error.faults)
