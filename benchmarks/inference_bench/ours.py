"""Our side: models on a local backend, and what disturbs them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dlicmd.contract import dlim
from dlicmd.contract.wire import EXECS
from inference_bench.load import load
from inference_bench.sides import HERE, IMAGE, NOOP, Side, ask, command, read
from local_backend.inference.kernel import frames

DIGITS = HERE.parents[1] / "samples" / "digits"
_PATIENCE = 120.0


@contextmanager
def serving(name: str, **policy: Any) -> Iterator[Side]:
    """Deploy and start a model of this folder with changes of its profile's policy. Yield where it answers."""
    folder = HERE / name
    with tempfile.TemporaryDirectory() as copy:
        for file in [*folder.iterdir(), HERE / "network.py"]:
            if file.is_file():
                Path(copy, file.name).write_bytes(file.read_bytes())
        command("dlim", "model", "deploy", "-p", copy, "-f")
        profile = json.loads(command("dlim", "model", "viewprofile", name, "-j"))
        profile["policy"] |= policy
        changed = Path(copy, "profile.json")
        changed.write_text(json.dumps(profile))
        command("dlim", "model", "updateprofile", name, "-f", str(changed))
    began = time.perf_counter()
    words = ["--wait"] if policy.get("kernel_min", 1) else []
    command("dlim", "model", "start", name, *words)
    url = _until(lambda: _url(name))
    yield Side(url, {"Authorization": f"Bearer {command('dlim', 'config', '-s').strip()}"}, time.perf_counter() - began)
    command("dlim", "model", "stop", name, "--wait")


def _url(name: str) -> str:
    found = [line.split() for line in command("dlim", "model", "list").splitlines() if line.startswith(f"{name} ")]
    return found[0][1] if found and found[0][1] != "-" else ""


def _until(probe: Any) -> Any:
    end = time.monotonic() + _PATIENCE
    while not (found := probe()):
        if time.monotonic() > end:
            raise SystemExit("waited too long")
        time.sleep(0.01)
    return found


def _kernels(name: str) -> list[str]:
    """Return the states of the kernels of a model."""
    said = command("dlim", "model", "view", name, "-s", "-a")
    return [line.partition(":")[2].strip() for line in said.splitlines() if line.startswith("Status:")]


def from_zero(side: Side, body: Any) -> float:
    """Return the seconds until a model without kernels answers: the median of 5 times."""
    times = []
    for _ in range(5):
        _until(lambda: not _kernels("cnn"))
        began = time.perf_counter()
        ask(side.url, body, side.headers)
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]


def bare_kernel(body: Any, count: int) -> float:
    """Return the median seconds of a task of a kernel that this process talks to on a Unix socket."""
    data = json.dumps(body).encode()
    with tempfile.TemporaryDirectory(prefix="k") as folder, socket.socket(socket.AF_UNIX) as listener:
        home = Path(folder)
        listener.bind(str(home / "s"))
        listener.listen()
        description = json.loads((HERE / "noop" / "model.json").read_text())
        description |= {"model_path": str(HERE / "noop"), "kernel_path": str(HERE / "noop" / "kernel.py")}
        (home / "d.json").write_text(json.dumps(description))
        environment = os.environ | {
            "DLI_KERNEL_SOCKET": str(home / "s"), "DLI_KERNEL_KEY": "k", "DLI_KERNEL_NUMBER": "1",
            "DLI_MODEL_DESCRIPTION": str(home / "d.json"), "REDHARE_MODEL_PATH": str(HERE / "noop")}
        kernel = subprocess.Popen([sys.executable, "-m", "local_backend.inference.kernel.main"], env=environment,
                                  stderr=subprocess.DEVNULL)
        try:
            link, _ = listener.accept()
            with link:
                return _median_task(link, data, count)
        finally:
            kernel.kill()
            kernel.wait()


