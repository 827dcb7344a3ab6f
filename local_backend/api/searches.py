"""Searches for hyper-parameters: the recorded paths are there, and say that this backend has none."""

from __future__ import annotations

from fastapi import APIRouter

from dlicmd.contract import wire
from local_backend.api.backend import TheUser
from local_backend.api.errors import ApiError

router = APIRouter(tags=["searches"])
_METHODS = ["GET", "POST", "PUT", "DELETE"]


@router.api_route(wire.SEARCHES, methods=_METHODS, include_in_schema=False)
@router.api_route(wire.SEARCHES + "/{rest:path}", methods=_METHODS, include_in_schema=False)
def refused(_user: TheUser) -> None:
    """Whatever is asked about searches."""
    raise ApiError(501, "The local backend does not search for hyper-parameters")
