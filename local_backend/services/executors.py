"""Executors of an exec: the numbers of its present and former workers."""

from __future__ import annotations

import os

from dlicmd.contract import states
from local_backend.runtime.active import LiveValues
from local_backend.runtime.paths import ExecPaths, worker_task
from local_backend.runtime.workers import started
from local_backend.store.execs import ExecRow

#: Maximum number of listed executors; the newest are listed. Workers of an elastic exec come and go, and no two ever
#: have the same number.
MOST_LISTED = 100


def executors(row: ExecRow, paths: ExecPaths) -> list[int]:
    """Return the numbers of the listed executors, lowest first: the last MOST_LISTED that were started for an elastic
    exec, all `processes` for another exec."""
    return started(paths)[-MOST_LISTED:] if row.elastic else list(processes(row))


def processes(row: ExecRow) -> range:
    """Return the numbers of the processes of an exec that is not elastic: all that it was submitted with. Before it
    has held slots, return only the first MOST_LISTED: a submission may ask for 10**9 processes, and a listing must
    stay cheap."""
    return range(1, (row.num_worker if row.attempt else min(row.num_worker, MOST_LISTED)) + 1)


def exists(row: ExecRow, paths: ExecPaths, number: int) -> bool:
    """Return whether an executor with this number exists or has existed, listed or not."""
    if not row.elastic:
        return 1 <= number <= row.num_worker
    return os.path.lexists(paths.capture(worker_task(number), "stdout", True))


def running(row: ExecRow, paths: ExecPaths, live: LiveValues | None) -> list[int]:
    """Return the numbers of the executors that are running, lowest first."""
    if row.state not in {states.RUNNING, states.RECOVERING}:
        return []
    if not row.elastic:
        return executors(row, paths)
    return sorted(live.workers) if live is not None else []
