"""Common base of the file servers for which fsspec has a file system."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from local_backend.data.errors import DataChanged, DataError, DataUnavailable, in_words
from local_backend.data.kind import FileFamily, Kind, SourceFile
from local_backend.data.locations import path_below, paths_of

PIECE = 4 << 20
#: SourceNames that file systems use for a value that changes with the content, the best first.
_VERSIONS = ("etag", "ETag", "generation", "md5Hash", "mtime", "modificationTime", "last_modified", "updated")
#: Suffixes of error names, of any library, that mean invalid credentials.
_NOT_LET_IN = ("AuthenticationError", "PermissionDenied", "PermissionError", "RefreshError", "HostKeyNotVerifiable")


class FileSystem(FileFamily):
    """Servers behind a file system of fsspec. Each subclass names one.

    None of them pins a read to a version, so `read` compares the version after every read.
    """

    #: Name of the file system in fsspec.
    protocol: ClassVar[str]
    #: Arguments that keep the file system from answering from its cache, if it has one.
    fresh: ClassVar[Mapping[str, Any]] = {"use_listings_cache": False}

    def __init__(self, kind: Kind, values: Mapping[str, str]) -> None:
        super().__init__(kind, values)
        self._made: Any = None
        self._lock = threading.Lock()

    @abstractmethod
    def storage_options(self) -> dict[str, Any]:
        """Return the arguments of the file system, as JSON values. Raises DataError."""

    def options(self) -> dict[str, Any]:
        """Return the arguments of the file system in this process. Raises DataError."""
        return self.storage_options()

    def storage(self) -> tuple[str, dict[str, Any]]:
        return self.protocol, self.storage_options()

    def test(self) -> None:
        with self._told("the data of the connection"):
            # Some file systems list buckets only with the listings cache on.
            top = self.top({}) if not self.tops or self.values.get(self.tops[0]) else ""
            self._new_filesystem({}).ls(top, detail=False)

    def files(self, location: Mapping[str, Any]) -> Iterator[SourceFile]:
        asked, top = paths_of(location), self.top(location)
        for path in asked or [""]:
            spelling, found = self._first_below(top, path)
            for name, info in sorted(found.items()):
                key = name.strip("/")[len(top.strip("/")):].lstrip("/")
                yield SourceFile(path_below(spelling.rstrip("/"), len(asked) > 1, key), name, info.get("size"),
                                 _version(info))

    def read(self, file: SourceFile, start: int, end: int | None) -> Generator[bytes, None, None]:
        end = file.size if end is None else end
        with self._told(file.key):
            yield from self.pieces(file.key, start, end)
            info = self.filesystem().info(file.key)
            if (_version(info), info.get("size")) != (file.version, file.size):
                raise DataChanged(f"{file.key} changed while it was read")

    def pieces(self, key: str, start: int, end: int | None) -> Iterator[bytes]:
        """Yield the bytes of a file from `start` up to `end`, for file systems that support ranges."""
        while end is None or start < end:
            until = start + PIECE if end is None else min(start + PIECE, end)
            piece = self.filesystem().cat_file(key, start=start, end=until)
            if not piece:
                break
            yield piece
            start += len(piece)

    def _first_below(self, top: str, path: str) -> tuple[str, dict[str, Any]]:
        """Return the first spelling of a path that has files, and these files. Raises DataError."""
        shown, spellings = path or top or "the data of the connection", self.spellings(path)
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
        info = self.filesystem().info(base)
        if info["type"] != "directory":
            return {info["name"]: info}
        return {name: one for name, one in self.find(base) if one["type"] == "file"}

    def find(self, base: str) -> Iterable[tuple[str, Any]]:
        """Return name and details of everything below a folder, for servers that list all in one request."""
        found: dict[str, Any] = self.filesystem().find(base, detail=True)
        return found.items()

    def filesystem(self) -> Any:
        """Return the file system of fsspec."""
        with self._lock:
            if self._made is None:
                self._made = self._new_filesystem(self.fresh)
            return self._made

    def _new_filesystem(self, more: Mapping[str, Any]) -> Any:
        import fsspec

        return fsspec.filesystem(self.protocol, skip_instance_cache=True, **more, **self.options())

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Translate errors of the libraries. An error that is not known as permanent counts as temporary."""
        title = self.kind.title
        try:
            yield
        except (DataError, GeneratorExit):
            raise
        except FileNotFoundError:
            raise DataError(f"{title}: {what} does not exist") from None
        except Exception as problem:
            # Some errors quote the address, and the address has a token in it.
            text = self.without_secrets(problem) or in_words(problem)
            if isinstance(problem, PermissionError) or type(problem).__name__.endswith(_NOT_LET_IN) \
                    or getattr(problem, "status_code", getattr(problem, "code", None)) in (401, 403):
                raise DataError(f"{title} denies access to {what} with these credentials: {text}") from None
            if isinstance(problem, ValueError | TypeError):
                raise DataError(f"{title}: {text}") from None
            raise DataUnavailable(f"{title}: cannot read {what}: {text}") from None


class Folders(FileSystem):
    """Servers that list one folder at a time. For these, fsspec takes a folder that it cannot list for an empty one."""

    def find(self, base: str) -> Iterable[tuple[str, Any]]:
        folders = [base]
        while folders:
            for one in self.filesystem().ls(folders.pop(), detail=True):
                if one["type"] == "directory":
                    folders.append(one["name"])
                yield one["name"], one


def _version(info: Mapping[str, Any]) -> str:
    return next((str(info[name]) for name in _VERSIONS if info.get(name)), "")
