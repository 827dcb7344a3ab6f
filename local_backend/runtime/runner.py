"""The runner: one process per exec that starts its tasks, supervises them, and records how the exec ended.

The runner outlives the server and is single-threaded. It runs no user code and no tensor operation, so that workers
can be forked from it. It uses plain descriptors and poll(2): a forked child closes them by number.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from local_backend.boot import boot_id
from local_backend.runtime import launcher_log, processes
from local_backend.runtime.allocation import first_report, write_report
from local_backend.runtime.job import Job
from local_backend.runtime.launch import (
    Launch,
    Outcome,
    RunnerIdentity,
    read_attempt,
    read_identity,
    try_lock,
    write_record,
)
from local_backend.runtime.program import follow
from local_backend.runtime.tasks import Planner, close_all_but
from local_backend.scheduler.slots import usable_cores
from local_backend.vault import VaultError

_LOCK_PATIENCE = 10.0
_RETRY_WRITING = 1.0


def run(spec_path: Path, attempt: int, ready: int, base_path: Sequence[str], *, warm: bool) -> NoReturn:
    """Run one attempt to its end, then exit the process. Do nothing if the attempt may not run, or no longer may.

    `ready` is a pipe to the supervisor. The runner writes one JSON line to it: `pid` and `start_time` when the
    attempt has begun, or `error`. It writes nothing when it was fenced off. With `warm`, tasks are forked from this
    process.
    """
    _attempt(spec_path, attempt, ready, base_path, warm=warm)
    os._exit(0)  # nothing is left to clean up, and a normal exit of an interpreter with torch takes 0.5 s


def _attempt(spec_path: Path, attempt: int, ready: int, base_path: Sequence[str], *, warm: bool) -> None:
    try:
        os.setsid()
    except PermissionError:
        pass  # already the leader of a session
    gc.enable()
    signals = _signal_pipe()
    processes.become_subreaper()
    try:
        launch = Launch.read(spec_path)
        lock = _enter(launch, attempt)
    except (OSError, ValueError, KeyError, TypeError, VaultError) as problem:
        _tell(ready, {"error": f"the runner cannot start: {problem}"})
        return
    if lock is None:
        return
    processes.set_name(f"dli-{launch.spec.id}")
    me = processes.identify(os.getpid())
    _tell(ready, {"pid": me.pid, "start_time": me.start_time})
    os.close(ready)
    _write_outcome(launch, _run(launch, signals, base_path, warm=warm))
    os.close(lock)


def _enter(launch: Launch, attempt: int) -> int | None:
    """Take the lock and write runner.json. Return None when another runner or a newer attempt owns this exec.

    Raises OSError when the files cannot be written.
    """
    paths = launch.paths
    deadline = time.monotonic() + _LOCK_PATIENCE
    while (lock := try_lock(paths)) is None:
        # A fenced runner or a server that is just checking holds the lock for a moment; only a live runner holds it
        # for long.
        if time.monotonic() > deadline:
            return None
        time.sleep(0.02)
    before = read_identity(paths)
    if read_attempt(paths) != attempt or launch.attempt != attempt or (before and before.attempt >= attempt):
        os.close(lock)
        return None
    processes.stamp(processes.MARK, processes.mark_of(paths.state))
    me = processes.identify(os.getpid())
    if launch.spec.resources.elastic:
        write_report(paths, first_report(launch))
    write_record(paths.runner, RunnerIdentity(me.pid, me.start_time, boot_id(), attempt))
    paths.progress.unlink(missing_ok=True)
    return lock


def _run(launch: Launch, signals: int, base_path: Sequence[str], *, warm: bool) -> Outcome:
    """Run the job from its first process until its last process is dead. An exception in here becomes an outcome,
    too."""
    job = Job(launch, signals)
    try:
        planner = Planner(launch, warm=warm, master_port=_free_port(), cores=usable_cores(), base_path=base_path)
        return job.run(planner)
    except Exception as problem:  # a fault of the runner must not leave the exec without an end
        launcher_log.note(launch.paths.launcher_log, "runner", traceback.format_exc(), "ERROR")
        job.clear()
        return job.outcome_of_fault(problem)


def _write_outcome(launch: Launch, outcome: Outcome) -> None:
    """Write exit.json. If the disk is full, retry until there is space: the exec is over only when its end is
    recorded. If the folder of the exec is gone, give up: the supervisor then reports the end."""
    told = False
    while True:
        try:
            return write_record(launch.paths.exit, outcome)
        except OSError as problem:
            if not launch.paths.state.is_dir():
                return None
            if not told:
                print(f"{launch.spec.id}: cannot record the outcome, trying again: {problem}", file=sys.stderr)
            told = True
            time.sleep(_RETRY_WRITING)


def _tell(ready: int, message: dict[str, object]) -> None:
    try:
        os.write(ready, json.dumps(message).encode() + b"\n")
    except OSError:
        pass  # the server is gone; the next one finds this runner by runner.json


def _signal_pipe() -> int:
    """Route SIGCHLD, SIGTERM and SIGUSR1 as bytes into a pipe; return its read end."""
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1):
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
    """Entry point of a runner with its own interpreter: `python -m local_backend.runtime.runner JOB.JSON ATTEMPT
    READY_FD`."""
    spec_path, attempt, ready = sys.argv[1:4]
    close_all_but(int(ready))
    run(Path(spec_path), int(attempt), int(ready), (), warm=False)


if __name__ == "__main__":
    follow(main)
