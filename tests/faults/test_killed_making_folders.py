"""SIGKILL of the server at every step of making the folders of a submission.

The next start removes these folders, and no folder of another backend that shares the results."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from loaded_server import Server

from dlicmd import Client
from dlicmd.sdk.errors import DlicmdError

pytestmark = pytest.mark.slow

#: Kills the process right after the n-th time that it creates or renames a path of an exec other than local-1.
KILLER = """
import os, re, signal, threading

left = int(os.environ.get("KILL_AFTER") or 0)
lock = threading.Lock()


def deadly(name):
    real = getattr(os, name)

    def call(path, *more, **named):
        global left
        done = real(path, *more, **named)
        makes = name != "open" or (more and more[0] & os.O_CREAT)
        if makes and any(re.search(r"local-(?!1\\b)", str(word)) for word in (path, *more[:1])):
            with lock:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
        return done

    setattr(os, name, call)


if left:
    for name in ("mkdir", "open", "rename", "replace"):
        deadly(name)
"""
BODY = "--exec-start PyTorch --user-cmd -- true"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(KILLER)
    made = Server(tmp_path / "home", DLI_SLOTS="1", DLI_NURSERY_IDLE="0", PYTHONPATH=str(tmp_path / "site"))
    with made:
        yield made


def made_by(server: Server) -> list[str]:
    """Return the names of all folders of execs on the disk."""
    folders = (*(server.home / "results").glob("*/batchworkdir"), server.home / "jobs")
    return sorted(path.name for folder in folders for path in folder.iterdir())


@pytest.mark.timeout(900)
def test_a_submission_without_acknowledgment_leaves_no_files(server: Server) -> None:
    with server.client() as client:
        first = client.start_exec(BODY)
    kept = made_by(server)
    [results] = (server.home / "results").glob("*/batchworkdir")
    number, others = int(first["id"].removeprefix("local-")), []
    for step in count(1):
        server.kill()
        server.environment["KILL_AFTER"] = str(step)
        # Another backend uses every second number and has stored a folder there.
        if step % 2:
            others.append(results / f"local-{number + 1}")
            (others[-1] / "model").mkdir(parents=True)
        server.start()
        assert made_by(server) == sorted([*kept, *(path.name for path in others)]), f"after step {step - 1}"
        try:
            with Client("127.0.0.1", server.port, http=True, token=server.token, retries=0) as client:
                number = int(client.start_exec(BODY)["id"].removeprefix("local-"))
            break
        except DlicmdError:
            assert server.process.wait(60) == -9, f"step {step}: the server was not killed"
            number += 1 + step % 2
    del server.environment["KILL_AFTER"]
    assert step > 8, "fewer steps than expected"
    assert all((path / "model").is_dir() for path in others)
