"""On the PYTHONPATH of an agent: what its allocators hold, once a minute, appended to the file named by ``COUNT_ALLOCATORS_TO`` (JSON lines).

``blocks`` are Python's live ones (`sys.getallocatedblocks()`), ``arenas`` what it has mapped for small ones (1 MiB each, CPython >= 3.10),
``malloc_used`` and ``malloc_free`` what the C library's allocator has handed out and keeps, with ``malloc_mapped`` (mallinfo2(3), in bytes).
"""

import ctypes
import json
import os
import re
import sys
import tempfile
import threading
import time


class _Mallinfo2(ctypes.Structure):
    """mallinfo2(3), glibc >= 2.33."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    )


def _arenas() -> int:
    """What `sys._debugmallocstats()` writes to the descriptor of stderr, which is put aside meanwhile."""
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            sys._debugmallocstats()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        found = re.search(rb"# arenas allocated current\s*=\s*([\d,]+)", file.read())
    return int(found[1].replace(b",", b"")) if found else 0


def _count(path: str) -> None:
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    start = time.monotonic()
    while True:
        told = mallinfo2()
        record = {
            "at": time.monotonic() - start, "blocks": sys.getallocatedblocks(), "arenas": _arenas(),
            "malloc_used": told.uordblks, "malloc_free": told.fordblks, "malloc_mapped": told.hblkhd,
        }  # fmt: skip
        with open(path, "a") as file:
            print(json.dumps(record), file=file)
        time.sleep(60)


if path := os.environ.get("COUNT_ALLOCATORS_TO"):
    threading.Thread(target=_count, args=(path,), daemon=True, name="count").start()
