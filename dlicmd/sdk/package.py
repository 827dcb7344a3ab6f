"""A model folder as one compressed archive, written to disk in pieces and never held in memory as a whole."""

from __future__ import annotations

import contextlib
import gzip
import os
import stat
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from dlicmd.contract import wire
from dlicmd.contract.program import program_places
from dlicmd.contract.sizes import show_size
from dlicmd.sdk import hints
from dlicmd.sdk.errors import PackageError, UsageProblem
from dlicmd.sdk.messages import Progress, info, silent, warn
from dlicmd.sdk.paths import IGNORE_FILE
from dlicmd.sdk.transport import FilePart

#: Patterns left out of every folder, in gitignore syntax; `!pattern` in the ignore file includes one again.
DEFAULT_IGNORES = (
    ".git/", ".hg/", ".svn/", "__pycache__/", "*.py[co]", ".venv/", ".ipynb_checkpoints/", ".pytest_cache/",
    ".mypy_cache/", ".ruff_cache/", "node_modules/", ".DS_Store", "._*", IGNORE_FILE,
)
#: From this many bytes on, a message names the largest entries; and the number of them.
LARGE, MOST_NAMED = 100 * 2**20, 3
#: The most skipped entries that are named one by one.
NAMED = 5
#: The archive crosses a loopback or a fast network: speed matters more than size. For the local backend, an archive of
#: more than so many bytes is not compressed: that takes longer than to write it.
COMPRESSION, COMPRESSED_UP_TO = 1, 16 * 2**20


@dataclass(frozen=True)
class Entry:
    """One file or folder to pack: its name in the archive below the top folder, its path, and its size in bytes."""

    name: str
    path: str
    is_dir: bool = False
    size: int = 0


@dataclass
class _Walk:
    """The results of a walk through the folder."""

    root: str
    matches: Callable[[str], bool]
    entries: list[Entry] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def folder(self, path: str, prefix: str, above: tuple[str, ...]) -> None:
        """Collect the entries of `path`; `above` are the real paths of the folders around it."""
        try:
            with os.scandir(path) as found:
                items = sorted(found, key=lambda item: item.name)
        except OSError as problem:
            raise PackageError(f"cannot read the folder {path}: {problem.strerror}") from None
        for item in items:
            self._item(item, f"{prefix}{item.name}", above)

    def _item(self, item: os.DirEntry[str], name: str, above: tuple[str, ...]) -> None:
        try:
            about = item.stat(follow_symlinks=False)
            mode = about.st_mode
            if stat.S_ISLNK(mode):
                if self.matches(name):
                    return
                real = os.path.realpath(item.path)
                if os.path.commonpath([self.root, real]) != self.root:
                    return self._skip(name, "a link that leads outside the folder")
                about = os.stat(real)
                mode = about.st_mode
        except FileNotFoundError:
            return self._skip(name, "a broken link")
        except OSError as problem:
            return self._skip(name, problem.strerror or "unreadable")
        if stat.S_ISDIR(mode):
            self._folder(item.path, name, above)
        elif self.matches(name):
            return
        elif stat.S_ISREG(mode):
            self.entries.append(Entry(name, item.path, size=about.st_size))
        else:
            self._skip(name, "neither a file nor a folder")

    def _folder(self, path: str, name: str, above: tuple[str, ...]) -> None:
        if self.matches(name + "/") or os.path.lexists(os.path.join(path, "pyvenv.cfg")):
            return
        real = os.path.realpath(path)
        if real in above:
            return self._skip(name, "a circular link")
        self.entries.append(Entry(name, path, is_dir=True))
        self.folder(path, name + "/", (*above, real))

    def _skip(self, name: str, why: str) -> None:
        self.skipped.append(f"{name} ({why})")


def walk(folder: Path) -> list[Entry]:
    """Return the entries of `folder` to pack, in a fixed order, and warn about skipped ones. Raises PackageError."""
    root = os.path.realpath(folder)
    found = _Walk(root, _ignore_rules(folder))
    found.folder(str(folder), "", (root,))
    for text in found.skipped[:NAMED]:
        warn(f"skipping {text}")
    if len(found.skipped) > NAMED:
        warn(f"skipping {len(found.skipped) - NAMED} more links and special files")
    return found.entries


