"""The app of ``stallscope demo``: short transactions on a small database, with a little work in each.

A process of its own, run as a script with its DSN in the environment.  It logs the seconds of each transaction,
and as much text as logs are made of, on a line of standard output; it ends with its standard input, so also when the demo
is killed.
"""

from __future__ import annotations

import os
import select
import sys
import time

import psycopg

DSN_VARIABLE = "DEMO_DSN"
LOOK_UP = "SELECT name FROM customers WHERE lower(name) = lower(%s)"
UPDATE = "UPDATE orders SET total = total + 1 WHERE id = 1"
PAUSE_SECONDS = 0.02
#: Turns of a loop: a few milliseconds of CPU on a usual machine.
WORK = 50_000
#: Of one line: a pipe holds some 60 of them.
TEXT = b"-" * 1000


def main() -> None:
    """Run until standard input ends or the database does not answer."""
    with psycopg.connect(os.environ[DSN_VARIABLE], application_name="demo-app") as connection:
        while not select.select([0], [], [], PAUSE_SECONDS)[0]:
            began = time.monotonic()
            with connection.transaction():
                connection.execute(LOOK_UP, ("Customer 77",)).fetchall()
                sum(number * number for number in range(WORK))
                connection.execute(UPDATE)
            os.write(1, b"%.6f %s\n" % (time.monotonic() - began, TEXT))


if __name__ == "__main__":
    try:
        main()
    except (psycopg.Error, OSError) as fault:  # the text may hold parts of the DSN
        sys.exit(f"demo app: {type(fault).__name__}")
