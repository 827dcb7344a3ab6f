"""Readiness of the server, for GET /readyz."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator

from sqlalchemy.exc import SQLAlchemyError

from dlicmd.contract.sizes import show_size
from local_backend.settings import Settings
from local_backend.store import probe
from local_backend.store.database import Database

#: Seconds for which a result is reused: the call needs no token, and callers must not keep the disk busy.
_NEW = 1.0
#: Seconds that the scheduler may take for a turn, and that a call waits for all checks.
_ROUND = 5.0
_PATIENCE = 10.0


class Readiness:
    """Checks database, scheduler and disks in a thread of its own: a disk that hangs must not block the calls. Safe
    for use from any thread."""

    def __init__(self, settings: Settings, database: Database, completes_turn: Callable[[float], bool]) -> None:
        """`completes_turn` returns whether the scheduler completes a turn within this many seconds."""
        self._settings = settings
        self._database = database
        self._completes_turn = completes_turn
        self._lock = threading.Lock()
        self._looking: threading.Thread | None = None
        self._began = 0.0
        self._found: list[str] = []

    def troubles(self) -> list[str]:
        """Return a sentence for each reason why the server cannot do its work, none when it is ready. The sentences
        contain no path and no user."""
        with self._lock:
            looking = self._looking
            if looking is None or (not looking.is_alive() and time.monotonic() - self._began > _NEW):
                self._began = time.monotonic()
                looking = self._looking = threading.Thread(target=self._look, name="readiness", daemon=True)
                looking.start()
        looking.join(_PATIENCE)
        return ["the database or a disk does not respond"] if looking.is_alive() else list(self._found)

    def _look(self) -> None:
        self._found = list(self._troubles())

    def _troubles(self) -> Iterator[str]:
        try:
            self._database.write(probe.write)
        except SQLAlchemyError:
            yield "cannot write to the database"
        if not self._completes_turn(_ROUND):
            yield "the scheduler does not respond"
        floor = self._settings.ready_free_bytes
        for what, folder in (("state", self._settings.home), ("results", self._settings.result_fs)):
            try:
                free = shutil.disk_usage(folder).free
            except OSError:
                yield f"cannot read the disk for the {what}"
                continue
            if free < floor:
                yield f"the disk for the {what} has only {show_size(free)} free; the minimum is {show_size(floor)}"
