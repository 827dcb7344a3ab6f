"""A client finds the local backend although its file is damaged, and sees that its process is suspended."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from runtime_support import gone
from support import eventually
from user import User

from dlicmd.contract.exits import Exit

pytestmark = pytest.mark.integration


def suspend(pid: int) -> None:
    """Suspend a process, and wait until all of its threads are suspended."""
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "the process is suspended")


HARM = [Path.unlink, lambda path: path.write_bytes(os.urandom(200)), lambda path: path.write_text("{}")]


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_file_of_the_backend_is_written_again(user: User, harm: Callable[[Path], object]) -> None:
    assert user.run("--exec-get-all").code == 0
    pid, path = user.server_pid, user.home / "backend.json"
    before = json.loads(path.read_text())
    harm(path)
    done = user.run("--exec-get-all")
    assert done.code == 0, done
    assert user.server_pid == pid and json.loads(path.read_text()) == before
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("harm", [None, Path.unlink])
def test_a_suspended_backend_is_reported_at_once(user: User, harm: Callable[[Path], object] | None) -> None:
    assert user.run("--exec-get-all").code == 0
    pid = user.server_pid
    suspend(pid)
    try:
        if harm is not None:
            harm(user.home / "backend.json")
        done = user.run("ls", "-o", "json")
        assert done.code == Exit.UNREACHABLE and f"kill -CONT {pid}" in done.err, done
        done = user.run("--exec-get-all")
        assert done.code == Exit.UNREACHABLE and str(pid) in done.err, done
    finally:
        os.kill(pid, signal.SIGCONT)
    assert user.run("ls").code == 0 and user.server_pid == pid


def test_a_suspended_server_is_shown_and_can_be_stopped(user: User) -> None:
    assert user.run("ls").code == 0
    pid = user.server_pid
    suspend(pid)
    done = user.backend("status")
    assert done.code == Exit.FAILED and f"kill -CONT {pid}" in done.err, done
    assert user.backend("stop").code == 0 and gone(pid)


def test_a_client_that_waits_for_an_answer_sees_that_the_backend_is_suspended(user: User) -> None:
    job = user.submit("PyTorch", "--model-dir", str(user.model("m", main="import time\ntime.sleep(600)\n")),
                      "--model-main", "main.py")
    with user.start("follow", job) as follower:
        pid = user.server_pid
        suspend(pid)
        try:
            _, err = follower.communicate(timeout=120)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert follower.returncode == Exit.UNREACHABLE and str(pid) in err, err
