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

from local_backend.boot import boot_id
from local_backend.runtime import environment, processes, temporary, user_python, view
from local_backend.runtime.data_list import is_own
from local_backend.runtime.health import Health
from local_backend.runtime.launch import (
    Launch,
    RunnerIdentity,
    note_reboot,
    read_attempt,
    read_identity,
    read_outcome,
    reboots,
    requeues,
    try_lock,
    write_attempt,
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

#: Seconds that `survivor` waits for a runner that is just starting.
_PATIENCE = 10.0
#: Errors of files that a program has removed or replaced. A runner cannot use such files, either.
_DAMAGED = frozenset({
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EPERM,
})


class LocalLauncher:
    """The `Launcher` of this machine."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._starter = Starter(settings.paths, settings.nursery_idle)
        slots = discover(settings.slots)
        self._leftovers = Leftovers()
        self._health = Health(slots, settings.health_every)
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
        """When the nursery is late or idle for too long (monotonic)."""
        return self._starter.due

    def on_ready(self, ready: Collection[int]) -> None:
        """Handle a message of the nursery."""
        if self._starter.fd in ready:
            self._starter.on_event()

    def tick(self) -> None:
        """End a late or idle nursery, and reap ended runners."""
        self._starter.tick()

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
            requeues=requeues(paths) + again, reboots=reboots(paths),
            view=view.of_job(settings, spec, order.slots, self._machine_view) if settings.isolates_jobs else None,
            whole_objects=settings.embedded or is_own(spec, settings.data_fs),
        ).write()
        write_attempt(paths, order.attempt)

    def start(self, order: RunOrder, *, warm: bool) -> LocalRun:
        """Start the runner of a prepared attempt; with `warm`, fork it from the nursery if possible. Raises OSError."""
        paths = self._paths(order)
        warm = warm and not environment.needs_own_interpreter(order.workload)
        server = self._starter.start(paths.spec, order.attempt, warm=warm)
        return LocalRun(paths, order.attempt, server=server)

    def adopt(self, paths: ExecPaths, attempt: int) -> LocalRun | Outcome | LostRun | None:
        """Connect to the runner of an attempt. If the runner is gone, return how the attempt ended; None if it never
        began. Raises OSError when this cannot be found out now."""
        found = survivor(paths, attempt)
        if isinstance(found, RunnerIdentity):
            return LocalRun(paths, attempt, process=found.process)
        return found

    def note_reboot(self, paths: ExecPaths) -> None:
        """Count a restart of the machine in job.json. Raises OSError."""
        note_reboot(paths)

    def sweep(self, paths: ExecPaths) -> int:
        """Kill all processes that an ended attempt has left, and remove its TMPDIR. Return the number of processes.
        Raises OSError while some of them live."""
        killed = self._leftovers.kill(paths)
        temporary.remove(paths)
        return killed

    def _paths(self, order: RunOrder) -> ExecPaths:
        return self._settings.paths.job(order.workload.id, order.workload.creator)


def survivor(paths: ExecPaths, attempt: int) -> RunnerIdentity | Outcome | LostRun | None:
    """Return the runner of an attempt if it lives, otherwise how the attempt ended. None: runner.json names no runner
    of the attempt. An attempt without a known runner is fenced off; its processes may live until they are swept.
    Raises OSError when the fate of the attempt cannot be found out now.

    Only the holder of runner.lock may start an attempt. A runner holds the lock from before its first process until
    after its last. While this function holds the lock, no process of the attempt can start. A program may damage the
    files, or hold the lock. Then the file `attempt` must suffice: a runner reads it again after it has its mark.
    """
    try:
        lock = _lock(paths, attempt)
        if isinstance(lock, RunnerIdentity):
            return lock
        try:
            return _without_runner(paths, attempt)
        finally:
            if lock is not None:
                os.close(lock)
    except OSError as problem:
        if problem.errno not in _DAMAGED:
            raise
        with suppress(OSError):
            write_attempt(paths, 0)
        return LostRun(f"cannot read the files of the exec: {problem}")


def _lock(paths: ExecPaths, attempt: int) -> int | RunnerIdentity | None:
    """Return a descriptor that holds runner.lock; or the runner that holds it. Return None if an unknown process holds
    it for long. Raises OSError."""
    deadline = time.monotonic() + _PATIENCE
    while (lock := try_lock(paths)) is None:
        runner = read_identity(paths)
        if runner is not None and runner.attempt == attempt:
            return runner
        if time.monotonic() > deadline:
            return None
        time.sleep(0.02)  # the runner is just starting
    return lock


def _without_runner(paths: ExecPaths, attempt: int) -> Outcome | LostRun | None:
    if read_attempt(paths) != 0:
        write_attempt(paths, 0)
    outcome = read_outcome(paths, attempt)
    if outcome is not None:
        return outcome
    runner = read_identity(paths)
    if runner is None or runner.attempt != attempt:
        return None
    return LostRun("the runner was killed", reboots(paths) + 1 if runner.boot_id != boot_id() else None)
