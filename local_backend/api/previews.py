"""Previews of data before a job is submitted."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bodies import JsonRoute
from local_backend.api.depends import TheCaller, TheServices
from local_backend.errors import Invalid

router = APIRouter(tags=["data"], route_class=JsonRoute)

Written = Annotated[Any, Body()]


@router.post(wire.DATA_PREVIEW, response_model=list[dict[str, Any]])
def preview(services: TheServices, caller: TheCaller, body: Written = None) -> JsonAnswer:
    """Preview the data sources of `{"dataSource": [...]}`. The answer has one object for each source: `ok`, or the
    reason in `message`; `files` and `bytes`; `schema`, `rowCount` and the first `rows` of a table or file. The server
    keeps none of the data."""
    sources = body.get(wire.DATA_SOURCE) if isinstance(body, dict) else None
    if not isinstance(sources, list):
        raise Invalid("body.value", f'The body must be a JSON object with a list "{wire.DATA_SOURCE}" of data sources')
    return JsonAnswer(services.data.preview(caller, sources))
