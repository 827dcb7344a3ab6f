"""Hyper-parameter searches: the recorded paths exist, and answer that this backend does not search."""

from __future__ import annotations

from fastapi import APIRouter

from dlicmd.contract import wire
from local_backend.api.depends import TheCaller
from local_backend.api.route import Route
from local_backend.errors import Unsupported

router = APIRouter(tags=["searches"], route_class=Route)
_METHODS = ["GET", "POST", "PUT", "DELETE"]


@router.api_route(wire.SEARCHES, methods=_METHODS, include_in_schema=False)
@router.api_route(wire.SEARCHES + "/{rest:path}", methods=_METHODS, include_in_schema=False)
def refused(_caller: TheCaller) -> None:
    """Raise Unsupported (`search.unsupported`) for every call about searches."""
    raise Unsupported("search.unsupported", "The local backend does not support hyperparameter search")