def _median_task(link: socket.socket, data: bytes, count: int) -> float:
    reader, times = frames.FrameReader(), []

    def receive(kind: int) -> None:
        while True:
            for found, _ in reader.feed(link.recv(1 << 16)):
                if found == kind:
                    return

    receive(frames.HELLO)
    link.sendall(frames.json_frame(frames.WELCOME, {}))
    receive(frames.READY)
    for number in range(count):
        began = time.perf_counter()
        link.sendall(frames.batch([frames.KernelTask(number, data)]))
        receive(frames.REPLY)
        times.append(time.perf_counter() - began)
    return sorted(times)[count // 2]


def burst(seconds: float) -> tuple[float, float, bool]:
    """Send more requests than 1 kernel can answer while a training holds the other slots. Return the seconds until a
    second kernel is ready, the seconds from the end of the burst until the training has its slots again, and whether
    the final weights are those of an undisturbed run."""
    def train(*words: str) -> str:
        line = ["run", str(DIGITS / "train.py"), "--workers", "4", "--data", str(DIGITS / "data"), *words, "-o", "json",
                "--", "--engines", "4", "--epochs", "60"]
        return str(json.loads(command("dlicmd", *line))["id"])

    alone = _weights(train("--wait"))
    with serving("cnn", kernel_max=2, kernel_delay_release_time=0.5, schedule_interval=0.5) as side:
        disturbed = train("--no-follow")
        _until(lambda: _workers(disturbed) == 3)
        crowd = threading.Thread(target=load, args=(side.url, IMAGE, side.headers, 256, seconds))
        began = time.perf_counter()
        crowd.start()
        _until(lambda: len(_ready_kernels("cnn")) == 2 and _workers(disturbed) == 2)
        there = time.perf_counter() - began
        crowd.join()
        began = time.perf_counter()
        _until(lambda: _workers(disturbed) == 3)
        back = time.perf_counter() - began
        command("dlicmd", "wait", disturbed)
        return there, back, _weights(disturbed) == alone


def _workers(job: str) -> int:
    """Return the workers with which a job trains."""
    found = read(f"{EXECS}/{job}")
    return int(found.get("workers") or 0) if found.get("state") == "RUNNING" else 0


def _ready_kernels(name: str) -> set[str]:
    """Return the names of the kernels of a model that take requests."""
    found = read(dlim.model_path(name, dlim.INSTANCE))
    return {one[dlim.KERNEL_ID] for each in found[dlim.INSTANCES] for one in each[dlim.CONTAINERS]
            if one[dlim.KERNEL_STATUS] in (dlim.IDLE, "RUNNING")}


def _others(before: set[str]) -> set[str]:
    """Return two or more kernels that take requests, unless they are those from before."""
    found = _ready_kernels("noop")
    return found if len(found) >= 2 and found != before else set()


def _weights(job: str) -> str:
    """Return the digest of the final weights of a job."""
    with tempfile.TemporaryDirectory() as folder:
        command("dlicmd", "result", job, "model/train/model_epoch_final.pth", "--to", folder)
        (file,) = Path(folder).rglob("*.pth")
        return hashlib.sha256(file.read_bytes()).hexdigest()


@dataclass
class Disturbed:
    """Requests under disturbance. `reset`: the death of a gateway cut their connection. `lost_two_kernels`: refused,
    because the kernel that took over died as well. `unconnected`: attempts to connect while no gateway was there; they
    are repeated."""

    right: int = 0
    wrong: int = 0
    refused: int = 0
    reset: int = 0
    lost_two_kernels: int = 0
    unconnected: int = 0
    deployments: int = 0
    killed_kernels: int = 0
    killed_gateways: int = 0

    @property
    def summary(self) -> str:
        """All counts, for the notes of the table."""
        return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in vars(self).items())

    def send(self, side: Side, sender: int, ending: threading.Event) -> None:
        """Send requests with numbers of their own until the end, and count the answers."""
        number = 0
        while not ending.is_set():
            number += 1
            name = _answered(side, NOOP | {"seq": sender * 10**9 + number})
            with _counting:
                setattr(self, name, getattr(self, name) + 1)
            if name == "unconnected":
                time.sleep(0.01)

    def disturb(self, kernels: int, deployments: int, gateways: int) -> None:
        """Kill kernels and gateways, and deploy again."""
        for turn in range(deployments):
            command("dlim", "model", "deploy", "-p", str(HERE / "noop"), "-f")
            # Kernels of the revision before may still answer their last requests.
            job = _until(_serving_job)
            self.deployments += 1
            before: set[str] = set()
            for _ in range(kernels // deployments):
                # The kernel that was killed is replaced first: a request that loses two kernels is refused.
                before = _until(partial(_others, before))
                self.killed_kernels += _kill(_until(partial(_oldest, f"{job} worker ")))
            if turn % (deployments // gateways) == 0:
                self.killed_gateways += _kill(_until(partial(_oldest, "local_backend.inference.gateway")))
        _until(lambda: len(_ready_kernels("noop")) >= 2)


def _serving_job() -> str:
    """Return the exec of the newest revision if it serves."""
    newest = read(dlim.model_path("noop"))["revisions"][-1]
    return newest["execId"] if newest[dlim.STATE] == "serving" else ""


_counting = threading.Lock()


def _answered(side: Side, body: dict[str, Any]) -> str:
    """Send a request. Return the name of the count that its answer belongs to."""
    try:
        return "right" if json.loads(ask(side.url, body, side.headers)) == body else "wrong"
    except urllib.error.HTTPError as refusal:
        return "refused" if refusal.code in (429, 503) else "lost_two_kernels" if refusal.code == 502 else "wrong"
    except OSError as problem:
        reason = getattr(problem, "reason", problem)
        return "unconnected" if isinstance(reason, ConnectionRefusedError) else \
            "reset" if isinstance(reason, ConnectionError) else "wrong"


def disturbed(kernels: int, deployments: int, gateways: int) -> Disturbed:
    """Kill kernels and gateways, and deploy again, while 8 threads send numbered requests."""
    found, ending = Disturbed(), threading.Event()
    with serving("noop", kernel_min=2) as side:
        senders = [threading.Thread(target=found.send, args=(side, number, ending)) for number in range(8)]
        for one in senders:
            one.start()
        try:
            found.disturb(kernels, deployments, gateways)
        finally:
            ending.set()
            for one in senders:
                one.join()
    return found


def _kill(pid: int) -> bool:
    """Kill a process. Return whether it was there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _oldest(words: str) -> int:
    """Return the oldest process that descends from our server and has these words in its command line; 0 without one.
    So two kernels are killed in turn: the server delays each next start of a kernel that ends repeatedly."""
    parents, lines, began = {}, {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)], began[int(folder.name)] = int(fields[1]), int(fields[19])
        except OSError:
            continue
    server = json.loads(Path(os.environ["DLICMD_HOME"], "backend.json").read_text())["pid"]

    def descends(pid: int) -> bool:
        return pid == server or (pid in parents and descends(parents[pid]))

    found = (pid for pid, line in lines.items() if words in line and descends(pid))
    return min(found, key=began.__getitem__, default=0)
