"""A background thread that measures the disk use of execs and removes expired results."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.retention import discard, expired
from local_backend.runtime.sizes import Sizes
from local_backend.settings import Settings
from local_backend.store import execs
from local_backend.store.database import Database

_log = logging.getLogger(__name__)
#: Seconds between two rounds.
_EVERY = 60.0
#: Seconds between the measurements of two execs.
_BREATH = 0.001


class _Closing(Exception):
    """Raised when the server ends."""


class Housekeeper:
    """A thread that runs a round once a minute. Call `start` first and `close` last."""

    def __init__(self, settings: Settings, database: Database, sizes: Sizes, wake: Callable[[], None]) -> None:
        """`wake` tells the supervisor that execs are to be removed."""
        self._settings, self._database, self._sizes, self._wake = settings, database, sizes, wake
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="housekeeper", daemon=True)

    def start(self) -> None:
        """Start the thread, unless there is nothing to do."""
        quotas = self._settings.quotas
        if quotas.need_sizes or quotas.keep_days is not None:
            self._thread.start()

    def close(self) -> None:
        """End the thread after its current operation."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def round(self) -> None:
        """Measure execs, and mark expired ones for removal. Raises database errors."""
        quotas = self._settings.quotas
        rows = self._database.read(execs.briefs)
        if quotas.need_sizes:
            self._sizes.measure(rows, self._paths)
        gone = discard(self._database, expired(rows, self._sizes.of, quotas, time.time()))
        for item in gone:
            _log.info("removed %s", item.sentence)
        if gone:
            self._wake()

    def _paths(self, row: execs.Brief) -> ExecPaths:
        """Return the files of an exec, after a short pause that gives time to API calls. Raises _Closing."""
        if self._closing.wait(_BREATH):
            raise _Closing
        return self._settings.paths.job(row.id, row.creator)

    def _loop(self) -> None:
        while not self._closing.is_set():
            try:
                self.round()
            except _Closing:
                return
            except (SQLAlchemyError, OSError) as problem:
                _log.error("cleanup failed, trying again in %g s: %s", _EVERY, problem)
            self._closing.wait(_EVERY)
