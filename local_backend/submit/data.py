"""The data of a job: from --data-source, or else from --cs-datastore-meta."""

from __future__ import annotations

import os

from local_backend.data import storage
from local_backend.data.errors import DataError, KindUnusable
from local_backend.data.submitted import Find, SubmittedData, divided, understand
from local_backend.errors import Invalid
from local_backend.submit.words import Asked


def data_of(asked: Asked, roots: storage.DataRoots, find: Find) -> SubmittedData:
    """Return the data that a submission names. If it names data sources, --cs-datastore-meta is ignored and not even
    checked. Raises Invalid."""
    try:
        if not asked.data_source:
            found = SubmittedData(storage.from_meta(asked.line.text("--cs-datastore-meta") or "", roots))
            if asked.data_source is not None:
                found.notes.append(f"the list of data sources is empty: DATA_DIR is {found.data_dir or 'empty'}")
            if os.pathsep in found.data_dir:
                found.notes.append(divided(found.data_dir))
            return found
        return understand(asked.data_source, roots, find)
    except KindUnusable as problem:
        raise Invalid("data.kind_unusable", str(problem)) from None
    except DataError as problem:
        raise Invalid("submission.data_source", str(problem)) from None
