"""The state machine of an exec: which moves are legal. A pure table; the store applies it to rows."""

from __future__ import annotations

from dlicmd.contract.states import ERROR, FINISHED, KILLED, PENDING, RECOVERING, RUNNING, SUBMITTED, TERMINAL

#: state → states it may be followed by. Clients that poll know SUBMITTED, PENDING and RUNNING as "not yet over" and
#: treat anything else as the end, so no other active state is shown on the normal path.
MOVES: dict[str, frozenset[str]] = {
    SUBMITTED: frozenset({PENDING, ERROR, KILLED}),
    PENDING: frozenset({RUNNING, ERROR, KILLED}),
    RUNNING: frozenset({FINISHED, ERROR, KILLED, RECOVERING, PENDING}),
    RECOVERING: frozenset({RUNNING, FINISHED, ERROR, KILLED, PENDING}),
} | {state: frozenset() for state in TERMINAL}


def sources(to: str) -> frozenset[str]:
    """States from which `to` may be entered."""
    return frozenset(state for state, following in MOVES.items() if to in following)
