"""Configuration, status, the catalog of frameworks, and the client's file."""

from __future__ import annotations

from typing import cast

from fastapi import APIRouter, Request
from starlette.responses import Response

from dlicmd import __version__
from dlicmd.contract import wire
from local_backend import handout
from local_backend.api.as_json import JsonAnswer
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import ANYONE, EVERY_USER, about
from local_backend.api.errors import error_response
from local_backend.api.guard import CLIENT_FILE
from local_backend.api.models.common import present
from local_backend.api.models.machine import Configuration, FrameworkDetail, FrameworkObject, Status
from local_backend.api.route import Route
from local_backend.submit.catalogue import FRAMEWORKS, CatalogueEntry

router = APIRouter(tags=["conf"], route_class=Route)


@router.get(wire.CONF)
@about(EVERY_USER)
def conf(services: TheServices, _caller: TheCaller) -> JsonAnswer[Configuration]:
    """Return the configuration, names and texts. DLICMD_EXTENSIONS lists what this server offers beyond the recorded
    contract."""
    settings = services.base.settings
    extensions = [
        wire.EXT_ARGV, wire.EXT_FOLLOW, wire.EXT_SLOTS, wire.EXT_WHY, wire.EXT_SLOT_VIEW, wire.EXT_HOLDINGS,
        wire.EXT_IDEMPOTENCY, wire.EXT_CONNECTIONS, wire.EXT_DATA_PREVIEW, wire.EXT_DATA_UPLOAD, wire.EXT_STOP_MANY,
        wire.EXT_METRICS, wire.EXT_CURVES, wire.EXT_RESOURCES, wire.EXT_CODE, wire.EXT_FILES, wire.EXT_LINES,
        wire.EXT_VERIFY, wire.EXT_AGAIN, wire.EXT_CREATE, wire.EXT_SEARCHES, wire.EXT_MODELS, wire.EXT_LABELS,
        wire.EXT_VIEWS, wire.EXT_EXPERIMENTS, wire.EXT_ALLOW_CPU, wire.EXT_CHECK,
    ]
    if settings.embedded:
        extensions += [wire.EXT_LOCAL_PATHS, wire.EXT_STAGED]
    return JsonAnswer({
        "MSD_ENABLED": "true",
        "DLI_DATA_FS": str(settings.data_fs),
        "DLI_RESULT_FS": str(settings.result_fs),
        "DLICMD_EXTENSIONS": ",".join(extensions),
    })


@router.get(wire.STATUS)
@about(EVERY_USER)
def status(services: TheServices, caller: TheCaller) -> JsonAnswer[Status]:
    """Return the version, the uptime and the grace period of stopped jobs (both in seconds), the number of the
    caller's execs by state (for an administrator, of all execs), and the status of the supervisor."""
    machine, settings = services.machine, services.base.settings
    return JsonAnswer(cast("Status", {
        "version": __version__,
        "embedded": settings.embedded,
        "uptime": machine.uptime,
        "jobs": machine.shown_counts(caller),
        "stopGrace": settings.stop_grace,
        **machine.status(),
    }))


class _Program(Response):
    media_type = "application/octet-stream"


@router.get(CLIENT_FILE)
@about(
    ANYONE, errors={500: "client.unreadable"}, media=_Program.media_type, answers={304: "The copy is up to date"},
    headers={"If-None-Match": "ETag of the copy that the client has; the answer is 304 if it is the same"},
)
def client_file(request: Request) -> Response:
    """Return dlicmd as one file that any Python runs: `python3 dlicmd.py --help`. Scripts download it from here."""
    try:
        made = handout.client_file()
    except OSError as problem:
        sentence = f"The server cannot build the client file ({problem.strerror}: {problem.filename})"
        return error_response(request.scope, 500, "client.unreadable", sentence)
    told = {"ETag": made.etag, "Content-Disposition": 'attachment; filename="dlicmd.py"'}
    if made.etag in [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers=told)
    return _Program(made.content, headers=told)


@router.get(wire.FRAMEWORKS)
@about(EVERY_USER)
def frameworks(_caller: TheCaller) -> JsonAnswer[list[FrameworkObject]]:
    """List the frameworks that a submission may name."""
    return JsonAnswer([framework_object(framework) for framework in FRAMEWORKS])


@router.get(wire.BASE + "/frameworks")
@about(EVERY_USER)
def framework_details(_caller: TheCaller, backend: str | None = None) -> JsonAnswer[list[FrameworkDetail]]:
    """List frameworks in the form of the first product generation: all, or those of one `backend` (PyTorch,
    TensorFlow)."""
    return JsonAnswer([
        {
            "name": framework.name,
            "home": "",
            "backend": framework.backend,
            "accelerator": "Elastic" if framework.elastic else "Native",
            "psNum": str(framework.parameter_servers or 0),
            "commIPNetwork": "",
        }
        for framework in FRAMEWORKS
        if backend is None or framework.backend.lower() == backend.lower()
    ])


@router.get(wire.BASE + "/frameworks/all")
@about(EVERY_USER)
def framework_names(_caller: TheCaller) -> JsonAnswer[list[str]]:
    """List the names of the training engines."""
    return JsonAnswer([framework.name for framework in FRAMEWORKS])


def framework_object(framework: CatalogueEntry) -> FrameworkObject:
    """Return a framework as the catalog shows it: the recorded keys in their order. Keys without a value are absent."""
    shown: FrameworkObject = {
        "name": framework.name,
        "description": "",
        "desc": list(framework.help),
        "deployMode": "cluster",
        "hasTask0": framework.has_driver,
        "execMode": "distributed" if framework.distributed else "single",
        "appName": framework.app_name,
        "exports": dict(framework.exports) or None,
        "numWorkers": framework.workers,
        "maxWorkers": framework.max_workers,
        "workerMemory": framework.memory,
        "frameworkCmdGenerator": framework.command_generator,
        "distributeStrategy": framework.strategy,
        "numPs": framework.parameter_servers,
        "backend": framework.backend,
        "frameworkVersion": framework.version,
    }
    return present(shown)
