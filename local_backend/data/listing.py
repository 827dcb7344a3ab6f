"""The files that a server lists, and which listings can become files of one folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from local_backend.data.errors import DataError

#: Longest name that file systems accept, in bytes, and longest path.
_LONGEST_NAME, _LONGEST_PATH = 255, 3000


@dataclass(frozen=True)
class SourceFile:
    """A file on a server.

    Attributes:
        path: Path below the folder of the data source: relative, with slashes, without `..`.
        key: Address of the file for `FileFamily.read`.
        size: Size in bytes, or None if the server does not report the size.
        version: ETag, generation or modification time. Empty if the server reports none.
        ranges: Whether the server supports range reads. If not, the file is read from start to end.
    """

    path: str
    key: str
    size: int | None
    version: str = ""
    ranges: bool = True


def distinct_files(files: Iterable[SourceFile]) -> list[SourceFile]:
    """Return the files sorted by path, each once. Raises DataError when there are none, or when their paths cannot
    all be files of one folder."""
    found: dict[str, SourceFile] = {}
    folders: set[str] = set()
    for file in files:
        _check_path(file.path)
        if file.path in found and found[file.path].key != file.key:
            raise DataError(f"two files have the same path '{file.path}': {found[file.path].key} and {file.key}")
        found[file.path] = file
        parts = file.path.split("/")
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
