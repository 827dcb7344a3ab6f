"""Elastic jobs on one server whose processes are killed at random.

Server, nursery, runners, drivers, workers and fetchers are killed.

Every job must end with the bits of an undisturbed training. Slots, holdings and processes are observed meanwhile.
"""

from __future__ import annotations

import io
import json
import random
import sqlite3
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import ThreadingHTTPServer
from itertools import pairwise

import psutil
from loaded_server import Server, folder
from server_process import free_port
from support import eventually

from dlicmd import Client
from dlicmd.contract.states import FINISHED
from dlicmd.sdk.transport import FilePart, Multipart
from local_backend.runtime.processes import MARK, mark_of

SLOTS, WORKERS, TOGETHER, SEEDS = 4, 3, 3, 3
ROLES = {"worker": 34, "driver": 17, "runner": 17, "server": 16, "nursery": 8, "fetcher": 8}
#: Seconds after which a killed process counts as not replaced: a fault.
LOST = 600.0

#: Trains slowly, writes a line for each committed step, and at the end the digest of weights and optimizer. The seed
#: comes from the data that the fetcher brings.
TRAIN = """
import hashlib, json, os, time
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, default_collate
from callbacks import LoggerCallback
from fabric_model import FabricModel

seed = int(open(os.path.join(os.environ["DATA_DIR"], "seed")).read().split()[0])
result = os.environ["RESULT_DIR"]

class Noisy(Dataset):
    def __init__(self, size):
        g = torch.Generator().manual_seed(size + seed)
        self.x, self.y = torch.randn(size, 8, generator=g), torch.arange(size) % 4
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return self.x[i] + 0.1 * torch.randn(8), self.y[i]

def collate(samples):
    time.sleep(0.02)
    return default_collate(samples)

class Logger(LoggerCallback):
    def log_train_metrics(self, metrics, iteration, epoch, workers):
        with open(os.path.join(result, "rows"), "a") as file:
            print(json.dumps([iteration, epoch, metrics]), file=file)

torch.manual_seed(seed)
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
fabric = FabricModel(model, lambda: (Noisy(400), Noisy(40)), F.cross_entropy, optimizer, driver_logger=Logger(),
                     fn_batch_collate=collate)
fabric.train(int(os.environ["EPOCHS"]), 4, 3, 0)
state = [*model.state_dict().values()]
for values in optimizer.state_dict()["state"].values():
    state += [value for value in values.values() if value is not None]
with open(os.path.join(result, "digest"), "w") as file:
    file.write(hashlib.sha256(b"".join(t.numpy().tobytes() for t in state)).hexdigest())
"""


@dataclass
class Figures:
    """What was killed, and the seconds until its work went on."""

    kills: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    jobs: int = 0
    attempts: int = 0
    most_workers: int = 0

    def lines(self) -> list[str]:
        """Return the rows of a table: role, kills, median and maximum seconds of recovery."""
        return [
            f"| {role} | {self.kills[role]} | {statistics.median(self.seconds[role]):.1f} "
            f"| {max(self.seconds[role]):.1f} |" for role in ROLES if self.seconds[role]
        ]


class Seeds:
    """A web server with one slow file for each seed, so that fetchers live for a while."""

    def __init__(self) -> None:
        from http.server import BaseHTTPRequestHandler

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

            def do_GET(self) -> None:
                body = self.path.strip("/").split("/")[0].encode() + b" " * 2000 + b"\n"
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with suppress(ConnectionError):  # the fetcher was killed
                    for at in range(0, len(body), 500):
                        self.wfile.write(body[at : at + 500])
                        time.sleep(0.3)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@contextmanager
