"""Calls that store files as data of jobs on a server."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import urlencode

from dlicmd.contract import wire
from dlicmd.sdk.calls import SUBMIT_TIMEOUT, Calls, an_object
from dlicmd.sdk.errors import PackageError, UsageProblem
from dlicmd.sdk.messages import Progress, file_count, silent
from dlicmd.sdk.model_store_calls import accepted
from dlicmd.sdk.objects import StoredData
from dlicmd.sdk.transport import FilePart, Multipart

#: The most files and bytes of one call. Further files need further calls.
_MOST_FILES, _MOST_BYTES = 5000, 2**30


class DataCalls(Calls):
    """Calls about files of data."""

    def upload_data(
        self, path: str | os.PathLike[str], to: str = "", *, volume: str = "", replace: bool = False,
        progress: Progress | None = None,
    ) -> StoredData:
        """Store a file, or all files of a folder, as data of jobs on the server (extension `data-upload`).

        More than 5,000 files or 1 GiB need several calls. Each call stores all of its files, or none.

        Args:
            path: File or folder of this machine. Links to files are read; other links are an error.
            to: Folder on the server, relative to DLI_DATA_FS or to the volume. On a server for a team, your own folder
                in DLI_DATA_FS takes the place of DLI_DATA_FS.
            volume: Name of a volume, or "" for DLI_DATA_FS.
            replace: Whether to replace files that exist.
            progress: Context manager that shows the progress of the upload, or None.

        Returns:
            The folder on the server, and the number and size of the stored files.

        Raises:
            UsageProblem: `path` does not exist.
            PackageError: A file cannot be read.
            SubmissionRefused: The server refuses the path.
            ServerError: A file exists, a limit is exceeded, or the server lacks the extension.
        """
        files = _files(Path(os.path.expanduser(path)))
        total = sum(size for _, _, size in files)
        query = {wire.PATH: to, wire.VOLUME: volume, wire.REPLACE: "true" if replace else "false"}
        target, sent, found = f"{wire.DATA_FILES}?{urlencode(query)}", 0, StoredData({})
        with (progress or silent)(f"uploading {file_count(len(files))}", total) as shown:
            for batch in _batches(files):
                parts = [FilePart(wire.PART_FILE, name, cast("BinaryIO", _LazyFile(place)), size)
                         for name, place, size in batch]
                body = Multipart(parts, progress=None if shown is None else _after(sent, shown))
                try:
                    answer = self._send("POST", target, {"Content-Type": body.content_type}, body, SUBMIT_TIMEOUT)
                finally:
                    for part in parts:
                        part.file.close()
                found = StoredData(an_object(accepted(answer, "the data")))
                sent += sum(size for _, _, size in batch)
        return StoredData({wire.PATH: found.path, wire.FILES: len(files), wire.BYTES: total})


def _after(before: int, shown: Callable[[int], None]) -> Callable[[int], None]:
    """Return the function that shows the progress of a call that begins after so many bytes."""
    return lambda count: shown(before + count)


class _LazyFile(io.RawIOBase):
    """A file that is open only while it is read: a folder may have more files than a process may open."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file: io.BufferedReader | None = None

    def readable(self) -> bool:
        """See the base class."""
        return True

    def tell(self) -> int:
        """Return 0: the file is read from its start."""
        return 0

    def seek(self, offset: int, whence: int = 0) -> int:
        """Start again."""
        self._forget()
        return 0

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes. Raises PackageError."""
        try:
            if self._file is None:
                self._file = self._path.open("rb")
            found = self._file.read(size)
        except OSError as problem:
            raise PackageError(f"cannot read '{self._path}': {problem.strerror}") from None
        if not found:
            self._forget()
        return found

    def close(self) -> None:
        """See the base class."""
        self._forget()
        super().close()

    def _forget(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


_Sent = tuple[str, Path, int]


def _files(path: Path) -> list[_Sent]:
    """Return the files to send: name on the server, path, bytes. Raises UsageProblem, PackageError."""
    if not path.exists():
        raise UsageProblem(f"'{path}' does not exist")
    found: list[_Sent] = []
    try:
        if not path.is_dir():
            return [_file(path, path.parent)]
        for folder, inner, names in os.walk(path, onerror=_unreadable):
            inner.sort()
            linked = [one for one in inner if os.path.islink(os.path.join(folder, one))]
            if linked:
                raise PackageError(f"'{os.path.join(folder, linked[0])}' is a link to a folder, which is not uploaded; "
                                   "replace it by the folder, or remove it")
            found += [_file(Path(folder) / name, path) for name in sorted(names)]
    except OSError as problem:
        raise PackageError(f"cannot read '{problem.filename}': {problem.strerror}") from None
    if not found:
        raise UsageProblem(f"'{path}' contains no files")
    return found


def _file(path: Path, top: Path) -> _Sent:
    """Return a file to send, with its name below a folder. Raises PackageError, OSError."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise PackageError(f"'{path}' is not a file, so it cannot be uploaded; remove it")
    return path.relative_to(top).as_posix(), path, about.st_size


def _unreadable(problem: OSError) -> None:
    raise problem


def _batches(files: list[_Sent]) -> Iterator[list[_Sent]]:
    """Yield the files of each call: at least one, and no more than a call may have."""
    batch: list[_Sent] = []
    size = 0
    for one in files:
        if batch and (len(batch) == _MOST_FILES or size + one[2] > _MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += one[2]
    yield batch
