"""The elastic engine: the cost of a change of workers, against torchrun, and its speed, against hand-written DDP.

    python benchmarks/elastic.py [pauses] [deaths] [warm] [steady] [scaling] [checks] [--quick] [--json]

Measures all rows if none is named. Workers run on the CPU with one thread each, or on GPUs if there are any. A missed
target is only shown in the table. The exit code is 1 when a row could not be measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path


def show(rows: Iterable[dict]) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for title in ("what", "ours", "other", "ratio", "target", "met", "notes"):
        table.add_column(title, justify="right" if title in {"ours", "other", "ratio"} else "left", overflow="fold")
    for row in rows:
        unit = f" {row['unit']}".rstrip()
        ours, other = ("–" if row[key] is None else f"{row[key]:.3g}{unit}" for key in ("ours", "other"))
        met = {True: "yes", False: "no", None: "–"}[row["met"]]
        table.add_row(row["what"], ours, other, "–" if row["ratio"] is None else f"{row['ratio']:.3f}",
                      row["target"], met, row["note"])
    # Without a terminal the table is as wide as it needs to be.
    Console(width=None if sys.stdout.isatty() else 170).print(table)


def main() -> int:
    # Imported here, because the server that forks the workers imports this file.
    from elastic_bench import rows_changes, rows_checks, rows_speed
    from elastic_bench.rows import FULL, QUICK, Measure
    from elastic_bench.runner import warm_up

    measures: dict[str, Measure] = {
        "pauses": rows_changes.pauses, "deaths": rows_changes.deaths, "warm": rows_changes.warm,
        "steady": rows_speed.steady, "scaling": rows_speed.scaling, "checks": rows_checks.checks,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="rows", help=", ".join(measures))
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--json", action="store_true", help="one object, with every single measurement")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="leave logs and time stamps there")
    options = parser.parse_args()
    unknown = [name for name in options.rows if name not in measures]
    if unknown:
        parser.error(f"no rows {unknown[0]!r}; there are {', '.join(measures)}")
    found = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).absolute()
        warm_up()
        for name in options.rows or measures:
            for row in measures[name](folder / name, QUICK if options.quick else FULL):
                found.append(asdict(row))
                print(f"{row.what}: {row.ours} {row.other} {row.note}", file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps({"cores": len(os.sched_getaffinity(0)), "rows": found}))
    else:
        show(found)
    return int(any(row["ours"] is None or row["other"] is None for row in found))


if __name__ == "__main__":
    sys.exit(main())
