"""The list of its data sources that a program finds in DLI_DATA_SOURCES_FILE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from local_backend.files import write_json
from local_backend.jobspec import JobSpec
from local_backend.runtime.paths import ExecPaths


def write_data_list(spec: JobSpec, paths: ExecPaths, delivered: Mapping[int, Mapping[str, Any]]) -> None:
    """Write it, for a job that names data sources; `delivered` says more of those that were fetched, by their number
    from 1. Raises OSError."""
    if not spec.sources:
        return
    paths.data.mkdir(mode=0o700, exist_ok=True)
    write_json(paths.data_sources, [
        {"name": source.name, "type": source.type, "access": source.access, "path": path, **delivered.get(number, {})}
        for number, (source, path) in enumerate(zip(spec.sources, paths.data_folders(spec), strict=True), 1)
    ], durable=False)
