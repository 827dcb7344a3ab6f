"""The data rows of a form: what can be chosen, and the folder from which a user chooses another one."""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from local_backend.console.builder_form import FOLDER, IN_VOLUME, BuilderForm, DataRow
from local_backend.console.data import link
from local_backend.errors import BackendError
from local_backend.services.access import Caller
from local_backend.services.browsing import BrowsedEntry
from local_backend.services.services import Services

#: Most entries of an open folder.
_MOST = 200


@dataclass(frozen=True)
class OpenFolder:
    """A folder from which a user chooses. `problem` says why it cannot be shown. `shortcuts` are further places: label
    and path."""

    path: str
    entries: Sequence[BrowsedEntry] = ()
    more: bool = False
    problem: str = ""
    shortcuts: Sequence[tuple[str, str]] = ()
    #: Path of the page that uploads files into this folder, or else into the user's own one.
    upload: str = ""

    @property
    def above(self) -> str | None:
        """The path of the parent folder; None at the top."""
        return os.path.dirname(self.path) if self.path.strip("/") else None

    def inside(self, name: str) -> str:
        """Return the path of an entry."""
        return os.path.join(self.path, name)


def data_values(services: Services, caller: Caller, form: BuilderForm) -> dict[str, Any]:
    """Return the values of the template `builder_data.html` for the data rows of a form."""
    settings = services.base.settings
    row = next((one for one in form.data if str(one.key) == form.browsing and one.kind in (FOLDER, IN_VOLUME)), None)
    return {
        "connections": services.connections.list(caller), "volumes": _volumes(services, caller),
        "embedded": settings.embedded, "data_fs": str(settings.data_fs),
        "folder": None if row is None else _opened(services, caller, row),
    }


def _opened(services: Services, caller: Caller, row: DataRow) -> OpenFolder:
    """Return the folder of a row. If the row names a file, return the folder that contains the file."""
    volume = row.volume if row.kind == IN_VOLUME else ""
    own = services.data_files.own(caller)
    shortcuts = [("data folder of the server", ""), ("your folder", own) if own else ("home folder", str(Path.home()))]
    known = OpenFolder(row.path.rstrip("/") or row.path[:1], shortcuts=() if volume else shortcuts,
                       upload=f"{link(volume, '' if volume else own)}#upload")
    if row.kind == IN_VOLUME and not volume:
        return OpenFolder("", problem="Choose a storage volume first.")
    try:
        found = services.browsing.place(caller, volume, known.path)
        path = known.path
        if not found.is_folder:
            path = os.path.dirname(path)
            found = services.browsing.place(caller, volume, path)
    except BackendError as problem:
        return replace(known, problem=str(problem))
    is_stored = services.data_files.may_store(caller, volume, path) and not os.path.isabs(path)
    return replace(known, path=path, entries=found.entries[:_MOST], more=found.more or len(found.entries) > _MOST,
                   upload=f"{link(volume, path)}#upload" if is_stored else known.upload)


def _volumes(services: Services, caller: Caller) -> list[str]:
    """Return the names of the storage volumes that a user may use."""
    try:
        return [one.name for one in services.volumes.visible(caller)]
    except BackendError:
        return []
