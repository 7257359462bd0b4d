"""Takes what an app writes to its standard output, as fast as it is told: what a container runtime or a log agent does.

`python -I log_reader.py FIFO`; stdlib only, a file and not a package, as `loads.py`. Each line on standard input is a
number of bytes per second, 0 to take nothing, or `all`; each is answered with one line, `{"taken": bytes}` so far. It
ends with its input.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time

#: A slow reader takes its share in pieces, as one does that works on each.
PIECE_SECONDS = 0.05
MOST_BYTES = 1 << 16


def main(path: str) -> None:
    fifo = os.open(path, os.O_RDONLY)  # waits for the writer
    rate: float | None = None
    taken, due, ended = 0, 0.0, False
    while True:
        now = time.monotonic()
        ready = not ended and rate != 0 and (rate is None or now >= due)
        wait = None if rate in {None, 0} or ended else max(0.0, due - now)
        readable, _, _ = select.select([0, *([fifo] if ready else [])], [], [], None if ready else wait)
        if 0 in readable:
            line = os.read(0, 4096).split()
            if not line:
                return
            rate = None if line[-1] == b"all" else float(line[-1])
            os.write(1, (json.dumps({"taken": taken}) + "\n").encode())
        elif fifo in readable:
            size = MOST_BYTES if rate is None else max(1, round(rate * PIECE_SECONDS))
            data = os.read(fifo, size)
            taken, ended, due = taken + len(data), not data, time.monotonic() + PIECE_SECONDS


if __name__ == "__main__":
    main(sys.argv[1])
