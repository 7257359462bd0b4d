"""A small app on Redis, stdlib only: workers that ask one GET after the other, or wait for a queue, and tell how long it took.

python redis_client.py 127.0.0.1 6379 quick --workers 4 --pause-ms 20 --seconds 60
python redis_client.py 127.0.0.1 6379 queue --workers 2 --seconds 60
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import threading
import time

REPORT_SECONDS = 2.0
QUESTIONS = {"quick": b"*2\r\n$3\r\nGET\r\n$4\r\nname\r\n", "queue": b"*3\r\n$5\r\nBLPOP\r\n$5\r\nqueue\r\n$1\r\n1\r\n"}


class Worker(threading.Thread):
    """Asks until the time is over; a broken connection is made anew."""

    def __init__(self, place: tuple[str, int], question: bytes, pause: float, end: float) -> None:
        super().__init__(daemon=True)
        self._place, self._question, self._pause, self._end = place, question, pause, end
        self.took: list[float] = []
        self.failures = 0

    def run(self) -> None:
        """Until the end."""
        while time.monotonic() < self._end:
            try:
                with socket.create_connection(self._place, 5.0) as connection:
                    while time.monotonic() < self._end:
                        began = time.monotonic()
                        connection.sendall(self._question)
                        if not connection.recv(4096):
                            break
                        self.took.append(time.monotonic() - began)
                        time.sleep(self._pause)
            except OSError:
                self.failures += 1
                time.sleep(0.2)


def main() -> None:
    """Run the workers, and say every two seconds what they met, one JSON object a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("mode", choices=sorted(QUESTIONS))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pause-ms", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    workers = [
        Worker((given.host, given.port), QUESTIONS[given.mode], given.pause_ms / 1e3, end) for _ in range(given.workers)
    ]
    for each in workers:
        each.start()
    while time.monotonic() < end:
        time.sleep(REPORT_SECONDS)
        took = sorted(seconds for each in workers for seconds in each.took)
        for each in workers:
            each.took = []
        middle = took[len(took) // 2] * 1e3 if took else None
        p99 = took[int(len(took) * 0.99)] * 1e3 if took else None
        failures = sum(each.failures for each in workers)
        line = {
            "client": "redis",
            "load": given.mode,
            "units": len(took),
            "failures": failures,
            "p50_ms": middle,
            "p99_ms": p99,
        }
        print(json.dumps(line), flush=True)
    sys.exit(0)


if __name__ == "__main__":
    main()
