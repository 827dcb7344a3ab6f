"""dlicmd is killed during an operation: no partial files remain, and work on the server continues."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from support import PATIENCE, eventually

from dlicmd.contract.sizes import show_size
from local_backend.files import write_json

pytestmark = pytest.mark.integration

WAITS = "import signal\nprint('ready', flush=True)\nsignal.pause()\n"


class Narrow:
    """Forwards connections to a server, at most so many bytes up and down on each connection until `open` is set."""

    def __init__(self, port: int, up: int, down: int) -> None:
        self._port, self._limits = port, {"up": up, "down": down}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        #: First lines of the received requests.
        self.seen: list[bytes] = []
        self.full, self.open = threading.Event(), threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.open.set()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._port))
            for way, source, sink in (("up", client, server), ("down", server, client)):
                threading.Thread(target=self._pump, args=(way, source, sink), daemon=True).start()

    def _pump(self, way: str, source: socket.socket, sink: socket.socket) -> None:
        left = self._limits[way]
        try:
            while data := source.recv(65536):
                if way == "up" and b" HTTP/1.1\r\n" in data:
                    self.seen.append(data.partition(b"\r\n")[0])
                if len(data) > left:
                    sink.sendall(data[:left])
                    self.full.set()
                    self.open.wait(PATIENCE)
                    data, left = data[left:], 1 << 60
                sink.sendall(data)
                left -= len(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


@contextmanager
def narrow(user, up: int = 1 << 60, down: int = 1 << 60) -> Iterator[Narrow]:
    """Let a user reach the running backend through a limited connection."""
    file = user.home / "backend.json"
    found = json.loads(file.read_text())
    line = Narrow(urlsplit(found["url"]).port, up, down)
    write_json(file, found | {"url": f"http://127.0.0.1:{line.port}"})
    try:
        yield line
    finally:
        line.close()
        write_json(file, found)


@pytest.fixture
def trained(user) -> str:
    """An exec that has stored a large result."""
    store = 'head -c 30000000 /dev/urandom > "$RESULT_DIR/model/weights"'
    return user.submit("PyTorch", "--user-cmd", "--", "sh", "-c", store)


def test_a_client_killed_during_an_upload_leaves_no_exec_and_no_files(user) -> None:
    assert user.run("--exec-get-all").code == 0
    folder = user.model("m", train="print(1)\n")
    (folder / "data").write_bytes(os.urandom(15 << 20))
    incoming = user.home / "incoming"
    with narrow(user, up=2 << 20) as line:  # less than the rest that the system may buffer
        process = user.start("--exec-start", "PyTorch", "--model-dir", str(folder), "--model-main", "train.py")
        assert line.full.wait(PATIENCE)
        eventually(lambda: sum(part.stat().st_size for part in incoming.rglob("part-*")) > 1 << 20, "1 MiB has arrived")
        process.kill()
        process.communicate(timeout=PATIENCE)
    eventually(lambda: not list(incoming.iterdir()), "no file of the upload is left")
    assert json.loads(user.run("--exec-get-all", "-o", "json").out) == []
    assert list((user.home / "jobs").iterdir()) == [] and not list((user.home / "results").rglob("train.py"))


def test_a_client_killed_while_following_does_not_stop_the_job(user) -> None:
    exec_id = user.submit("PyTorch", "--model-dir", str(user.model("m", train=WAITS)), "--model-main", "train.py")
    eventually(lambda: "ready" in user.run("--exec-trainoutlogs", exec_id).out, "the program runs")
    with narrow(user) as line:
        process = user.start("--follow", exec_id)
        assert process.stdout is not None and "ready" in process.stdout.readline()
        eventually(lambda: sum(b"/follow?" in seen for seen in line.seen) > 1, "the client asks a second time")
        process.kill()
        process.communicate(timeout=PATIENCE)
    assert user.run("--exec-get", exec_id).json["state"] == "RUNNING"
    assert user.run("--exec-stop", exec_id).code == 0 and user.run("--wait", exec_id).code == 4


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_client_killed_during_a_download_can_resume_it(user, trained: str, number: signal.Signals) -> None:
    assert user.run("--wait", trained).code == 0
    with narrow(user, down=10_000_000) as line:
        process = user.start("--exec-trainresult", trained)
        assert line.full.wait(PATIENCE)
        eventually(lambda: any(p.stat().st_size > 9_000_000 for p in user.folder.glob("*.part")), "9 MB are stored")
        process.send_signal(number)
        process.communicate(timeout=PATIENCE)
        (part,) = user.folder.glob("*.part")
        assert process.returncode == (130 if number == signal.SIGINT else -number)
        assert sorted(path.name for path in user.folder.iterdir()) == [part.name, part.name + ".json"]
        came = part.stat().st_size
    done = user.run("--exec-trainresult", trained)
    assert done.code == 0 and f"after {show_size(came)}\n" in done.err, done
    (fetched,) = user.folder.iterdir()
    again = user.folder / "again"
    again.mkdir()
    assert user.run("--exec-trainresult", trained, "--to", str(again)).code == 0
    assert (again / fetched.name).read_bytes() == fetched.read_bytes() and fetched.stat().st_size > 29_000_000
    assert not list((user.home / "incoming").iterdir())
