"""Find or start the local backend, with a stand-in for `python -m local_backend.cli serve`."""

from __future__ import annotations

import errno
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from client_desk import Desk
from support import eventually

from dlicmd.sdk import backend
from dlicmd.sdk.errors import BackendNotStarted

#: Serves the fake server in DLICMD_HOME until killed, counts its starts, and fails if the file `mode` says so.
STAND_IN = """
import json, os, pathlib, signal, sys, threading
sys.path.insert(0, {client!r})
from fake_server import FakeServer, TOKEN, exec_object
home = pathlib.Path(os.environ["DLICMD_HOME"])
assert sys.argv[1:] == ["serve", "--embedded"] and home.is_absolute() and os.path.samefile(os.getcwd(), home)
mode = (home / "mode").read_text() if (home / "mode").exists() else ""
if mode == "fail":
    print("Traceback of something", file=sys.stderr)
    sys.exit("the port is taken")
with open(home / "starts", "a") as starts:
    starts.write("x")
(home / "environment").write_text(json.dumps(dict(os.environ)))
with FakeServer("argv,follow,local-paths") as server:
    server.execs["w-1"] = exec_object("w-1", state="FINISHED")
    temporary = home / "backend.json.new"
    temporary.write_text(json.dumps(
        {{"url": server.url, "pid": os.getpid(), "token": TOKEN, "slots": os.environ.get("DLI_SLOTS")}}))
    temporary.replace(home / "backend.json")
    threading.Event().wait()
"""


@pytest.fixture
def machine(desk: Desk, tmp_path: Path) -> Iterator[Desk]:
    """A client user whose Python imports the stand-in as `local_backend.cli`."""
    package = tmp_path / "python" / "local_backend"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "cli.py").write_text(STAND_IN.format(client=str(Path(__file__).parent)))
    desk.environment |= {"PYTHONPATH": str(package.parent), "DESK": str(desk.folder)}
    yield desk
    for process in psutil.process_iter(["cmdline"]):
        try:
            if process.environ().get("DESK") == str(desk.folder):
                process.kill()
                process.wait(60)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue


def server_pid(desk: Desk) -> int:
    return int(json.loads((desk.state / "backend.json").read_text())["pid"])


def test_a_terminal_shows_that_the_backend_is_starting(machine: Desk) -> None:
    ours, theirs = pty.openpty()
    process = machine.start("--exec-get", "w-1", stderr=theirs)
    os.close(theirs)
    process.communicate(timeout=150)
    said = b""
    while said.count(b"\n") < 2:  # a read returns what one write has written
        said += os.read(ours, 2**16)
    first, second = said.decode().splitlines()
    os.close(ours)
    assert "starting" in first and "started" in second and str(machine.state) in second


def test_slots_that_a_running_backend_ignores_are_reported_at_a_submission(machine: Desk) -> None:
    machine.model()
    assert machine.run("--exec-get", "w-1").code == 0
    machine.environment["DLI_SLOTS"] = "7"
    assert machine.run("--exec-get", "w-1").err == ""
    assert machine.run("run", "model/train.py", "--no-follow").err.count("DLI_SLOTS=7") == 1


def test_the_backend_is_started_once_then_found_and_restarted_if_dead(machine: Desk) -> None:
    first = machine.run("--exec-get", "w-1")
    assert first.code == 0, first
    [said] = first.err.splitlines()
    url = json.loads((machine.state / "backend.json").read_text())["url"]
    assert url in said and str(machine.state) in said
    assert json.loads(first.out)["id"] == "w-1"
    again = machine.run("--exec-get", "w-1")
    assert again.code == 0 and again.err == ""
    os.kill(server_pid(machine), signal.SIGKILL)
    eventually(lambda: not psutil.pid_exists(server_pid(machine))
               or psutil.Process(server_pid(machine)).status() == "zombie", "the backend has ended")
    third = machine.run("--exec-get", "w-1")
    assert third.code == 0 and str(machine.state) in third.err
    assert (machine.state / "starts").read_text() == "xx"


