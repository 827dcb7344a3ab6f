"""The executors of an exec: which workers there are, or were."""

from __future__ import annotations

import os

from dlicmd.contract import states
from local_backend.runtime.allocation import read_report
from local_backend.runtime.paths import ExecPaths, worker_task
from local_backend.runtime.workers import started
from local_backend.store.execs import ExecRow

#: So many are listed, the newest: workers of an elastic exec come and go, and never share a number.
MOST_LISTED = 100


def executors(row: ExecRow, paths: ExecPaths) -> list[int]:
    """Numbers of the executors that are listed, lowest first: of an elastic exec the last MOST_LISTED that were
    started, of another all its `processes`."""
    return started(paths)[-MOST_LISTED:] if row.elastic else list(processes(row))


def processes(row: ExecRow) -> range:
    """Numbers of the processes of an exec that is not elastic: all that it was submitted with. Before it has had slots
    the first MOST_LISTED, for it may ask for a thousand million, and whoever looks must not pay for that."""
    return range(1, (row.num_worker if row.attempt else min(row.num_worker, MOST_LISTED)) + 1)


def exists(row: ExecRow, paths: ExecPaths, number: int) -> bool:
    """Whether there is, or was, an executor with this number; listed or not."""
    if not row.elastic:
        return 1 <= number <= row.num_worker
    return os.path.lexists(paths.capture(worker_task(number), "stdout", True))


def running(row: ExecRow, paths: ExecPaths) -> list[int]:
    """Numbers of the executors that run now."""
    if row.state not in {states.RUNNING, states.RECOVERING}:
        return []
    if not row.elastic:
        return executors(row, paths)
    report = read_report(paths, row.attempt)
    return sorted(report.workers) if report is not None else []
