"""Many submissions at once: 20 clients submit 50 folders each, of 1 KiB to 1 MiB that do not compress.

    python benchmarks/many_submissions.py [--each N] [--json]

Every acknowledged submission must exist exactly once. Measures the time of an acknowledgment (target: p99 500 ms) and
the growth of the server (target: 100 MB).
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from server_load import ARGS, Backend, Client, one_job, percentiles, report, with_clients

CLIENTS, SMALLEST, LARGEST = 20, 10, 20  # sizes in bytes, as powers of two


def folder(size: int) -> bytes:
    """Return the body of a submission: a script, and `size` bytes of data."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as packed:
        for name, content in (("m/main.py", b"print('done')\n"), ("m/data.bin", os.urandom(size))):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="t.modelDir.tar"\r\n\r\n'
    return part + buffer.getvalue() + b"\r\n--b--\r\n"


async def submit(backend: Backend, each: int) -> dict[str, Any]:
    """Submit with all clients at once, each one folder after the other. Then check the list of execs."""
    holds = await one_job(backend, "sleep%20600", wait=False)  # holds the slot, so the others are pending
    # Make the bodies first, because clients and server share the cores.
    bodies = [folder(int(2 ** random.uniform(SMALLEST, LARGEST))) for _ in range(CLIENTS * each)]
    before = backend.memory()
    took: list[float] = []
    ids: list[str] = []

    async def work(client: Client) -> None:
        for _ in range(each):
            started = time.perf_counter()
            status, said = await client.ask(
                "POST", f"/execs?args={ARGS}", bodies.pop(), "multipart/form-data; boundary=b"
            )
            took.append(time.perf_counter() - started)
            assert status == 200, said
            ids.append(json.loads(said)["id"])

    begin = time.perf_counter()
    await with_clients(CLIENTS, backend.port, backend.token, work)
    seconds = time.perf_counter() - begin
    client = await Client(backend.port, backend.token).connect()
    _, said = await client.ask("GET", "/execs")
    client.close()
    stored = {one["id"] for one in json.loads(said)} - {holds}
    assert stored == set(ids) and len(ids) == len(stored), (len(stored), len(ids))
    return {"acknowledged": len(took), "seconds": round(seconds, 1), **percentiles(took),
            "grown_mb": round(backend.memory() - before, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, Backend(Path(temporary) / "home") as backend:
        found = asyncio.run(submit(backend, options.each))
    report({"submissions": found}, options.json)


if __name__ == "__main__":
    main()
