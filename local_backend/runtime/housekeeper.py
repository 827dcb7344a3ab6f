"""The loop that measures the disk use of execs, marks expired execs for removal, and deletes old events."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable, Set
from contextlib import suppress

from local_backend.files import FOLDER
from local_backend.runtime.condition import measure
from local_backend.runtime.loop import Loop
from local_backend.runtime.paths import HomePaths
from local_backend.runtime.retention import discard, expired
from local_backend.runtime.sizes import Sizes
from local_backend.settings import Settings
from local_backend.store import events, execs
from local_backend.store.database import Database

_log = logging.getLogger(__name__)
#: Seconds between two rounds.
_EVERY = 60.0
#: Seconds between the measurements of two execs.
_BREATH = 0.001


class Housekeeper:
    """Tidies up once a minute. Call `start` first and `close` last."""

    def __init__(self, settings: Settings, database: Database, sizes: Sizes, wake: Callable[[], None]) -> None:
        """`wake` tells the supervisor that execs are to be removed."""
        self._settings, self._database, self._sizes, self._wake = settings, database, sizes, wake
        self.loop = Loop("housekeeping", self._turn)

    def start(self) -> None:
        """Start the thread."""
        self.loop.start()

    def close(self) -> None:
        """End the thread after its current operation."""
        self.loop.stop()

    def round(self) -> None:
        """Measure the condition of the home, remove what killed clients left, delete expired events, measure execs, and
        mark expired ones for removal. Raises OSError and database errors."""
        measure(self._settings, self._database)
        _remove_staged(self._settings.paths)
        end = self._database.read(lambda c: events.expired(c, time.time()))
        if end:
            self._database.write(lambda c: events.prune(c, end))
        quotas = self._settings.quotas
        if not quotas.need_sizes and quotas.keep_days is None:
            return
        rows = self._database.read(execs.briefs)
        if quotas.need_sizes:
            self._sizes.measure(rows, self._breathe)
        gone = discard(self._database, expired(rows, self._sizes.of, quotas, time.time()))
        for item in gone:
            _log.info("removed %s", item.sentence)
        if gone:
            self._wake()

    def _breathe(self) -> None:
        """Pause for a moment, to give time to API calls. Raises LoopEnd."""
        self.loop.pause(_BREATH)

    def _turn(self, _ready: Set[int]) -> float:
        self.round()
        return time.monotonic() + _EVERY


def _remove_staged(home: HomePaths) -> None:
    """Remove staged folders whose clients have ended: a client locks its folder. Raises OSError."""
    for name in os.listdir(home.staging):
        with suppress(OSError):
            fd = os.open(home.staging / name, FOLDER)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(home.staging / name, ignore_errors=True)
            finally:
                os.close(fd)
