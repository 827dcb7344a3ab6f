"""What became of an attempt while no server was looking (docs/adoption.md)."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from local_backend.runtime.launch import (
    Outcome,
    RunnerIdentity,
    read_attempt,
    read_identity,
    read_outcome,
    try_lock,
    write_attempt,
)
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.processes import boot_id

_PATIENCE = 10.0


@dataclass(frozen=True)
class Ended:
    """The runner wrote down how the attempt ended."""

    outcome: Outcome


@dataclass(frozen=True)
class Alive:
    """The runner lives and is to be watched."""

    runner: RunnerIdentity


@dataclass(frozen=True)
class Lost:
    """The attempt had begun, its runner is gone, and no end is recorded. It cannot come back: it is fenced off."""

    runner: RunnerIdentity | None
    rebooted: bool


@dataclass(frozen=True)
class NeverBegan:
    """No process was started for the attempt, and none will be: it is fenced off. Starting another is safe."""


Fate = Ended | Alive | Lost | NeverBegan


def examine(paths: ExecPaths, attempt: int) -> Fate:
    """The fate of an attempt. Raises OSError when its files cannot be used.

    Whoever holds runner.lock is the only one who may start or fence; a runner holds it from before its first process
    to after its last. So with the lock in hand, nothing of the attempt is about to happen.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        lock = try_lock(paths)
        if lock is not None:
            try:
                return _without_runner(paths, attempt)
            finally:
                os.close(lock)
        runner = read_identity(paths)
        if runner is not None and runner.attempt == attempt and read_outcome(paths, attempt) is None:
            return Alive(runner)
        if time.monotonic() > deadline:
            return Lost(runner, rebooted=False)
        time.sleep(0.02)  # it is just beginning, or just going


def _without_runner(paths: ExecPaths, attempt: int) -> Fate:
    outcome = read_outcome(paths, attempt)
    if outcome is not None:
        return Ended(outcome)
    if read_attempt(paths) != 0:
        write_attempt(paths, 0)
    runner = read_identity(paths)
    if runner is None or runner.attempt != attempt:
        return NeverBegan()
    return Lost(runner, rebooted=runner.boot_id != boot_id())
