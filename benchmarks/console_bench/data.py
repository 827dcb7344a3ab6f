"""Runs with curves in the home of a server, written by the product's own writers."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from pathlib import Path

from server_load import Backend, fill, one_job

from console_bench.shared_losses import losses
from local_backend.curves.book import Book
from local_backend.curves.file import CurveFile
from local_backend.curves.layout import BEGIN
from local_backend.curves.model import MetricValue
from local_backend.curves.points import PointWriter

#: Values of each run beside those of the first one: kind and name.
VALUES = [*(("metric", name) for name in ("loss", "accuracy", "f1", "val_loss", "val_f1")),
          *(("param", name) for name in ("lr", "batch-size", "seed", "epochs", "dropout"))]
#: Number of different curves. Runs share them in turn.
VARIANTS = 20


def write_curves(folder: Path, variant: int, steps: int) -> None:
    """Write the files with the curve of a run, as its runner would."""
    book = Book()
    found = losses(variant, steps)
    for step, loss in enumerate(found, 1):
        book.add("printed", MetricValue("loss", loss, step, "step", 1.7e9 + step))
    CurveFile(folder / "curves.jsonl", book, 1.7e9)
    if steps < BEGIN:
        return
    writer = PointWriter(folder / "points")
    for step, loss in enumerate(found, 1):
        writer.add(("printed", "loss", "step"), step, loss, 1.7e9 + step)
    writer.flush()


def fill_home(home: Path, runs: int, steps: int, begin: int = 1) -> None:
    """Make runs that have finished, in the home of a server that does not run. `begin`: the runs that exist already."""
    if begin == 1:
        with Backend(home) as backend:
            asyncio.run(one_job(backend, "true", wait=True))
    database = next(home.glob("*.db"))
    with sqlite3.connect(database) as connection:
        connection.execute("DELETE FROM execs WHERE number > 1")
    fill(database, runs)
    _fill_values(database)
    if not steps:
        return
    first = next(home.glob("jobs/*local-1"), home / "jobs" / "local-1")
    written: list[Path] = []
    for number in range(1, runs + 1):
        folder = first.with_name(first.name.replace("local-1", f"local-{number}"))
        folder.mkdir(parents=True, exist_ok=True)
        if len(written) < VARIANTS:
            write_curves(folder, number, steps)
            written.append(folder)
        else:
            shutil.copy(written[number % VARIANTS] / "curves.jsonl", folder)
            shutil.copytree(written[number % VARIANTS] / "points", folder / "points", dirs_exist_ok=True)


def _fill_values(database: Path) -> None:
    """Give all runs the texts of the first one, and values of their own."""
    with sqlite3.connect(database) as connection:
        connection.execute("INSERT OR IGNORE INTO exec_texts (number, text) SELECT execs.number, text FROM execs, "
                           "(SELECT text FROM exec_texts WHERE number = 1)")
        for kind, name in VALUES:
            connection.execute("INSERT OR REPLACE INTO exec_values (number, kind, name, key, value) "
                               "SELECT number, ?, ?, ?, abs(random() % 1000000) / 1e6 FROM execs", (kind, name, name))
