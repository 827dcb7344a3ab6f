"""The claim of a runner to its exec: runner.lock, runner.json and job.json, made again when they are damaged."""

from __future__ import annotations

import os
from contextlib import suppress

from local_backend.files import write_atomic
from local_backend.runtime.launch import (
    RunnerIdentity,
    make_accessible,
    read_attempt,
    read_identity,
    server_proof,
    try_lock,
    write_record,
)
from local_backend.runtime.paths import ExecPaths


class RunnerClaim:
    """Holds the lock of an exec until `release`. A program, or a fault of a disk, may remove or replace the files of a
    living runner: then the next server would not find it."""

    def __init__(self, paths: ExecPaths, lock: int, me: RunnerIdentity) -> None:
        """Write runner.json. `lock` is a descriptor that holds the lock. Raises OSError."""
        self._paths = paths
        self._lock = lock
        self._me = me
        #: The content of job.json, in which the next server finds its proof.
        self._spec = paths.spec.read_bytes()
        self._proof = server_proof(paths)
        write_record(paths.runner, me)

    def mend(self) -> None:
        """Make damaged files again, unless the attempt was fenced off. Call while no server is connected."""
        with suppress(OSError):  # the disk is full, or not there now
            make_accessible(self._paths.state)
            self._paths.state.mkdir(mode=0o700, exist_ok=True)
            if not self._is_fenced():
                self._mend_lock()
                if server_proof(self._paths) != self._proof:
                    write_atomic(self._paths.spec, self._spec)
                if read_identity(self._paths) != self._me:
                    write_record(self._paths.runner, self._me)

    def release(self) -> None:
        """Release the lock."""
        os.close(self._lock)

    def _is_fenced(self) -> bool:
        return self._paths.attempt.is_file() and read_attempt(self._paths) != self._me.attempt

    def _mend_lock(self) -> None:
        """Hold the lock file that a server finds. Raises OSError."""
        if self._paths.lock.exists() and os.path.samestat(os.fstat(self._lock), os.lstat(self._paths.lock)):
            return
        if self._paths.lock.is_symlink():
            self._paths.lock.unlink()
        other = try_lock(self._paths)  # a server that is just checking may hold it for a moment
        if other is not None:
            self._lock, before = other, self._lock
            os.close(before)
