"""The audit log: one JSON object per line, in a file that only its owner reads, appended to and turned over by size."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

_log = logging.getLogger(__name__)
#: So large a file may grow before the next one is begun, and so many older ones (audit.log.1, ...) are kept.
_BYTES = 10 << 20
_KEPT = 9


class AuditLog(RotatingFileHandler):
    """Writes entries to `path`. It is opened with the first one."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=_BYTES, backupCount=_KEPT, encoding="ascii", delay=True)
        self._trouble = self._failed = False

    def write(self, entry: Mapping[str, object]) -> None:
        """Append an entry. Everything that is no printable ASCII is escaped, so that no name or path can make a line of
        its own or change a terminal. A disk that takes none ends no call: the backend's log says so, once."""
        text = json.dumps(entry, ensure_ascii=True).replace("\x7f", "\\u007f")
        self.handle(logging.makeLogRecord({"msg": text}))

    def emit(self, record: logging.LogRecord) -> None:
        """See the base class."""
        self._failed = False
        super().emit(record)
        if self._trouble and not self._failed:
            _log.warning("%s is written again; entries are missing before this", self.baseFilename)
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
