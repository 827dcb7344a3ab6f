"""The data of a job: from --data-source, or else from --cs-datastore-meta."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from local_backend.data import areas, storage
from local_backend.data.errors import DataError, KindUnusable
from local_backend.data.submitted import Find, SubmittedData, divided, understand
from local_backend.errors import Invalid, StorageFailed
from local_backend.submit.words import Asked


def data_of(asked: Asked, roots: storage.DataRoots, find: Find) -> SubmittedData:
    """Return the data that a submission names. If it names data sources, --cs-datastore-meta is ignored and not even
    checked. Raises Invalid."""
    return _checked(lambda: understand(asked.data_source, roots, find) if asked.data_source else _from_meta(
        asked, roots), roots)


def data_named(sources: Sequence[Any], roots: storage.DataRoots, find: Find) -> SubmittedData:
    """Return the data of data sources; without any, the folder of all data. Raises Invalid."""
    return _checked(lambda: understand(sources, roots, find) if sources else SubmittedData(
        storage.from_meta("", roots)), roots)


def _checked(read: Callable[[], SubmittedData], roots: storage.DataRoots) -> SubmittedData:
    try:
        found = read()
    except KindUnusable as problem:
        raise Invalid("data.kind_unusable", str(problem)) from None
    except DataError as problem:
        raise _refused(problem) from None
    mounted = [found.data_dir, *(source.path for source in found.sources)]
    found.new = [path for path in dict.fromkeys(mounted) if path and not os.path.exists(path)] if roots.create else []
    return found


def create(new: Sequence[str], roots: storage.DataRoots) -> list[str]:
    """Create the folders that data needs, and return a note for each. Raises Invalid and StorageFailed."""
    for path in new:
        try:
            areas.create(path, roots.data_fs, roots.area)
        except DataError as problem:
            raise _refused(problem) from None
        except OSError as problem:
            raise StorageFailed.from_os(problem) from None
    return [f"the data path did not exist: the server created the empty folder {path}" for path in new]


def _from_meta(asked: Asked, roots: storage.DataRoots) -> SubmittedData:
    found = SubmittedData(storage.from_meta(asked.line.text("--cs-datastore-meta") or "", roots))
    if asked.data_source is not None:
        found.notes.append(f"the list of data sources is empty: DATA_DIR is {found.data_dir or 'empty'}")
    if os.pathsep in found.data_dir:
        found.notes.append(divided(found.data_dir))
    return found


def _refused(problem: DataError) -> Invalid:
    return Invalid("submission.data_source", str(problem))
