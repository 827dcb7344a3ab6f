"""Many connections that send little: 1,000 idle connections, and 200 that send their requests byte by byte.

    python benchmarks/crowd.py [--seconds S] [--idle N] [--slow N] [--json]

The server closes a connection that sends no complete request within a minute, and its client connects again at once.
Meanwhile `/healthz` and one call of the API are requested, 20 times a second each and always on a new connection.
Target: p99 of `/healthz` 1 s.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from server_load import BASE, Backend, Client, percentiles, report

from local_backend.serving.connections import raise_file_limit

HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
RATE = 20.0
#: Milliseconds.
TARGET = 1000.0


class Crowd:
    """Connections that send little. Counts how often the server has closed one of them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.sent_away = 0
        self.open = 0

    async def member(self, slow: bool) -> None:
        """Keep one connection, and connect again for ever. A slow member sends one byte a second."""
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            self.open += 1
            drip = asyncio.create_task(self._drip(writer)) if slow else None
            with contextlib.suppress(ConnectionError):
                await reader.read(1)
            if drip:
                drip.cancel()
            self.open -= 1
            self.sent_away += 1
            writer.close()

    @staticmethod
    async def _drip(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        while True:
            await asyncio.sleep(1.0)
            writer.write(b"y")


async def asking(backend: Backend, target: str, base: str, seconds: float) -> dict[str, float]:
    """Measure answers on new connections, each from the moment at which its request was due. Return percentiles."""
    took: list[float] = []
    due = time.perf_counter()
    ends = due + seconds
    while due < ends:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        client = await Client(backend.port, backend.token).connect()
        status, _ = await client.ask("GET", target, base=base)
        assert status == 200
        client.close()
        took.append(time.perf_counter() - due)
        due += 1 / RATE
    return percentiles(took)


async def measure(backend: Backend, idle: int, slow: int, seconds: float) -> dict[str, Any]:
    """Measure without and then with the other connections. Return the figures by name."""
    alone = await asking(backend, "/healthz", "", 5.0)
    before = backend.memory()
    crowd = Crowd(backend.port)
    members = [asyncio.create_task(crowd.member(slow=number < slow)) for number in range(idle + slow)]
    while crowd.open < idle + slow:
        await asyncio.sleep(0.1)
    health, conf = await asyncio.gather(
        asking(backend, "/healthz", "", seconds), asking(backend, "/conf", BASE, seconds))
    found = {
        "crowd": {"idle": idle, "slow": slow, "sent_away": crowd.sent_away, "mb": round(backend.memory() - before, 1)},
        "healthz, alone": alone, "healthz": health, "conf": conf, "met": {"p99": health["p99_ms"] < TARGET},
    }
    for member in members:
        member.cancel()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--slow", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    raise_file_limit()
    with tempfile.TemporaryDirectory() as temporary, Backend(Path(temporary) / "home") as backend:
        found = asyncio.run(measure(backend, options.idle, options.slow, options.seconds))
    report(found, options.json)
    return int(not found["met"]["p99"])


if __name__ == "__main__":
    sys.exit(main())
