"""Attacks by other local users on files and tokens, and by links that replace folders during unpacking or packing.

No link may lead outside, at whatever moment it replaces the folder.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_server import Live, tar
from support import PATIENCE

from local_backend.api import archives
from local_backend.settings import Limits
from local_backend.submit import unpacker

NOBODY = 65534
SECRET = b"nobody may see this"
PATHS = ("/platform/rest/deeplearning/v1/execs", "/platform/rest/deeplearning/v1/conf", "/metrics")


def attack(home: str, pid: int, port: int) -> list[str]:
    """Return every successful access: read each file, try to write files, and call the server with possible tokens."""
    found = []
    for start in (home, f"/proc/{pid}/root{home}", f"/proc/{pid}/cwd", f"/proc/{pid}/fd"):
        for folder, _, names in os.walk(start):
            paths = [os.path.join(folder, name) for name in names]
            found += [f"read {path}" for path in paths if os.access(path, os.R_OK)]
    for name in ("backend.json", "server.yaml", "backend.db", "x", "jobs/x", "keys/x"):
        with contextlib.suppress(OSError):
            os.close(os.open(os.path.join(home, name), os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK))
            found.append(f"written {name}")
    for name in ("environ", "mem", "maps"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
            found += [f"read {name}"] if file.read(1) else []
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    for token in ("", "null", *words):
        for path in PATHS:
            with socket.socket() as sock:
                sock.settimeout(PATIENCE)
                sock.connect(("127.0.0.1", port))
                head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"
                sock.sendall(head.encode())
                status = sock.recv(12)
                found += [] if status == b"HTTP/1.1 401" else [f"{path} with {token!r}: {status!r}"]
    return found


def as_nobody(*words: object) -> list[str]:
    """Return the result of `attack`, run in a forked child as another user.

    The child can import no module if that user may not read this Python.
    """
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            said = attack(*words)  # type: ignore[arg-type]
        except BaseException as problem:
            said = [repr(problem)]
        os.write(theirs, json.dumps(said).encode()[:60_000])
        os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as file:
        told = file.read()
    os.waitpid(child, 0)
    found = json.loads(told)
    assert isinstance(found, list)
    return found


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A folder that other users may enter, like /home."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_local_user_can_access_nothing(everybodys: Path) -> None:
    home = everybodys / "home"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DLI")}
    ours = {**kept, "DLICMD_HOME": str(home), "DLI_SLOTS": "1", "DLI_NURSERY_IDLE": "0"}
    command = [sys.executable, "-m", "local_backend.cli", "serve"]
    with subprocess.Popen(command, env=ours, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, umask=0) as server:
        try:
            assert server.stdout is not None and b"serving" in server.stdout.readline()
            told = json.loads((home / "backend.json").read_text())
            found = as_nobody(str(home), told["pid"], int(told["url"].rpartition(":")[2]))
            modes = {path.name: path.stat().st_mode & 0o777 for path in home.iterdir() if path.is_file()}
        finally:
            server.terminate()
            server.wait(PATIENCE)
    assert found == []
    assert home.stat().st_mode & 0o777 == 0o700
    # Files must be private even if the home were open.
    assert {"backend.json", "backend.db", "backend.log"} <= modes.keys()
    assert set(modes.values()) == {0o600}, modes


class Swap:
    """Replaces a folder or a file by a link at the n-th call."""

    def __init__(self, place: Path, target: Path, count: int) -> None:
        self._place, self._target, self._left = place, target, count
        self.done = False

    def __call__(self) -> None:
        self._left -= 1
        if self._left == 0 and os.path.lexists(self._place):
            os.rename(self._place, f"{self._place}.aside")
            self._place.symlink_to(self._target)
            self.done = True


def watched(swap: Swap, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call `swap` before every call that could follow a link."""
    for name in ("open", "mkdir", "lstat", "listdir"):
        def call(*args: object, _true: object = getattr(os, name), **more: object) -> object:
            monkeypatch.undo()
            swap()
            watched(swap, monkeypatch)
            return _true(*args, **more)  # type: ignore[operator]

        monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("level", ["d", "d/e", "d/e/f.py"])
