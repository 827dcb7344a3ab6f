"""The slots of a running elastic job: what the server gives it, and what its runner still holds (docs/adoption.md).

The server writes allocation.json and signals the runner (SIGUSR1); the runner writes report.json and wakes the server
through a FIFO. Each file has one writer and is replaced whole. Neither needs to survive the machine: nor does the job.
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
    """What a job may use from now on."""

    attempt: int
    #: Grows with every change; 0 is what the attempt began with.
    sequence: int
    slots: tuple[Slot, ...]


@dataclass(frozen=True)
class Report:
    """What a runner says about itself."""

    attempt: int
    #: Of the allocation that it acts on.
    sequence: int
    #: Ids of the slots in that allocation, and of those on which something of a worker still lives.
    held: tuple[str, ...]
    #: The driver died and is started again, or says that it recovers.
    recovering: bool = False
    #: Slots of the workers that run, by their number.
    workers: Mapping[int, str] = field(default_factory=dict)
    #: Workers that the driver can make use of, None while it has not said so.
    usable: int | None = None


def first_report(launch: Launch) -> Report:
    """The report of a runner that has started nothing yet."""
    return Report(launch.attempt, 0, tuple(slot.id for slot in launch.slots))


def read_allocation(paths: ExecPaths, attempt: int) -> Allocation | None:
    """allocation.json of this attempt, None when there is no usable one."""
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
    """Raises OSError; what was there stays then. A folder that the job has put there is no reason to keep its slots."""
    if paths.allocation.is_dir() and not paths.allocation.is_symlink():
        shutil.rmtree(paths.allocation, ignore_errors=True)
    write_json(paths.allocation, asdict(allocation), durable=False)


def read_report(paths: ExecPaths, attempt: int) -> Report | None:
    """report.json of this attempt, None when there is no usable one."""
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
    """Raises OSError; what was there stays then."""
    write_json(paths.report, asdict(report), durable=False)


def _read(path: Path) -> Any:
    try:
        return read_json(path)
    except OSError:
        return None


def open_nudges(path: Path) -> int:
    """The server's end of the FIFO, made where there is none. Raises OSError.

    Opened for writing as well: it is never at its end, whoever comes and goes.
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
    """Wake the server. Nothing happens when there is none, or when it has been woken often enough: it reads the reports
    after it has emptied the FIFO."""
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
