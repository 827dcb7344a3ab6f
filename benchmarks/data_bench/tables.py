"""Export a PostgreSQL table to Parquet: ours against `pandas.read_sql` and `to_parquet`.

    python benchmarks/data_bench/tables.py [--rows N] [--times N] [--json]

Each way is a process of its own, so that each has its own peak of memory. The ways take turns. The benchmark starts
the server, which is the same for both. A missed target is only shown in the output.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

#: Targets: the factor of speed, and the fraction of memory.
FASTER, MEMORY = 3.0, 0.25
TABLE = """CREATE TABLE sold AS SELECT i::bigint AS id, (i::bigint * 7919 % 100000)::int AS customer,
    (i % 1000)::float8 / 7 AS weight,
    (i % 100000)::numeric(12, 2) / 100 AS price, 'article number ' || i % 5000 AS article, i % 3 = 0 AS returned,
    TIMESTAMP '2024-01-01' + i * INTERVAL '1 second' AS at FROM generate_series(1, {rows}) AS i"""


class Silent:
    """A meter that ignores everything."""

    def expect(self, size: int | None, files: int | None = None) -> None: ...
    def resume(self, size: int, files: int = 0) -> None: ...
    def advance(self, size: int, files: int = 0) -> None: ...
    def say(self, text: str) -> None: ...
    def check(self) -> None: ...


def ours(host: str, database: str, folder: Path) -> None:
    from local_backend.data.export import export_table
    from local_backend.data.registry import find

    family: Any = find("postgresql").open({"host": host, "database": database, "username": "dlicmd"}, loopback=True)
    export_table(family, {"table_name": "sold"}, folder, Silent())


def pandas(host: str, database: str, folder: Path) -> None:
    import pandas
    from sqlalchemy import create_engine
    from sqlalchemy.engine import URL

    engine = create_engine(URL.create("postgresql+psycopg", "dlicmd", database=database, query={"host": host}))
    pandas.read_sql("SELECT * FROM sold", engine).to_parquet(folder / "sold.parquet")


def one(way: str, host: str, database: str) -> dict[str, Any]:
    """Run one way in this process. Return its seconds (including imports) and its peak memory in bytes."""
    import pyarrow.parquet

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        {"ours": ours, "pandas": pandas}[way](host, database, Path(folder))
        seconds = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        files = list(Path(folder).glob("*.parquet"))
        rows = sum(pyarrow.parquet.read_metadata(file).num_rows for file in files)
        return {"way": way, "seconds": seconds, "peak": peak, "rows": rows,
                "bytes": sum(file.stat().st_size for file in files)}


def measured(rows: int, times: int) -> list[dict[str, Any]]:
    """Return the medians of each way, and their ratios to pandas."""
    from postgres_server import serving

    found: dict[str, list[dict[str, Any]]] = {"pandas": [], "ours": []}
    with serving() as server:
        database = str(server.new().database)
        server.ask(TABLE.format(rows=rows), database)
        server.ask("VACUUM ANALYZE sold", database)
        for _ in range(times):
            for way, runs in found.items():
                done = subprocess.run([sys.executable, __file__, "--one", way, str(server.folder), database],
                                      check=True, capture_output=True, text=True)
                runs.append(json.loads(done.stdout))
                assert runs[-1]["rows"] == rows
    table = [{"way": way, **{key: median(run[key] for run in runs) for key in ("seconds", "peak", "bytes")}}
             for way, runs in found.items()]
    for row in table:
        row |= {"faster": table[0]["seconds"] / row["seconds"], "memory": row["peak"] / table[0]["peak"]}
    return table


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.one:
        return print(json.dumps(one(*words.one)))
    table = measured(words.rows, words.times)
    if words.json:
        return print(json.dumps(table))
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=f"{words.rows:,} rows of PostgreSQL to Parquet")
    for title in ("way", "seconds", "rows/s", "peak memory", "files", "times faster", "memory of pandas"):
        shown.add_column(title, justify="left" if title == "way" else "right")
    for row in table:
        shown.add_row(row["way"], f"{row['seconds']:.1f}", f"{words.rows / row['seconds']:,.0f}",
                      f"{row['peak'] / 2**20:,.0f} MiB", f"{row['bytes'] / 2**20:,.0f} MiB", f"{row['faster']:.1f}",
                      f"{row['memory']:.2f}")
    Console().print(shown)
    good = table[1]["faster"] >= FASTER and table[1]["memory"] <= MEMORY
    print(f"target: {FASTER:g} times faster at {MEMORY:g} of the memory: {'met' if good else 'missed'}")


if __name__ == "__main__":
    main()
