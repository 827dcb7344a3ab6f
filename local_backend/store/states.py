"""The state machine of an exec: which moves are legal. A pure table; the store applies it to rows."""

from __future__ import annotations

from dlicmd.contract.states import ERROR, FINISHED, KILLED, PENDING, RECOVERING, RUNNING, SUBMITTED, TERMINAL

#: State → states that may follow it. Polling clients know SUBMITTED, PENDING and RUNNING as "not yet over" and treat
#: any other state as the end. So the normal path has no other active state.
MOVES: dict[str, frozenset[str]] = {
    SUBMITTED: frozenset({PENDING, ERROR, KILLED}),
    PENDING: frozenset({RUNNING, ERROR, KILLED}),
    RUNNING: frozenset({FINISHED, ERROR, KILLED, RECOVERING, PENDING}),
    RECOVERING: frozenset({RUNNING, FINISHED, ERROR, KILLED, PENDING}),
} | {state: frozenset() for state in TERMINAL}


#: States that clients see. Polling scripts do not know RECOVERING, so clients see RUNNING in its place.
SHOWN = frozenset(MOVES) - {RECOVERING}


def shown_as(state: str) -> str:
    """Return a state as clients see it."""
    return RUNNING if state == RECOVERING else state


def meant(names: frozenset[str]) -> frozenset[str]:
    """Return the states that clients see under one of these names."""
    return frozenset(state for state in MOVES if shown_as(state) in names)


def sources(to: str) -> frozenset[str]:
    """Return the states from which an exec may enter `to`."""
    return frozenset(state for state, following in MOVES.items() if to in following)
