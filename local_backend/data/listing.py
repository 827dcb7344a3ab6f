"""The files that a location names, and the path of each below the folder of its source."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dlicmd.contract import data_sources as wire
from local_backend.data.errors import DataError

if TYPE_CHECKING:
    from local_backend.data.kinds.base import Entry

#: Longest name that file systems accept, in bytes.
_LONGEST_NAME = 255
_LONGEST_PATH = 3000


def named(location: Mapping[str, Any]) -> list[str]:
    """Return the paths of a location as written, from the first of `paths`, `path` and `file_name` that names any. The
    value is one text with commas between paths, or a list. An empty result means all data.

    Raises DataError when a value is neither a text nor a list of texts.
    """
    for key in wire.PATH_KEYS:
        value: Any = location.get(key) or []
        if not isinstance(value, str | list) or any(not isinstance(word, str) for word in value):
            raise DataError(f"'{key}' must be a text or a list of texts")
        if found := wire.paths_in(value):
            return found
    return []


def paths_of(location: Mapping[str, Any]) -> list[str]:
    """Return the paths of a location for servers, without a leading slash. Every `..` is resolved here: on a server, a
    folder that is a link leads elsewhere than its name says. Raises DataError, also for a path that leads out of the
    place that its connection names."""
    return [path for path in (inside(word.lstrip("/")) for word in named(location)) if path]


def inside(path: str) -> str:
    """Return the path with every `..` resolved. Raises DataError when the path leads out of its base."""
    if ".." not in path.split("/"):
        return path
    found = posixpath.normpath(path)
    if found == ".." or found.startswith("../"):
        raise outside(path)
    return "" if found == "." else found + ("/" if path.endswith("/") else "")


def plain(path: str) -> str:
    """Return the path without parts that mean nothing to a disk: names that are a dot, and superfluous slashes."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    return "/".join(names) + ("/" if names and path.endswith("/") else "")


def outside(path: str) -> DataError:
    """Return the error for a path that leads out of its base."""
    return DataError(f"the data path '{path}' is outside the data of its connection")


def place(asked: str, several: bool, key: str) -> str:
    """Return the relative path for the file `key`, which was found at or below the path `asked`.

    Files below the only requested folder go to the top. The only requested file goes there under its own name. With
    several requested paths each file keeps its path.
    """
    if several:
        return key
    if key == asked:
        return key.rpartition("/")[2]
    return key[len(asked):].lstrip("/") if asked else key


def checked(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries sorted by path, each once. Raises DataError when there are none, or when their paths cannot
    all be files of one folder."""
    found: dict[str, Entry] = {}
    folders: set[str] = set()
    for entry in entries:
        _check_path(entry.path)
        if entry.path in found and found[entry.path].key != entry.key:
            raise DataError(f"two files have the same path '{entry.path}': {found[entry.path].key} and {entry.key}")
        found[entry.path] = entry
        parts = entry.path.split("/")
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
    both = next(iter(sorted(folders & found.keys())), None)
    if both is not None:
        raise DataError(f"'{both}' is both a file and a folder, which no disk can store; name only the paths "
                        "that you need")
    if not found:
        raise DataError("the location contains no files")
    return [found[path] for path in sorted(found)]


def _check_path(path: str) -> None:
    names = path.split("/")
    if any(name in ("", ".", "..") or len(name.encode(errors="replace")) > _LONGEST_NAME for name in names) \
            or len(path) > _LONGEST_PATH or any(ord(character) < 32 for character in path):
        shown = "".join(character if character.isprintable() else "?" for character in path[:80])
        raise DataError(f"'{shown}' is not a valid file path")