def test_a_link_swapped_in_during_unpacking_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    archive = tmp_path / "a.tar"
    archive.write_bytes(tar({"d/e/f.py": b"1", "d/e/g.py": b"2", "d/e/h/i.py": b"3", "d/j.py": b"4"}))
    limits = {"bytes": 1000, "files": 20, "ratio": Limits().unpack_ratio}
    monkeypatch.setattr(os, "fsync", lambda _fd: None)  # fsync takes longer than all other calls
    swapped = 0
    for count in range(1, 40):
        target, victim = tmp_path / f"t{count}", tmp_path / f"v{count}"
        target.mkdir()
        (victim / "e").mkdir(parents=True)
        swap = Swap(target / level, victim / "e" if level != "d" else victim, count)
        with monkeypatch.context() as patched:
            watched(swap, patched)
            code, _ = unpacker.run(str(archive), str(target), limits)
        assert [path.name for path in victim.rglob("*")] == ["e"], (level, count)
        assert code in (unpacker.DONE, unpacker.REFUSED, unpacker.STORAGE)
        swapped += swap.done
    assert swapped > 3, "the swap must have happened during the unpacking"


def test_a_hard_link_to_a_file_of_others_is_left_out_of_the_result(live: Live) -> None:
    exec_id = live.submitted()
    paths = live.paths(exec_id)
    secret = live.settings.home / "secret"
    secret.write_bytes(SECRET)
    os.link(secret, paths.model / "stolen")
    (paths.checkpoint / "best").write_bytes(b"mine")
    os.link(paths.checkpoint / "best", paths.model / "best")
    (paths.model / "plain").write_bytes(b"mine")
    answer = live.call("GET", f"/execs/{exec_id}/result")
    assert zipfile.ZipFile(io.BytesIO(answer.body)).namelist() == ["model/best", "model/plain"]
    assert "left out of the result" in paths.launcher_log.read_text() and "stolen" in paths.launcher_log.read_text()
    assert live.call("GET", f"/execs/{exec_id}/files/content?path=model/stolen").error == (400, "exec.no_file")
    for log in (paths.log_dir("task12n-1") / "stdout", paths.launcher_log):
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        os.link(secret, log)
    for path in (f"/execs/{exec_id}/log", f"/scheduler/applications/{exec_id}/executor/1/logs/launcherlog"):
        answer = live.call("GET", path)
        assert answer.status == 200 and SECRET not in answer.body, path


def test_a_hard_link_that_appears_during_packing_is_left_out(tmp_path: Path) -> None:
    model = tmp_path / "x" / "model"
    model.mkdir(parents=True)
    (model / "file").write_bytes(b"mine")
    mark = archives.mark_of(model)
    (tmp_path / "secret").write_bytes(SECRET)
    (model / "file").unlink()
    os.link(tmp_path / "secret", model / "file")
    assert zipfile.ZipFile(archives.pack(model, mark, tmp_path).file).namelist() == []


@pytest.mark.parametrize("level", ["", "a", "a/b", "a/b/file"])
def test_a_link_swapped_in_during_packing_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    secret = tmp_path / "secret"
    (secret / "a" / "b").mkdir(parents=True)
    (secret / "a" / "b" / "file").write_bytes(SECRET)
    (secret / "file").write_bytes(SECRET)
    swapped = 0
    for count in range(1, 40):
        model = tmp_path / f"x{count}" / "model"
        (model / "a" / "b").mkdir(parents=True)
        (model / "a" / "b" / "file").write_bytes(b"mine")
        (model / "other").write_bytes(b"mine")
        swap = Swap(model / level, secret / level, count)
        with monkeypatch.context() as patched:
            watched(swap, patched)
            packed = archives.pack(model, archives.mark_of(model), tmp_path)
        with packed.file as file:
            file.seek(0)
            content = zipfile.ZipFile(io.BytesIO(file.read()))
        assert all(content.read(name) == b"mine" for name in content.namelist()), (level, count)
        swapped += swap.done
    assert swapped > 3, "the swap must have happened during the packing"
