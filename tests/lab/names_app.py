"""A real name server on port 53 of the loopback interface, and a command beside it that asks it; only the standard library, for guests.

    python3 -m tests.lab.names_app MODE -- COMMAND ...

What the command prints is printed as one line behind "LAB-REPORT".  The network, and where /etc/resolv.conf leads, are the caller's.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from tests.lab.name_server import NameServer

NAME = "db.example.com"
#: Five dots are asked for before a name is taken as it is, as in a pod: three names are tried for each.
RESOLV_CONF = "nameserver 127.0.0.1\nsearch default.svc.cluster.local svc.cluster.local\noptions ndots:5\n"
#: How the server answers, by the name of the mode.  "near" is well, though not so quick that whoever asks is still awake.
MODES: dict[str, dict[str, Any]] = {
    "prompt": {}, "near": {"delay": 0.015}, "late": {"delay": 0.2}, "lost": {"drop_every": 2},
}  # fmt: skip


def main() -> None:
    mode, _, *command = sys.argv[1:]
    with NameServer({NAME}, port=53) as server:
        server.set(**MODES[mode])
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print("LAB-REPORT " + done.stdout.replace("\n", " "), flush=True)


if __name__ == "__main__":
    main()
