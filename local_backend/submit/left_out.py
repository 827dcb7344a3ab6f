"""Removes files from the folder that a browser sends, by the same rules as a client that packs a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlicmd.contract.left_out import DEFAULT_IGNORES, IGNORE_FILE, SECRET_IGNORES, VIRTUAL_ENVIRONMENT, own_lines
from local_backend.errors import Invalid
from local_backend.submit.receive import ReceivedUpload

#: Most bytes of an ignore file.
_LARGEST = 1 << 20


def without_ignored(upload: ReceivedUpload) -> ReceivedUpload:
    """Return the upload of a folder without the files that its rules leave out, and with the names of these files and
    folders. Raises Invalid (`submission.files`) for an ignore file that cannot be used, OSError."""
    inner = {name: name.replace("\\", "/").partition("/")[2] for name, _ in upload.files}
    rules = _SentRules({inner[name]: path for name, path in upload.files})
    why = {name: rules.left_out(inner[name]) for name, _ in upload.files}
    return replace(upload, files=[one for one in upload.files if why[one[0]] is None],
                   left_out=sorted({found for found in why.values() if found is not None and found != IGNORE_FILE}))


class _SentRules:
    """The rules of a folder. `files` are its files, by their paths in it."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        from pathspec import GitIgnoreSpec  # only for a folder

        self._environments = {name.removesuffix(VIRTUAL_ENVIRONMENT) for name in files
                              if name.endswith(f"/{VIRTUAL_ENVIRONMENT}")}
        self._known: dict[str, bool] = {}

        def read(name: str) -> str:
            place = files.get(name)
            if place is None:
                raise Invalid("submission.files", f"{IGNORE_FILE} includes {name[:200]!r}, which the folder lacks")
            with place.open("rb") as file:
                return file.read(_LARGEST).decode()

        try:
            own = [pattern for pattern, _ in own_lines(read)] if IGNORE_FILE in files else []
            self._spec: Any = GitIgnoreSpec.from_lines([*DEFAULT_IGNORES, *SECRET_IGNORES, *own])
        except ValueError as problem:
            sentence = f"the server cannot use the {IGNORE_FILE} of the folder: {' '.join(str(problem).split())}"
            raise Invalid("submission.files", sentence) from None

    def left_out(self, name: str) -> str | None:
        """Return the excluded folder of a file, with a slash; the file, if only the file is excluded; None if the file
        is part of the code."""
        parts = name.split("/")
        above = ("/".join(parts[:at]) + "/" for at in range(1, len(parts)))
        return next((one for one in (*above, name) if self._ignores(one)), None)

    def _ignores(self, name: str) -> bool:
        if name not in self._known:
            self._known[name] = bool(self._spec.match_file(name)) or name in self._environments
        return self._known[name]
