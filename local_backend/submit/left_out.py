"""Removes files from the folder that a browser sends, by the same rules as a client that packs a folder."""

from __future__ import annotations

from dataclasses import replace

from dlicmd.contract.left_out import IGNORE_FILE
from local_backend import limited_work
from local_backend.errors import Invalid
from local_backend.limited_work import LimitExceeded, WorkLimits
from local_backend.submit import sent_rules
from local_backend.submit.receive import ReceivedUpload

_LIMITS = WorkLimits(seconds=20, memory=512 << 20)


def without_ignored(upload: ReceivedUpload) -> ReceivedUpload:
    """Return the upload of a folder without the files that its rules leave out, and with the names of these files and
    folders. Raises Invalid (`submission.files`) for an ignore file that cannot be used, OSError."""
    inner = [name.replace("\\", "/").partition("/")[2] for name, _ in upload.files]
    files = [(name, str(path)) for name, (_, path) in zip(inner, upload.files, strict=True)]
    try:
        found = limited_work.call(f"{sent_rules.__name__}:left_out", [files], _LIMITS)
    except LimitExceeded:
        found = f"it needs more than {_LIMITS.seconds} s or too much memory; write fewer or simpler patterns"
    if isinstance(found, str):
        raise Invalid("submission.files", f"the server cannot use the {IGNORE_FILE} of the folder: {found}")
    names = {name[:length] for name, length in zip(inner, found, strict=True) if length}
    return replace(upload, left_out=sorted(names - {IGNORE_FILE}),
                   files=[one for one, length in zip(upload.files, found, strict=True) if not length])
