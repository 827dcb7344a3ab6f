"""GET /execs/{id}/metrics: the metrics that the processes of an exec wrote to evaluation-metrics.txt."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api.bulk import Streamed, bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import OWN_EXECS, about
from local_backend.api.route import Route
from local_backend.forward import source
from local_backend.services.load import READING

router = APIRouter(tags=["logs"], route_class=Route)


@router.get(wire.EXECS + "/{exec_id}/metrics")
@about(OWN_EXECS, extension=wire.EXT_METRICS, errors={400: "exec.not_found"}, media="text/plain")
@bulk(READING)
def metrics(services: TheServices, caller: TheCaller, exec_id: str) -> Response:
    """Return the metrics that the program recorded, as it wrote them: one JSON object per line. Other lines are left
    out. The files follow one another, with an empty line between two files."""
    row = services.execs.find(caller, exec_id)
    found = source.written(services.execs.paths(row).logs, row.terminal)
    return Streamed(services.load, found, media_type="text/plain; charset=utf-8")
