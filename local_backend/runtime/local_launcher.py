"""Runs jobs on this machine: its slots, runners that the server or its nursery starts, and the files of attempts.

docs/adoption.md describes the files and the fencing of attempts.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from local_backend.boot import boot_id
from local_backend.runtime import cgroup, environment, processes, temporary, tree, user_python, view
from local_backend.runtime.data_list import is_own
from local_backend.runtime.gpu_reports import GpuReports
from local_backend.runtime.health import Health
from local_backend.runtime.launch import (
    Launch,
    RunnerIdentity,
    make_accessible,
    read_attempt,
    read_identity,
    read_outcome,
    read_restarts,
    requeues,
    try_lock,
    write_attempt,
    write_record,
)
from local_backend.runtime.launcher import LostRun, Outcome, RunOrder
from local_backend.runtime.leftovers import Leftovers
from local_backend.runtime.local_run import LocalRun
from local_backend.runtime.loop import Loop
from local_backend.runtime.memory import of_machine
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.starter import Starter
from local_backend.runtime.user_python import UserPython
from local_backend.scheduler.model import Machine
from local_backend.scheduler.slots import discover
from local_backend.settings import Settings
from local_backend.store import execs

#: Seconds that `survivor` waits for a runner that is just starting.
_PATIENCE = 10.0
#: Errors of files that a program has removed or replaced. All other errors may be temporary.
_DAMAGED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO})
#: Numbers above the last one of the database of which processes are looked for.
_STRAY_NUMBERS = 10_000
#: Seconds in which a living runner repairs its files.
_REPAIR_PATIENCE = 20.0


class LocalLauncher:
    """The `Launcher` of this machine."""

    def __init__(self, settings: Settings, group: Path | None = None) -> None:
        """`group` is the control group that is delegated to this process."""
        self._settings = settings
        self._group = group
        self._starter = Starter(settings.paths, settings.nursery_idle, settings.isolates_jobs)
        slots = discover(settings.slots)
        self._leftovers = Leftovers()
        #: Exec with an unknown attempt → until when its runner may repair the files (monotonic).
        self._repairs: dict[str, float] = {}
        self._health = Health(slots, settings.health_every)
        self._gpus = GpuReports(slots)
        self._machine = Machine(slots, settings.memory or of_machine(), labels=settings.node_labels)

    @property
    def machine(self) -> Machine:
        """The slots, memory and labels of this machine, and the faulty GPUs."""
        drained = self._health.drained
        return replace(self._machine, drained=drained) if drained else self._machine

    @cached_property
    def _machine_view(self) -> tuple[view.Mount, ...]:
        return view.of_machine(self._settings)

    @property
    def status(self) -> dict[str, object]:
        """The state of the nursery, see `Starter.state`."""
        return {"nursery": self._starter.state}

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The loop that checks the GPUs."""
        return (self._health.loop,)

    def warm_up(self) -> None:
        """Write the commands of the server's Python for PATH of jobs, and start the nursery. Raises OSError."""
        user_python.write_scripts(self._settings.paths.scripts)
        user_python.write_modules(self._settings.paths.program_modules)
        if self._settings.isolates_jobs:
            _ = self._machine_view  # before the first job waits for it
        self._starter.warm_up()

    def watch_slots(self, held: Callable[[], Collection[str]], changed: Callable[[], None]) -> None:
        """Begin to check the GPUs."""
        self._health.start(held, changed)

    def close(self) -> None:
        """End the check of the GPUs and the nursery; runners keep running."""
        self._health.close()
        self._starter.close()

    # --- events

    @property
    def descriptors(self) -> list[int]:
        """The connection to the nursery."""
        return [] if self._starter.fd is None else [self._starter.fd]

    @property
    def due(self) -> float | None:
        """When the nursery is late or idle for too long, or when the GPUs are read (monotonic)."""
        return min((at for at in (self._starter.due, self._gpus.due) if at is not None), default=None)

    def on_ready(self, ready: Collection[int]) -> None:
        """Handle a message of the nursery."""
        if self._starter.fd in ready:
            self._starter.on_event()

    def tick(self) -> None:
        """End a late or idle nursery, and reap ended runners. Read the GPUs."""
        self._starter.tick()
        self._gpus.tick()

    # --- runs

    @contextmanager
    def claim(self, paths: ExecPaths) -> Iterator[bool]:
        """Hold the lock of an exec within the block. Yield False if a runner holds it. Raises OSError."""
        lock = try_lock(paths)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                os.close(lock)

    def prepare(self, order: RunOrder) -> None:
        """Write the files that the runner needs. The last write allows the attempt to run. Raises OSError or
        VaultError."""
        settings, spec = self._settings, order.workload
        paths = self._paths(order)
        home = settings.paths
        for folder in (home.users, home.user(spec.creator), home.user_home(spec.creator)):
            folder.mkdir(mode=0o700, exist_ok=True)
        if not settings.isolates_jobs:  # else the runner does this in the sandbox
            UserPython(home.user_python(spec.creator)).make()
        before = read_identity(paths)
        again = before is not None and before.attempt == order.attempt - 1
        Launch(
            spec=spec, attempt=order.attempt, home=settings.paths, slots=order.slots,
            machine_slots=self._machine.count(order.slots[0].kind),
            environment=environment.inherited(
                os.environ, of_server=spec.creator == settings.user and not settings.isolates_jobs),
            stop_grace=settings.stop_grace, leave_grace=settings.leave_grace, share=order.share,
            die_with=processes.identify(os.getpid()) if settings.die_with_server else None,
            requeues=requeues(paths) + again,
            control_group=None if self._group is None else str(self._group), processes=settings.job_processes,
            view=view.of_job(settings, spec, order.slots, self._machine_view) if settings.isolates_jobs else None,
            whole_objects=settings.embedded or is_own(spec, settings.data_fs), rest=order.rest,
        ).write()
        write_attempt(paths, order.attempt)

    def start(self, order: RunOrder, *, warm: bool) -> LocalRun:
        """Start the runner of a prepared attempt; with `warm`, fork it from the nursery if possible. Raises OSError."""
        paths = self._paths(order)
        warm = warm and not environment.needs_own_interpreter(order.workload)
        server = self._starter.start(paths.spec, order.attempt, warm=warm)
        return self._gpus.follow(LocalRun(paths, order.attempt, server=server))

    def adopt(self, paths: ExecPaths, attempt: int) -> LocalRun | Outcome | LostRun | None:
        """Connect to the runner of an attempt. If the runner is gone, return how the attempt ended; None if it never
        began. Raises OSError when this cannot be found out now."""
        until = self._repairs.setdefault(paths.exec_id, time.monotonic() + _REPAIR_PATIENCE)
        found = survivor(paths, attempt, patient=time.monotonic() < until)
        del self._repairs[paths.exec_id]
        if isinstance(found, RunnerIdentity):
            return self._gpus.follow(LocalRun(paths, attempt, process=found.process))
        return found

    def sweep_strays(self, kept: Collection[str], last: int) -> int:
        """Kill the processes of all execs up to the number `last` that are not `kept`. Raises OSError while some of
        them live."""
        home = self._settings.paths
        for exec_id, group in cgroup.jobs(self._group) if self._group is not None else ():
            if exec_id not in kept:
                group.kill()
                group.remove()
        found = tree.marks() - {processes.mark_of(home.job(exec_id, "").state) for exec_id in kept}
        if not found:
            return 0
        # A restored database may be older than the processes, so that their numbers are higher than its last one.
        ids = (execs.exec_id(number) for number in range(1, last + _STRAY_NUMBERS))
        return sum(self.sweep(paths) for exec_id in ids if exec_id not in kept
                   if processes.mark_of((paths := home.job(exec_id, "")).state) in found)

    def restarts(self, paths: ExecPaths, step: float) -> bool:
        """Return whether a lost exec may start again, and count the restart in restarts.json. Raises OSError."""
        found = read_restarts(paths)
        found.reach(step)
        if not found.again():
            return False
        paths.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_record(paths.restarts, found)
        return True

    def sweep(self, paths: ExecPaths) -> int:
        """Kill all processes that an ended attempt has left, and remove its TMPDIR. Return the number of processes.
        Raises OSError while some of them live."""
        group = cgroup.JobGroup(self._group, paths.exec_id) if self._group is not None else None
        if group is not None:
            group.kill()
        killed = self._leftovers.kill(paths)
        if group is not None:
            group.remove()
        temporary.remove(paths)
        return killed

    def _paths(self, order: RunOrder) -> ExecPaths:
        return self._settings.paths.job(order.workload.id, order.workload.creator)


