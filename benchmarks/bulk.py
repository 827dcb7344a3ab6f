"""Small calls of one user beside bulk work of another user, on a server for several users.

    python benchmarks/bulk.py [--megabytes N] [--seconds S] [--only ROW,…] [--json]

One user asks for the same bulk work on 40 connections at a time: results of 1 GiB, files of curves of 62 MB, the last
matching lines of a log of 200 MB, /metrics, uploads. Another user makes small calls meanwhile: /status, one exec, the
list, the check of the token. The target is a p99 of 50 ms on two cores. The first row has the same calls on the idle
server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from server_load import ARGS, BASE, Backend, Client, percentiles, report, small_folder

CROWD, PROBES, RATE = 40, 4, 10.0
CURVES, POINTS, LOG_LINES = 200, 8000, 2_000_000
PASSWORDS = {"ada": "a password of ada", "bob": "a password of bob"}


async def fetch(client: Client, target: str) -> float:
    """Read an answer and discard it. Return the seconds after which a refused call may be repeated, else 0."""
    client.writer.write(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\n"
                        f"Authorization: Bearer {client.token}\r\nConnection: close\r\n\r\n".encode())
    head = (await client.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    while await client.reader.read(1 << 20):
        pass
    return float(head.partition("retry-after: ")[2].partition("\r\n")[0] or 0)


async def upload(client: Client, target: str) -> float:
    """Submit a small folder."""
    body, kind = small_folder()
    status, _ = await client.ask("POST", target.removeprefix(BASE), body, kind)
    return 5.0 if status == 429 else 0.0


async def crowding(port: int, token: str, target: str) -> None:
    """Repeat a call on CROWD connections until the standard input is closed. Print how many calls were answered."""
    done = 0

    async def again() -> None:
        nonlocal done
        while True:
            client = await Client(port, token).connect()
            send = upload if "/execs?" in target else fetch
            pause = await send(client, target.replace("RANDOM", str(random.random())))
            client.close()
            done += not pause
            await asyncio.sleep(pause)

    crowd = [asyncio.ensure_future(again()) for _ in range(CROWD)]
    await asyncio.to_thread(sys.stdin.read)
    for one in crowd:
        one.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)
    print(done)


async def probing(port: int, token: str, exec_id: str, seconds: float) -> dict[str, Any]:
    """Make small calls. Return the times of their answers."""
    took: list[float] = []
    end = time.perf_counter() + seconds
    calls = [("/status", BASE), (f"/execs/{exec_id}", BASE), ("/execs?limit=20", BASE)]
    calls += [("/v1/preauth/validateAuth", "")]

    async def work() -> None:
        client = await Client(port, token).connect()
        while time.perf_counter() < end:
            await asyncio.sleep(random.expovariate(RATE))
            begin = time.perf_counter()
            target, base = random.choice(calls)
            status, answer = await client.ask("GET", target, base=base)
            assert status == 200, (target, answer)
            took.append(time.perf_counter() - begin)
        client.close()

    await asyncio.gather(*(work() for _ in range(PROBES)))
    return {"calls": len(took), **percentiles(took)}


async def beside(backend: Backend, token: str, probe: tuple[str, str], seconds: float, target: str) -> dict[str, Any]:
    """Let another process repeat a call on CROWD connections, and make small calls meanwhile."""
    process = subprocess.Popen([sys.executable, __file__, "--crowd", str(backend.port), token, target],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    await asyncio.sleep(1)
    found = await probing(backend.port, *probe, seconds)
    memory = backend.memory()
    done, _ = await asyncio.to_thread(process.communicate)
    return {**found, "bulk_done": int(done or 0), "mb": round(memory)}


async def token_of(port: int, user: str) -> str:
    """Log on."""
    client = await Client(port, "none").connect()
    body = json.dumps({"username": user, "password": PASSWORDS[user]}).encode()
    status, answer = await client.ask("POST", "/v1/authorize", body, "application/json", base="")
    assert status == 200, answer
    client.close()
    return str(json.loads(answer)["token"])


async def job(port: int, token: str, program: str) -> str:
    """Run a program, and return the id of its exec when it has finished."""
    client = await Client(port, token).connect()
    part = '--b\r\nContent-Disposition: form-data; name="file"; filename="main.py"\r\n\r\n'
    args = "--exec-start%20PyTorch%20--model-main%20main.py"
    status, answer = await client.ask(
        "POST", f"/execs?args={args}", f"{part}{program}\r\n--b--\r\n".encode(), "multipart/form-data; boundary=b")
    assert status == 200, answer
    exec_id = str(json.loads(answer)["id"])
    while json.loads((await client.ask("GET", f"/execs/{exec_id}"))[1])["state"] != "FINISHED":
        await asyncio.sleep(0.1)
    client.close()
    return exec_id


def fill_curves(path: Path) -> None:
    """Write as many points as a file of curves may have."""
    with path.open("w") as file:
        file.write('{"generation":1,"began":0.0}\n')
        for index in range(CURVES):
            name = json.dumps(f"metric {index}")
            file.write(f'{{"i":{index},"name":{name},"source":"fabric","unit":"step"}}\n')
            for first in range(0, POINTS, 1000):
                points = [[step, step * 0.123456789, 1.7e9 + step] for step in range(first, first + 1000)]
                file.write(json.dumps({"i": index, "p": points}, separators=(",", ":")) + "\n")


async def measure(backend: Backend, megabytes: int, seconds: float, only: set[str]) -> dict[str, Any]:
    """Measure the small calls on the idle server, then beside each kind of bulk work, or beside those named in
    `only`."""
    ada, bob = [await token_of(backend.port, user) for user in PASSWORDS]
    model = ("import os, pathlib\nfile = pathlib.Path(os.environ['SAVED_MODEL_DIR'], 'w').open('wb')\n"
             f"for _ in range({megabytes}):\n    file.write(os.urandom(1 << 19) * 2)\n")
    large = await job(backend.port, ada, model)
    printing = await job(backend.port, ada, f"for n in range({LOG_LINES}):\n    print(n, 'x' * 90)\n")
    own = await job(backend.port, bob, "print(1)\n")
    fill_curves(backend.home / "jobs" / large / "curves.jsonl")
    targets = {
        "metrics": "/metrics",
        "curves": f"{BASE}/execs/{large}/curves",
        "uncached curves": f"{BASE}/execs/{large}/curves?since=RANDOM",
        "lines": f"{BASE}/execs/{printing}/lines?grep=1999&tail=10",
        "logs": f"{BASE}/execs/{printing}/log",
        "results": f"{BASE}/execs/{large}/result",
        "uploads": f"{BASE}/execs?args={ARGS}",
    }
    probe = (bob, own)
    found = {"idle": await probing(backend.port, *probe, seconds)}
    for name, target in targets.items():
        if only and name not in only:
            continue
        found[name] = await beside(backend, ada, probe, seconds, target)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1024, help="size of each result")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--only", default="", help="names of rows, with commas; all by default")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--crowd", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.crowd:
        asyncio.run(crowding(int(options.crowd[0]), *options.crowd[1:]))
        return
    only = set(filter(None, options.only.split(",")))
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as left:
        home = Path(temporary) / "home"
        for user, password in PASSWORDS.items():
            subprocess.run([sys.executable, "-m", "local_backend.cli", "user", "add", user, "--password-stdin"],
                           env={**os.environ, "DLICMD_HOME": str(home)}, input=password, text=True, check=True,
                           stdout=subprocess.DEVNULL)
        backend = left.enter_context(Backend(home, options=("--host", "127.0.0.1")))
        report(asyncio.run(measure(backend, options.megabytes, options.seconds, only)), options.json)


if __name__ == "__main__":
    main()
