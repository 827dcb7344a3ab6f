"""POST /execs/{id}/verify: run an exec again for a few steps, with two numbers of workers."""

from __future__ import annotations

from fastapi import APIRouter, Query, Request

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import SUBMITTER, about
from local_backend.api.models.execs import Exec
from local_backend.api.route import Route
from local_backend.api.showing import show
from local_backend.services.load import UPLOAD

router = APIRouter(tags=["execs"], route_class=Route)


@router.post(wire.EXECS + "/{exec_id}/verify")
@about(SUBMITTER, extension=wire.EXT_VERIFY, errors={
    400: "exec.not_found query.value verify.credentials verify.files_gone verify.not_elastic "
         "verify.unsupported submission.environment submission.resources",
    403: "exec.of_another_user", 429: "quota.rate",
    507: "quota.active quota.bytes quota.execs storage.failed storage.full storage.unknown",
})
@bulk(UPLOAD, stream=False)
def verify(
    request: Request, services: TheServices, caller: TheCaller, exec_id: str, steps: int = Query(20, ge=1, le=10**6),
) -> JsonAnswer[Exec]:
    """Submit an elastic exec again as a new exec, to verify the first `steps` steps. The new exec computes these steps
    with two numbers of workers and compares them. It ends FINISHED when the results are equal, else ERROR."""
    services.load.users.submission(caller.name)
    made = services.submissions.verify(caller, exec_id, steps)
    return JsonAnswer(show(services.execs.view(made), str(request.base_url)))
