"""Sizes of the files of execs and users in bytes. Walking the trees is slow, so a separate thread measures them, not
the API calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from local_backend.runtime.paths import HomePaths
from local_backend.store.execs import Brief


@dataclass(frozen=True)
class _Size:
    #: Bytes of the exec's own files.
    own: int
    #: Whether they were measured after the exec ended: they no longer change then.
    final: bool
    #: Bytes of its code bundle, if it is the oldest exec that names the bundle: all sizes together are the used space.
    code: int = 0


class Sizes:
    """The last measured size of every exec. Call `measure` from one thread, all other methods from any thread."""

    def __init__(self, home: HomePaths) -> None:
        self._home = home
        self._found: dict[str, _Size] = {}
        #: Digest of a bundle → its bytes, which never change.
        self._bundles: dict[str, int] = {}
        #: User → bytes of installed packages and other files that the user's jobs share.
        self._users: dict[str, int] = {}

    def measure(self, execs: Iterable[Brief], between: Callable[[], object] = lambda: None) -> None:
        """Measure new and unfinished execs and their users. Forget execs that no longer exist. `execs` are all execs,
        oldest first.
        `between` is called before each measurement, and may end this call by an exception."""
        before, found = dict(self._found), {}
        bundles: dict[str, int] = {}
        users: dict[str, int] = {}
        for one in execs:
            size = before.get(one.id)
            if size is None or not size.final:
                between()
                paths = self._home.job(one.id, one.creator)
                folders = (paths.root, paths.state, paths.temporary)
                size = _Size(sum(map(on_disk, folders)), one.terminal)
                if one.creator not in users:
                    users[one.creator] = on_disk(self._home.user(one.creator))
            code = 0
            if one.bundle is not None and one.bundle not in bundles:
                known = self._bundles.get(one.bundle)
                code = bundles[one.bundle] = on_disk(self._home.bundle(one.bundle)) if known is None else known
            found[one.id] = replace(size, code=code)
        self._bundles, self._users = bundles, self._users | users
        # Keep entries that `took` added in the meantime.
        self._found = {name: size for name, size in list(self._found.items()) if name not in before} | found

    def of(self, exec_id: str) -> int:
        """Return the bytes of an exec; 0 if it was not measured yet."""
        size = self._found.get(exec_id)
        return 0 if size is None else size.own + size.code

    def of_user(self, name: str) -> int:
        """Return the bytes that the jobs of a user share; 0 if they were not measured yet."""
        return self._users.get(name, 0)

    def took(self, exec_id: str, count: int) -> None:
        """Set the size of an exec that was just accepted, to use until it is measured."""
        self._found[exec_id] = _Size(count, final=False)


def content_bytes(folder: Path) -> int:
    """Return the bytes of the files below a folder, without what a file system needs beside them. Raises OSError."""
    return sum(os.lstat(os.path.join(top, name)).st_size for top, _, names in os.walk(folder) for name in names)


def on_disk(folder: Path) -> int:
    """Return the bytes on disk below a folder. Files that a program removes or makes unreadable in the meantime count
    0; links are not followed."""
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
