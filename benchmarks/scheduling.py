"""The scheduler: its use of a cluster, against two simple ways of sharing, and the time of a decision.

    python benchmarks/scheduling.py [simulate] [speed] [--jobs N] [--slots N] [--load X] [--seed N] [--json]

`simulate` runs a seeded trace (see scheduling_bench/trace.py) on a virtual clock, with the backend's own policy.
`speed` decides about N jobs on N slots. A missed target is only shown in the table.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from statistics import fmean, median, quantiles
from typing import Any

from rich.console import Console
from rich.table import Table
from scheduling_bench.simulator import Fifo, Ours, simulate
from scheduling_bench.trace import trace

from local_backend import interpreter
from local_backend.scheduler.model import CPU, Machine, ResourcePlan, SchedulerJob, Slot
from local_backend.scheduler.policy import decide

PLAN = ResourcePlan("local", children=(ResourcePlan("training"),))
#: Work that jobs ask for while they arrive, relative to the capacity: one cluster that mostly keeps up, and two that
#: do not.
LOADS = (0.8, 1.2, 1.6)
#: Number of jobs and of slots → maximum p99 of a decision, in seconds.
LIMITS = {1000: 0.010, 10000: 0.150}


def simulated(jobs: int, slots: int, load: float, seed: int) -> list[dict[str, Any]]:
    """Return one row for each way of sharing, all with the same trace, and one row with the lower bound."""
    submissions = trace(jobs, slots, load, seed=seed)
    users = sorted({one.user for one in submissions})
    ways = {
        "ours": Ours(slots, PLAN),
        "FIFO, all slots or none": Fifo(slots),
        "an equal part for each user": Fifo(slots, users),
    }
    rows: list[dict[str, Any]] = [{"sharing": name} | simulate(submissions, slots, way).summary()
                                  for name, way in ways.items()]
    alone = [one.work / one.slots for one in submissions]
    bound = {"mean completion": fmean(alone), "p99 completion": quantiles(alone, n=100)[-1]}
    rows.append({"sharing": "each alone on the cluster"} | bound)
    fifo = rows[1]["mean completion"]
    return [{"load": load} | row | {"mean, of FIFO": row["mean completion"] / fifo} for row in rows]


def snapshot(size: int, seed: int = 0) -> tuple[Machine, list[SchedulerJob]]:
    """Return a machine in the middle of its work: half of the jobs run on all slots, and the other half is pending."""
    draw = random.Random(seed)
    machine = Machine(tuple(Slot(f"cpu-{number}", CPU) for number in range(size)))
    free = [slot.id for slot in machine.slots]
    jobs = []
    for number in range(1, size + 1):
        elastic, most = draw.random() < 0.7, draw.choice((1, 1, 2, 4, 8))
        job = {
            "exec_id": f"local-{number}", "user": f"user{draw.randrange(50)}", "kind": CPU,
            "plan": ("local", "training"), "since": float(number), "least": 1 if elastic else most, "most": most,
            "elastic": elastic, "priority": draw.choice((4000, 5000, 5000, 5000, 6000)),
        }
        if number % 2 and len(free) >= job["least"]:
            has = tuple(free.pop() for _ in range(draw.randint(job["least"], min(most, len(free)))))
            job |= {"running": True, "slots": has, "held": has, "started": float(number), "changed": float(number)}
        jobs.append(SchedulerJob(**job))
    return machine, jobs


def speeds() -> list[dict[str, Any]]:
    """Return the seconds of a decision, one row per size. The garbage collector is set as in the server."""
    interpreter.calm()
    rows = []
    for size in (100, 300, 1000, 3000, 10000):
        machine, jobs = snapshot(size)
        seconds = []
        for turn in range(max(20, 100_000 // size)):
            with interpreter.computing():
                began = time.perf_counter()
                decide(machine, PLAN, jobs, float(2 * size + turn))
                seconds.append(time.perf_counter() - began)
        p99 = quantiles(seconds, n=100)[-1]
        limit = LIMITS.get(size)
        rows.append({"jobs and slots": size, "median": median(seconds), "p99": p99, "target": limit,
                     "met": None if limit is None else p99 <= limit})
    return rows


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Print the rows as a table."""
    table = Table(title=title)
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        table.add_column(name)
    for row in rows:
        values = [row.get(name, "") for name in names]
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values))
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="simulate, speed; both when not given")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--slots", type=int, default=1_000)
    parser.add_argument("--load", type=float, action="append", help=f"repeatable; {LOADS} when not given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one object")
    asked = parser.parse_args()
    found: dict[str, Any] = {}
    if not asked.what or "speed" in asked.what:
        found["speed"] = speeds()
    if not asked.what or "simulate" in asked.what:
        found["simulate"] = [
            row for load in asked.load or LOADS for row in simulated(asked.jobs, asked.slots, load, asked.seed)
        ]
    if asked.json:
        print(json.dumps(found))
        return
    for title, rows in found.items():
        show(title, rows)


if __name__ == "__main__":
    main()
