"""Starts each server with the same model, and says where it answers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlicmd.contract.wire import STATUS

HERE = Path(__file__).parent
NOOP: Any = {"data": [1.0, 2.0, 3.0, 4.0], "seq": 7}
IMAGE: Any = {"data": [0.5] * 784}
#: Name of a side → words after its Python for a model and a port; its path.
_PEERS = {
    "LitServe": (["litserve_side.py"], "/predict"),
    "Mosec": (["mosec_side.py"], "/inference"),
    "Ray Serve": (["ray_side.py"], "/"),
    "MLServer": (["mlserver_side.py"], "/echo"),
    "BentoML": (["-m", "bentoml", "serve", "bentoml_side:Noop"], "/echo"),
}
_PATIENCE = 180.0
#: Seconds after which a command of ours hangs. The longest one, `--wait`, gives up after 300 s by itself.
_LONGEST = 330.0


@dataclass(frozen=True)
class Side:
    """A running server. `seconds` is the time from its start until its first answer."""

    url: str
    headers: dict[str, str]
    seconds: float


def ask(url: str, body: Any, headers: dict[str, str], timeout: float = 60.0) -> bytes:
    """Send one request, and return the answer. Raises OSError."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"} | headers)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        found: bytes = answer.read()
    return found


@contextmanager
def peer(name: str, python: str, model: str, threads: int | None = None) -> Iterator[Side]:
    """Run another server with the model `noop` or `cnn`. `threads`: those that torch uses; None for its default."""
    words, path = _PEERS[name]
    port = _free_port()
    last = ["--port", str(port)] if name == "BentoML" else [model, str(port)]
    began = time.perf_counter()
    environment = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    process = subprocess.Popen([python, *words, *last], cwd=HERE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env=os.environ | environment, start_new_session=True)
    url = f"http://127.0.0.1:{port}{path}"
    try:
        yield Side(url, {}, _first(url, NOOP if model == "noop" else IMAGE, {}, began))
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def _first(url: str, body: Any, headers: dict[str, str], began: float) -> float:
    """Return the seconds from `began` until the first answer."""
    while True:
        try:
            ask(url, body, headers)
        except (OSError, urllib.error.HTTPError) as problem:
            if time.perf_counter() - began > _PATIENCE:
                raise SystemExit(f"{url} does not answer: {problem}") from None
            time.sleep(0.01)
        else:
            return time.perf_counter() - began


def read(path: str) -> Any:
    """Return the object at a path of our server. A process of a command would take longer than what is measured."""
    server = json.loads(Path(os.environ["DLICMD_HOME"], "backend.json").read_text())
    request = urllib.request.Request(server["url"] + path, headers={"Authorization": f"Bearer {server['token']}"})
    with urllib.request.urlopen(request, timeout=60.0) as answer:
        return json.load(answer)


@contextmanager
def backend(slots: int = 2) -> Iterator[Path]:
    """Run a local backend of our own, warm as after a first job. Yield its home."""
    home = Path(tempfile.mkdtemp(prefix="dlim-"))
    os.environ |= {"DLICMD_HOME": str(home), "DLI_SLOTS": str(slots)}
    try:
        command("dlicmd", "run", "--name", "warm", "--wait", "--", sys.executable, "-c", "0")
        while read(STATUS)["nursery"]["state"] != "ready":
            time.sleep(0.05)
        yield home
    finally:
        for words in (["local-backend", "stop", "--jobs"], ["local-backend", "stop"]):
            subprocess.run([str(Path(sys.executable).with_name(words[0])), *words[1:]], check=False,
                           capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


def command(program: str, *words: str) -> str:
    """Run one of our commands, and return what it prints. Raises CalledProcessError, and TimeoutExpired."""
    return subprocess.run([str(Path(sys.executable).with_name(program)), *words], check=True, capture_output=True,
                          text=True, timeout=_LONGEST).stdout
