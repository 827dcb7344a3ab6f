"""POST /execs/{id}/again: submit an exec once more, as it was or with changes."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import in_turn
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import SUBMITTER, about
from local_backend.api.errors import BodyRefused
from local_backend.api.inference_models import object_of
from local_backend.api.models.execs import Exec, Repetition
from local_backend.api.route import Route
from local_backend.api.showing import show
from local_backend.errors import Invalid
from local_backend.services.load import UPLOAD
from local_backend.submit.again import Changes

router = APIRouter(tags=["execs"], route_class=Route)


@router.post(wire.EXECS + "/{exec_id}/again")
@about(SUBMITTER, extension=wire.EXT_AGAIN, body=Repetition, errors={
    400: "again.credentials again.files_gone again.unsupported body.json body.value exec.not_found "
         "submission.command submission.data_source submission.environment submission.metrics "
         "submission.never_schedulable "
         "submission.option submission.resources submission.too_long data.kind_unusable",
    403: "exec.of_another_user", 429: "quota.rate load.busy",
    507: "quota.active quota.bytes quota.execs storage.failed storage.full storage.unknown",
})
async def again(request: Request, services: TheServices, caller: TheCaller, exec_id: str) -> JsonAnswer[Exec]:
    """Submit an exec once more as a new exec, with the same code, data and environment. The body may change its name,
    its number of workers, the arguments of its program, and its data sources. A masked secret in the arguments (`***`)
    keeps its value."""
    changes = _changes(await object_of(request))
    services.load.users.submission(caller.name)
    made = await in_turn(services.load, UPLOAD, caller.name, partial(
        services.submissions.repeat, caller, exec_id, changes))
    view = services.execs.view(made)
    return JsonAnswer(await run_in_threadpool(show, view, str(request.base_url)))


def _changes(body: dict[str, object]) -> Changes:
    """Return the changes in a body. Raises BodyRefused (`body.value`)."""
    keys = ("name", "workers", "arguments", wire.DATA_SOURCE)
    unknown = sorted(body.keys() - {*keys})
    if unknown:
        raise _refused(f"unknown key {unknown[0][:40]!r}; use {', '.join(keys)}")
    name, workers, arguments, data = (body.get(key) for key in keys)
    if not isinstance(name, str | None):
        raise _refused("name must be a text")
    if not isinstance(workers, int | None) or isinstance(workers, bool):
        raise _refused("workers must be a whole number")
    if not isinstance(data, list | None):
        raise _refused(f"{wire.DATA_SOURCE} must be a list")
    if arguments is not None:
        if not (isinstance(arguments, list) and all(isinstance(word, str) for word in arguments)):
            raise _refused("arguments must be a list of texts")
        return Changes(name, workers, tuple(arguments), data)
    return Changes(name, workers, data=data)


def _refused(sentence: str) -> BodyRefused:
    return BodyRefused(Invalid("body.value", sentence))
