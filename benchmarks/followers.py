"""Many followers of a fast log: 5,000 lines a second for a minute, 100 followers, and one more that stalls.

    python benchmarks/followers.py [--followers N] [--rate LINES] [--seconds S] [--json]

Every follower must receive every line once and in order. The stalling client sends requests and never reads the
answers; it must not affect the others. The server must not hold more memory in the second half of the job than in the
first. Followers are coroutines of one other process, and share the cores with the server and the job. Each line
contains the time at which it was written, so the benchmark also prints how late lines arrive.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from server_load import Backend, Client, percentiles, report

ENDED = ("FINISHED", "KILLED", "ERROR")
ARGS = "--exec-start%20PyTorch%20--model-main%20main.py"
#: Megabytes by which the server may grow from the first half to the second.
GROWTH = 20.0
#: Writes the lines that are due, 100 times a second: the number of the line, the time, and text like that of a
#: training.
PROGRAM = """
import sys, time
rate, total = {rate}, {total}
begun, written = time.time(), 0
while written < total:
    due = min(total, int((time.time() - begun) * rate))
    now = time.time()
    lines = [f"{{n}} {{now:.3f}} step {{n}} loss 0.123456 accuracy 0.9876\\n" for n in range(written, due)]
    sys.stdout.write("".join(lines))
    sys.stdout.flush()
    written = due
    time.sleep(0.01)
"""


@dataclass
class Follower:
    """The output that one follower has received: the number of lines, the first line that was out of order, and the
    delay of the last line of each answer in seconds."""

    lines: int = 0
    wrong: str = ""
    late: list[float] = field(default_factory=list)

    def take(self, texts: list[str]) -> None:
        """Count the lines of an answer, and check their order."""
        now = time.time()
        numbers = [int(text[: text.index(" ")]) for text in texts]
        if not self.wrong and numbers != list(range(self.lines, self.lines + len(numbers))):
            self.wrong = f"after line {self.lines}: {texts[0]!r}"
        self.lines += len(numbers)
        if texts:
            self.late.append(now - float(texts[-1].split(" ", 2)[1]))


async def submitted(backend: Backend, program: str) -> str:
    """Submit an exec of the program, and return its id."""
    client = await Client(backend.port, backend.token).connect()
    part = '--b\r\nContent-Disposition: form-data; name="file"; filename="main.py"\r\n\r\n'
    body = (part + program + "\r\n--b--\r\n").encode()
    _, answer = await client.ask("POST", f"/execs?args={ARGS}", body, "multipart/form-data; boundary=b")
    client.close()
    return str(json.loads(answer)["id"])


async def follow(backend: Backend, exec_id: str, follower: Follower) -> None:
    """Follow the exec until it has ended and all of its lines have arrived."""
    client = await Client(backend.port, backend.token).connect()
    cursor = ""
    while True:
        status, news = await client.ask("GET", f"/execs/{exec_id}/follow?wait=20&cursor={cursor}")
        assert status == 200, news
        found = json.loads(news)
        follower.take([line["text"] for line in found["lines"] if line["stream"] == "stdout"])
        cursor = found["cursor"]
        if found["exec"]["state"] in ENDED and not found["lines"]:
            client.close()
            return


async def stall(backend: Backend, exec_id: str) -> None:
    """Request all output again and again, and read none of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", backend.port, limit=1024)
    asked = (f"GET /platform/rest/deeplearning/v1/execs/{exec_id}/follow?wait=20 HTTP/1.1\r\n"
             f"Host: 127.0.0.1:{backend.port}\r\nAuthorization: Bearer {backend.token}\r\n\r\n").encode()
    try:
        while not reader.at_eof():
            writer.write(asked)
            await writer.drain()
            await asyncio.sleep(0.1)
    except ConnectionError:
        return


async def watch(backend: Backend, samples: list[float]) -> None:
    """Append the resident MB of the server to `samples`, once a second."""
    while True:
        samples.append(backend.memory())
        await asyncio.sleep(1.0)


async def measure(backend: Backend, count: int, rate: int, seconds: int) -> dict[str, Any]:
    """Follow one job. Return the figures by name."""
    total = rate * seconds
    exec_id = await submitted(backend, PROGRAM.format(rate=rate, total=total))
    followers, samples = [Follower() for _ in range(count)], [0.0]
    samples.clear()
    aside = [asyncio.create_task(stall(backend, exec_id)), asyncio.create_task(watch(backend, samples))]
    server = psutil.Process(backend.pid)
    used, begin = sum(server.cpu_times()[:2]), time.perf_counter()
    await asyncio.gather(*(follow(backend, exec_id, each) for each in followers))
    took = time.perf_counter() - begin
    for each in aside:
        each.cancel()
    half = len(samples) // 2
    before, after = statistics.median(samples[half // 4 : half]), statistics.median(samples[half:])
    wrong = [each.wrong or f"{each.lines} lines" for each in followers if each.wrong or each.lines != total]
    return {
        "followers": {"followers": count, "lines_each": total, "wrong": len(wrong), "seconds": round(took, 1)},
        "late": percentiles([late for each in followers for late in each.late]),
        "server": {"cpu_s": round(sum(server.cpu_times()[:2]) - used, 1), "mb_first_half": round(before, 1),
                   "mb_second_half": round(after, 1), "mb_most": round(max(samples), 1)},
        "met": {"every line once": not wrong, "memory": after - before <= GROWTH},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--followers", type=int, default=100)
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, Backend(Path(temporary) / "home") as backend:
        found = asyncio.run(measure(backend, options.followers, options.rate, options.seconds))
    report(found, options.json)
    return int(not all(found["met"].values()))


if __name__ == "__main__":
    sys.exit(main())
