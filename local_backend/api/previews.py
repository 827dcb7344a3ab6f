"""Data before a job is submitted: previews, volumes, folders and files, and uploads of files."""

from __future__ import annotations

from functools import partial
from typing import Annotated, cast

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from dlicmd.contract import wire
from local_backend.api import uploads
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk, in_turn
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import EVERY_USER, about
from local_backend.api.models.data import (
    DataUploadParts,
    PlaceObject,
    PreviewObject,
    PreviewRequest,
    StoredDataObject,
    VolumeObject,
)
from local_backend.api.objects import iso
from local_backend.api.route import Route
from local_backend.services.load import PREVIEW, UPLOAD

router = APIRouter(tags=["data"], route_class=Route)


Volume = Annotated[str, Query(description="name of a volume; DLI_DATA_FS by default")]
RelativePath = Annotated[str, Query(alias="path", description="path in the volume, or in DLI_DATA_FS")]


@router.get(wire.VOLUMES)
@about(EVERY_USER, extension=wire.EXT_DATA_PREVIEW, errors={500: "volume.unreadable"})
def volumes(services: TheServices, caller: TheCaller) -> JsonAnswer[list[VolumeObject]]:
    """List the volumes that the caller may use."""
    return JsonAnswer([{"name": one.name, "exists": one.exists} for one in services.volumes.visible(caller)])


@router.get(wire.DATA_FILES)
@about(EVERY_USER, extension=wire.EXT_DATA_PREVIEW, errors={404: "data.not_found", 500: "volume.unreadable"})
@bulk(PREVIEW, stream=False)
def files(
    services: TheServices, caller: TheCaller, volume: Volume = "", path: RelativePath = ""
) -> JsonAnswer[PlaceObject]:
    """Return what a path of data means: a file, or a folder with its first 1,000 entries."""
    found = services.browsing.place(caller, volume, path)
    return JsonAnswer({
        "folder": found.is_folder, "bytes": found.size, "modified": iso(found.modified), "more": found.more,
        "entries": [{"name": one.name, "folder": one.is_folder, "bytes": one.size, "modified": iso(one.modified)}
                    for one in found.entries],
    })


@router.post(wire.DATA_FILES)
@about(EVERY_USER, extension=wire.EXT_DATA_UPLOAD, body={"multipart/form-data": DataUploadParts}, errors={
    400: "data.no_files data.path query.value submission.body", 403: "data.shared", 404: "data.not_found",
    408: "quota.upload_seconds", 409: "data.exists", 413: "submission.too_large",
    429: "load.busy quota.rate quota.uploads", 500: "volume.unreadable",
    507: "quota.bytes storage.failed storage.full",
})
async def upload(  # noqa: PLR0917
    request: Request, services: TheServices, caller: TheCaller, volume: Volume = "", path: RelativePath = "",
    replace: Annotated[bool, Query(description="replace files that exist")] = False,
) -> JsonAnswer[StoredDataObject]:
    """Store files as data of jobs, in a folder of a volume or of DLI_DATA_FS. On a server for a team, a path of
    DLI_DATA_FS means a path in the caller's own folder. If a file exists and `replace` is false, nothing is stored."""
    async with uploads.upload_of(request, services, caller, "data.upload", folders=True) as (received, _):
        store = partial(services.data_files.store, caller, volume, path, received, replace=replace)
        found = await in_turn(services.load, UPLOAD, caller.name, store)
        return JsonAnswer({"path": found.path, "files": found.files, "bytes": found.bytes})


@router.get(wire.DATA_FILE)
@about(EVERY_USER, extension=wire.EXT_DATA_PREVIEW, media="application/octet-stream", errors={
    400: "data.invalid", 404: "data.not_found", 500: "volume.unreadable",
})
@bulk(PREVIEW, stream=False)
def file(services: TheServices, caller: TheCaller, volume: Volume = "", path: RelativePath = "") -> Response:
    """Return a file of data, at most its first 16 MiB."""
    return Response(services.browsing.head(caller, volume, path), media_type="application/octet-stream")


@router.post(wire.DATA_PREVIEW)
@about(EVERY_USER, extension=wire.EXT_DATA_PREVIEW, errors={
    400: "body.json body.value data.preview data.invalid data.kind_unusable",
    500: "volume.unreadable",
})
@bulk(PREVIEW, stream=False)
def preview(services: TheServices, caller: TheCaller, body: PreviewRequest) -> JsonAnswer[list[PreviewObject]]:
    """Preview data sources. The answer has one object for each source: `ok`, or the reason in `message`; `files` and
    `bytes`; `schema`, `rowCount` and the first `rows` of a table or file. The server keeps none of the data."""
    return JsonAnswer(cast("list[PreviewObject]", services.data.preview(caller, body.dataSource)))
