"""Keys of submissions. A client that lost the answer can send a submission again, and the server runs it once."""

from __future__ import annotations

import time
from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, select

from local_backend.store.schema import submission_keys

#: Seconds for which a key is stored: far longer than any client retries.
KEPT = 24 * 3600


class Keyed(NamedTuple):
    """The submission that `user` has sent with `key`; `digest` identifies its content."""

    user: str
    key: str
    digest: str


def keep(connection: Connection, keyed: Keyed, exec_id: str) -> None:
    """Store the key in the transaction that creates the exec, and delete all expired keys."""
    now = time.time()
    connection.execute(delete(submission_keys).where(submission_keys.c.time <= now - KEPT))
    connection.execute(insert(submission_keys).values(**keyed._asdict(), exec_id=exec_id, time=now))


def find(connection: Connection, user: str, key: str) -> tuple[str, str] | None:
    """Return the digest of the submission with this key, and the id of its exec; None for a new or expired key."""
    query = select(submission_keys.c.digest, submission_keys.c.exec_id).where(
        submission_keys.c.user == user, submission_keys.c.key == key, submission_keys.c.time > time.time() - KEPT,
    )
    found = connection.execute(query).first()
    return None if found is None else (str(found.digest), str(found.exec_id))