def _ignore_rules(folder: Path) -> Callable[[str], bool]:
    from pathspec import GitIgnoreSpec  # for a folder alone

    own = folder / IGNORE_FILE
    try:
        lines = own.read_text(encoding="utf-8").splitlines() if own.is_file() else []
        rules = GitIgnoreSpec.from_lines([*DEFAULT_IGNORES, *lines])
    except (OSError, ValueError) as problem:
        raise PackageError(f"cannot use {own}: {' '.join(str(problem).split())}") from None
    return cast("Callable[[str], bool]", rules.match_file)


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


def pack(
    folder: Path, main: str | None = None, progress: Progress = silent, is_local: bool = False,
) -> FilePart:
    """Pack `folder` under its base name into a temporary file. The file has no name and so cannot be left behind.

    The ignore rules must not leave out `main`, a path within the folder. A large archive for the local backend
    (`is_local`) is not compressed. Raises PackageError, UsageProblem.
    """
    entries = walk(folder)
    if not any(not entry.is_dir for entry in entries):
        raise UsageProblem(f"{hints.option('--model-dir')}: there is nothing to upload in '{folder}'")
    if main is not None and main not in {entry.name for entry in entries}:
        raise UsageProblem(f"{hints.option('--model-main')}: an ignore rule excludes '{main}'; "
                           f"see {folder / IGNORE_FILE}")
    total = sum(entry.size for entry in entries)
    if total > LARGE:
        info(_large(entries, total))
    count = sum(not entry.is_dir for entry in entries)
    try:
        file = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 - closed by whoever sends it
    except OSError as problem:
        raise PackageError(f"cannot create a temporary file: {problem.strerror}; name a folder in TMPDIR") from None
    try:
        with progress(f"packing {count:,} files", total) as shown:
            packed = None if is_local and total > COMPRESSED_UP_TO else gzip.GzipFile(
                "", "wb", COMPRESSION, file, mtime=0)
            with packed or contextlib.nullcontext():
                _write(packed or file, entries, base_name(folder), shown or (lambda _: None))
        size = file.tell()
        file.seek(0)
    except BaseException as problem:
        with contextlib.suppress(OSError):  # a full disk fails again when the buffer is written
            file.close()
        if isinstance(problem, OSError):
            raise PackageError(f"cannot write the archive to {tempfile.gettempdir()}: {problem.strerror}") from None
        raise
    return FilePart(wire.PART_FILE, f"tmp{os.urandom(4).hex()}{wire.ARCHIVE_SUFFIX}", file, size)


def _large(entries: list[Entry], total: int) -> str:
    """Return the message about a large folder: the largest of its files and folders, and how to leave them out."""
    sizes: dict[str, int] = {}
    for entry in entries:
        first, _, rest = entry.name.partition("/")
        name = f"{first}/" if rest or entry.is_dir else first
        sizes[name] = sizes.get(name, 0) + entry.size
    largest = sorted(sizes, key=lambda name: -sizes[name])[:MOST_NAMED]
    named = ", ".join(f"{name} ({show_size(sizes[name])})" for name in largest)
    return (f"the folder has {show_size(total)} to send; largest: {named}. A file {IGNORE_FILE} in the folder leaves "
            "out what the program does not need, 1 pattern a line, as in .gitignore")


def _write(
    file: BinaryIO | gzip.GzipFile, entries: list[Entry], top: str, progress: Callable[[int], None],
) -> None:
    done = _Counter(progress)
    with tarfile.open(mode="w|", fileobj=cast("BinaryIO", file), format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(_member(top, None))
        for entry in entries:
            if entry.is_dir:
                archive.addfile(_member(f"{top}/{entry.name}", None))
                continue
            with _opened(entry) as source:
                about = os.fstat(source.fileno())
                reader = _Source(source, entry.path, done)
                archive.addfile(_member(f"{top}/{entry.name}", about), cast("BinaryIO", reader))


def _opened(entry: Entry) -> BinaryIO:
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
