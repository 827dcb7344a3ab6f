"""An hour of ordinary work: does the server hold more resources after it than before?

    python benchmarks/soak.py [--minutes 60] [--every 2] [--samples FILE] [--json]

Every two seconds the benchmark submits a job of a small program, follows it to its end, and fetches its log and
result. It keeps 100 jobs and deletes the oldest one beyond that. It also requests lists, slots and metrics. It prints
the resources of the server's process once a minute. The warm-up is the first sixth of the time. After it, the first
quarter is compared with the last: memory, descriptors, threads and processes must not have grown by more than 5%. The
database may have grown only by the history that is kept of every job (400 days). The exit code is 1 if a resource has
grown, a job went wrong, or a zombie is left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import psutil
from server_load import Backend, Client

KEPT, LINES = 100, 50
ARGS = "--exec-start%20PyTorch%20--model-main%20main.py"
PROGRAM = f"""
import os
for number in range({LINES}):
    print(number, flush=True)
os.makedirs(os.environ["RESULT_DIR"] + "/model", exist_ok=True)
open(os.environ["RESULT_DIR"] + "/model/weights", "wb").write(os.urandom(50_000))
"""
SAMPLE_SECONDS = 10.0
#: Growth from the first quarter to the last that is allowed, as a fraction; and bytes of the database for each job.
GROWTH, BYTES_OF_A_JOB = 0.05, 500


@dataclass
class Sample:
    """The resources of the server at one moment."""

    minutes: float
    jobs: int
    wrong: int
    rss_mb: float
    fds: int
    threads: int
    processes: int
    zombies: int
    database_kb: float


class Soak:
    """Ordinary work on one server for some time."""

    def __init__(self, backend: Backend, seconds: float, every: float) -> None:
        self.backend, self.every = backend, every
        self.begun = time.monotonic()
        self.ends = self.begun + seconds
        self.jobs = 0
        self.wrong: list[str] = []
        self.samples: list[Sample] = []
        self._kept: deque[str] = deque()

    async def run(self, told: Callable[[Sample], None]) -> None:
        """Run until the time is over. Every sample is passed to `told`."""
        await asyncio.gather(self._jobs(), self._looks(), self._watch(told))

    async def _each(self, seconds: float, work: Callable[[Client], Awaitable[None]]) -> None:
        """Run `work` every `seconds`, on one connection that stays open."""
        client = await Client(self.backend.port, self.backend.token).connect()
        due = time.monotonic()
        while due < self.ends:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await work(client)
            due = max(due + seconds, time.monotonic())
        client.close()

    async def _jobs(self) -> None:
        await self._each(self.every, self._one_job)

    async def _one_job(self, client: Client) -> None:
        part = '--b\r\nContent-Disposition: form-data; name="file"; filename="main.py"\r\n\r\n'
        body = (part + PROGRAM + "\r\n--b--\r\n").encode()
        _, answer = await client.ask("POST", f"/execs?args={ARGS}", body, "multipart/form-data; boundary=b")
        exec_id = json.loads(answer)["id"]
        ended, lines = await self._follow(client, exec_id)
        _, log = await client.ask("GET", f"/execs/{exec_id}/log?logType=outlog")
        status, _ = await client.ask("GET", f"/execs/{exec_id}/result")
        if ended["state"] != "FINISHED" or lines != LINES or status != 200 or b"49" not in log:
            self.wrong.append(f"{exec_id}: {ended['state']}, {lines} lines, result {status}")
        self.jobs += 1
        self._kept.append(exec_id)
        if len(self._kept) > KEPT:
            await client.ask("DELETE", f"/execs/{self._kept.popleft()}")

    @staticmethod
    async def _follow(client: Client, exec_id: str) -> tuple[dict[str, Any], int]:
        """Return the exec after its end, and the number of lines that it wrote."""
        cursor, count = "", 0
        while True:
            _, news = await client.ask("GET", f"/execs/{exec_id}/follow?wait=20&cursor={cursor}")
            found = json.loads(news)
            cursor, fresh = found["cursor"], [line for line in found["lines"] if line["stream"] == "stdout"]
            count += len(fresh)
            if found["exec"]["state"] in ("FINISHED", "KILLED", "ERROR") and not found["lines"]:
                return found["exec"], count

    async def _looks(self) -> None:
        targets = ["/execs?limit=20&sort_by=id:desc", "/scheduler/slots", "/scheduler/applications", "/execs", "/conf"]
        turn = 0

        async def look(client: Client) -> None:
            nonlocal turn
            turn += 1
            target = targets[turn % len(targets)]
            status, _ = await client.ask("GET", target)
            if status != 200:
                self.wrong.append(f"{target}: {status}")

        await self._each(1.0, look)

    async def _watch(self, told: Callable[[Sample], None]) -> None:
        server = psutil.Process(self.backend.pid)
        while time.monotonic() < self.ends:
            await asyncio.sleep(SAMPLE_SECONDS)
            self.samples.append(self._sample(server))
            told(self.samples[-1])

    def _sample(self, server: psutil.Process) -> Sample:
        children = server.children(recursive=True)
        zombies = 0
        for child in children:
            try:
                zombies += child.status() == psutil.STATUS_ZOMBIE
            except psutil.NoSuchProcess:
                continue
        with server.oneshot():
            return Sample(
                minutes=round((time.monotonic() - self.begun) / 60, 2), jobs=self.jobs, wrong=len(self.wrong),
                rss_mb=round(server.memory_info().rss / 2**20, 1), fds=server.num_fds(), threads=server.num_threads(),
                processes=len(children), zombies=zombies,
                database_kb=round((self.backend.home / "backend.db").stat().st_size / 1024, 1),
            )


def verdict(samples: list[Sample]) -> dict[str, dict[str, Any]]:
    """Return the medians of the first and the last quarter after the warm-up, and whether they meet the limits."""
    settled = samples[len(samples) // 6:]
    quarter = max(1, len(settled) // 4)
    first, last = settled[:quarter], settled[-quarter:]

    def median(part: list[Sample], name: str) -> float:
        return statistics.median(getattr(sample, name) for sample in part)

    jobs = max(1.0, median(last, "jobs") - median(first, "jobs"))
    found = {}
    for name in ("rss_mb", "fds", "threads", "processes", "database_kb"):
        before, after = median(first, name), median(last, name)
        flat = after <= before * (1 + GROWTH)
        if name == "database_kb":
            flat = (after - before) * 1024 <= jobs * BYTES_OF_A_JOB
        found[name] = {"first": before, "last": after, "most": max(getattr(one, name) for one in settled), "flat": flat}
    # An ended child is reaped a moment later. A zombie that stays is in every sample.
    zombies = min(sample.zombies for sample in last)
    found["zombies"] = {"first": 0, "last": zombies, "most": max(one.zombies for one in settled), "flat": not zombies}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=2.0, help="seconds from one submission to the next")
    parser.add_argument("--samples", type=Path, help="a file that gets every sample as a line of JSON")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    shown = -1
    names = [field.name for field in fields(Sample)]

    def told(sample: Sample) -> None:
        nonlocal shown
        if options.samples:
            with options.samples.open("a") as file:
                print(json.dumps(asdict(sample)), file=file)
        if not options.json and int(sample.minutes) > shown:
            shown = int(sample.minutes)
            print("".join(f"{value:>12}" for value in asdict(sample).values()), flush=True)

    if not options.json:
        print("".join(f"{name:>12}" for name in names))
    with tempfile.TemporaryDirectory() as temporary, Backend(Path(temporary) / "home") as backend:
        soak = Soak(backend, options.minutes * 60, options.every)
        asyncio.run(soak.run(told))
    found = verdict(soak.samples)
    if options.json:
        print(json.dumps({"jobs": soak.jobs, "wrong": soak.wrong, "verdict": found}))
    else:
        print(f"{soak.jobs} jobs, {len(soak.wrong)} went wrong {soak.wrong[:3]}")
        for name, row in found.items():
            print(f"{name:12}" + "  ".join(f"{key} {value}" for key, value in row.items()))
    return int(bool(soak.wrong) or not all(row["flat"] for row in found.values()))


if __name__ == "__main__":
    sys.exit(main())