def survivor(paths: ExecPaths, attempt: int, patient: bool = False) -> RunnerIdentity | Outcome | LostRun | None:
    """Return the runner of an attempt if it lives, otherwise how the attempt ended. None: runner.json names no runner
    of the attempt. An attempt without a known runner is fenced off; its processes may live until they are swept.
    Raises OSError when the fate of the attempt cannot be found out now.

    Only the holder of runner.lock may start an attempt. A runner holds the lock from before its first process until
    after its last. While this function holds the lock, no process of the attempt can start. A program may damage the
    files, or hold the lock. Then the file `attempt` must suffice: a runner reads it again after it has its mark. A
    runner repairs its files. With `patient`, wait for this by OSError while files are missing and a process lives.
    """
    for path in (paths.state, paths.lock):
        make_accessible(path)
    try:
        lock = _lock(paths, attempt)
        if isinstance(lock, RunnerIdentity):
            return lock
        try:
            return _without_runner(paths, attempt, patient)
        finally:
            if lock is not None:
                os.close(lock)
    except OSError as problem:
        if problem.errno not in _DAMAGED:
            raise
        if patient and tree.leftovers(processes.mark_of(paths.state), None):
            raise OSError(errno.EAGAIN, f"files are missing while processes live: {problem}") from problem
        with suppress(OSError):
            write_attempt(paths, 0)
        return LostRun(f"cannot read the files of the exec: {problem}")


def _lock(paths: ExecPaths, attempt: int) -> int | RunnerIdentity | None:
    """Return the runner of the attempt if it lives; else a descriptor that holds runner.lock. Return None if an unknown
    process holds it for long. Raises OSError."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        runner = read_identity(paths)
        if runner is not None and runner.attempt == attempt and tree.is_runner(runner, processes.mark_of(paths.state)):
            return runner
        lock = try_lock(paths)
        if lock is not None or time.monotonic() > deadline:
            return lock
        time.sleep(0.02)  # the runner is just starting, or is about to repair runner.json


def _without_runner(paths: ExecPaths, attempt: int, patient: bool) -> Outcome | LostRun | None:
    """Return how an attempt ended that has no living runner. Raises OSError."""
    outcome, runner = read_outcome(paths, attempt), read_identity(paths)
    known = runner is not None and runner.attempt == attempt
    if patient and outcome is None and not known and tree.leftovers(processes.mark_of(paths.state), None):
        raise OSError(errno.EAGAIN, "no file names the runner, but processes of the exec live")
    if read_attempt(paths) != 0:
        write_attempt(paths, 0)
    if outcome is not None:
        return outcome
    if runner is None or not known:
        return None
    if runner.boot_id != boot_id():
        return LostRun("the machine was restarted", rebooted=True)
    return LostRun("the runner was killed")
