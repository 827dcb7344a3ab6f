"""Rows about training without changes: against a hand-written DDP loop, and with two workers against one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from elastic_bench.blocks import Ddp, Fabric, Independent, Side, alternate, ratio
from elastic_bench.rows import Effort, Row, attempt

MODELS = ("0.5M", "10M")
#: Mode → minimum throughput relative to a hand-written DDP loop.
TARGETS = {"fast": 0.98, "exact": 0.90}


def steady(folder: Path, effort: Effort) -> Iterator[Row]:
    """Measure the throughput in both modes, with one and two workers."""
    for model in MODELS:
        for workers in (1, 2):
            for mode in TARGETS:
                yield _steady(folder / f"{mode}-{model}-{workers}", effort, model, workers, mode)


def _steady(folder: Path, effort: Effort, model: str, workers: int, mode: str) -> Row:
    target = TARGETS[mode]
    row = Row(f"steady, {mode}, {workers} worker{'s' * (workers > 1)}, {model}", f"≥ {target:.2f}", "steps/s")
    speeds, row.note = attempt("ours", workers, lambda: _speeds({
        "ours": lambda: Fabric(folder / "ours", model, workers, mode),
        "ddp": lambda: Ddp(folder / "ddp", model, workers),
    }, effort))
    if speeds:
        row.ours, row.other = (statistics.median(speeds[name]) for name in ("ours", "ddp"))
        row.ratio = ratio(speeds["ours"], speeds["ddp"])
        row.met = row.ratio >= target
        row.details = {**speeds}
    return row


def scaling(folder: Path, effort: Effort) -> Iterator[Row]:
    """Compare two workers with twice one worker, also for DDP and for two programs that share nothing."""
    row = Row("2 workers / twice 1 worker, compute", "≥ 0.90", "")
    speeds, row.note = attempt("ours", 2, lambda: _speeds({
        "one": lambda: Fabric(folder / "one", "compute", 1, "exact"),
        "two": lambda: Fabric(folder / "two", "compute", 2, "exact"),
        "ddp one": lambda: Ddp(folder / "ddp-one", "compute", 1),
        "ddp two": lambda: Ddp(folder / "ddp-two", "compute", 2),
        "apart": lambda: Independent(folder / "apart", "compute", 2),
    }, effort))
    if speeds:
        row.ours = ratio(speeds["two"], speeds["one"]) / 2
        row.other = ratio(speeds["ddp two"], speeds["ddp one"]) / 2
        row.ratio = row.ours / row.other
        row.met = row.ours >= 0.90
        row.details = {**speeds}
        row.note = f"other: DDP; two programs apart {ratio(speeds['apart'], speeds['ddp one']) / 2:.2f}"
    yield row


def _speeds(makers: Mapping[str, Callable[[], Side]], effort: Effort) -> dict[str, list[float]]:
    """Start all sides and let them train in turn. Return the steps per second of each side."""
    with ExitStack() as stack:
        sides = {}
        for name, make in makers.items():
            sides[name] = make()
            stack.callback(sides[name].close)
        return alternate(sides, effort.rounds, effort.seconds)
