"""A long queue: 10,000 execs of 200 users are pending, and the only slot is in use.

    python benchmarks/long_queue.py [--execs N] [--seconds S] [--json]

Targets: p99 of the first page of the list 150 ms, p99 of `why` 100 ms, a decision of the scheduler 50 ms. Ten clients
send two requests a second each. Meanwhile jobs are submitted and deleted, and the scheduler decides anew for each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from server_load import Backend, Client, fill, one_job, reading, report

from dlicmd.contract.states import FINISHED, PENDING

USERS, CLIENTS, RATE = 200, 10, 2.0


def queue(database: Path) -> None:
    """Make all ended execs pending, each as an exec of one of the users."""
    with sqlite3.connect(database) as connection:
        user = f"'user-' || (number % {USERS})"
        connection.execute(
            f"UPDATE execs SET creator = {user}, spec = json_set(spec, '$.creator', {user}), state = '{PENDING}', "
            "attempt = 0, start_time = NULL, end_time = NULL, exit_code = NULL, message = NULL, reason = NULL "
            f"WHERE state = '{FINISHED}'"
        )


async def decisions(client: Client) -> tuple[int, float]:
    """Return the number of decisions that the scheduler has made, and their total time in seconds."""
    _, text = await client.ask("GET", "/metrics", base="")
    found = dict(line.rsplit(" ", 1) for line in text.decode().splitlines() if not line.startswith("#"))
    name = "dlicmd_scheduling_decision_seconds"
    return int(float(found[f"{name}_count"])), float(found[f"{name}_sum"])


async def coming_and_going(client: Client, seconds: float) -> None:
    """Submit and delete a job twice a second, so that the scheduler has to decide."""
    for _ in range(int(seconds * 2)):
        _, answer = await client.ask("POST", "/execs?args=--exec-start%20PyTorch%20--user-cmd%20--%20true")
        await asyncio.sleep(0.25)
        await client.ask("DELETE", f"/execs/{json.loads(answer)['id']}")
        await asyncio.sleep(0.25)


async def running(backend: Backend) -> str:
    """Start a job that holds the slot, and return its id."""
    exec_id = await one_job(backend, "sleep%20600", wait=False)
    client = await Client(backend.port, backend.token).connect()
    while json.loads((await client.ask("GET", f"/execs/{exec_id}"))[1])["state"] != "RUNNING":
        await asyncio.sleep(0.1)
    client.close()
    return exec_id


async def end(backend: Backend, exec_id: str) -> None:
    """Delete that job, and wait until it is gone."""
    client = await Client(backend.port, backend.token).connect()
    await client.ask("DELETE", f"/execs/{exec_id}")
    while (backend.home / "jobs" / exec_id).exists():
        await asyncio.sleep(0.1)
    client.close()


async def measure(backend: Backend, count: int, seconds: float) -> dict[str, Any]:
    port, token = backend.port, backend.token
    client = await Client(port, token).connect()
    targets = {
        "first page": lambda: "/execs?limit=20&sort_by=id:desc",
        "why": lambda: f"/execs/local-{random.randint(2, count)}/why",
    }
    found: dict[str, Any] = {"start": {"seconds": round(backend.started, 1)}}
    before = await decisions(client)
    for name, target in targets.items():
        found[name], _ = await asyncio.gather(
            reading(port, token, target, seconds, RATE, CLIENTS), coming_and_going(client, seconds)
        )
    after = await decisions(client)
    made = max(1, after[0] - before[0])
    found["decisions"] = {"made": made, "mean_ms": round((after[1] - before[1]) / made * 1000, 1)}
    found["server"] = {"mb": round(backend.memory(), 1)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--execs", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary) / "home"
        with Backend(home) as backend:
            asyncio.run(one_job(backend, "true", wait=True))
        fill(home / "backend.db", options.execs)
        with Backend(home, jobs_go_on=True) as backend:
            holds = asyncio.run(running(backend))
        queue(home / "backend.db")
        with Backend(home, jobs_go_on=True) as backend:
            found = asyncio.run(measure(backend, options.execs, options.seconds))
            asyncio.run(end(backend, holds))
    report(found, options.json)


if __name__ == "__main__":
    main()
