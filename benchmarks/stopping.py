"""Stop many jobs at once: 1,000 jobs that are pending behind a running job.

    python benchmarks/stopping.py [--jobs N] [--json]

Three ways: `local-backend stop --jobs`, which waits until the jobs have ended; `dlicmd --app-stop-all`; and
`--exec-delete-all`, which also removes the files. Measures the time until the last job has ended, and for the last
way until the last file is gone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from server_load import Backend, Client, report, with_clients

from dlicmd.contract.states import ACTIVE

CLIENTS, MOST = 20, 1800
JOB = "/execs?args=--exec-start%20PyTorch%20--user-cmd%20--%20sleep%20600"


async def queue(backend: Backend, count: int) -> None:
    """Submit `count` jobs."""
    left = iter(range(count))

    async def work(client: Client) -> None:
        for _ in left:
            status, said = await client.ask("POST", JOB)
            assert status == 200, said

    await with_clients(CLIENTS, backend.port, backend.token, work)


async def active(backend: Backend) -> int:
    """Return the number of jobs that have not ended, as the server counts them."""
    client = await Client(backend.port, backend.token).connect()
    _, said = await client.ask("GET", "/status")
    client.close()
    return sum(count for state, count in json.loads(said)["jobs"].items() if state in ACTIVE)


def timed(backend: Backend, count: int, words: list[str], *, files: bool = False) -> dict[str, Any]:
    """Return the seconds until a command returns, and the seconds until it has taken effect on `count` jobs."""
    asyncio.run(queue(backend, count))
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", *words], env={**os.environ, "DLICMD_HOME": str(backend.home)}, stdout=subprocess.DEVNULL,
        check=False, timeout=MOST,
    )
    returned = time.perf_counter() - begin
    over = "local_backend.cli" in words
    while not over and time.perf_counter() - begin < MOST:
        over = not (any((backend.home / "jobs").iterdir()) if files else asyncio.run(active(backend)))
        time.sleep(0.1)
    return {"command_s": round(returned, 1), "over_s": round(time.perf_counter() - begin, 1), "code": done.returncode}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as temporary, Backend(Path(temporary) / "home") as backend:
        found["--app-stop-all"] = timed(backend, options.jobs, ["dlicmd.cli", "--app-stop-all"])
        found["--exec-delete-all"] = timed(backend, options.jobs, ["dlicmd.cli", "--exec-delete-all"], files=True)
        found["stop --jobs"] = timed(backend, options.jobs, ["local_backend.cli", "stop", "--jobs"])
    report(found, options.json)


if __name__ == "__main__":
    main()
