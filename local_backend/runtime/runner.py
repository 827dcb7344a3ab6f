"""The runner: one process per exec that starts its tasks, supervises them, and records how the exec ended.

The runner outlives the server and is single-threaded. It runs no user code and no tensor operation, so that workers
can be forked from it. It uses plain descriptors and poll(2): a forked child closes them by number.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from local_backend.boot import boot_id
from local_backend.own_process import RUNNER_SCORE, hide, may_be_killed
from local_backend.runtime import launcher_log, processes, temporary
from local_backend.runtime.cgroup import JobGroup
from local_backend.runtime.claim import RunnerClaim
from local_backend.runtime.job import Attempt
from local_backend.runtime.launch import (
    Launch,
    RunnerIdentity,
    proves_server,
    read_attempt,
    read_identity,
    try_lock,
    write_record,
)
from local_backend.runtime.launcher import Held, Outcome
from local_backend.runtime.messages import Begun, Exited
from local_backend.runtime.overlay import show_title
from local_backend.runtime.program import follow
from local_backend.runtime.sandbox import Sandbox
from local_backend.runtime.server_link import ServerLink, refuse
from local_backend.runtime.tasks import Planner, close_all_but
from local_backend.runtime.view import TEMPORARY
from local_backend.scheduler.slots import usable_cores

_LOCK_PATIENCE = 10.0
_RETRY_WRITING = 1.0


def run(spec_path: Path, attempt: int, server: int, base_path: Sequence[str], *, warm: bool) -> NoReturn:
    """Run one attempt to its end, then exit the process. Do nothing if the attempt may not run, or no longer may.

    `server` is the connection to the server. The first message is Begun, or Refused. The runner sends nothing when it
    was fenced off. With `warm`, tasks are forked from this process.
    """
    _attempt(spec_path, attempt, server, base_path, warm=warm)
    os._exit(0)  # nothing is left to clean up, and a normal exit of an interpreter with torch takes 0.5 s


def _attempt(spec_path: Path, attempt: int, server: int, base_path: Sequence[str], *, warm: bool) -> None:
    try:
        os.setsid()
    except PermissionError:
        pass  # already the leader of a session
    gc.enable()
    hide(False)
    may_be_killed(RUNNER_SCORE)
    signals = _signal_pipe()
    processes.become_subreaper()
    try:
        launch = Launch.read(spec_path)
        lock = _enter(launch, attempt)
        if lock is None:
            return
        me = processes.identify(os.getpid())
        claim = RunnerClaim(launch.paths, lock, RunnerIdentity(me.pid, me.start_time, boot_id(), attempt))
        link = ServerLink(server, launch.paths.socket, partial(proves_server, launch.proof), claim.mend)
    except (OSError, ValueError, KeyError, TypeError) as problem:
        refuse(server, f"the runner cannot start: {problem}")
        return
    show_title(f"dlicmd {launch.spec.id} runner")
    if launch.view is not None:
        hide()  # only now: until runner.json names it, the server finds this process by its environment
    link.say(Begun(me))
    slots = tuple(slot.id for slot in launch.slots)
    link.say(Held(0, slots, slots, rest=launch.rest))
    outcome = _run(launch, signals, link, base_path, warm=warm)
    if _write_outcome(launch, outcome):
        link.say(Exited(outcome))
    link.close()
    claim.release()


def _enter(launch: Launch, attempt: int) -> int | None:
    """Return a descriptor that holds the lock; None when another runner or a newer attempt owns this exec. Raises
    OSError."""
    paths = launch.paths
    deadline = time.monotonic() + _LOCK_PATIENCE
    while (lock := try_lock(paths)) is None:
        # A fenced runner or a server that is just checking holds the lock for a moment; only a live runner holds it
        # for long.
        if time.monotonic() > deadline:
            return None
        time.sleep(0.02)
    before = read_identity(paths)
    if launch.attempt == attempt and not (before and before.attempt >= attempt) and read_attempt(paths) == attempt:
        processes.stamp(processes.MARK, processes.mark_of(paths.state))
        # A server that could not get the lock writes `attempt` first, and then kills all processes with the mark.
        if read_attempt(paths) == attempt:
            return lock
    os.close(lock)
    return None


def _run(launch: Launch, signals: int, link: ServerLink, base_path: Sequence[str], *, warm: bool) -> Outcome:
    """Run the job from its first process until its last process is dead. An exception in here becomes an outcome,
    too."""
    group = _group(launch)
    attempt = Attempt(launch, signals, link, group)
    try:
        folder = temporary.make(launch.paths)
        planner = Planner(
            launch, warm=warm, master_port=_free_port(), cores=usable_cores(),
            temporary=folder if launch.view is None else Path(TEMPORARY), base_path=base_path,
        )
        outcome = attempt.run(planner, _sandbox(launch, folder))
    except Exception as problem:  # a fault of the runner must not leave the exec without an end
        launcher_log.note(launch.paths.launcher_log, "runner", traceback.format_exc(), "ERROR")
        attempt.clear()
        outcome = attempt.outcome_of_fault(problem)
    temporary.remove(launch.paths)
    if group is not None:
        group.remove()
    return outcome


def _group(launch: Launch) -> JobGroup | None:
    """Make the control group of the job; return None where none is delegated. A job without one runs, too."""
    if launch.control_group is None:
        return None
    group = JobGroup(Path(launch.control_group), launch.spec.id)
    try:
        group.make(launch.processes)
    except OSError as problem:
        launcher_log.note(launch.paths.launcher_log, "runner", f"no control group limits the job: {problem}")
        group.remove()
        return None
    return group


def _sandbox(launch: Launch, folder: Path) -> Sandbox | None:
    """Return the sandbox of the job, which this process leads; None for a job without a view. Raises OSError."""
    if launch.view is None:
        return None
    held = {name: value for name, value in launch.environment.items() if name == "PATH"}
    sandbox = Sandbox.start(launch.view, folder, held | {processes.MARK: processes.mark_of(launch.paths.state)})
    sandbox.lead(launch.spec.creator)
    return sandbox


def _write_outcome(launch: Launch, outcome: Outcome) -> bool:
    """Write exit.json. Return False if the folder of the exec, and the one above it, are gone.

    If the disk is full, retry until there is space: the exec is over only when its end is recorded.
    """
    told = False
    while True:
        try:
            write_record(launch.paths.exit, outcome)
            return True
        except OSError as problem:
            if not _is_there(launch.paths.state):
                return False
            if not told:
                print(f"{launch.spec.id}: cannot record the outcome, trying again: {problem}", file=sys.stderr)
            told = True
            time.sleep(_RETRY_WRITING)


def _is_there(folder: Path) -> bool:
    """Return whether a folder exists; make it again if it was removed from a folder that exists."""
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder.is_dir()


def _signal_pipe() -> int:
    """Route SIGCHLD and SIGTERM as bytes into a pipe; return its read end."""
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    return reader


def _free_port() -> int:
    """Return a TCP port of the loopback interface on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Entry point of a runner with its own interpreter, with the arguments JOB.JSON ATTEMPT SERVER_FD."""
    follow(_serve)


def _serve() -> None:
    spec_path, attempt, server = sys.argv[1:4]
    close_all_but(int(server))
    run(Path(spec_path), int(attempt), int(server), (), warm=False)

