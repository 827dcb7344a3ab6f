"""GET /execs/{id}/metrics: what the processes of an exec wrote to evaluation-metrics.txt."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from dlicmd.contract import wire
from local_backend.api.depends import TheCaller, TheServices
from local_backend.forward import source

router = APIRouter(tags=["logs"])


@router.get(wire.EXECS + "/{exec_id}/metrics", response_class=PlainTextResponse)
def metrics(services: TheServices, caller: TheCaller, exec_id: str) -> Response:
    """The metrics that the program recorded: JSON objects, one a line, as they were written; file after file, with an
    empty line between two."""
    row = services.execs.find(caller, exec_id)
    found = source.written(services.execs.paths(row).logs, row.terminal)
    return StreamingResponse(found, media_type="text/plain; charset=utf-8")
