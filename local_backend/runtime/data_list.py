"""How a program finds all its data sources: DLI_DATA_DIRS, and the list in DLI_DATA_SOURCES_FILE. Whether all its data
is the submitter's own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dlicmd.contract.data_sources import FS, MOUNT, NAME, TYPE
from local_backend.data.areas import area_of
from local_backend.files import write_json
from local_backend.runtime.paths import ExecPaths
from local_backend.workload import DataSource, Workload

#: Maximum bytes of DLI_DATA_DIRS: Linux starts no process with a variable over 128 KiB, name included.
_LONGEST = 100_000


def joined(folders: Sequence[str]) -> str | None:
    """Return the value of DLI_DATA_DIRS; None if it is too long to start a process with."""
    text = os.pathsep.join(folders)
    return text if len(os.fsencode(text)) <= _LONGEST else None


def is_own(spec: Workload, data_fs: Path) -> bool:
    """Return whether all data of a workload is the submitter's own: in the submitter's area of DLI_DATA_FS, or from a
    connection of the submitter."""
    sources = spec.data.sources or (DataSource("", FS, MOUNT, spec.data.data_dir),)
    return all(_is_from_own(source.connection, spec.creator) if source.fetched
               else not source.path or _is_in_area(source.path, data_fs, spec.creator) for source in sources)


def _is_from_own(connection: Mapping[str, str], user: str) -> bool:
    return TYPE in connection or connection.get(NAME, "").startswith(f"{user}/")


def _is_in_area(path: str, data_fs: Path, user: str) -> bool:
    area = os.path.realpath(data_fs / area_of(user))
    return os.path.commonpath([os.path.realpath(path), area]) == area


def write_data_list(spec: Workload, paths: ExecPaths, delivered: Mapping[int, Mapping[str, Any]]) -> None:
    """Write the list of data sources, if the job names any. `delivered` adds values for fetched sources, by source
    number from 1. Raises OSError."""
    if not spec.data.sources:
        return
    paths.data.mkdir(mode=0o700, exist_ok=True)
    write_json(paths.data_sources, [
        {"name": source.name, "type": source.type, "access": source.access, "path": path, **delivered.get(number, {})}
        for number, (source, path) in enumerate(zip(spec.data.sources, paths.data_folders(spec), strict=True), 1)
    ], durable=False)
