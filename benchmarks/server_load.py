"""The server under load: 100,000 execs in its database, 50 clients at a time, submissions, followers.

    python benchmarks/server_load.py [--execs N] [--seconds S] [--json]

Clients are coroutines of one other process, keep their connections, and share the cores with the server. Targets, on
two cores: p99 of one exec 25 ms and of the first page of the list 60 ms, while each of 50 clients sends four requests
a second; 100 submissions of a small folder a second; 500 followers of one log that each receive every line.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

BASE = "/platform/rest/deeplearning/v1"
CLIENTS, RATE = 50, 4.0
SUBMITTERS = 20
FOLLOWERS, LINES = 500, 2000
ARGS = "--exec-start%20PyTorch%20--model-dir%20m%20--model-main%20main.py"


@dataclass
class Client:
    """A client with one connection that stays open."""

    port: int
    token: str
    reader: asyncio.StreamReader = field(init=False)
    writer: asyncio.StreamWriter = field(init=False)

    async def connect(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def ask(
        self, method: str, target: str, body: bytes = b"", kind: str = "", base: str = BASE
    ) -> tuple[int, bytes]:
        """Send a request. Return the status and the body of the answer."""
        more = f"Content-Type: {kind}\r\n" if kind else ""
        head = f"{method} {base}{target} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
        more += f"Authorization: Bearer {self.token}\r\n"
        self.writer.write(f"{head}{more}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        top = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        if "transfer-encoding: chunked" in top:
            return int(top.split()[1]), await self._chunks()
        length = int(top.partition("content-length: ")[2].partition("\r\n")[0] or 0)  # 204 has none
        return int(top.split()[1]), await self.reader.readexactly(length)

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readuntil(b"\r\n")
        return body

    def close(self) -> None:
        self.writer.close()


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Return the median, p99 and maximum in milliseconds."""
    ordered = sorted(seconds)
    return {
        "p50_ms": round(statistics.median(ordered) * 1000, 1),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1000, 1),
        "max_ms": round(ordered[-1] * 1000, 1),
    }


async def with_clients(count: int, port: int, token: str, work: Callable[[Client], Awaitable[None]]) -> None:
    """Run the same work on `count` clients at once."""
    clients = [await Client(port, token).connect() for _ in range(count)]
    await asyncio.gather(*(work(client) for client in clients))
    for client in clients:
        client.close()


async def reading(  # noqa: PLR0917
    port: int, token: str, target: Callable[[], str], seconds: float, rate: float | None, clients: int = CLIENTS
) -> dict[str, Any]:
    """Read with all clients, `rate` times a second each at random times, or without pause if it is None. Return the
    rate and the times of the answers."""
    took: list[float] = []
    begin = time.perf_counter()

    async def work(client: Client) -> None:
        due = begin + (random.random() / rate if rate else 0)
        while due < begin + seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            started = time.perf_counter()
            status, _ = await client.ask("GET", target())
            assert status == 200
            took.append(time.perf_counter() - (due if rate else started))
            due = due + 1 / rate if rate else time.perf_counter()

    await with_clients(clients, port, token, work)
    return {"per_second": round(len(took) / (time.perf_counter() - begin)), **percentiles(took)}


