"""Control groups of jobs: how a server takes over one that is delegated to it, and what they do to jobs.

Folders imitate the files of a control group where a test needs controllers that the machine may not offer. Tests with
groups of the system need root and a file system of cgroup version 2.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import isolation
import psutil
import pytest
from runtime_support import Bench, bench, gone, runner_of
from support import eventually

from dlicmd.contract import wire
from dlicmd.contract.states import ERROR, FINISHED, KILLED
from local_backend.runtime import cgroup
from local_backend.runtime.local_launcher import LocalLauncher

pytestmark = pytest.mark.integration

MIB = 2**20
SLEEP = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"
#: Starts a process in a session of its own, ignores SIGTERM, and waits.
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
else:
    os.wait()
    print("begun", flush=True)
time.sleep(600)
"""
#: Forks at most 300 processes, and prints how many were made and why no more.
BOMB = """
import errno, os, signal, time
made, why = [], "no error"
while len(made) < 300:
    try:
        pid = os.fork()
    except OSError as problem:
        why = errno.errorcode[problem.errno]
        break
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    made.append(pid)
for pid in made:
    os.kill(pid, signal.SIGKILL)
print(len(made) < 64, why)
"""


@contextmanager
def groups(home: Path, group: Path, **changes: Any) -> Iterator[Bench]:
    """A backend whose jobs are in control groups below `group`."""
    with bench(home, partial(LocalLauncher, group=group), **changes) as one:
        yield one


def begun(one: Bench, program: str, **more: Any) -> str:
    job = one.submit(program, **more)
    eventually(lambda: "begun" in one.output(job), f"{job} has begun")
    return job


class Imitation:
    """A process in a control group, as the files of the system show it."""

    def __init__(self, folder: Path) -> None:
        self.process, self.group = folder / "proc", folder / "cgroup" / "unit"
        self.process.mkdir(parents=True)
        self.write("cgroup.type", "domain\n")
        self.write("cgroup.controllers", "cpu memory pids\n")
        self.write("cgroup.procs", f"{os.getpid()}\n")
        (self.process / "mountinfo").write_text(
            "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
            f"41 31 0:38 /slice {self.group.parent} rw,relatime shared:9 - cgroup2 cgroup2 rw\n")
        self.enter("unit")

    def enter(self, name: str) -> None:
        (self.process / "cgroup").write_text(f"4:memory:/other\n0::/slice/{name}\n")

    def write(self, name: str, text: str) -> None:
        (self.group / name).parent.mkdir(parents=True, exist_ok=True)
        (self.group / name).write_text(text)

    def read(self, name: str) -> str:
        return (self.group / name).read_text().strip()


@pytest.fixture
def imitation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Imitation:
    monkeypatch.delenv("SYSTEMD_EXEC_PID", raising=False)
    return Imitation(tmp_path)


@pytest.fixture
def real() -> Iterator[Path]:
    with isolation.control_group() as folder:
        yield folder


# --- the server


def test_a_server_moves_into_a_child_of_its_delegated_group(imitation: Imitation) -> None:
    assert cgroup.take(imitation.process) == imitation.group
    assert imitation.read("server/cgroup.procs") == "0"
    assert imitation.read("cgroup.subtree_control") == "+memory +pids"


