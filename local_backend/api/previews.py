"""Previews of data before a job is submitted."""

from __future__ import annotations

from typing import cast

from fastapi import APIRouter

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import EVERY_USER, about
from local_backend.api.models.data import PreviewObject, PreviewRequest
from local_backend.api.route import Route
from local_backend.services.load import PREVIEW

router = APIRouter(tags=["data"], route_class=Route)


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
