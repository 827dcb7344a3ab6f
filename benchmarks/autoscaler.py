"""The autoscaler of inference, against fixed numbers of kernels, on a virtual clock.

    python benchmarks/autoscaler.py [--json]

Each load runs with the autoscaler, with as many kernels as its mean rate needs, and with as many as its highest rate
needs. The table shows how long requests waited for a kernel, and how many kernel-seconds that took.
"""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from autoscaler_bench.simulator import Load, Simulation, Work, burst, constant, recorded, spikes, waves
from rich.console import Console
from rich.table import Table

from local_backend.inference.autoscaler import BUSY
from local_backend.inference.control import RequestLimits
from local_backend.inference.profile import ModelProfile

SECONDS = 900.0
#: Requests per second of each minute, in the form of a day of a web service: it is quiet, grows, has peaks, and ends.
DAY = [2, 2, 1, 1, 3, 8, 15, 24, 38, 55, 61, 58, 72, 95, 60]
LOADS: dict[str, Load] = {
    "constant": constant(40),
    "burst": burst(5, 100, 300, 480),
    "waves": waves(2, 80, 450),
    "spikes": spikes(0, 60, 150, 20),
    "trickle": constant(0.05),
    "recorded day": recorded(DAY),
}
#: Name → seconds of kernels, and largest batch.
MODELS = {
    "single": (Work(batch=0.0, task=0.05), 1),
    "batches": (Work(batch=0.04, task=0.005), 8),
    "slow to start": (Work(start=8.0, batch=0.0, task=0.05), 1),
}


def rows() -> list[dict[str, Any]]:
    """Return a row for each model, load and way of scaling."""
    found = []
    for model, (work, size) in MODELS.items():
        profile = ModelProfile(limits=RequestLimits(batch_size=size, queue_size=10**6), kernel_min=0)
        rate = size / (work.batch + work.task * size)
        for name, load in LOADS.items():
            mean = sum(load.shape(at) for at in range(int(SECONDS))) / SECONDS
            ways = {
                "autoscaler": None, "fixed, mean rate": max(1, math.ceil(mean / (BUSY * rate))),
                "fixed, highest rate": max(1, math.ceil(load.highest / (BUSY * rate))),
            }
            for way, fixed in ways.items():
                one = Simulation(profile, work, fixed).run(load, SECONDS)
                found.append({
                    "model": model, "load": name, "way": way, "p50 wait": one.wait(0.5), "p99 wait": one.wait(0.99),
                    "longest wait": one.wait(1.0), "kernel-seconds": one.kernel_seconds, "most kernels": one.most,
                    "changes": one.changes,
                })
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    found = rows()
    if parser.parse_args().json:
        print(json.dumps(found))
        return
    table = Table(*found[0])
    for row in found:
        table.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
