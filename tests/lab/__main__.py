"""``python -m tests.lab [PROOF ...]``: run proofs in real environments and print their tables."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from tests.lab import Unavailable
from tests.lab.proofs import PROOFS as PLAIN
from tests.lab.proofs import Row
from tests.lab.sandboxes import in_guest, in_gvisor

PROOFS = {**PLAIN, "gvisor": in_gvisor, "guest": in_guest}

RESULTS = Path("lab-results")


def table(rows: list[Row]) -> str:
    """Rows as a Markdown table."""
    if not rows:
        return "(no rows)"
    keys = list(rows[0])
    lines = ["| " + " | ".join(keys) + " |", "|" + "---|" * len(keys)]
    lines += ["| " + " | ".join(str(row.get(key, "")) for key in keys) + " |" for row in rows]
    return "\n".join(lines)


def summary(name: str, rows: list[Row]) -> list[Row]:
    """The rows of a table: repeated cells become one row with counts or medians."""
    if name == "quotas":
        cells: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            cells.setdefault((row["quota"], row["app"]), []).append(row)
        return [
            {
                "quota": quota, "app": who, "right": f"{sum(r['hit'] for r in cell)} of {len(cell)}",
                "misses": [r["found"] for r in cell if not r["hit"]],
                "host stole": f"{max(r['stolen'] for r in cell):.0%} at most",
            }
            for (quota, who), cell in cells.items()
        ]  # fmt: skip
    if name == "latency":
        table = []
        for who in ("busy", "idle"):
            entry: Row = {"app": who}
            for key in ("seconds_to_finding", "seconds_to_clear"):
                values = [r[key] for r in rows if r["app"] == who and r[key] is not None]
                missed = sum(r[key] is None for r in rows if r["app"] == who)
                entry[key] = f"median {statistics.median(values):.1f}, worst {max(values):.1f}" if values else "none"
                entry[key] += f", {missed} missed" if missed else ""
            table.append(entry)
        return table
    return rows


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
