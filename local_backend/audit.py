"""The audit log: one JSON object per line, in files that only their owner can read. Files rotate by size."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

_log = logging.getLogger(__name__)
#: Maximum bytes of a file before the next one begins, and number of older files to keep (audit.log.1, ...).
_BYTES = 10 << 20
_KEPT = 9


class AuditLog(RotatingFileHandler):
    """A log that writes entries to `path`. The first entry opens the file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=_BYTES, backupCount=_KEPT, encoding="ascii", delay=True)
        self._trouble = self._failed = False

    def write(self, entry: Mapping[str, object]) -> None:
        """Append an entry. Everything except printable ASCII is escaped: no name or path can begin a new line or send
        control characters to a terminal. A write that fails does not fail the call; the backend's log reports it
        once."""
        text = json.dumps(entry, ensure_ascii=True).replace("\x7f", "\\u007f")
        self.handle(logging.makeLogRecord({"msg": text}))

    def emit(self, record: logging.LogRecord) -> None:
        """See the base class."""
        self._failed = False
        super().emit(record)
        if self._trouble and not self._failed:
            _log.warning("writing to %s works again; earlier entries are missing", self.baseFilename)
        self._trouble = self._failed

    def handleError(self, record: logging.LogRecord) -> None:
        """See the base class."""
        if not self._trouble:
            _log.error("cannot write to %s", self.baseFilename, exc_info=True)
        self._failed = True

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self.baseFilename, flags, 0o600)
        os.fchmod(fd, 0o600)
        return open(fd, "a", encoding="ascii")
