"""Data sources: show what they contain before a job uses them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dlicmd.contract import wire
from dlicmd.contract.data_sources import STREAM
from local_backend.data import storage
from local_backend.data.errors import DataError, KindUnusable
from local_backend.data.export import TableLimits
from local_backend.data.probe import ProbeRequest, hidden
from local_backend.data.progress import shown
from local_backend.data.submitted import understand
from local_backend.errors import Invalid
from local_backend.services.access import Caller
from local_backend.services.base import Base
from local_backend.sources.connections import Connections
from local_backend.sources.volumes import cache_for
from local_backend.workload import DataSource

#: Maximum seconds for the preview of one source.
PATIENCE = 60.0
_MOST = 10


@dataclass(frozen=True)
class DataService:
    """Queries about data sources."""

    base: Base
    connections: Connections

    def preview(self, caller: Caller, sources: list[Any]) -> list[dict[str, Any]]:
        """Return one object for each source: `ok`, or the reason in `message`; `files` and `bytes`; `schema`,
        `rowCount` and the first `rows` of a table or file. The server keeps none of the data.

        Raises Invalid (`data.preview`, `data.invalid`, `data.kind_unusable`), Unavailable.
        """
        with self.base.recorded(caller, "data.preview"):
            if not sources:
                raise Invalid("data.preview", f"The list of data sources is empty; send 1 to {_MOST} data sources")
            _check_count(len(sources))
            try:
                find = partial(self.connections.find, user=caller.name, admin=caller.admin)
                asked = understand(sources, self.base.data_roots(caller), find, typed=True)
                # A source may name several paths.
                _check_count(len(asked.sources))
                return [
                    self._look(caller, source, asked.secrets.get(number, {}))
                    for number, source in enumerate(asked.sources, 1)
                ]
            except KindUnusable as problem:
                raise Invalid("data.kind_unusable", str(problem)) from None
            except DataError as problem:
                raise Invalid("data.invalid", str(problem)) from None

    def _look(self, caller: Caller, source: DataSource, secrets: Mapping[str, str]) -> dict[str, Any]:
        told = {wire.NAME: source.name, wire.TYPE: source.type, "access": source.access}
        if not source.fetched and not source.path:
            absent = f"DLI_DATA_FS does not exist: {self.base.settings.data_fs}; DATA_DIR would be empty"
            return told | {wire.OK: False, wire.MESSAGE: absent}
        if not source.fetched:
            roots = self.base.data_roots(caller)
            request = ProbeRequest(source.path, closed=list(roots.closed.values()), within=storage.within(roots),
                                   kept=roots.kept)
            return told | {"path": source.path} | request.run(PATIENCE)
        connection = self.connections.of_source(source, secrets, caller.name, caller.admin)
        found = ProbeRequest("", source.kind, source.location, dict(connection.values), source.access,
                             loopback=self.base.settings.embedded).run(PATIENCE)
        if wire.MESSAGE in found:
            found[wire.MESSAGE] = hidden(found[wire.MESSAGE], connection)
        return told | {"kind": source.kind} | found | self._room(source, found)

    def _room(self, source: DataSource, found: Mapping[str, Any]) -> dict[str, Any]:
        """Return `ok` false and a message if the data does not fit on this machine, else nothing. A job with such
        data would end ERROR."""
        size, settings = found.get("bytes") or 0, self.base.settings
        if not found[wire.OK] or source.access == STREAM:
            return {}
        if "files" not in found:
            rows = None if found.get("rowCountEstimated") else found.get("rowCount")
            problem = TableLimits(settings.data_rows).exceeded(rows or 0)
            return {} if problem is None else {wire.OK: False, wire.MESSAGE: problem}
        cache = cache_for(settings, source.target)
        free = _free(cache)
        most = min(settings.cache_bytes, free)
        if size <= most:
            return {}
        what = f"the free space on the disk of the cache {cache} is" if most == free else "the limit of the cache is"
        return {wire.OK: False, wire.MESSAGE: f"the data has {shown(size)}, but {what} {shown(most)}"}


def _check_count(count: int) -> None:
    if count > _MOST:
        raise Invalid(
            "data.preview",
            f"{count} data sources in one call; the limit for a preview is {_MOST}. Split the list (a submission may "
            "have more)",
        )


def _free(folder: Path) -> int:
    """Return the free bytes of the disk of a folder. The folder need not exist yet."""
    return shutil.disk_usage(next(one for one in (folder, *folder.parents) if os.path.exists(one))).free
