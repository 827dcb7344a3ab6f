"""A running job replaces its log between two calls: the server never follows links and never blocks."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from live_server import Live

from local_backend.runtime import launcher_log

DIST = "--exec-start distPyTorch --numWorker 1 --model-main main.py"
ELASTIC = "--exec-start edtPyTorch --numWorker 2 --model-main main.py"
SECRET = "of the server alone"


def link_to_a_link(place: Path, secret: Path) -> None:
    between = secret.with_name(f"between-{place.name}")
    between.symlink_to(secret)
    place.symlink_to(between)


def pipe_with_a_writer(place: Path, _: Path) -> None:
    """Make a pipe with an open writer, so that a reader never sees its end."""
    os.mkfifo(place)
    kept = os.open(place, os.O_RDWR)
    os.write(kept, SECRET.encode())


def folder_elsewhere(files: list[Path], secret: Path) -> None:
    """Replace the log folder with a link to another folder that has files of the same names."""
    folder = files[0].parent
    folder.rename(folder.with_name("away"))
    folder.symlink_to(secret.parent)
    for file in files:
        (secret.parent / file.name).write_text(SECRET)


def folder_above_elsewhere(files: list[Path], secret: Path) -> None:
    """Replace the parent of the log folder in the same way."""
    above = files[0].parent.parent
    above.rename(above.with_name("away"))
    above.symlink_to(secret.parent)
    for file in files:
        (secret.parent / file.parent.name).mkdir(exist_ok=True)
        (secret.parent / file.parent.name / file.name).write_text(SECRET)


def listening(place: Path, _: Path) -> None:
    here = Path.cwd()
    os.chdir(place.parent)  # The path of a socket must be short.
    try:
        socket.socket(socket.AF_UNIX).bind(place.name)
    finally:
        os.chdir(here)


#: Replacements of a file, and replacements of a folder on the path to files.
FILES: dict[str, Callable[[Path, Path], object]] = {
    "a link": lambda place, secret: place.symlink_to(secret),
    "a link to a link": link_to_a_link,
    "a second name": lambda place, secret: os.link(secret, place),
    "a pipe": lambda place, _: os.mkfifo(place),
    "a pipe with a writer": pipe_with_a_writer,
    "a folder": lambda place, _: place.mkdir(),
    "a socket": listening,
    "a link to a device": lambda place, _: place.symlink_to("/dev/zero"),
    "a link to nothing": lambda place, secret: place.symlink_to(secret.with_name("nothing")),
}
FOLDERS: dict[str, Callable[[list[Path], Path], object]] = {
    "their folder is a link": folder_elsewhere, "the folder above is a link": folder_above_elsewhere,
}


def asked(live: Live, exec_id: str, task: str) -> list[str]:
    """Return every call that shows output of a job."""
    return [
        *(f"/execs/{exec_id}/log?logType={kind}" for kind in ("outlog", "errlog", "outerrlog")),
        f"/scheduler/applications/{exec_id}/{task}/logs/stdout?lastlines=10",
        f"/scheduler/applications/{exec_id}/{task}/logs/stderr",
        f"/execs/{exec_id}/follow",
    ]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    found = tmp_path / "of-the-server" / "secret"
    found.parent.mkdir()
    found.write_text(SECRET + "\n")
    return found


@pytest.mark.parametrize("deed", [*FILES, *FOLDERS])
@pytest.mark.parametrize(("args", "task", "elastic"), [(DIST, "task12n-1", False), (ELASTIC, "task0", True)])
def test_a_replaced_log_is_not_read(
    *, live: Live, secret: Path, deed: str, args: str, task: str, elastic: bool
) -> None:
    exec_id = live.submitted(args)
    live.run_on(exec_id, "cpu-0")
    files = [live.paths(exec_id).capture(task, stream, elastic) for stream in ("stdout", "stderr")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("its own\n")
    calls = asked(live, exec_id, "executor/1" if not elastic else "driver")
    assert all("its own" in live.call("GET", call).text for call in calls)
    if deed in FOLDERS:
        FOLDERS[deed](files, secret)
    for file in files if deed in FILES else ():
        file.unlink()
        FILES[deed](file, secret)
    for call in calls:
        answer = live.call("GET", call)
        assert answer.status == 200, (call, answer)
        assert SECRET not in answer.text and "\0" not in answer.text, call
    assert live.call("GET", f"/execs/{exec_id}").status == 200
    assert secret.read_text() == SECRET + "\n"


@pytest.mark.parametrize("deed", FILES)
def test_a_replaced_launcher_log_is_neither_read_nor_written(live: Live, secret: Path, deed: str) -> None:
    exec_id = live.submitted(DIST)
    log = live.paths(exec_id).launcher_log
    launcher_log.note(log, "supervisor", "its own")
    call = f"/scheduler/applications/{exec_id}/driver/logs/launcherlog"
    assert "its own" in live.call("GET", call.replace("driver", "executor/1")).text
    log.unlink()
    FILES[deed](log, secret)
    answer = live.call("GET", call.replace("driver", "executor/1"))
    assert answer.status == 200 and SECRET not in answer.text
    # The only thread of the supervisor writes this log, and must not wait for a reader.
    writing = threading.Thread(target=launcher_log.note, args=(log, "supervisor", "more"), daemon=True)
    writing.start()
    writing.join(60)
    assert not writing.is_alive()
    assert secret.read_text() == SECRET + "\n" and not secret.with_name("nothing").exists()
