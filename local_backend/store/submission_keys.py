"""Which submission came with which key, so that one whose answer was lost can be sent again and is not run twice."""

from __future__ import annotations

import time
from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, select

from local_backend.store.schema import submission_keys

#: Seconds for which a key is known: far longer than any client goes on trying.
KEPT = 24 * 3600


class Keyed(NamedTuple):
    """The submission that `user` has sent with `key`; `digest` says what it was."""

    user: str
    key: str
    digest: str


def keep(connection: Connection, keyed: Keyed, exec_id: str) -> None:
    """Remember, in the transaction that makes the exec; keys that are over are forgotten on the way."""
    now = time.time()
    connection.execute(delete(submission_keys).where(submission_keys.c.time <= now - KEPT))
    connection.execute(insert(submission_keys).values(**keyed._asdict(), exec_id=exec_id, time=now))


def find(connection: Connection, user: str, key: str) -> tuple[str, str] | None:
    """The digest of what came with this key, and the id of its exec; None for a key that is new, or over."""
    query = select(submission_keys.c.digest, submission_keys.c.exec_id).where(
        submission_keys.c.user == user, submission_keys.c.key == key, submission_keys.c.time > time.time() - KEPT,
    )
    found = connection.execute(query).first()
    return None if found is None else (str(found.digest), str(found.exec_id))