def seeds() -> Iterator[str]:
    """Yield the URL of a running `Seeds`."""
    one = Seeds()
    thread = threading.Thread(target=one.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield one.url
    finally:
        one.server.shutdown()
        one.server.server_close()


class EmbeddedServer(Server):
    """A server of this user, whose fetchers may use the loopback. Each start has another token and another port: a
    connection of another program may have taken the port of a killed server."""

    options = ("--embedded",)

    def __enter__(self) -> EmbeddedServer:
        self.start()
        return self

    def start(self) -> None:
        """See the base class."""
        self.port = free_port()
        super().start()

    def client(self) -> Client:
        """Return a client of the present server."""
        token = json.loads((self.home / "backend.json").read_text())["token"]
        return Client("127.0.0.1", self.port, http=True, token=token)


class Matrix:
    """Submits jobs, kills processes, and checks what becomes of them."""

    def __init__(self, server: EmbeddedServer, url: str, epochs: int, seed: int = 1) -> None:
        self.figures = Figures()
        self._server = server
        self._url = url
        self._epochs = epochs
        self._chance = random.Random(seed)
        #: Exec → its seed; exec → its lines at the last kill of one of its processes.
        self._jobs: dict[str, int] = {}
        self._lines: dict[str, int] = {}
        #: Exec → killed fetchers.
        self._fetchers: Counter[str] = Counter()
        #: Kills that wait for their recovery: role, moment, and whether the work goes on.
        self._open: list[tuple[str, float, Callable[[], bool]]] = []
        self._digests: dict[int, str] = {}
        self._submitted = 0

    # --- jobs

    def undisturbed(self) -> None:
        """Train once for each seed without faults."""
        jobs = [self.submit() for _ in range(SEEDS)]
        for job in jobs:
            eventually(lambda j=job: self._result(j, "digest"), f"{job} ends undisturbed", 600)
            self._digests[self._jobs.pop(job)] = self._result(job, "digest")
        assert len(set(self._digests.values())) == SEEDS

    def submit(self) -> str:
        """Submit a job with the next seed."""
        seed = self._submitted % SEEDS
        self._submitted += 1
        source = json.dumps([{"type": "connection", "name": "seed", "connection": {"type": "http", "url": self._url},
                              "location": {"paths": f"{seed}/seed"}}])
        packed = folder({"train.py": TRAIN.encode()})
        words = (f"--exec-start edtPyTorch --numWorker {WORKERS} --model-dir m --model-main train.py "
                 f"--msd-env EPOCHS={self._epochs} --msd-attr snapshot_seconds=1 --msd-attr hang_seconds=60 "
                 f"--data-source '{source}'")
        with self._server.client() as client:
            found = client.start_exec(words, Multipart([FilePart("file", "m.tar", io.BytesIO(packed), len(packed))]))
        self._jobs[str(found["id"])] = seed
        return str(found["id"])

    def _result(self, job: str, name: str) -> str:
        paths = list((self._server.home / "results").glob(f"*/batchworkdir/{job}/{name}"))
        return paths[0].read_text() if paths else ""

    def _steps(self, job: str) -> int:
        """Return the number of committed steps. A killed driver may have logged one twice, and the last line may be
        incomplete."""
        return len({line.split(",")[0] for line in self._result(job, "rows").split("\n")[:-1]})

    def _live(self) -> list[str]:
        return [job for job in self._jobs if not self._result(job, "digest")]

    # --- processes

    def _processes(self) -> Iterator[tuple[str, str, psutil.Process]]:
        """Yield role, exec ("" for none) and process of all processes of the server."""
        marks = {mark_of(self._server.home / "jobs" / job): job for job in self._jobs}
        for process in psutil.process_iter(["cmdline"]):
            line = " ".join(process.info["cmdline"] or ()).strip("\0 ")
            words = line.split()
            try:
                if line == "dlicmd nursery" and process.ppid() == self._server.process.pid:
                    yield "nursery", "", process
                elif "local_backend.data.fetcher" in words and str(self._server.home) in line:
                    yield "fetcher", next((job for job in self._jobs if f"/{job}/" in line), ""), process
                elif (len(words) > 2 and words[0] == "dlicmd" and words[1] in self._jobs
                      and process.environ().get(MARK) in marks and process.status() != psutil.STATUS_ZOMBIE):
                    yield words[2], words[1], process
            except psutil.Error:
                continue

    def observe(self) -> None:
        """Check that no more workers live at once than the machine has slots."""
        found = [process for role, _, process in self._processes() if role == "worker"]
        lives = [one for one in found if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] if found else []
        self.figures.most_workers = max(self.figures.most_workers, len(lives))
        assert len(lives) <= SLOTS, f"{len(lives)} workers live on {SLOTS} slots"

    # --- kills

    def kill_one(self) -> None:
        """Kill one process whose job, if it has one, made progress since the last kill."""
        role = self._chance.choices([*ROLES], [*ROLES.values()])[0]
        while len(self._live()) < TOGETHER:
            self.submit()
        if role == "server":
            self._kill_server()
            return
        eventually(partial(self._kill, role), f"a {role} can be killed", LOST)

    def _kill(self, role: str) -> bool:
        self.note_recoveries()
        if role == "fetcher" and not any(found == role and self._may_die(role, job)
                                         for found, job, _ in self._processes()):
            self.submit()
            eventually(lambda: any(found == role for found, _, _ in self._processes()), "a fetcher starts", LOST)
        if self._kill_any(role):
            if role == "nursery":  # the next job to start begins another one, or starts without one
                new = [job for job in self._live() if not self._steps(job)] or [self.submit()]
                self._open.append((role, time.monotonic(), lambda: any(self._goes_on(job, 0) for job in new)))
            return True
        if len(self._live()) < TOGETHER:
            self.submit()
        return False

    def _kill_any(self, role: str) -> bool:
        """Kill a process with a role. Return False if none may be killed now."""
        victims = [(job, process) for found, job, process in self._processes() if found == role
                   and self._may_die(role, job)]
        if not victims:
            return False
        job, process = self._chance.choice(victims)
        before = self._steps(job) if job else 0
        try:
            process.kill()
        except psutil.NoSuchProcess:
            return False
        self.figures.kills[role] += 1
        if role == "fetcher":
            self._fetchers[job] += 1
        if job:
            self._lines[job] = before
            goes_on = partial(self._has_data, job) if role == "fetcher" else partial(self._goes_on, job, before)
            self._open.append((role, time.monotonic(), goes_on))
        return True

    def _may_die(self, role: str, job: str) -> bool:
        """Return whether a death more is none that ends the job: it made progress, or its fetcher died less than the 3
        times that end it."""
        if role == "fetcher":
            return self._fetchers[job] < 2
        return role == "nursery" or self._steps(job) > self._lines.get(job, 0)

    def _has_data(self, job: str) -> bool:
        """Return whether all data of a job was fetched. The job may then wait for slots."""
        return any((self._server.home / "jobs" / job / "data").rglob("seed")) or bool(self._result(job, "digest"))

    def _goes_on(self, job: str, before: int) -> bool:
        return self._steps(job) > before or bool(self._result(job, "digest"))

    def _kill_server(self) -> None:
        self._server.kill()
        began = time.monotonic()
        if self._chance.random() < 0.5:
            self._kill_any(self._chance.choice(["worker", "driver", "runner"]))
        threading.Event().wait(self._chance.random())  # the jobs train without a server for a while
        self._server.start()
        self.figures.kills["server"] += 1
        self.figures.seconds["server"].append(time.monotonic() - began)

    def note_recoveries(self) -> None:
        """Note which killed processes are replaced by now."""
        now, left = time.monotonic(), []
        for role, began, goes_on in self._open:
            if goes_on():
                self.figures.seconds[role].append(now - began)
            else:
                assert now - began < LOST, f"the work of a killed {role} does not go on"
                left.append((role, began, goes_on))
        self._open = left

    # --- the end

    def finish(self) -> None:
        """Wait until all jobs have ended, and check their results, slots and processes."""
        for job in self._jobs:
            eventually(lambda j=job: self._is_over(j), f"{job} ends", 1800)
        self.note_recoveries()
        with self._server.client() as client:
            states = {job: (one := client.exec(job))["state"] + ("" if one["state"] == FINISHED else f" {one}")
                      for job in self._jobs}
        assert set(states.values()) == {FINISHED}, states
        wrong = {job for job, seed in self._jobs.items() if self._result(job, "digest") != self._digests[seed]}
        assert not wrong, f"other weights than undisturbed: {wrong}"
        self.figures.jobs = len(self._jobs)
        eventually(lambda: not self._left(), "no process is left")
        self._check_holdings()

    def _left(self) -> list[str]:
        """Return the command lines of all processes of jobs and fetchers, whatever they show as their title."""
        marks = {mark_of(self._server.home / "jobs" / job) for job in self._jobs}
        return [f"{role} of {job}" for role, job, _ in self._processes() if role != "nursery"] + [
            process.name() for process in psutil.process_iter() if _mark(process) in marks]

    def _is_over(self, job: str) -> bool:
        self.note_recoveries()
        with self._server.client() as client:
            return client.exec(job)["state"] in (FINISHED, "ERROR", "KILLED")

    def _check_holdings(self) -> None:
        """Check that the intervals in which jobs held a slot do not overlap."""
        with sqlite3.connect(self._server.home / "backend.db") as connection:
            query = "SELECT slot, since, until, exec_id FROM holdings ORDER BY slot, since"
            rows = connection.execute(query).fetchall()
            self.figures.attempts = sum(row[0] for row in connection.execute("SELECT attempt FROM execs"))
        assert all(until is not None for _, _, until, _ in rows)
        for (slot, _, until, owner), (other, since, _, next_owner) in pairwise(rows):
            assert slot != other or since >= until, f"{slot} was held by {owner} and {next_owner}"


def _mark(process: psutil.Process) -> str | None:
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else process.environ().get(MARK)
    except psutil.Error:
        return None


def run(matrix: Matrix, kills: int, seconds: float) -> Figures:
    """Kill `kills` processes, or as many as possible in `seconds`, and check the end."""
    matrix.undisturbed()
    until = time.monotonic() + seconds
    try:
        while matrix.figures.kills.total() < kills and time.monotonic() < until:
            matrix.kill_one()
            matrix.observe()
        matrix.finish()
    finally:
        print(f"\n{matrix.figures.jobs} jobs in {matrix.figures.attempts} attempts; "
              f"{matrix.figures.kills.total()} kills", *matrix.figures.lines(), sep="\n")
    return matrix.figures
