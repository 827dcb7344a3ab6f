"""Why a submission was not taken.

    SubmitError
    ├── BadSubmission      the client's doing; the text says what and where
    ├── TooLarge           more than the limits allow
    ├── OverQuota          more than one user may have
    └── StorageFailed      this machine could not store it; trying again later may work
"""

from __future__ import annotations

import errno


class SubmitError(Exception):
    """Base; the text is one sentence for the user, without a full stop."""


class BadSubmission(SubmitError):
    """The request is wrong."""


class TooLarge(SubmitError):
    """The request is larger than the limits of this server."""


class OverQuota(SubmitError):
    """The user has as much as one may have."""


class StorageFailed(SubmitError):
    """The disk is full or does not take writes."""

    @classmethod
    def from_os(cls, problem: OSError) -> StorageFailed:
        """With a sentence for the user."""
        if problem.errno in {errno.ENOSPC, errno.EDQUOT}:
            return cls("the server's disk is full; nothing was stored. Free some space and submit again")
        reason = problem.strerror or type(problem).__name__
        return cls(f"the server could not store the submission ({reason}); nothing was kept")
