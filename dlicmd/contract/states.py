"""States of an exec as they appear on the wire."""

from __future__ import annotations

NEW = "NEW"
SUBMITTED = "SUBMITTED"
PENDING_JOB = "PENDING_JOB_SCHEDULER"
PENDING = "PENDING_CRD_SCHEDULER"
LAUNCHING = "LAUNCHING"
RUNNING = "RUNNING"
RECOVERING = "RECOVERING"
UNKNOWN = "UNKNOWN"
FINISHED = "FINISHED"
KILLED = "KILLED"
ERROR = "ERROR"

ACTIVE = frozenset({NEW, SUBMITTED, PENDING_JOB, PENDING, LAUNCHING, RUNNING, RECOVERING, UNKNOWN})
TERMINAL = frozenset({FINISHED, KILLED, ERROR})

#: State → its short form in tables.
SHORT = {PENDING_JOB: "PENDING_JOB", PENDING: "PENDING_PJ"}


def is_terminal(state: str) -> bool:
    """Return True when an exec in this state will not change any more. The empty state right after submission can
    change."""
    return state in TERMINAL
