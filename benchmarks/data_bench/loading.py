"""Samples per second from a Parquet table, against the same rows in NumPy memory maps, in random order, in one run.

    python benchmarks/data_bench/loading.py [--rows 200000] [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import fabric_data
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, Dataset

WIDTH, SHARD = 64, 50_000
TARGET = 0.8


class Mapped(Dataset[Any]):
    """The usual hand-written data set over two memory maps."""

    def __init__(self, folder: Path) -> None:
        self._x = np.load(folder / "x.npy", mmap_mode="r")
        self._label = np.load(folder / "label.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(np.array(self._x[index])), int(self._label[index])


def lay_out(folder: Path, rows: int) -> None:
    """Write the same samples as arrays and as a table."""
    random = np.random.default_rng(0)
    x, label = random.random((rows, WIDTH), np.float32), random.integers(0, 10, rows)
    np.save(folder / "x.npy", x)
    np.save(folder / "label.npy", label)
    (folder / "table").mkdir()
    for start in range(0, rows, SHARD):
        part = slice(start, start + SHARD)
        values = pa.FixedSizeListArray.from_arrays(pa.array(x[part].reshape(-1)), WIDTH)
        pq.write_table(pa.table({"x": values, "label": label[part]}), folder / "table" / f"{start:09}.parquet")


def rate(dataset: Dataset[Any], rows: int) -> float:
    """Return the samples per second of one pass in random order, in this process."""
    loader = DataLoader(dataset, batch_size=256, shuffle=True, generator=torch.Generator().manual_seed(1))
    began = time.perf_counter()
    total = sum(float(labels.sum()) for _, labels in loader)
    assert total > 0
    return rows / (time.perf_counter() - began)


def measure(rows: int, rounds: int) -> dict[str, float]:
    """Return the figures of one run."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["FABRIC_DATA_CACHE"] = str(folder / "cache")
        lay_out(folder, rows)
        began = time.perf_counter()
        table = fabric_data.open(folder / "table", ["x", "label"])
        first = time.perf_counter() - began
        began = time.perf_counter()
        table = fabric_data.open(folder / "table", ["x", "label"])
        again = time.perf_counter() - began
        arrays, ours, theirs = Mapped(folder), [], []
        for _ in range(rounds):
            theirs.append(rate(arrays, rows))
            ours.append(rate(table, rows))
    return {
        "table_samples_per_s": statistics.median(ours), "memory_map_samples_per_s": statistics.median(theirs),
        "ratio": statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), "target": TARGET,
        "first_open_s": first, "later_open_s": again, "rows": rows,
    }


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = measure(asked.rows, asked.rounds)
    if asked.json:
        print(json.dumps(found, indent=2))
        return
    print(f"table       {found['table_samples_per_s']:12,.0f} samples a second")
    print(f"memory map  {found['memory_map_samples_per_s']:12,.0f} samples a second")
    print(f"ratio       {found['ratio']:12.2f} (target {TARGET})")
    print(f"first open  {found['first_open_s']:12.2f} s for {asked.rows:,} rows of {WIDTH} numbers; later ones "
          f"{found['later_open_s'] * 1000:.1f} ms")


if __name__ == "__main__":
    main()
