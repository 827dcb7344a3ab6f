"""Ends processes: the process tree below a runner, and leftovers of a killed runner."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress

import psutil

from local_backend.boot import boot_id
from local_backend.own_process import LINUX
from local_backend.runtime.launch import RunnerIdentity
from local_backend.runtime.processes import MARK, PLACEHOLDERS, start_time


def descendants(pid: int, holders: Collection[int] = ()) -> list[psutil.Process]:
    """Return all living descendants of a process, without zombies, and without the `holders` of a sandbox."""
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [child for child in children if child.pid not in holders and start_time(child.pid) is not None]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time, in seconds, that a process, its descendants and their ended children used; 0.0 if the
    process is gone."""
    total = 0.0
    try:
        parent = psutil.Process(pid)
        everyone = [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return total
    for process in everyone:
        with suppress(psutil.Error):
            found = process.cpu_times()
            total += found.user + found.system + found.children_user + found.children_system
    return total


def is_stranger(pid: int) -> bool:
    """Return whether a living process is neither this process nor one of its descendants."""
    try:
        return os.getpid() not in {pid, *(parent.pid for parent in psutil.Process(pid).parents())}
    except (OSError, psutil.Error):
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


def signal_one(pid: int, number: int) -> None:
    """Send a signal to one process, if it exists."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def leftovers(mark: str, runner: RunnerIdentity | None) -> list[psutil.Process]:
    """Return the processes of an exec whose runner is gone, found by the mark in their environment and by the
    runner's session. Raises OSError when the system cannot list them."""
    session = _session(runner)
    found = []
    for pid in psutil.pids():
        if pid != os.getpid() and (_carries(pid, MARK, mark) or _is_in_session(pid, session)):
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
    return found


def marks() -> set[str]:
    """Return the marks of all living processes. Raises OSError when the system cannot list them."""
    return {found for pid in psutil.pids() if (found := _value(pid, MARK)) is not None and found != PLACEHOLDERS[MARK]}


def is_runner(runner: RunnerIdentity, mark: str) -> bool:
    """Return whether exactly the process that runner.json names lives, and is a process of the exec with this mark.
    Raises OSError when the system cannot tell."""
    if runner.boot_id != boot_id() or start_time(runner.pid) != runner.start_time:
        return False
    if not LINUX:
        return True
    try:
        with open(f"/proc/{runner.pid}/environ", "rb"):
            return _carries(runner.pid, MARK, mark)
    except PermissionError:
        return True  # the runner of a job in a sandbox hides its environment
    except (FileNotFoundError, ProcessLookupError):
        return False


def sweep(
    mark: str, runner: RunnerIdentity | None, killed: set[psutil.Process], patience: float = 10.0
) -> list[int]:
    """Kill all leftovers of an exec and add them to `killed`. Repeat this until no leftover is found and all `killed`
    have ended, or until `patience` seconds have passed. Return the pids of processes that still live. Raises OSError
    like `leftovers`."""
    deadline = time.monotonic() + patience
    while True:
        found = leftovers(mark, runner)
        kill(found)
        killed.update(found)
        left = [process.pid for process in killed if process.is_running() and start_time(process.pid) is not None]
        if not (found or left) or time.monotonic() > deadline:
            return left
        time.sleep(0.01)


def _session(runner: RunnerIdentity | None) -> int | None:
    """Return the session of a dead runner. While the session has members, the system does not reuse its number."""
    if runner is None or runner.boot_id != boot_id():
        return None
    leader = start_time(runner.pid)
    return runner.pid if leader is None or leader == runner.start_time else None


def _is_in_session(pid: int, session: int | None) -> bool:
    try:
        return session is not None and os.getsid(pid) == session and start_time(pid) is not None
    except (ProcessLookupError, PermissionError):
        return False


def strays(tasks: Collection[int], holders: Collection[int] = ()) -> list[psutil.Process]:
    """Return the living processes below this one that are neither `tasks` of this process nor below a task, nor the
    `holders` of a sandbox. If every task is the subreaper of its descendants, these are the processes that ended tasks
    have left."""
    found = []
    for child in psutil.Process().children():
        if child.pid not in tasks and start_time(child.pid) is not None:
            found += [child] * (child.pid not in holders) + descendants(child.pid, holders)
    return found


def _carries(pid: int, variable: str, value: str) -> bool:
    return _value(pid, variable) == value


def _value(pid: int, variable: str) -> str | None:
    """Return the value of a variable in the environment of a process; None if it has none, or is gone."""
    try:
        if LINUX:
            with open(f"/proc/{pid}/environ", "rb") as file:
                name = f"{variable}=".encode()
                found = next((text for text in file.read().split(b"\0") if text.startswith(name)), None)
                return None if found is None else os.fsdecode(found[len(name):])
        return psutil.Process(pid).environ().get(variable)
    except (FileNotFoundError, ProcessLookupError, PermissionError, psutil.Error):
        return None


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
