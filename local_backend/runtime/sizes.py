"""Sizes of the files of execs in bytes. Walking the trees is slow, so a separate thread measures them, not the API
calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from local_backend.runtime.paths import ExecPaths
from local_backend.store.execs import Brief


@dataclass(frozen=True)
class _Size:
    count: int
    #: Whether the size was measured after the exec ended: it no longer changes then.
    final: bool


class Sizes:
    """The last measured size of every exec. Call `measure` from one thread, all other methods from any thread."""

    def __init__(self) -> None:
        self._found: dict[str, _Size] = {}

    def measure(self, execs: Iterable[Brief], paths: Callable[[Brief], ExecPaths]) -> None:
        """Measure new and unfinished execs, and forget execs that no longer exist. An exception raised by `paths`
        ends the call."""
        before, found = dict(self._found), {}
        for one in execs:
            size = before.get(one.id)
            if size is None or not size.final:
                size = _Size(measured(paths(one)), one.terminal)
            found[one.id] = size
        # Keep entries that `took` added in the meantime.
        self._found = {name: size for name, size in list(self._found.items()) if name not in before} | found

    def of(self, exec_id: str) -> int:
        """Return the bytes of an exec; 0 if it was not measured yet."""
        size = self._found.get(exec_id)
        return 0 if size is None else size.count

    def took(self, exec_id: str, count: int) -> None:
        """Set the size of an exec that was just accepted, to use until it is measured."""
        self._found[exec_id] = _Size(count, final=False)


def measured(paths: ExecPaths) -> int:
    """Return the bytes on disk of an exec's files."""
    return _tree(paths.root) + _tree(paths.state)


def _tree(folder: Path) -> int:
    """Return the bytes below a folder. Files that a program removes or makes unreadable in the meantime count 0;
    links are not followed."""
    total, left = 0, [str(folder)]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
        except OSError:
            continue
    return total
