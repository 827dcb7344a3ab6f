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

STOPPED, FAILED, RECOVERPEND, WAITING = "STOPPED", "FAILED", "RECOVERPEND", "WAITING"
#: States of a search for hyper-parameters that goes on.
SEARCHING = frozenset({SUBMITTED, RUNNING, RECOVERPEND})
#: States of experiments of a search that go on, and of those that are over.
OPEN_EXPERIMENTS, ENDED_EXPERIMENTS = ("NOTRUN", SUBMITTED, RUNNING, WAITING), (FINISHED, FAILED, KILLED)

#: State → its short form in tables of the original client.
SHORT = {PENDING_JOB: "PENDING_JOB", PENDING: "PENDING_PJ"}


def is_terminal(state: str) -> bool:
    """Return True when an exec in this state will not change any more. The empty state right after submission can
    change."""
    return state in TERMINAL


#: The names that users select states by. PENDING stands for all states of a job that waits, ACTIVE for all states of a
#: job that has not ended.
NAMED = ("PENDING", RUNNING, FINISHED, ERROR, KILLED, "ACTIVE")
_GROUPS = {
    "PENDING": frozenset({NEW, SUBMITTED, PENDING_JOB, PENDING}), RUNNING: frozenset({LAUNCHING, RUNNING, RECOVERING}),
    "ACTIVE": ACTIVE, "FAILED": frozenset({ERROR}), "": frozenset(),
}


def plain(state: str) -> str:
    """Return the name of a state for people: one of NAMED, or the state itself."""
    return "PENDING" if state in SHORT else state


def meant(name: str) -> frozenset[str]:
    """Return the states that a user selects by a name, in any case of letters: one of NAMED, a state, or its short
    form. The result is empty for other names."""
    wanted = name.strip().upper()
    if wanted in _GROUPS:
        return _GROUPS[wanted]
    return frozenset(state for state in ACTIVE | TERMINAL if wanted in (state, SHORT.get(state)))


def selected(text: str) -> frozenset[str]:
    """Return the states that a user selects by names with commas between them. Raises ValueError for an unknown name;
    its text says which names are allowed."""
    found: frozenset[str] = frozenset()
    for name in text.split(","):
        named = meant(name)
        if name.strip() and not named:
            raise ValueError(f"'{name.strip()[:40]}' is not a state; use one of {', '.join(NAMED)}")
        found |= named
    return found