def test_a_stale_or_invalid_backend_file_does_not_prevent_a_start(machine: Desk) -> None:
    foreign = json.dumps({"url": "http://127.0.0.1:1", "pid": os.getpid(), "token": "t"})
    for text in (foreign, "{", "[]", "{}",
                 '{"url": 1, "pid": "x", "token": null}', '{"url": "http://127.0.0.1:1", "pid": -1, "token": "t"}'):
        (machine.state / "starts").unlink(missing_ok=True)
        if (machine.state / "backend.json").exists() and "fake" in (machine.state / "backend.json").read_text():
            os.kill(server_pid(machine), signal.SIGKILL)
        (machine.state / "backend.json").write_text(text)
        done = machine.run("--exec-get", "w-1")
        assert done.code == 0, (text, done)
        assert (machine.state / "starts").read_text() == "x"


def test_simultaneous_clients_start_one_backend(machine: Desk) -> None:
    started = [machine.start("--exec-get", "w-1") for _ in range(4)]
    said = []
    for process in started:
        _, err = process.communicate(timeout=90)
        assert process.returncode == 0, err
        said.append(err.decode())
    assert (machine.state / "starts").read_text() == "x"
    assert sum(str(machine.state) in text for text in said) == 1


def test_the_backend_gets_absolute_paths_a_private_log_and_its_own_session(machine: Desk) -> None:
    machine.environment |= {"DLICMD_HOME": os.path.relpath(machine.state, machine.folder), "DLI_DATA_FS": "data"}
    (machine.folder / "queue.py").write_text("raise SystemExit('a file of the user shadows a module')")
    done = machine.run("--exec-get", "w-1")
    assert done.code == 0, done
    seen = json.loads((machine.state / "environment").read_text())
    assert os.path.samefile(seen["DLICMD_HOME"], machine.state)
    assert seen["DLI_DATA_FS"] == str(machine.folder / "data")
    assert (machine.state / "backend.log").stat().st_mode & 0o777 == 0o600
    process = psutil.Process(server_pid(machine))
    assert os.getsid(process.pid) == process.pid


def test_a_backend_that_fails_to_start_is_reported(machine: Desk) -> None:
    (machine.state / "mode").write_text("fail")
    done = machine.run("--exec-get-all", "-o", "json")
    assert (done.code, done.error) == (8, "backend.not_started") and "the port is taken" in done.err


def test_a_home_that_cannot_be_created_is_reported(machine: Desk) -> None:
    (machine.folder / "file").write_text("")
    machine.environment["DLICMD_HOME"] = str(machine.folder / "file" / "home")
    for home in (machine.environment["DLICMD_HOME"], str(machine.folder / "file"), "/proc/home"):
        machine.environment["DLICMD_HOME"] = home
        done = machine.run("--exec-get-all", "-o", "json")
        assert (done.code, done.error) == (8, "backend.not_started") and f"DLICMD_HOME={home}: " in done.err


def test_a_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DLICMD_HOME", str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(backend, "_FULL", 2**63)
        process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])
        with pytest.raises(BackendNotStarted, match=f"{tmp_path} is full"):
            backend._await_answer(process)

    def refuse(_place: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "backend.log")

    monkeypatch.setattr(backend, "_launch", refuse)
    with pytest.raises(BackendNotStarted, match=f"{tmp_path}: {os.strerror(errno.ENOSPC)}"):
        backend.start()


def test_a_new_home_is_private(machine: Desk, tmp_path: Path) -> None:
    machine.state = tmp_path / "new"
    machine.environment["DLICMD_HOME"] = str(machine.state)
    assert machine.run("--exec-get", "w-1").code == 0
    assert machine.state.stat().st_mode & 0o777 == 0o700


def test_windows_requires_a_remote_server(desk: Desk) -> None:
    probe = "import sys; sys.platform = 'win32'; from dlicmd.cli import main; sys.exit(main(['--exec-get-all']))"
    done = subprocess.run([sys.executable, "-c", probe], env=desk.environment, capture_output=True, text=True,
                          timeout=90, check=False)
    assert done.returncode == 8 and "--rest-host" in done.stderr


def test_a_backend_that_hangs_at_the_start_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DLICMD_HOME", str(tmp_path))
    monkeypatch.setattr(backend, "START_SECONDS", 0.2)
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        with pytest.raises(BackendNotStarted, match="did not answer"):
            backend._await_answer(process)
    finally:
        process.communicate()
