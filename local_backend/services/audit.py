"""The records of what users did, for administrators: newest first, from the files of the audit log."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from local_backend.audit import stamp
from local_backend.errors import StorageFailed
from local_backend.services.access import Caller
from local_backend.services.base import Recorder

#: Outcomes of a record.
OUTCOMES = ("done", "refused", "failed", "cut")
#: Maximum number of records in one answer.
MOST = 1000


@dataclass(frozen=True)
class AuditFilter:
    """The wanted records: of this user, with an action that begins so, with this outcome, between two moments in epoch
    seconds. Empty texts and None mean any."""

    user: str = ""
    action: str = ""
    outcome: str = ""
    since: float | None = None
    until: float | None = None

    def matches(self, record: Mapping[str, Any]) -> bool:
        """Return whether a record is wanted."""
        at = str(record.get("time", ""))
        return (
            self.user in ("", record.get("user")) and str(record.get("action", "")).startswith(self.action)
            and self.outcome in ("", record.get("outcome")) and (self.since is None or at >= stamp(self.since))
            and (self.until is None or at < stamp(self.until))
        )


@dataclass(frozen=True)
class AuditService:
    """Queries about the audit log."""

    recorder: Recorder

    def records(self, caller: Caller, wanted: AuditFilter, start: int, length: int) -> list[dict[str, Any]]:
        """Return at most `length` wanted records after the first `start`, newest first. Raises Denied, StorageFailed
        (`audit.unreadable`)."""
        caller.check_admin("read the audit log")
        paths = self.recorder.settings.paths
        try:
            files = [_records(path, wanted) for path in (paths.audit, paths.refused_calls, paths.refused_logons)]
            merged = heapq.merge(*files, key=lambda record: str(record.get("time", "")), reverse=True)
            return list(islice(merged, start, start + min(length, MOST)))
        except OSError as problem:
            sentence = f"The server cannot read {problem.filename}: {problem.strerror}"
            raise StorageFailed("audit.unreadable", sentence) from None


def _records(path: Path, wanted: AuditFilter) -> Iterator[dict[str, Any]]:
    """Yield the wanted records of a file and of the older files that it replaced, newest first. Raises OSError."""
    for one in [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, 10))]:
        try:
            lines = one.read_bytes().splitlines()
        except FileNotFoundError:
            continue
        for line in reversed(lines):
            record = _record(line)
            if record is not None and wanted.matches(record):
                yield record


def _record(line: bytes) -> dict[str, Any] | None:
    """Return the record in a line; None for a line that was cut when the machine failed."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
