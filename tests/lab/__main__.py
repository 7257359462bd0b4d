"""``python -m tests.lab [PROOF ...]``: run proofs in real environments and print their tables."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.lab import Unavailable
from tests.lab.proofs import PROOFS, Row, summary

RESULTS = Path("lab-results")


def table(rows: list[Row]) -> str:
    """Rows as a Markdown table."""
    if not rows:
        return "(no rows)"
    keys = list(rows[0])
    lines = ["| " + " | ".join(keys) + " |", "|" + "---|" * len(keys)]
    lines += ["| " + " | ".join(str(row.get(key, "")) for key in keys) + " |" for row in rows]
    return "\n".join(lines)


def main() -> int:
    """Run what was asked for, everything by default."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    parser.add_argument("proofs", nargs="*", choices=[*PROOFS, []], metavar="PROOF", help=", ".join(PROOFS))
    chosen = parser.parse_args().proofs or list(PROOFS)
    RESULTS.mkdir(exist_ok=True)
    for name in chosen:
        print(f"\n## {name}: {PROOFS[name].__doc__}\n", flush=True)
        start = time.monotonic()
        try:
            rows = list(PROOFS[name]())
        except Unavailable as reason:
            print(f"skipped: {reason}")
            continue
        (RESULTS / f"{name}.json").write_text(json.dumps(rows, indent=1))
        print(table(summary(name, rows)))
        print(f"\n({len(rows)} rows in {time.monotonic() - start:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
