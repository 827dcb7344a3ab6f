"""How many bytes the files of execs take. Walking the trees is slow: it is done beside the calls that need it."""

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
    #: Whether it was measured after the end of the exec: it stays the same then.
    final: bool


class Sizes:
    """The size of every exec as it was measured last. `measure` from one thread, the rest from any."""

    def __init__(self) -> None:
        self._found: dict[str, _Size] = {}

    def measure(self, execs: Iterable[Brief], paths: Callable[[Brief], ExecPaths]) -> None:
        """Look at execs that are new or not over, and forget those that are gone. What `paths` raises ends it."""
        before, found = dict(self._found), {}
        for one in execs:
            size = before.get(one.id)
            if size is None or not size.final:
                size = _Size(measured(paths(one)), one.terminal)
            found[one.id] = size
        # What has come in meanwhile stays.
        self._found = {name: size for name, size in list(self._found.items()) if name not in before} | found

    def of(self, exec_id: str) -> int:
        """Bytes of an exec, 0 before it was measured."""
        size = self._found.get(exec_id)
        return 0 if size is None else size.count

    def took(self, exec_id: str, count: int) -> None:
        """What an exec that was just taken has brought, until it is measured."""
        self._found[exec_id] = _Size(count, final=False)


def measured(paths: ExecPaths) -> int:
    """Bytes on the disk of what belongs to an exec."""
    return _tree(paths.root) + _tree(paths.state)


def _tree(folder: Path) -> int:
    """What a program removes or locks away meanwhile counts nothing; links are not followed."""
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
