"""Idempotency keys of submissions: a submission with a key makes one exec, even if the client sends it several times.

The same key with the same submission returns the exec that was made then. The same key with another submission raises
Mismatch. A key whose first submission is still being accepted raises Conflict. Keys belong to their user, and the
server remembers them for a day.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dlicmd.contract import wire
from local_backend.errors import Conflict, Mismatch, NotFound, StorageFailed
from local_backend.store import execs, submission_keys
from local_backend.store.database import Database
from local_backend.store.execs import ExecRow
from local_backend.store.submission_keys import Keyed
from local_backend.submit.receive import ReceivedUpload

_CHUNK = 1 << 20
#: Seconds after which the client may ask again for a submission that is being accepted.
_SOON = 1


def digest(args: str | None, sig_name: str | None, upload: ReceivedUpload) -> str:
    """Return the SHA-256 of the content of a submission, in hexadecimal digits.

    The boundary of a form and the generated name of an archive do not count, so a client may build the body anew.
    Raises StorageFailed.
    """
    try:
        files = [(_telling(name), _file_digest(path)) for name, path in upload.files]
    except OSError as problem:
        raise StorageFailed.from_os(problem) from None
    return hashlib.sha256(json.dumps([args, sig_name, upload.data, files]).encode("ascii")).hexdigest()


def _telling(name: str) -> str:
    return wire.ARCHIVE_SUFFIX if name.endswith(wire.ARCHIVE_SUFFIX) else name


def _file_digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


class SubmissionKeys:
    """The keys of submissions that are being accepted. All other keys are in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._in_flight: set[tuple[str, str]] = set()

    @contextmanager
    def claimed(self, keyed: Keyed | None) -> Iterator[ExecRow | None]:
        """Claim a key for a `with` block that accepts its submission. Yield the exec that was made earlier, or None.

        Raises Conflict (`submission.key_in_use`) while another call has the key, Mismatch (`submission.key_mismatch`)
        if the key came with another submission, NotFound (`submission.key_deleted`) if the exec was deleted.
        """
        if keyed is None:
            yield None
            return
        claim = keyed.user, keyed.key
        with self._lock:
            if claim in self._in_flight:
                raise Conflict(
                    "submission.key_in_use",
                    f"The server is still processing a submission with this {wire.KEY_HEADER}; try again later",
                    retry_after=_SOON,
                )
            self._in_flight.add(claim)
        try:
            yield self._made_before(keyed)
        finally:
            with self._lock:
                self._in_flight.discard(claim)

    def _made_before(self, keyed: Keyed) -> ExecRow | None:
        found = self._database.read(lambda c: submission_keys.find(c, keyed.user, keyed.key))
        if found is None:
            return None
        known, exec_id = found
        if known != keyed.digest:
            raise Mismatch(
                "submission.key_mismatch",
                f"This {wire.KEY_HEADER} was used with a different submission ({exec_id}); use a new key",
            )
        row = self._database.read(lambda c: execs.get(c, exec_id))
        if row is None:
            raise NotFound(
                "submission.key_deleted",
                f"Exec {exec_id} was deleted; it was submitted with this {wire.KEY_HEADER}",
            )
        return row
