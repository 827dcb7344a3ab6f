"""Gigabytes over a connection that breaks often arrive complete, and client and server need little memory."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from user import User

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

#: Sizes of a result and of a model folder in bytes if the disk has enough space: it stores each at most 5 times.
DOWN, UP = 10 << 30, 5 << 30
COPIES = 6
CUTS_DOWN, CUTS_UP = 20, 3
MOST_MEMORY = 128 << 20
_PIECE = 1 << 20


class Line:
    """Forwards connections to a port; `up` and `down` are the bytes after which each connection is cut. Connections
    after the last limit are not cut."""

    def __init__(self, port: int, up: list[int], down: list[int]) -> None:
        self._to, self._limits = port, {"up": up, "down": down}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        """Carry one connection. A cut closes both of its ends, so that data on its way gets no answer."""
        with client, socket.create_connection(("127.0.0.1", self._to)) as server:
            back = threading.Thread(target=self._pump, args=("down", server, client), daemon=True)
            back.start()
            self._pump("up", client, server)
            back.join()

    def _pump(self, way: str, source: socket.socket, sink: socket.socket) -> None:
        passed = 0
        try:
            while piece := source.recv(1 << 16):
                sink.sendall(piece)
                passed += len(piece)
                limits = self._limits[way]
                if limits and passed >= limits[0]:
                    limits.pop(0)
                    break
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


def noise(path: Path, size: int) -> str:
    """Write a file that does not compress, and return its SHA-256."""
    digest, block = hashlib.sha256(), random.Random(size).randbytes(_PIECE)
    with path.open("wb") as file:
        for number in range(size // _PIECE):
            piece = number.to_bytes(8, "big") + block[8:]
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def digest_of(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            found.update(piece)
    return found.hexdigest()


def peak(pid: int) -> int:
    """Return the peak memory of a process in bytes."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def scaled(user: User, size: int) -> int:
    """Return `size`, or fewer bytes if the disk has less space, as whole MiB."""
    space = shutil.disk_usage(user.folder).free // COPIES
    return max(64, min(size, space) >> 20) << 20


@pytest.fixture
def through(user: User) -> Iterator[object]:
    """A function that runs dlicmd against the backend over a Line, and returns its peak memory and its output."""
    lines: list[Line] = []

    def run(*words: str, **cuts: list[int]) -> tuple[int, str]:
        up, down = cuts.get("up", []), cuts.get("down", [])
        found = json.loads((user.home / "backend.json").read_text())
        lines.append(Line(int(found["url"].rpartition(":")[2]), up, down))
        home = user.folder / "over-the-line"
        home.mkdir(exist_ok=True)
        (home / "backend.json").write_text(json.dumps({**found, "url": f"http://127.0.0.1:{lines[-1].port}"}))
        environment = user.environment | {"DLICMD_HOME": str(home), "DLICMD_RETRIES": "20"}
        said = user.folder / "said"
        with said.open("w+") as file:
            call = "import sys; from dlicmd.cli import main; sys.exit(main())"
            client = subprocess.Popen(
                [sys.executable, "-c", call, *words], env=environment, cwd=user.folder, stdout=file, stderr=file)
            _, status, used = os.wait4(client.pid, 0)
            client.returncode = os.waitstatus_to_exitcode(status)
        assert client.returncode == 0, said.read_text()[-3000:]
        assert not up and not down, "the connection was cut less often than planned"
        return used.ru_maxrss * 1024, said.read_text()

    yield run
    for line in lines:
        line.close()


def test_a_result_arrives_over_a_connection_that_breaks(user: User, through) -> None:
    size, chance = scaled(user, DOWN), random.Random(1)
    job = user.run("--exec-start", "PyTorch", "--user-cmd", "--wait", "--", "true").json["execId"]
    (root,) = user.home.glob(f"results/*/batchworkdir/{job}")
    (root / "model").mkdir(exist_ok=True)
    wanted = noise(root / "model" / "weights", size)
    # Each offset is counted from the end of the previous one.
    cuts = [1 + chance.randrange(size // CUTS_DOWN) for _ in range(CUTS_DOWN)]
    (user.folder / "here").mkdir()
    used, _ = through("--exec-trainresult", job, "--to", "here", "--unpack", down=cuts)
    (weights,) = (user.folder / "here").rglob("weights")
    assert digest_of(weights) == wanted
    assert used < MOST_MEMORY and peak(user.server_pid) < MOST_MEMORY


def test_a_model_folder_arrives_over_a_connection_that_breaks(user: User, through) -> None:
    size, chance = scaled(user, UP), random.Random(2)
    user.run("--exec-get-all")  # start the backend
    folder = user.model("big", train="pass\n")
    wanted = noise(folder / "data", size)
    cuts = [1 + chance.randrange(size) for _ in range(CUTS_UP)]
    used, said = through("--exec-start", "PyTorch", "--model-dir", str(folder), "--user-cmd", "--", "true", up=cuts)
    (data,) = user.home.glob("results/*/batchworkdir/*/_submitted_code/big/data")
    assert digest_of(data) == wanted, said
    assert used < MOST_MEMORY and peak(user.server_pid) < MOST_MEMORY
