"""GET /console/data: connections, volumes, folders, uploads, and previews of files and tables."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request
from starlette.responses import Response

from local_backend.api import uploads
from local_backend.api.bulk import bulk, in_turn
from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places
from local_backend.console.changes import TheForm, done
from local_backend.console.experiments import number_of
from local_backend.console.previews import (
    LONGEST_TEXT,
    THUMBNAILS,
    is_picture,
    is_table,
    parents,
    picture_answer,
    shown_cell,
    text_of,
)
from local_backend.console.rendering import page
from local_backend.console.route import router as pages
from local_backend.console.session_pages import texts
from local_backend.services.data_files import MOST_FILES
from local_backend.services.load import PREVIEW, UPLOAD

router = pages()


@router.get(places.DATA)
def data(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Show the connections and volumes of the caller."""
    rows = services.connections.list(caller)
    return page(
        request, "data.html", volumes=services.volumes.visible(caller), connections=rows,
        mine={row.id for row in rows if services.connections.may_change(caller, row)},
        data_fs=str(services.base.settings.data_fs), own=services.data_files.own(caller),
        titles={kind.name: kind.title for kind in services.connections.kinds()},
    )


@router.get(places.DATA_FILES)
@bulk(PREVIEW, stream=False)
def files(
    *, request: Request, services: TheServices, caller: TheCaller, volume: str = "", path: str = "", stored: str = ""
) -> Response:
    """Show a folder, or a file. `stored` is the number of files that an upload has just stored."""
    path = path.strip("/")
    found = services.browsing.place(caller, volume, path)
    shown: dict[str, Any] = {
        "volume": volume, "data_path": path, "found": found, "above": parents(path, partial(link, volume)),
        "top": link(volume, ""),
    }
    if not found.is_folder:
        return page(request, "data_file.html", **shown, **_file(services, caller, volume, path))
    links = {one.name: link(volume, f"{path}/{one.name}") for one in found.entries}
    named = [one.name for one in found.entries if not one.is_folder and is_picture(one.name)]
    pictures = {name: picture_link(volume, f"{path}/{name}") for name in named[:THUMBNAILS]}
    own = services.data_files.own(caller)
    return page(
        request, "data_folder.html", **shown, links=links, pictures=pictures, own=own and link("", own),
        may_store=services.data_files.may_store(caller, volume, path), most_files=MOST_FILES,
        most_bytes=services.base.settings.limits.upload_bytes, stored=number_of(stored))


@router.post(places.DATA_UPLOAD)
async def upload(request: Request, services: TheServices, caller: TheCaller) -> Response:
    """Store the files of a form, and lead to their folder."""
    async with uploads.upload_of(request, services, caller, "data.upload", folders=True) as (received, _):
        given = {name: received.texts.get(name, "").strip() for name in ("volume", "path", "folder", "replace")}
        path = f"{given['path']}/{given['folder']}".strip("/")
        store = partial(services.data_files.store, caller, given["volume"], path, received,
                        replace=given["replace"] == "1")
        found = await in_turn(services.load, UPLOAD, caller.name, store)
    return done(request, f"{link(given['volume'], found.path)}&stored={found.files}")


def _file(services: TheServices, caller: TheCaller, volume: str, path: str) -> dict[str, Any]:
    """Return how a page shows a file: as a picture, as a table, or as text."""
    shown = {"picture": "", "text": None, "cut": False, "preview": "", "is_latin": False}
    if is_picture(path):
        return shown | {"picture": picture_link(volume, path)}
    if is_table(path):
        query = urlencode({"volume": volume, "path": path}, quote_via=quote)
        return shown | {"preview": f"{places.DATA_PREVIEW}?{query}"}
    head = services.browsing.head(caller, volume, path, LONGEST_TEXT + 1)
    text, is_latin = text_of(head)
    return shown | {"text": text, "is_latin": is_latin, "cut": len(head) > LONGEST_TEXT}


@router.get(places.DATA_PREVIEW)
@bulk(PREVIEW, stream=False)
def preview(
    *, request: Request, services: TheServices, caller: TheCaller, volume: str = "", path: str = ""
) -> Response:
    """Show the first rows of a file, as a part of a page."""
    location: dict[str, Any] = {"paths": [path]} if path else {}
    source = {"type": "fs", "location": location | ({"volume": volume} if volume else {})}
    [found] = services.data.preview(caller, [source])
    return page(request, "data_preview.html", found=found, cell=shown_cell)


@router.post(places.DATA_PREVIEW)
@bulk(PREVIEW, stream=False)
def preview_connection(request: Request, services: TheServices, caller: TheCaller, form: TheForm) -> Response:
    """Show what a connection leads to, as a part of a page."""
    given = texts(form, "connection", "path")
    source = {"type": "connection_asset", "connection": {"name": given["connection"]},
              "location": {"path": given["path"]} if given["path"] else {}}
    [found] = services.data.preview(caller, [source])
    return page(request, "data_preview.html", found=found, cell=shown_cell)


@router.get(places.DATA_PICTURE)
@bulk(PREVIEW, stream=False)
def picture(services: TheServices, caller: TheCaller, volume: str = "", path: str = "") -> Response:
    """Return a picture."""
    return picture_answer(services.browsing.head(caller, volume, path), path)


def link(volume: str, path: str) -> str:
    """Return the address of the page of a folder or file."""
    return f"{places.DATA_FILES}?{urlencode({'volume': volume, 'path': path.strip('/')}, quote_via=quote)}"


def picture_link(volume: str, path: str) -> str:
    """Return the address of a picture."""
    return f"{places.DATA_PICTURE}?{urlencode({'volume': volume, 'path': path.strip('/')}, quote_via=quote)}"
