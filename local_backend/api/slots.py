"""PUT /execs/{id}/slots: a running elastic exec is given another number of slots."""

from __future__ import annotations

from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Annotated, Any

from fastapi import APIRouter, Body

from dlicmd.contract import wire
from local_backend.api.backend import TheBackend, TheUser, administrator
from local_backend.api.bodies import JsonRoute
from local_backend.api.errors import ApiError, answers
from local_backend.runtime.resizing import ResizeError

router = APIRouter(tags=["execs"], route_class=JsonRoute)


@router.put(wire.EXECS + "/{exec_id}/slots", responses=answers(409, 503))
def resize(
    backend: TheBackend, user: TheUser, exec_id: str, body: Annotated[Any, Body()] = None
) -> dict[str, str | int]:
    """Fix the slots of a running elastic exec to `slots`, at once; its workers come and go in the following moments.
    With 0 it is parked, with null the scheduler decides again. 409 when that is not possible now, or never for this
    exec; nothing is changed then. For administrators: fixed slots are not shared out."""
    row = backend.exec_row(exec_id, user)
    administrator(user, "fixes the slots of an exec")
    count = body.get(wire.SLOTS, -1) if isinstance(body, dict) else -1
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 0):
        raise ApiError(400, f'The body is not {{"{wire.SLOTS}": N}} with a whole number N of at least 0, or null')
    try:
        resized = backend.supervisor.resize(row.id, count)
    except ResizeError as problem:
        raise ApiError(409, str(problem)) from None
    except (CancelledError, FutureTimeoutError):
        raise ApiError(503, f"The server did not come to it; the slots of {row.id} are as they were") from None
    except OSError as problem:
        raise ApiError(507, f"The server could not pass it on ({problem.strerror}); try again") from problem
    return {wire.ID: row.id, wire.BEFORE: resized.before, wire.SLOTS: resized.after}
