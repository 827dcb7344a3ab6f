"""Ends processes: the process tree below a runner, and leftovers of a killed runner."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import psutil

from local_backend.boot import boot_id
from local_backend.runtime.launch import RunnerIdentity
from local_backend.runtime.processes import LINUX, MARK, WORKER_MARK, start_time, worker_mark


def descendants(pid: int) -> list[psutil.Process]:
    """Return all living descendants of a process, without zombies."""
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [child for child in children if start_time(child.pid) is not None]


def is_stranger(pid: int) -> bool:
    """Return whether a living process is neither this process nor one of its descendants."""
    try:
        return os.getpid() not in {pid, *(parent.pid for parent in psutil.Process(pid).parents())}
    except psutil.Error:
        return False


def kill(processes: list[psutil.Process]) -> None:
    """Send SIGKILL to each process."""
    for process in processes:
        try:
            process.kill()
        except psutil.Error:
            continue  # gone, or no longer ours to kill (a set-user-id program)


def signal_group(group: int, number: int) -> None:
    """Send a signal to a process group, if it exists."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def leftovers(mark: str, runner: RunnerIdentity | None) -> list[psutil.Process]:
    """Return the processes of an exec whose runner is gone, found by the mark in their environment and by the
    runner's session."""
    session = _session(runner)
    found = []
    for process in psutil.process_iter():
        related = _carries(process, MARK, mark) or (session and _session_of(process) == session)
        if related and process.pid != os.getpid():
            found.append(process)
    return found


def sweep(mark: str, runner: RunnerIdentity | None, patience: float = 10.0) -> int:
    """Kill all leftovers of an exec, repeatedly until none is found or `patience` seconds have passed. Return the
    number killed."""
    killed: set[int] = set()
    deadline = time.monotonic() + patience
    while (found := leftovers(mark, runner)) and time.monotonic() < deadline:
        kill(found)
        killed.update(process.pid for process in found)
        time.sleep(0.01)
    return len(killed)


def _session(runner: RunnerIdentity | None) -> int | None:
    """Return the session of a dead runner. While the session has members, the system does not reuse its number."""
    if runner is None or runner.boot_id != boot_id():
        return None
    leader = start_time(runner.pid)
    return runner.pid if leader is None or leader == runner.start_time else None


def _session_of(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid) if start_time(process.pid) is not None else None
    except OSError:
        return None


def of_worker(number: int, group: int) -> list[psutil.Process]:
    """Return the processes that worker `number` of this runner left, found by the mark in their environment and by
    their process group."""
    mark = worker_mark(number)
    return [
        process for process in descendants(os.getpid())
        if _group_of(process) == group or _carries(process, WORKER_MARK, mark)
    ]


def _group_of(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except OSError:
        return None


def _carries(process: psutil.Process, variable: str, value: str) -> bool:
    if start_time(process.pid) is None:
        return False
    try:
        if LINUX:
            with open(f"/proc/{process.pid}/environ", "rb") as file:
                return f"{variable}={value}".encode() in file.read().split(b"\0")
        return process.environ().get(variable) == value
    except (OSError, psutil.Error):
        return False


def group_and_tree(pid: int) -> Iterator[psutil.Process]:
    """Yield a task's own process, its descendants, and members of its process group whose parent has died."""
    seen = {pid}
    try:
        yield psutil.Process(pid)
    except psutil.NoSuchProcess:
        return
    for process in descendants(pid):
        seen.add(process.pid)
        yield process
    for process in psutil.Process().children(recursive=True):
        try:
            if process.pid not in seen and os.getpgid(process.pid) == pid:
                yield process
        except OSError:
            continue


def terminate_group(group: int) -> None:
    """Send SIGTERM to a process group, then SIGCONT so that a stopped process receives it."""
    signal_group(group, signal.SIGTERM)
    signal_group(group, signal.SIGCONT)
