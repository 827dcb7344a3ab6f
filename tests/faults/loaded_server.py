"""A server process that can be killed, clients that submit to it at the same time, and a checker of the result.

The check does not rely on the server: clients keep each acknowledgment, and every job appends its line to one file.
"""

from __future__ import annotations

import getpass
import hashlib
import io
import os
import random
import signal
import sqlite3
import tarfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import commands
from server_process import free_port
from support import PATIENCE, eventually

from dlicmd import Client
from dlicmd.contract.states import ACTIVE, FINISHED
from dlicmd.sdk.transport import FilePart, Multipart

PASSWORD = "of-this-test"
#: Appends one line with the id of the exec, the name of its submission and the checksum of its payload.
SCRIPT = 'echo "$DLI_EXECID $1 $(sha256sum < payload)" >> "$2"\nsleep "$3"\n'


class Server:
    """`local-backend serve` on one port over several starts. Leaving the context stops the server and its jobs."""

    #: More arguments of `serve`.
    options: tuple[str, ...] = ()

    def __init__(self, home: Path, *, forks_nurseries: bool = False, **environment: str) -> None:
        self.home = home
        self.port = free_port()
        self._forks_nurseries = forks_nurseries
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DLI", "DLICMD"))}
        self.environment = {**kept, "DLICMD_HOME": str(home), "DLI_PASSWORD": PASSWORD, **environment}

    def __enter__(self) -> Server:
        self.start()
        with Client("127.0.0.1", self.port, http=True) as client:
            self.token = str(client.logon(getpass.getuser(), PASSWORD)["accessToken"])
        return self

    def __exit__(self, *_: object) -> None:
        self.command("stop", "--jobs")
        self.process.wait(PATIENCE)
        self._said.close()

    def start(self) -> None:
        """Start the server, and wait until it serves."""
        said = self.home.parent / "server.err"
        reader, writer = os.pipe()
        self._said = os.fdopen(reader, encoding="utf-8")
        with said.open("ab") as log, open(os.devnull) as nothing, open(writer) as out:
            words = ("serve", "--port", str(self.port), *self.options)
            streams = [one.fileno() for one in (nothing, out, log)]
            self.process = commands.start("local_backend.cli", words, self.environment, Path.cwd(), streams,
                                          servers=True, nurseries=self._forks_nurseries)
        line = self._said.readline()
        assert "serving at" in line, f"no start: {line} {self.process.poll()} {said.read_text()[-3000:]}"

    def kill(self) -> None:
        """Kill the server with SIGKILL and wait for its end."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)
        self._said.close()

    def client(self) -> Client:
        """Return a client that is logged on and retries without end."""
        return Client("127.0.0.1", self.port, http=True, token=self.token, retries=100_000)

    def command(self, *words: str, program: str = "local_backend.cli") -> tuple[int, str, str]:
        """Run a command on the machine of the server; return exit code, standard output, standard error."""
        code, out, err = commands.run(program, words, self.environment, Path.cwd(), 20 * PATIENCE, servers=True)
        return code, out.decode(), err.decode()


@dataclass
class Load:
    """Clients that submit a number of jobs each, with model folders of different sizes."""

    server: Server
    clients: int
    each: int
    largest: int = 4096
    seconds: float = 0.0
    #: Maps the name of a submission to the acknowledged id and the checksum of the payload that was sent.
    acknowledged: dict[str, tuple[str, str]] = field(default_factory=dict)
    _news: threading.Condition = field(default_factory=threading.Condition)

    @property
    def marks(self) -> Path:
        """The file that the jobs append to."""
        return self.server.home.parent / "marks"

    def begin(self, seed: int = 0) -> None:
        """Start the clients; `finish` waits for them."""
        self._pool = ThreadPoolExecutor(self.clients, thread_name_prefix="client")
        self._work = [self._pool.submit(self._client, number, seed) for number in range(self.clients)]

    def wait_for(self, count: int) -> None:
        """Wait until `count` submissions are acknowledged. Fail if a client has failed."""
        with self._news:
            while len(self.acknowledged) < count and not any(work.done() and work.exception() for work in self._work):
                assert self._news.wait(PATIENCE), f"{len(self.acknowledged)} acknowledged, then nothing more"

    def finish(self) -> None:
        """Wait for all clients. Raise the error of a client that failed."""
        self._pool.shutdown()
        for work in self._work:
            work.result()
        assert len(self.acknowledged) == self.clients * self.each

    def _client(self, number: int, seed: int) -> None:
        try:
            chance = random.Random(f"{seed}-{number}")
            with self.server.client() as client:
                for turn in range(self.each):
                    self._submit(client, f"c{number}-{turn}", chance)
        finally:
            with self._news:
                self._news.notify_all()

    def _submit(self, client: Client, name: str, chance: random.Random) -> None:
        payload = chance.randbytes(int(1024 * (self.largest / 1024) ** chance.random()))
        packed = folder({"run.sh": SCRIPT.encode(), "payload": payload})
        body = Multipart([FilePart("file", "x.modelDir.tar", io.BytesIO(packed), len(packed))])
        words = f"sh run.sh {name} {self.marks} {self.seconds * chance.random():.3f}"
        found = client.start_exec(f"--exec-start PyTorch --appName {name} --model-dir m --user-cmd -- {words}", body)
        with self._news:
            self.acknowledged[name] = str(found["id"]), hashlib.sha256(payload).hexdigest()
            self._news.notify_all()


def check(load: Load) -> None:
    """Check that every acknowledged submission is stored and has run exactly once, to its end."""
    with load.server.client() as client:
        eventually(lambda: not client.execs(f"state={','.join(ACTIVE)}&limit=1"), "all jobs have ended", 900)
        # An unpacked folder of a killed server is removed by the next start or the one after that.
        load.server.kill()
        load.server.start()
        shown = client.execs()
    check_stored(load, shown)
    wrong = [one for one in shown if one["state"] != FINISHED]
    assert not wrong, f"did not finish: {wrong}"
    marks = Counter(load.marks.read_text().splitlines())
    marks.subtract(f"{exec_id} {name} {digest}  -" for name, (exec_id, digest) in load.acknowledged.items())
    assert not any(marks.values()), f"ran twice or not at all: {[line for line, count in marks.items() if count]}"


def check_stored(load: Load, shown: list[dict[str, Any]]) -> None:
    """Check that the execs shown and their files are exactly the acknowledged submissions."""
    home, acknowledged = load.server.home, load.acknowledged
    names = {one["id"]: one["appName"] for one in shown}
    assert len(names) == len(shown), "an id is listed twice"
    there = names.items() ^ {(exec_id, name) for name, (exec_id, _) in acknowledged.items()}
    assert not there, f"lost or not acknowledged: {sorted(there)}"
    jobs = {path.name: path for path in (home / "results").glob("*/batchworkdir/*")}
    assert jobs.keys() == names.keys() == {path.name for path in (home / "jobs").iterdir()}, "files without an exec"
    for exec_id, digest in acknowledged.values():
        payload = (jobs[exec_id] / "_submitted_code" / "m" / "payload").read_bytes()
        assert hashlib.sha256(payload).hexdigest() == digest, f"the files of {exec_id} differ from those that were sent"
    assert list((home / "incoming").iterdir()) == [], "an upload was not removed"
    with sqlite3.connect(home / "backend.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def folder(files: dict[str, bytes]) -> bytes:
    """Return a model folder `m`, packed as clients pack it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"m/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
