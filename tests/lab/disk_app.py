"""Small apps that wait for memory or for storage, and some that only seem to.  Stdlib only: it runs in the guest.

    python3 disk_app.py MODE DIRECTORY SECONDS

* cached: reads the same small file again and again, from the page cache
* stream: reads large files from the beginning to the end: nothing is needed twice soon
* thrash: reads pages of one file at random; what does not fit under its memory limit is read again
* grow: allocates and frees more than memory.high allows
* sync: writes and waits for the disk each time
* writer: the same in one thread, while another computes
"""

from __future__ import annotations

import mmap
import os
import random
import sys
import threading
import time

PAGE = 4096


def cached(directory: str, until: float) -> None:
    while time.monotonic() < until:
        with open(f"{directory}/small", "rb") as file:
            while file.read(65536):
                pass
        time.sleep(0.02)


def stream(directory: str, until: float) -> None:
    while time.monotonic() < until:
        with open(f"{directory}/large", "rb") as file:
            while file.read(1 << 20) and time.monotonic() < until:
                time.sleep(0.02)


def thrash(directory: str, until: float) -> None:
    chance = random.Random(1)
    with open(f"{directory}/set", "rb") as file:
        pages = os.fstat(file.fileno()).st_size // PAGE
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as held:
            while file.read(1 << 20):  # first all of it, in large pieces: what is read later was taken away meanwhile
                pass
            held.madvise(mmap.MADV_RANDOM)
            while time.monotonic() < until:
                held[chance.randrange(pages) * PAGE]


def grow(_: str, until: float) -> None:
    while time.monotonic() < until:
        with mmap.mmap(-1, 48 << 20) as held:
            for page in range(0, len(held), PAGE):
                held[page] = 1
                if time.monotonic() > until:
                    return


def sync(directory: str, until: float) -> None:
    fd = os.open(f"{directory}/log", os.O_WRONLY | os.O_CREAT | os.O_DSYNC)
    while time.monotonic() < until:
        os.pwrite(fd, b"x" * PAGE, 0)


def writer(directory: str, until: float) -> None:
    threading.Thread(target=sync, args=(directory, until), daemon=True).start()
    while time.monotonic() < until:
        sum(range(1000))


if __name__ == "__main__":
    mode, where, seconds = sys.argv[1:]
    globals()[mode](where, time.monotonic() + float(seconds))