def test_a_server_that_systemd_started_in_the_child_stays_there(
    imitation: Imitation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYSTEMD_EXEC_PID", str(os.getpid()))
    imitation.write("server/cgroup.type", "domain\n")
    imitation.write("cgroup.controllers", "pids\n")
    imitation.enter("unit/server")
    assert cgroup.take(imitation.process) == imitation.group
    assert not (imitation.group / "server" / "cgroup.procs").exists()
    assert imitation.read("cgroup.subtree_control") == "+pids"
    imitation.write("cgroup.subtree_control", "pids\n")
    assert cgroup.limits(imitation.process) == ("pids",)


def test_a_group_that_is_not_delegated_stays_as_it_is(imitation: Imitation, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        with pytest.raises(cgroup.NoGroupError):
            cgroup.take(imitation.process)
        assert not (imitation.group / "server").exists()
        assert not (imitation.group / "cgroup.subtree_control").exists()

    imitation.write("cgroup.procs", f"1\n{os.getpid()}\n")
    refused()
    imitation.write("cgroup.procs", f"{os.getpid()}\n")
    imitation.write("cgroup.controllers", "cpu\n")
    refused()
    imitation.write("cgroup.controllers", "pids\n")
    with monkeypatch.context() as systemd:
        systemd.setenv("SYSTEMD_EXEC_PID", str(os.getpid()))
        refused()
    for place in ("../other", "gone"):
        imitation.enter(place)
        refused()
    imitation.enter("unit")
    (imitation.group / "cgroup.type").unlink()  # the root of all groups has no type
    refused()
    (imitation.process / "mountinfo").write_text("31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n")
    refused()


def test_a_starting_server_removes_the_groups_of_jobs_that_are_over(imitation: Imitation, tmp_path: Path) -> None:
    left = imitation.group / "job-local-900" / "task0"
    left.mkdir(parents=True)
    with groups(tmp_path / "home", imitation.group):
        eventually(lambda: not left.parent.exists(), "the group is removed")


# --- jobs


def test_a_job_gets_its_limits_and_ends_when_its_group_is_full(imitation: Imitation, tmp_path: Path) -> None:
    with groups(tmp_path / "home", imitation.group, job_processes=77) as one:
        job = begun(one, SLEEP, memory=2**30)
        name = f"job-{job}"
        assert imitation.read(f"{name}/pids.max") == "77"
        assert imitation.read(f"{name}/cgroup.subtree_control") == "+memory"
        assert imitation.read(f"{name}/task12n-1/cgroup.procs") == "0"
        assert 2**30 < int(imitation.read(f"{name}/task12n-1/memory.max")) < 2**30 + 200 * MIB
        # A system kills one process of the group. The runner ends the others.
        imitation.write(f"{name}/task12n-1/memory.events", "low 0\noom 1\noom_kill 1\noom_group_kill 0\n")
        row = one.wait(job)
    assert (row.state, row.reason) == (ERROR, wire.OUT_OF_MEMORY)
    assert row.message is not None and "--workerMemory" in row.message


def test_a_program_that_the_system_kills_in_a_full_group_is_out_of_memory(
    imitation: Imitation, tmp_path: Path
) -> None:
    with groups(tmp_path / "home", imitation.group) as one:
        job = begun(one, SLEEP, memory=2**30)
        runner = psutil.Process(runner_of(one, job))
        [program] = runner.children()
        runner.suspend()  # it first sees the end of the program
        imitation.write(f"job-{job}/task12n-1/memory.events", "oom_kill 1\n")
        program.kill()
        runner.resume()
        row = one.wait(job)
        other = one.submit("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", memory=2**30)
        killed = one.wait(other)
    assert (row.state, row.reason) == (ERROR, wire.OUT_OF_MEMORY)
    assert (killed.state, killed.reason) == (ERROR, wire.PROGRAM_FAILED)


def test_a_job_without_a_usable_group_runs(tmp_path: Path) -> None:
    with groups(tmp_path / "home", tmp_path / "missing") as one:
        assert one.wait(one.submit("print(1)\n")).state == FINISHED


@pytest.mark.parametrize("embedded", [True, False], ids=["plain", "sandbox"])
def test_all_processes_of_a_job_are_in_its_group_and_end_with_it(real: Path, tmp_path: Path, embedded: bool) -> None:
    if not embedded:
        isolation.needed()
    with groups(tmp_path / "home", real, embedded=embedded) as one:
        job = begun(one, STUBBORN)
        group = real / f"job-{job}"
        inside = [int(pid) for pid in (group / "task12n-1" / "cgroup.procs").read_text().split()]
        assert len(inside) == 2 and os.getpid() not in inside
        one.stop(job)
        assert one.wait(job).state == KILLED
        eventually(lambda: not group.exists(), "the group is removed")
        assert all(gone(pid) for pid in inside)


def test_a_job_whose_runner_was_killed_leaves_no_process_and_no_group(real: Path, tmp_path: Path) -> None:
    with groups(tmp_path / "home", real) as one:
        job = begun(one, STUBBORN)
        group = real / f"job-{job}"
        inside = [int(pid) for pid in (group / "task12n-1" / "cgroup.procs").read_text().split()]
        os.kill(runner_of(one, job), signal.SIGKILL)
        eventually(lambda: all(gone(pid) for pid in inside), "the processes end")
        one.stop(job)
        one.wait(job)
        eventually(lambda: not group.exists(), "the group is removed")


def offering(group: Path, controller: str) -> None:
    """Let the children of a group have its controllers, as `take` does. Skip the test unless the system offers one
    controller for groups of version 2."""
    offered = (group / "cgroup.controllers").read_text().split()
    if controller not in offered:
        pytest.skip(f"the controller {controller} is not available for control groups of version 2")
    enabled = " ".join(f"+{name}" for name in ("memory", "pids") if name in offered)
    (group / "cgroup.subtree_control").write_text(enabled)


def inside(group: cgroup.JobGroup, program: str, memory: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program in a task of a group."""
    descriptor = group.open("task0", memory)
    words = [sys.executable, "-c", f"import os\nos.write({descriptor}, b'0')\n{program}"]
    try:
        return subprocess.run(words, pass_fds=[descriptor], capture_output=True, text=True, check=False)
    finally:
        os.close(descriptor)


def test_the_system_kills_a_program_beyond_the_memory_of_its_task(real: Path) -> None:
    offering(real, "memory")
    group = cgroup.JobGroup(real, "a")
    group.make(10)
    fits = inside(group, "print(len(bytearray(1 << 20)))", 64 * MIB)
    assert fits.stdout == "1048576\n" and not group.was_full("task0")
    full = inside(group, "print('begun', flush=True)\nbytearray(b'x') * (256 << 20)", 64 * MIB)
    assert (full.returncode, full.stdout) == (-signal.SIGKILL, "begun\n") and group.was_full("task0")
    group.remove()
    assert not (real / "job-a").exists()


def test_the_system_forks_no_more_than_the_processes_of_a_job(real: Path) -> None:
    offering(real, "pids")
    group = cgroup.JobGroup(real, "a")
    group.make(64)
    assert inside(group, BOMB).stdout.split() == ["True", "EAGAIN"]
    group.remove()
    assert not (real / "job-a").exists()


@pytest.mark.parametrize("embedded", [True, False], ids=["plain", "sandbox"])
def test_a_fork_bomb_fails_in_its_job_only(real: Path, tmp_path: Path, embedded: bool) -> None:
    offering(real, "pids")
    if not embedded:
        isolation.needed()
    with groups(tmp_path / "home", real, embedded=embedded, job_processes=64) as one:
        job = one.submit(BOMB)
        assert one.wait(job).state == FINISHED
        assert one.output(job).split() == ["True", "EAGAIN"]
        assert one.wait(one.submit("print(1)\n")).state == FINISHED
