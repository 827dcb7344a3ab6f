"""Control groups (cgroup v2) of jobs. They limit the processes and the memory of a job, and end all its processes.

Where a control group is delegated to the server, the server is in its child SERVER, and each attempt is in a child of
its own: `job-<execId>`, which limits processes, with a group for each task, which limits memory. A search algorithm has
such a group for each of its calls. See cgroups(7).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: Name of the server's own group in the delegated one.
SERVER = "server"
_JOB = "job-"
_CONTROLLERS = ("memory", "pids")
_PROCESSES, _CHILDREN = "cgroup.procs", "cgroup.subtree_control"
#: The group may use so much more than the limit of a worker, which the runner enforces with a better message: the group
#: also counts files in memory and memory of the kernel.
_MORE_BYTES = 64 * 2**20
#: Seconds that `end` waits for the ends of killed processes, and between its looks.
_PATIENCE, _EVERY = 2.0, 0.01


class NoGroupError(OSError):
    """No control group is delegated to this process. The text says why."""


def take(process: Path = Path("/proc/self")) -> Path:
    """Take over the control group that is delegated to this process, and return its folder. This process is then in
    the child SERVER. Raises NoGroupError."""
    own = _of_process(process)
    group = own.parent if own.name == SERVER else own
    try:
        found = _controllers(group)
        if not found:
            raise NoGroupError(f"{group} offers neither {' nor '.join(_CONTROLLERS)}")
        if own == group:
            _move(group)
        (group / _CHILDREN).write_text(" ".join(f"+{name}" for name in found))
    except NoGroupError:
        raise
    except OSError as problem:
        raise NoGroupError(f"{problem.filename or group}: {problem.strerror}") from None
    return group


def limits(process: Path) -> tuple[str, ...]:
    """Return what the groups of jobs limit, if this process is a server with a delegated group. Raises NoGroupError,
    OSError."""
    own = _of_process(process)
    enabled = (own.parent / _CHILDREN).read_text().split() if own.name == SERVER else ()
    return tuple(name for name in _CONTROLLERS if name in enabled)


def jobs(group: Path) -> Iterator[tuple[str, JobGroup]]:
    """Yield the execs with a control group, and the groups."""
    for folder in group.glob(f"{_JOB}*"):
        exec_id = folder.name.removeprefix(_JOB)
        yield exec_id, JobGroup(group, exec_id)


class JobGroup:
    """The control group of an attempt, with a group for each of its tasks."""

    def __init__(self, group: Path, exec_id: str) -> None:
        self._folder = group / f"{_JOB}{exec_id}"
        self._has_memory = False

    def make(self, processes: int) -> None:
        """Make the group, for at most so many processes and threads. Raises OSError."""
        found = _controllers(self._folder.parent)
        self._folder.mkdir(exist_ok=True)
        if "pids" in found:
            (self._folder / "pids.max").write_text(str(processes))
        if "memory" in found:
            (self._folder / _CHILDREN).write_text("+memory")
            self._has_memory = True

    def open(self, task: str, memory: int | None) -> int:
        """Make the group of a task, which `enter` needs; return a descriptor. `memory` is what the runner permits the
        task. Raises OSError."""
        folder = self._folder / task
        with suppress(OSError):
            folder.rmdir()  # the group of an earlier start, with its counts
        folder.mkdir(exist_ok=True)
        if memory is not None and self._has_memory:
            (folder / "memory.max").write_text(str(hard_limit(memory)))
        return os.open(folder / _PROCESSES, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def was_full(self, task: str) -> bool:
        """Return whether the system has killed a process of a task because the group was out of memory."""
        try:
            lines = (self._folder / task / "memory.events").read_text().splitlines()
        except OSError:
            return False
        return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in lines)

    def kill(self) -> None:
        """Kill all processes of the group at once, also those that it forks meanwhile."""
        # OSError: no such group, or a kernel before 5.14
        with suppress(OSError), (self._folder / "cgroup.kill").open("r+") as file:
            file.write("1")

    def end(self) -> None:
        """Kill all processes of the group, and remove the group. A process that the system cannot end soon keeps it."""
        until = time.monotonic() + _PATIENCE
        self.kill()
        self.remove()
        while self._folder.exists() and time.monotonic() < until:
            time.sleep(_EVERY)
            self.remove()

    def remove(self) -> None:
        """Remove the group, unless a process is left in it."""
        with suppress(OSError):
            for folder in [one for one in self._folder.iterdir() if one.is_dir()]:
                folder.rmdir()
            self._folder.rmdir()


def enter(descriptor: int) -> None:
    """Move this process into the group of a descriptor of `JobGroup.open`. Raises OSError."""
    os.write(descriptor, b"0")


def hard_limit(memory: int) -> int:
    """Return the bytes at which the system kills, for a worker that may use `memory`."""
    return memory + memory // 8 + _MORE_BYTES


def _of_process(process: Path) -> Path:
    """Return the folder of the control group of a process, a folder of /proc. Raises NoGroupError."""
    try:
        own = next((line[3:] for line in (process / "cgroup").read_text().splitlines() if line.startswith("0::")), None)
        mounts = (process / "mountinfo").read_text().splitlines()
    except OSError as problem:
        raise NoGroupError(f"{problem.filename}: {problem.strerror}") from None
    for words in map(str.split, mounts if own else ()):
        if words[words.index("-") + 1] != "cgroup2" or not Path(str(own)).is_relative_to(words[3]):
            continue
        folder = Path(words[4]) / Path(str(own)).relative_to(words[3])
        if ".." in folder.parts or not (folder / "cgroup.type").exists():
            raise NoGroupError("the server is in the root of all control groups, or outside of those that it sees")
        return folder
    raise NoGroupError("the system shows no control groups of version 2")


def _controllers(group: Path) -> list[str]:
    """Return the controllers of a group that can limit jobs. Raises OSError."""
    offered = (group / "cgroup.controllers").read_text().split()
    return [name for name in _CONTROLLERS if name in offered]


def _move(group: Path) -> None:
    """Move this process, the only one of a group, into the child SERVER: a group with processes can limit no children.
    Raises OSError."""
    if os.environ.get("SYSTEMD_EXEC_PID") == str(os.getpid()):
        raise NoGroupError(f"systemd started the server in {group} itself, and could not start it again there while "
                           f"jobs run; set DelegateSubgroup={SERVER}")
    if (group / _PROCESSES).read_text().split() != [str(os.getpid())]:
        raise NoGroupError(f"{group} has other processes, too")
    (group / SERVER).mkdir(exist_ok=True)
    (group / SERVER / _PROCESSES).write_text("0")
