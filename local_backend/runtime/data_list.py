"""How a program finds all its data sources: DLI_DATA_DIRS, and the list in DLI_DATA_SOURCES_FILE."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from local_backend.files import write_json
from local_backend.runtime.paths import ExecPaths
from local_backend.workload import Workload

#: Maximum bytes of DLI_DATA_DIRS: Linux starts no process with a variable over 128 KiB, name included.
_LONGEST = 100_000


def joined(folders: Sequence[str]) -> str | None:
    """Return the value of DLI_DATA_DIRS; None if it is too long to start a process with."""
    text = os.pathsep.join(folders)
    return text if len(os.fsencode(text)) <= _LONGEST else None


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
