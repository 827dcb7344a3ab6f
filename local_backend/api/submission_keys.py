"""`Idempotency-Key` on submissions, as draft-ietf-httpapi-idempotency-key-header has it.

Same key and same submission: the exec that was made then. Same key, another submission: 422. The first one is still
being taken in: 409. Keys belong to their user, and are known for a day.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starlette.datastructures import Headers

from dlicmd.contract import wire
from local_backend.api.errors import ApiError
from local_backend.store import execs, submission_keys
from local_backend.store.database import Database
from local_backend.store.execs import ExecRow
from local_backend.store.submission_keys import Keyed
from local_backend.submit.errors import StorageFailed
from local_backend.submit.receive import Upload

#: A string of a structured header field (RFC 9651); bare words are taken as well, as many clients send them.
_QUOTED = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\]){1,255})"')
_BARE = re.compile(r"[!#-~]{1,255}")
_CHUNK = 1 << 20
#: Seconds after which to ask again for a submission that is being taken in.
_SOON = {"Retry-After": "1"}


def key_of(headers: Headers) -> str | None:
    """The key of a call, None when it has none. Raises ApiError (400) for one that cannot be."""
    given = headers.getlist(wire.KEY_HEADER)
    if not given:
        return None
    text = given[0].strip()
    quoted = _QUOTED.fullmatch(text)
    if len(given) > 1 or not (quoted or _BARE.fullmatch(text)):
        raise ApiError(400, f"{wire.KEY_HEADER}: give one key of 1 to 255 printable ASCII characters, as in \"a-uuid\"")
    key = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else text
    if len(key) > 255:
        raise ApiError(400, f"{wire.KEY_HEADER}: the key is longer than 255 characters")
    return key


def digest(args: str | None, sig_name: str | None, upload: Upload) -> str:
    """SHA-256 of what a submission says and brings, in hexadecimal digits.

    How it was written down is left out (the boundary of a form, the made-up name of an archive), so that a client may
    build the body anew. Raises StorageFailed.
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
    """The keys of submissions that are being taken in; all others are in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._in_flight: set[tuple[str, str]] = set()

    @contextmanager
    def claimed(self, keyed: Keyed | None) -> Iterator[ExecRow | None]:
        """Keep a key for a `with` block, in which its submission is taken in unless it gives the exec made before.

        Raises ApiError: 409 while another call has the key, 422 when it came with another submission, 400 when the
        exec has been deleted since.
        """
        if keyed is None:
            yield None
            return
        claim = keyed.user, keyed.key
        with self._lock:
            if claim in self._in_flight:
                raise ApiError(409, f"A submission with this {wire.KEY_HEADER} is being taken in; ask again", _SOON)
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
            raise ApiError(422, f"This {wire.KEY_HEADER} came with another submission ({exec_id}); use a new key")
        row = self._database.read(lambda c: execs.get(c, exec_id))
        if row is None:
            raise ApiError(400, f"Exec {exec_id}, made by the submission with this {wire.KEY_HEADER}, was deleted")
        return row
