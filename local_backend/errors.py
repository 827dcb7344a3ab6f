"""Errors of the server.

    ServerError            the server cannot run
    BackendError           a request was refused, or failed
    ├── Invalid            the request is wrong
    ├── NotFound           no such object, or none that this user may see
    ├── Unauthorized       no valid token or password
    ├── Denied             not allowed for this user
    ├── Conflict           not possible in the present state
    ├── Mismatch           the idempotency key belongs to another submission
    ├── TooLarge           larger than a limit of this server
    ├── TooSlow            the body arrives too slowly
    ├── Busy               too many calls of this kind at present
    ├── OverQuota          over a quota of the user
    ├── StorageFailed      the disk or the database is full or refuses writes
    └── Unavailable        not possible until the server has recovered

Each BackendError has a code such as `exec.not_found`. Codes are stable: clients and tests rely on them.
"""

from __future__ import annotations

import errno


class ServingError(Exception):
    """The server cannot run. The text is one line that says why and what to do."""


class BackendError(Exception):
    """A request was refused, or failed. The text is one sentence for the user, without a full stop."""

    def __init__(self, code: str, sentence: str, *, retry_after: int | None = None) -> None:
        """`retry_after`: seconds after which the same request may succeed."""
        super().__init__(sentence)
        self.code = code
        self.retry_after = retry_after

    @property
    def is_failure(self) -> bool:
        """Whether the server failed, as opposed to a request that it refused."""
        return isinstance(self, StorageFailed | Unavailable)


class Invalid(BackendError):
    """The request is wrong."""


class NotFound(BackendError):
    """There is no such object, or none that this user may see."""


class Unauthorized(BackendError):
    """The call has no valid token or password."""


class AccessDenied(BackendError):
    """The user may not do this."""


class Conflict(BackendError):
    """The request is not possible in the present state."""


class Mismatch(BackendError):
    """The idempotency key belongs to another submission."""


class TooLarge(BackendError):
    """The request is larger than the limits of this server."""


class TooSlow(BackendError):
    """The body of the request arrives too slowly, or takes too long."""


class Busy(BackendError):
    """The server handles too many calls of this kind at present."""


class OverQuota(BackendError):
    """The request would exceed a quota of the user."""


class StorageFailed(BackendError):
    """The disk or the database is full or refuses writes."""

    @classmethod
    def from_os(cls, problem: OSError) -> StorageFailed:
        """Return the error for a failed write, with a sentence for the user."""
        if problem.errno in {errno.ENOSPC, errno.EDQUOT}:
            return cls("storage.full",
                       "the server's disk is full; nothing was stored. Free some space and submit again")
        reason = problem.strerror or type(problem).__name__
        return cls("storage.failed", f"the server could not store the submission ({reason}); nothing was stored")


class Unavailable(BackendError):
    """The request is not possible until the server has recovered."""
