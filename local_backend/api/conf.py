"""Configuration, status, the catalog of frameworks, and the client's file."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from dlicmd import __version__
from dlicmd.contract import wire
from local_backend import handout
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import header
from local_backend.api.errors import error_response
from local_backend.api.guard import CLIENT_FILE
from local_backend.submit.catalogue import FRAMEWORKS, Framework

router = APIRouter(tags=["conf"])


@router.get(wire.CONF)
def conf(services: TheServices, _caller: TheCaller) -> dict[str, str]:
    """Return the configuration, names and texts. DLICMD_EXTENSIONS lists what this server offers beyond the recorded
    contract."""
    settings = services.base.settings
    extensions = [
        wire.EXT_ARGV, wire.EXT_FOLLOW, wire.EXT_SLOTS, wire.EXT_WHY, wire.EXT_SLOT_VIEW, wire.EXT_HOLDINGS,
        wire.EXT_IDEMPOTENCY, wire.EXT_CONNECTIONS, wire.EXT_DATA_PREVIEW, wire.EXT_STOP_MANY,
        wire.EXT_METRICS, wire.EXT_CODE, wire.EXT_VERIFY,
    ]
    if settings.embedded:
        extensions.append(wire.EXT_LOCAL_PATHS)
    return {
        wire.MSD_ENABLED: "true",
        "DLI_DATA_FS": str(settings.data_fs),
        "DLI_RESULT_FS": str(settings.result_fs),
        wire.EXTENSIONS: ",".join(extensions),
    }


@router.get(wire.STATUS)
def status(services: TheServices, caller: TheCaller) -> dict[str, Any]:
    """Return the version, the uptime and the grace period of stopped jobs (both in seconds), the number of the
    caller's execs by state (for an administrator, of all execs), and the status of the supervisor."""
    machine, settings = services.machine, services.base.settings
    return {
        "version": __version__,
        wire.EMBEDDED: settings.embedded,
        "uptime": machine.uptime,
        "jobs": machine.counts(caller),
        wire.STOP_GRACE: settings.stop_grace,
        **machine.status(),
    }


class _Program(Response):
    media_type = "application/octet-stream"


_KNOWN = {"parameters": [
    header("If-None-Match", "ETag of the copy that the client has; the answer is 304 if it is the same"),
]}


@router.get(CLIENT_FILE, response_class=_Program, responses={304: {"description": "The copy is up to date"}},
            openapi_extra=_KNOWN)
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
def frameworks(_caller: TheCaller) -> list[dict[str, Any]]:
    """List the frameworks that a submission may name."""
    return [framework_object(framework) for framework in FRAMEWORKS]


@router.get(wire.BASE + "/frameworks")
def framework_details(_caller: TheCaller, backend: str | None = None) -> list[dict[str, str]]:
    """List frameworks in the form of the first product generation: all, or those of one `backend` (PyTorch,
    TensorFlow)."""
    return [
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
    ]


@router.get(wire.BASE + "/frameworks/all")
def framework_names(_caller: TheCaller) -> list[str]:
    """List the names of the training engines."""
    return [framework.name for framework in FRAMEWORKS]


def framework_object(framework: Framework) -> dict[str, Any]:
    """Return a framework as the catalog shows it: the recorded keys in their order. Keys without a value are absent."""
    shown = {
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
    return {key: value for key, value in shown.items() if value is not None}
