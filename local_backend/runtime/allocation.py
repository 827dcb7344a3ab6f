"""The slots of a running elastic job: the slots that the server gives it, and the slots that its runner still holds
(docs/adoption.md).

The server writes allocation.json and sends SIGUSR1 to the runner. The runner writes report.json and wakes the server
through a FIFO. Each file has one writer and is replaced as a whole. The files need not survive a reboot, because the
job does not either.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from local_backend.files import read_json, write_json
from local_backend.runtime.launch import Launch
from local_backend.runtime.paths import ExecPaths
from local_backend.scheduler.model import Slot


@dataclass(frozen=True)
class Allocation:
    """Slots that a job may use from now on."""

    attempt: int
    #: Increases with every change; 0 is the allocation that the attempt began with.
    sequence: int
    slots: tuple[Slot, ...]


@dataclass(frozen=True)
class Report:
    """Report of a runner about its job."""

    attempt: int
    #: Sequence of the allocation that the runner acts on.
    sequence: int
    #: Ids of the slots in that allocation, and of slots on which any process of a worker still lives.
    held: tuple[str, ...]
    #: Whether the driver died and is being restarted, or reports that it is recovering.
    recovering: bool = False
    #: Slots of the running workers, by worker number.
    workers: Mapping[int, str] = field(default_factory=dict)
    #: Number of workers that the driver can use; None until the driver has reported it.
    usable: int | None = None


def first_report(launch: Launch) -> Report:
    """Return the report of a runner that has not started any process."""
    return Report(launch.attempt, 0, tuple(slot.id for slot in launch.slots))


def read_allocation(paths: ExecPaths, attempt: int) -> Allocation | None:
    """Read allocation.json of this attempt; return None when there is no usable one."""
    match _read(paths.allocation):
        case {"attempt": int(found), "sequence": int(sequence), "slots": list(slots)} if found == attempt:
            try:
                read = tuple(Slot(**slot) for slot in slots)
            except TypeError:
                return None
            if all(isinstance(value, str) for slot in read for value in (slot.id, slot.kind, slot.device)):
                return Allocation(found, sequence, read)
    return None


def write_allocation(paths: ExecPaths, allocation: Allocation) -> None:
    """Write allocation.json. Removes a folder that the job has put in its place, so that the job cannot keep its
    slots. Raises OSError; the old content then stays."""
    if paths.allocation.is_dir() and not paths.allocation.is_symlink():
        shutil.rmtree(paths.allocation, ignore_errors=True)
    write_json(paths.allocation, asdict(allocation), durable=False)


def read_report(paths: ExecPaths, attempt: int) -> Report | None:
    """Read report.json of this attempt; return None when there is no usable one."""
    match _read(paths.report):
        case {
            "attempt": int(found), "sequence": int(sequence), "held": list(held), "recovering": bool(recovering),
            "workers": dict(workers), "usable": int() | None as usable,
        } if found == attempt:
            try:
                running = {int(number): str(slot) for number, slot in workers.items()}
            except ValueError:
                return None
            return Report(found, sequence, tuple(map(str, held)), recovering, running, usable)
    return None


def write_report(paths: ExecPaths, report: Report) -> None:
    """Write report.json. Raises OSError; the old content then stays."""
    write_json(paths.report, asdict(report), durable=False)


def _read(path: Path) -> Any:
    try:
        return read_json(path)
    except OSError:
        return None


def open_nudges(path: Path) -> int:
    """Open the server's end of the FIFO; create the FIFO if it is missing. Raises OSError.

    The server opens the FIFO for writing, too, so that it never reads end of file when runners close their ends.
    """
    try:
        if not stat.S_ISFIFO(path.lstat().st_mode):
            path.unlink()
    except FileNotFoundError:
        pass
    try:
        os.mkfifo(path, 0o600)
    except FileExistsError:
        pass
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)


def nudge(path: Path) -> None:
    """Wake the server. Do nothing when there is no server or when the FIFO is full. No report is missed: the server
    empties the FIFO before it reads the reports."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.write(fd, b"!")
    except OSError:
        return
    finally:
        os.close(fd)
