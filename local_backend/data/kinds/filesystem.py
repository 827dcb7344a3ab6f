"""What all servers of files have in common that fsspec has a file system for."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from local_backend.data.errors import DataChanged, DataError, DataUnavailable
from local_backend.data.kinds.base import Entry, FileFamily, Kind
from local_backend.data.listing import paths_of, place
from local_backend.data.troubles import in_words

PIECE = 4 << 20
#: What the file systems call that which changes with the content, the best first.
_VERSIONS = ("etag", "ETag", "generation", "md5Hash", "mtime", "modificationTime", "last_modified", "updated")
#: Ends of names of errors, of whatever library: the credentials are no good.
_NOT_LET_IN = ("AuthenticationError", "PermissionDenied", "PermissionError", "RefreshError", "HostKeyNotVerifiable")


class FileSystem(FileFamily):
    """Servers behind a file system of fsspec. A kind says which.

    None of them pins a read to a version: what it was is looked at after every read.
    """

    #: As fsspec calls the file system.
    protocol: ClassVar[str]
    #: Says to the file system that it is not to answer out of what it remembers, where it remembers anything.
    fresh: ClassVar[Mapping[str, Any]] = {"use_listings_cache": False}

    def __init__(self, kind: Kind, values: Mapping[str, str]) -> None:
        super().__init__(kind, values)
        self._made: Any = None
        self._lock = threading.Lock()

    @abstractmethod
    def storage_options(self) -> dict[str, Any]:
        """What the file system is made with, as JSON. Raises DataError."""

    def options(self) -> dict[str, Any]:
        """What the file system is made with here. Raises DataError."""
        return self.storage_options()

    def storage(self) -> tuple[str, dict[str, Any]]:
        return self.protocol, self.storage_options()

    def test(self) -> None:
        with self._told("its files"):
            # Some list their tops only when they may remember them.
            self._new_files({}).ls(self.top({}) if not self.tops or self.values.get(self.tops[0]) else "", detail=False)

    def entries(self, location: Mapping[str, Any]) -> Iterator[Entry]:
        asked, top = paths_of(location), self.top(location)
        for path in asked or [""]:
            spelling, found = self._first_below(top, path)
            for name, info in sorted(found.items()):
                key = name.strip("/")[len(top.strip("/")):].lstrip("/")
                yield Entry(place(spelling.rstrip("/"), len(asked) > 1, key), name, info.get("size"), _version(info))

    def read(self, entry: Entry, start: int, end: int | None) -> Generator[bytes, None, None]:
        end = entry.size if end is None else end
        with self._told(entry.key):
            yield from self.pieces(entry.key, start, end)
            info = self.files().info(entry.key)
            if (_version(info), info.get("size")) != (entry.version, entry.size):
                raise DataChanged(f"{entry.key} changed while it was read")

    def pieces(self, key: str, start: int, end: int | None) -> Iterator[bytes]:
        """The bytes of a file from `start` up to `end`, for file systems that can be asked for a range."""
        while end is None or start < end:
            until = start + PIECE if end is None else min(start + PIECE, end)
            piece = self.files().cat_file(key, start=start, end=until)
            if not piece:
                break
            yield piece
            start += len(piece)

    def _first_below(self, top: str, path: str) -> tuple[str, dict[str, Any]]:
        """The first spelling of a path at which there is something, and what that is. Raises DataError."""
        shown, spellings = path or top or "its files", self.spellings(path)
        for spelling in spellings:
            with self._told(shown):
                try:
                    if found := self._below(f"{top}/{spelling}".rstrip("/")):
                        return spelling, found
                except FileNotFoundError:
                    if spelling == spellings[-1]:
                        raise
        raise DataError(f"there is no file in '{shown}'")

    def _below(self, base: str) -> dict[str, Any]:
        info = self.files().info(base)
        if info["type"] != "directory":
            return {info["name"]: info}
        return {name: one for name, one in self.find(base) if one["type"] == "file"}

    def find(self, base: str) -> Iterable[tuple[str, Any]]:
        """Names and what is known of all that lies below a folder, for servers that tell it in one go."""
        found: dict[str, Any] = self.files().find(base, detail=True)
        return found.items()

    def files(self) -> Any:
        """The file system."""
        with self._lock:
            if self._made is None:
                self._made = self._new_files(self.fresh)
            return self._made

    def _new_files(self, more: Mapping[str, Any]) -> Any:
        import fsspec

        return fsspec.filesystem(self.protocol, skip_instance_cache=True, **more, **self.options())

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Problems of the libraries as ours: what is not known to last may pass."""
        title = self.kind.title
        try:
            yield
        except (DataError, GeneratorExit):
            raise
        except FileNotFoundError:
            raise DataError(f"{title}: there is no {what}") from None
        except Exception as problem:
            # Some have the address in their words, and that has a token in it.
            text = self.without_secrets(problem) or in_words(problem)
            if isinstance(problem, PermissionError) or type(problem).__name__.endswith(_NOT_LET_IN) \
                    or getattr(problem, "status_code", getattr(problem, "code", None)) in (401, 403):
                raise DataError(f"{title} lets nobody in to {what} with these credentials: {text}") from None
            if isinstance(problem, ValueError | TypeError):
                raise DataError(f"{title}: {text}") from None
            raise DataUnavailable(f"{title} does not give {what}: {text}") from None


class Folders(FileSystem):
    """Servers that are asked folder by folder: there fsspec takes one that cannot be listed for an empty one."""

    def find(self, base: str) -> Iterable[tuple[str, Any]]:
        folders = [base]
        while folders:
            for one in self.files().ls(folders.pop(), detail=True):
                if one["type"] == "directory":
                    folders.append(one["name"])
                yield one["name"], one


def _version(info: Mapping[str, Any]) -> str:
    return next((str(info[name]) for name in _VERSIONS if info.get(name)), "")