def small_folder() -> tuple[bytes, str]:
    """Return the body of a submission, a folder of three files with 6 KiB, and its content type."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as packed:
        for name in ("m/main.py", "m/model.py", "m/data.py"):
            member = tarfile.TarInfo(name)
            member.size = 2048
            packed.addfile(member, io.BytesIO(os.urandom(1024).hex().encode()))
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="t.modelDir.tar"\r\n\r\n'
    return part + buffer.getvalue() + b"\r\n--b--\r\n", "multipart/form-data; boundary=b"


async def submitting(port: int, token: str, seconds: float) -> dict[str, Any]:
    """Submit with SUBMITTERS clients without pause. All ids must differ."""
    body, kind = small_folder()
    took: list[float] = []
    ids: set[str] = set()
    begin = time.perf_counter()

    async def work(client: Client) -> None:
        while time.perf_counter() < begin + seconds:
            started = time.perf_counter()
            status, answer = await client.ask("POST", f"/execs?args={ARGS}", body, kind)
            assert status == 200, answer
            took.append(time.perf_counter() - started)
            ids.add(json.loads(answer)["id"])

    await with_clients(SUBMITTERS, port, token, work)
    assert len(ids) == len(took)
    return {"per_second": round(len(took) / (time.perf_counter() - begin), 1), **percentiles(took)}


async def following(port: int, token: str) -> dict[str, Any]:
    """Follow a job that writes LINES lines in about ten seconds, with FOLLOWERS clients. Each must receive every line
    once and in order."""
    first = await Client(port, token).connect()
    program = f"import time\nfor n in range({LINES}):\n    print(n, flush=True)\n    time.sleep(0.005)\n"
    part = '--b\r\nContent-Disposition: form-data; name="file"; filename="main.py"\r\n\r\n'
    body = (part + program + "\r\n--b--\r\n").encode()
    args = "--exec-start%20PyTorch%20--msd-priority%2010000%20--model-main%20main.py"
    _, answer = await first.ask("POST", f"/execs?args={args}", body, "multipart/form-data; boundary=b")
    exec_id = json.loads(answer)["id"]
    first.close()
    late: list[float] = []

    async def work(client: Client) -> None:
        cursor, lines = "", []
        while True:
            _, news = await client.ask("GET", f"/execs/{exec_id}/follow?wait=20&cursor={cursor}")
            found = json.loads(news)
            lines += [line["text"] for line in found["lines"] if line["stream"] == "stdout"]
            cursor = found["cursor"]
            if found["exec"]["state"] in ("FINISHED", "KILLED", "ERROR") and not found["lines"]:
                break
        assert lines == [str(n) for n in range(LINES)], (len(lines), found)
        late.append(time.perf_counter())

    begin = time.perf_counter()
    await with_clients(FOLLOWERS, port, token, work)
    return {"followers": FOLLOWERS, "lines_each": LINES, "seconds": round(max(late) - begin, 1)}


def fill(database: Path, count: int) -> None:
    """Copy the only exec of the database, which has ended, until there are `count` execs."""
    with sqlite3.connect(database) as connection:
        names = [row[1] for row in connection.execute("PRAGMA table_info(execs)")]
        renamed = {name: f"replace({name}, 'local-1', 'local-' || n)" for name in ("id", "spec", "work_dir")}
        values = ", ".join(renamed.get(name, "n" if name == "number" else name) for name in names)
        connection.execute(
            f"WITH RECURSIVE counted(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM counted WHERE n < {count}) "
            f"INSERT INTO execs ({', '.join(names)}) SELECT {values} FROM execs, counted WHERE id = 'local-1'"
        )
        connection.execute(f"UPDATE sequences SET last = {count} WHERE name = 'exec'")


class Backend:
    """The server as a process, and a context manager. At the end its jobs are stopped, unless `jobs_go_on`. `options`
    are those of `local-backend serve`."""

    def __init__(self, home: Path, jobs_go_on: bool = False, options: tuple[str, ...] = ()) -> None:
        self.home, self.started, self._options = home, 0.0, options
        self._stop = ["stop"] if jobs_go_on else ["stop", "--jobs"]
        self._environment = {**os.environ, "DLICMD_HOME": str(home), "DLI_SLOTS": "1"}

    def __enter__(self) -> Backend:
        begin = time.perf_counter()
        command = [sys.executable, "-m", "local_backend.cli", "serve", "--port", "0", *self._options]
        self._process = subprocess.Popen(command, env=self._environment, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None and self._process.stdout.readline(), "the server did not start"
        self.started = time.perf_counter() - begin
        found = json.loads((self.home / "backend.json").read_text())
        self.port, self.token = int(found["url"].rpartition(":")[2]), str(found["token"])
        return self

    def __exit__(self, *_: object) -> None:
        command = [sys.executable, "-m", "local_backend.cli", *self._stop]
        subprocess.run(command, env=self._environment, check=False, capture_output=True)
        self._process.wait(120)

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._process.pid

    def memory(self) -> float:
        """Return the resident MB of the server."""
        return float(psutil.Process(self.pid).memory_info().rss / 2**20)


async def one_job(backend: Backend, command: str, wait: bool) -> str:
    """Submit a command, and return the id of its exec. With `wait`, wait until it has finished."""
    client = await Client(backend.port, backend.token).connect()
    _, answer = await client.ask("POST", f"/execs?args=--exec-start%20PyTorch%20--user-cmd%20--%20{command}")
    exec_id = json.loads(answer)["id"]
    while wait and json.loads((await client.ask("GET", f"/execs/{exec_id}"))[1])["state"] != "FINISHED":
        await asyncio.sleep(0.1)
    client.close()
    return str(exec_id)


async def measure(backend: Backend, count: int, seconds: float) -> dict[str, Any]:
    """Run all measurements, one after the other."""
    port, token = backend.port, backend.token
    found: dict[str, Any] = {"start": {"seconds": round(backend.started, 1)}}

    def some() -> str:
        return f"/execs/local-{random.randint(1, count)}"

    def first_page() -> str:
        return "/execs?limit=20&sort_by=id:desc"

    for name, target in (("one exec", some), ("first page", first_page)):
        found[name] = await reading(port, token, target, seconds, RATE)
        found[f"{name}, no pause"] = await reading(port, token, target, seconds, None)
    found["followers"] = await following(port, token)
    await one_job(backend, "sleep%20600", wait=False)  # holds the slot, so that nothing else runs
    found["submissions"] = await submitting(port, token, seconds)
    found["server"] = {"mb": round(backend.memory(), 1)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--execs", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary) / "home"
        with Backend(home) as backend:
            asyncio.run(one_job(backend, "true", wait=True))
        fill(home / "backend.db", options.execs)
        with Backend(home) as backend:
            found = asyncio.run(measure(backend, options.execs, options.seconds))
    report(found, options.json)


def report(found: dict[str, Any], as_json: bool) -> None:
    """Print the figures: name → measurements."""
    if as_json:
        print(json.dumps(found))
        return
    for name, figures in found.items():
        print(f"{name:24}" + "  ".join(f"{key} {value}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
