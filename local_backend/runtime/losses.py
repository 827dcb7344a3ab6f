"""Decides what happens to an exec whose run has ended without an outcome (docs/adoption.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlicmd.contract import wire
from local_backend.runtime.launcher import Launcher, LostRun
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.progress import furthest
from local_backend.runtime.records import Records
from local_backend.runtime.restarts import Restarts
from local_backend.store.execs import ExecRow


class LostRuns:
    """Queues an exec again if that is safe and useful, or ends it."""

    def __init__(self, records: Records, launcher: Launcher) -> None:
        self._records = records
        self._launcher = launcher

    def record(
        self, row: ExecRow, paths: ExecPaths, lost: LostRun, progress: Mapping[str, Any] | None = None
    ) -> None:
        """Record that a run which no user wanted to stop is lost, and that no process of it is left. An elastic
        program continues from its newest snapshot. Another program starts again only after a restart of the machine.
        An exec that rests, or a service without requests, needs no run. Raises OSError."""
        elastic = row.elastic
        if row.rested is not None:
            text = f"set aside after epoch {row.rested}: {lost.why} while the job rested, and its state is kept"
            self._records.pending(paths, message=text, progress=progress)
        elif row.idle:
            text = f"queued again: {lost.why} while the service had no requests"
            self._records.pending(paths, message=text, progress=progress)
        elif not (elastic or lost.rebooted):
            self._records.error(paths, wire.LOST, f"{lost.why}; no process of the job is left", progress=progress)
        elif self._launcher.restarts(paths, furthest(progress or {})):
            self._records.pending(paths, message=f"queued again: {lost.why} while the job ran", progress=progress)
        else:
            why = f"{lost.why}; the job is not started again, because {Restarts.MOST} restarts brought no progress"
            self._records.error(paths, wire.LOST, why, progress=progress)
