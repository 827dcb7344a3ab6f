"""Finds the files of a sent folder that its rules leave out. Runs in a process of its own, under limits: a pattern of a
few characters can need hours for one name. See limited_host.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dlicmd.contract.left_out import DEFAULT_IGNORES, IGNORE_FILE, SECRET_IGNORES, VIRTUAL_ENVIRONMENT, own_lines

#: Most bytes of an ignore file.
_LARGEST = 1 << 20


def left_out(files: Sequence[Sequence[str]]) -> list[int] | str:
    """Return for each file (its path in the folder, and its present path) how long the part of its path is that the
    rules leave out: the excluded folder with its slash, or the whole path; 0 if the file is part of the code. Return a
    sentence if the ignore file cannot be used."""
    try:
        rules = _SentRules({name: Path(place) for name, place in files})
        return [rules.excluded(name) for name, _ in files]
    except (ValueError, RecursionError, MemoryError) as problem:
        return " ".join(str(problem).split()) or type(problem).__name__


class _SentRules:
    """The rules of a folder. `files` are its files, by their paths in it."""

    def __init__(self, files: dict[str, Path]) -> None:
        from pathspec import GitIgnoreSpec  # only for a folder

        self._environments = {name.removesuffix(VIRTUAL_ENVIRONMENT) for name in files
                              if name.endswith(f"/{VIRTUAL_ENVIRONMENT}")}
        self._known: dict[str, bool] = {}

        def read(name: str) -> str:
            if name not in files:
                raise ValueError(f"it includes {name[:200]!r}, which the folder lacks")
            with files[name].open("rb") as file:
                return file.read(_LARGEST).decode()

        own = [pattern for pattern, _ in own_lines(read)] if IGNORE_FILE in files else []
        self._spec: Any = GitIgnoreSpec.from_lines([*DEFAULT_IGNORES, *SECRET_IGNORES, *own])

    def excluded(self, name: str) -> int:
        """Return the length of the excluded part of a path."""
        parts = name.split("/")
        above = ("/".join(parts[:at]) + "/" for at in range(1, len(parts)))
        return next((len(one) for one in (*above, name) if self._ignores(one)), 0)

    def _ignores(self, name: str) -> bool:
        if name not in self._known:
            self._known[name] = bool(self._spec.match_file(name)) or name in self._environments
        return self._known[name]
