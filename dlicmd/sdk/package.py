"""A model folder as one compressed archive, written to disk in pieces and never held in memory as a whole."""

from __future__ import annotations

import contextlib
import gzip
import os
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

from dlicmd.contract import wire
from dlicmd.contract.left_out import IGNORE_FILE
from dlicmd.contract.program import program_places
from dlicmd.sdk import hints
from dlicmd.sdk.errors import PackageError, UsageProblem
from dlicmd.sdk.messages import Progress, file_count, silent
from dlicmd.sdk.selection import Entry, Selection, select
from dlicmd.sdk.transport import FilePart

#: The archive crosses a network: speed matters more than size.
COMPRESSION = 1


def check_folder(text: str) -> Path:
    """Return the folder named on the command line. Raises UsageProblem unless it is a folder with a name."""
    folder = Path(text)
    if not folder.is_dir():
        kind = "is not a folder" if folder.exists() else "does not exist"
        raise UsageProblem(f"{hints.option('--model-dir')}: '{text}' {kind}")
    if not base_name(folder):
        raise UsageProblem(f"{hints.option('--model-dir')}: '{text}' has no name; give a folder below it")
    return folder


def find_program(folder: Path, main: str) -> str:
    """Return the path within `folder` of the program that `--model-main` names.

    Raises UsageProblem when there is no such program, or when the typed path is another file than the one that would
    run.
    """
    typed = Path(main)
    for place in program_places(typed.as_posix(), base_name(folder)):
        found = folder / place
        if found.is_file() and (Path(place) == typed or not typed.is_file() or typed.samefile(found)):
            return place
    hint = "; give its path within that folder" if typed.is_file() else ""
    raise UsageProblem(f"{hints.option('--model-main')}: there is no file '{main}' in {folder}{hint}")


def base_name(folder: Path) -> str:
    """Return the name of the folder, also for `.` and for a path with a slash at its end."""
    return os.path.basename(os.path.abspath(folder))


def selected(folder: Path, main: str | None = None) -> Selection:
    """Return the files of `folder` to send, and tell what is special about them.

    The ignore rules must not leave out `main`, a path within the folder. Raises PackageError, UsageProblem.
    """
    found = select(folder)
    found.tell()
    names = {entry.name for entry in found.files}
    if not names:
        raise UsageProblem(f"{hints.option('--model-dir')}: there is nothing to upload in '{folder}'")
    if main is not None and main not in names:
        raise UsageProblem(f"{hints.option('--model-main')}: an ignore rule excludes '{main}'; "
                           f"see {folder / IGNORE_FILE}")
    return found


def pack(selection: Selection, progress: Progress = silent) -> FilePart:
    """Pack the selected files, under the base name of their folder, into a temporary file. The file has no name and so
    cannot be left behind. Raises PackageError."""
    try:
        file = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 - the sender closes it
    except OSError as problem:
        raise PackageError(f"cannot create a temporary file: {problem.strerror}; name a folder in TMPDIR") from None
    try:
        with progress(f"packing {file_count(len(selection.files))}", selection.size) as shown, \
                gzip.GzipFile("", "wb", COMPRESSION, file, mtime=0) as packed:
            _write(packed, selection.entries, base_name(selection.folder), shown or (lambda _: None))
        size = file.tell()
        file.seek(0)
    except BaseException as problem:
        with contextlib.suppress(OSError):  # a full disk fails again when the buffer is written
            file.close()
        if isinstance(problem, OSError):
            raise PackageError(f"cannot write the archive to {tempfile.gettempdir()}: {problem.strerror}") from None
        raise
    return FilePart(wire.PART_FILE, f"tmp{os.urandom(4).hex()}{wire.ARCHIVE_SUFFIX}", file, size)


def _write(
    file: gzip.GzipFile, entries: list[Entry], top: str, progress: Callable[[int], None],
) -> None:
    done = _Counter(progress)
    with tarfile.open(mode="w|", fileobj=cast("BinaryIO", file), format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(_member(top, None))
        for entry in entries:
            if entry.is_dir:
                archive.addfile(_member(f"{top}/{entry.name}", None))
                continue
            with opened(entry) as source:
                about = os.fstat(source.fileno())
                reader = _Source(source, entry.path, done)
                archive.addfile(_member(f"{top}/{entry.name}", about), cast("BinaryIO", reader))


def opened(entry: Entry) -> BinaryIO:
    """Open a selected file. Raises PackageError."""
    try:
        return open(entry.path, "rb")
    except OSError as problem:
        raise PackageError(f"cannot read {entry.path}: {problem.strerror}; nothing was sent") from None


class _Counter:
    """Adds up the bytes that were read, and reports the sum."""

    def __init__(self, progress: Callable[[int], None]) -> None:
        self._progress, self._total = progress, 0

    def add(self, size: int) -> None:
        """Add `size` bytes."""
        self._total += size
        self._progress(self._total)


class _Source:
    """A file that raises PackageError for read errors, to distinguish them from errors in writing the archive."""

    def __init__(self, file: BinaryIO, path: str, counter: _Counter) -> None:
        self._file, self._path, self._counter = file, path, counter

    def read(self, size: int) -> bytes:
        """Return exactly `size` bytes. Raises PackageError."""
        try:
            data = self._file.read(size)
        except OSError as problem:
            raise PackageError(f"cannot read {self._path}: {problem.strerror}; nothing was sent") from None
        if len(data) < size:
            raise PackageError(f"{self._path} became shorter while it was packed; nothing was sent")
        self._counter.add(size)
        return data


def _member(name: str, about: os.stat_result | None) -> tarfile.TarInfo:
    """Return an archive header without data about this machine's users; for a folder when `about` is None."""
    member = tarfile.TarInfo(name)
    if about is None:
        member.type, member.mode = tarfile.DIRTYPE, 0o755
    else:
        member.size, member.mtime = about.st_size, int(about.st_mtime)
        member.mode = 0o755 if about.st_mode & 0o100 or sys.platform == "win32" else 0o644
    return member


def single_file(text: str, option: str) -> FilePart:
    """Return a file named on the command line as a part of the upload. Raises UsageProblem, PackageError."""
    path = Path(text)
    if not path.is_file():
        kind = "is not a file" if path.exists() else "does not exist"
        raise UsageProblem(f"{hints.option(option)}: '{text}' {kind}")
    try:
        file = path.open("rb")
    except OSError as problem:
        raise PackageError(f"{hints.option(option)}: cannot read '{text}': {problem.strerror}") from None
    return FilePart(wire.PART_FILE, path.name, file, os.fstat(file.fileno()).st_size)


def close_all(parts: list[FilePart]) -> None:
    """Close the files of an upload."""
    for part in parts:
        part.file.close()
