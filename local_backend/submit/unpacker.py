"""Unpacks an archive in a process of its own, under limits. See limited_host.py; imports the standard library only.

The result consists of regular files and folders below the target, and nothing else:
 - names are checked before the disk is touched: relative, no `..`, no control or direction characters, limited length;
 - every folder of a path is opened by descriptor without following links; every file is created anew;
 - links of a tar archive are replaced by copies of what they name in the archive; links to anything else are left out;
 - links of a zip archive, devices, fifos and sparse files are refused, as are two names that some file system takes for
   the same name;
 - bytes, files and the ratio to the archive are counted while writing;
 - the kernel limits CPU time, memory and file size, and the parent has a deadline.

The content of the files is not checked: they are the user's program, and run with the user's rights.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import stat
import struct
import sys
import tarfile
import unicodedata
import zlib
from typing import IO, Any

#: Outcomes that the server understands.
DONE, REFUSED, STORAGE = 0, 3, 4

_CHUNK = 1 << 20
#: The first bytes of a zip archive.
_ZIP = b"PK\x03\x04"
_MAX_COMPONENT = 255
_MAX_PATH = 4096
_MAX_DEPTH = 64
#: Below this size in bytes, a high ratio means a file of zeros in a model folder, not a bomb.
_RATIO_FLOOR = 1 << 30
#: More files and folders than this are flushed all at once.
_MANY = 128
#: Links that are followed one after the other, as in Linux.
_MAX_LINKS = 40
_LITTER = {".DS_Store", "__MACOSX"}
_DIRECTION = {chr(code) for code in (0x200E, 0x200F, 0x061C, *range(0x202A, 0x202F), *range(0x2066, 0x206A))}


class ArchiveRefused(Exception):
    """The archive is refused; the text says why."""


class ArchiveMember(tarfile.TarInfo):
    """A header that is either correct or refused. tarfile loops forever on a negative size. It also takes a damaged
    header, or a missing end mark, for the end of the archive, and would silently lose the rest of a folder."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> ArchiveMember:
        """Return the next member. Raises Refused, or EOFHeaderError at the end mark."""
        try:
            return super().fromtarfile(tar)
        except tarfile.HeaderError as problem:
            if isinstance(problem, tarfile.EOFHeaderError):  # type: ignore[attr-defined]
                raise
            raise ArchiveRefused(f"it is damaged, or not a tar archive ({problem})") from None

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> ArchiveMember:
        """Return the member of one header block. Raises Refused."""
        member = super().frombuf(buf, encoding, errors)
        if member.size < 0:
            raise ArchiveRefused(f"{show(member.name)} has a negative size")
        return member


def show(name: str) -> str:
    """Return a member's name in a form that may be printed."""
    return ascii(name if len(name) <= 120 else name[:117] + "...")


def components(name: str) -> list[str]:
    """Return the checked parts of a member's name; empty for the root itself. Raises Refused."""
    if name.startswith("/"):
        raise ArchiveRefused(f"{show(name)} is an absolute path")
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise ArchiveRefused(f"{show(name)} contains '..'")
    if any(unicodedata.category(letter) in {"Cc", "Cs", "Zl", "Zp"} or letter in _DIRECTION for letter in name):
        raise ArchiveRefused(f"{show(name)} contains control characters or is not UTF-8")
    if len(os.fsencode(name)) > _MAX_PATH or any(len(os.fsencode(part)) > _MAX_COMPONENT for part in parts):
        raise ArchiveRefused(f"{show(name)} is too long")
    if len(parts) > _MAX_DEPTH:
        raise ArchiveRefused(f"{show(name)} is more than {_MAX_DEPTH} folders deep")
    return parts


def is_litter(parts: list[str]) -> bool:
    """Return whether macOS put this member into the archive beside the files."""
    return any(part in _LITTER or part.startswith("._") for part in parts)


class Tree:
    """The folders and files made so far, below one directory descriptor."""

    def __init__(self, root: int, most: int) -> None:
        """`most` limits the number of files and folders, including folders that no member names."""
        self._root, self._most = root, most
        self._spelling: dict[str, str] = {}
        self._taken: set[str] = set()
        self.files: list[str] = []
        self.folders: set[str] = set()

    def folder(self, parts: list[str]) -> int:
        """Return a descriptor of the folder, which is made if it is missing. The caller closes the descriptor."""
        fd = os.dup(self._root)
        try:
            for depth, part in enumerate(parts, 1):
                path = "/".join(parts[:depth])
                if path not in self.folders:
                    self._claim(path)
                    os.mkdir(part, 0o700, dir_fd=fd)
                    self.folders.add(path)
                following = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
                os.close(fd)
                fd = following
        except BaseException:
            os.close(fd)
            raise
        return fd

    def file(self, parts: list[str], mode: int) -> int:
        """Return a descriptor of a new, empty file."""
        parent = self.folder(parts[:-1])
        try:
            path = "/".join(parts)
            self._claim(path)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            fd = os.open(parts[-1], flags, 0o600, dir_fd=parent)
            os.fchmod(fd, (mode & 0o755) | 0o600)
        finally:
            os.close(parent)
        self.files.append(path)
        return fd

    def reserve(self, parts: list[str]) -> None:
        """Take a name without a file or folder, and make its folder. Raises Refused or OSError."""
        os.close(self.folder(parts[:-1]))
        self._claim("/".join(parts))

    def release(self, path: str) -> None:
        """Let a reserved name be that of a file or folder."""
        self._taken.discard(path)

    def copy(self, source: str, parts: list[str], budget: Budget) -> None:
        """Copy a file of this tree to a new one. Raises Refused or OSError."""
        with open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._root), "rb") as original:
            about = os.fstat(original.fileno())
            budget.spend(about.st_size)
            with open(self.file(parts, about.st_mode), "wb") as new:
                shutil.copyfileobj(original, new, _CHUNK)

    def _claim(self, path: str) -> None:
        """Refuse a second member with the same name, also if the names are the same only in a file system that ignores
        case or Unicode form."""
        key = unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
        taken = self._spelling.setdefault(key, path)
        if path in self._taken or taken != path:
            raise ArchiveRefused(f"{show(path)} appears twice" + (f", also as {show(taken)}" if taken != path else ""))
        if len(self._taken) >= self._most:
            raise ArchiveRefused(f"it has more than {self._most} files and folders (DLI_MAX_UNPACKED_FILES)")
        self._taken.add(path)

    def make_durable(self) -> None:
        """Flush the written files: one by one if they are few, else all data of the system, which is then cheaper."""
        if sys.platform == "linux" and len(self.files) + len(self.folders) > _MANY:
            os.sync()
            return
        for path in (*self.files, *self.folders, "."):
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._root)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


class Budget:
    """The members and bytes that an archive may still use."""

    def __init__(self, limits: dict[str, int], archive_size: int) -> None:
        self._members = limits["files"]
        self._bytes = limits["bytes"]
        self._by_ratio = max(_RATIO_FLOOR, limits["ratio"] * archive_size)
        self._limits = limits
        self.used = 0

    def spend(self, size: int) -> None:
        """Count one member of `size` bytes, before any of it is read. Raises Refused."""
        self._members -= 1
        self.used += size
        if self._members < 0:
            raise ArchiveRefused(f"it has more than {self._limits['files']} members (DLI_MAX_UNPACKED_FILES)")
        if self.used > self._bytes:
            raise ArchiveRefused(f"it unpacks to more than {self._bytes} bytes (DLI_MAX_UNPACKED_BYTES)")
        if self.used > self._by_ratio:
            raise ArchiveRefused(
                f"it unpacks to more than {self._limits['ratio']} times its size, as archive bombs do; if you trust "
                "the archive, set DLI_MAX_UNPACK_RATIO higher and restart the server"
            )


class Links:
    """The links of a tar archive. Copies replace them, as when `dlicmd` packs a folder. A link that is broken or
    circular, or leads outside of the archive, is left out."""

    def __init__(self, tree: Tree, budget: Budget) -> None:
        self._tree, self._budget = tree, budget
        self._targets: dict[str, str] = {}
        self._files: frozenset[str] = frozenset()
        self._inside: dict[str, list[str]] = {}

    def add(self, parts: list[str], target: str, *, is_hard: bool) -> None:
        """Add a link. The target of a hard link is the name of another member. Raises Refused or OSError."""
        self._tree.reserve(parts)
        self._targets["/".join(parts)] = "../" * (len(parts) - 1) + target if is_hard else target

    def replace(self) -> None:
        """Make the copies, after all members are written. Raises Refused or OSError."""
        if not self._targets:
            return
        self._files = frozenset(self._tree.files)
        self._inside = {path: [] for path in ("", *self._tree.folders)}
        for path in (*self._files, *self._tree.folders, *self._targets):
            folder, _, name = path.rpartition("/")
            self._inside[folder].append(name)
        for path in self._targets:
            self._tree.release(path)
            self._put(path, path, ())

    def _put(self, source: str, target: str, within: tuple[str, ...]) -> None:
        """Copy what a path of the archive names. `within` are the folders that are being copied."""
        self._budget.spend(0)
        found = self._resolve(source)
        if found is None or (found in self._inside and source in self._targets and any(
                f"{one}/".startswith(f"{found}/" if found else "") for one in (*within, source))):
            return
        parts = components(target)
        if found in self._files:
            self._tree.copy(found, parts, self._budget)
            return
        os.close(self._tree.folder(parts))
        for name in self._inside[found]:
            self._put(f"{found}/{name}", f"{target}/{name}", (*within, found))

    def _resolve(self, path: str) -> str | None:
        """Return the file or folder that a path names when all links are followed, None if there is none."""
        found: list[str] = []
        left, followed = path.split("/")[::-1], 0
        while left:
            part = left.pop()
            if part in {"", "."}:
                continue
            if part == "..":
                if not found:
                    return None
                found.pop()
                continue
            name = "/".join((*found, part))
            target = self._targets.get(name)
            if target is None:
                if name not in self._inside and name not in self._files:
                    return None
                found.append(part)
                continue
            followed += 1
            if followed > _MAX_LINKS or target.startswith("/") or len(target) > _MAX_PATH:
                return None
            left += target.split("/")[::-1]
        return "/".join(found)


def unpack(archive: IO[bytes], tree: Tree, budget: Budget) -> None:
    """Write the members of an archive (tar, with or without gzip, or zip) into `tree`. Raises Refused or OSError."""
    parent, start = os.getppid(), archive.read(4)
    archive.seek(0)
    if start == _ZIP:
        _unzip(archive, tree, budget, parent)
        return
    plain: Any = gzip.GzipFile(fileobj=archive) if start[:2] == b"\x1f\x8b" else archive
    links = Links(tree, budget)
    with tarfile.open(fileobj=plain, mode="r|", tarinfo=ArchiveMember, bufsize=_CHUNK, encoding="utf-8") as tar:
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # tarfile would keep every header
            if os.getppid() != parent:
                raise ArchiveRefused("the server has stopped")
            _take(tar, member, tree, budget, links)
    links.replace()
    if not tree.files:
        raise ArchiveRefused("it contains no files")


def _unzip(archive: IO[bytes], tree: Tree, budget: Budget, parent: int) -> None:
    """Write the members of an open zip archive into `tree`. Raises Refused or OSError."""
    import zipfile  # most archives are tar archives

    try:
        from lzma import LZMAError
    except ImportError:  # this Python then refuses the method
        LZMAError = zipfile.BadZipFile  # type: ignore[misc,assignment]
    try:
        with zipfile.ZipFile(archive) as packed:
            for member in packed.infolist():
                if os.getppid() != parent:
                    raise ArchiveRefused("the server has stopped")
                budget.spend(member.file_size)
                # `filename` ends before a NUL, so another file than the named one would be written.
                parts, mode = components(member.orig_filename), member.external_attr >> 16
                if is_litter(parts):
                    continue
                if member.flag_bits & 1:
                    raise ArchiveRefused(f"{show(member.filename)} is encrypted")
                if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise ArchiveRefused(f"{show(member.filename)} is a link or device; only files and folders are "
                                         "accepted")
                if member.is_dir():
                    os.close(tree.folder(parts))
                elif not parts:
                    raise ArchiveRefused(f"{show(member.filename)} is a file without a name")
                else:
                    _unzip_file(packed.open(member), member.file_size, tree.file(parts, mode or 0o600))
    except (zipfile.BadZipFile, RuntimeError, LZMAError) as problem:
        raise ArchiveRefused(f"it is damaged, or not a zip archive ({type(problem).__name__})") from None
    if not tree.files:
        raise ArchiveRefused("it contains no files")


def _unzip_file(source: IO[bytes], size: int, fd: int) -> None:
    try:
        while chunk := source.read(_CHUNK):
            size -= len(chunk)
            if size < 0:
                raise ArchiveRefused("a file in it is larger than its header says")
            while chunk:
                chunk = chunk[os.write(fd, chunk) :]
    finally:
        os.close(fd)


def _take(tar: tarfile.TarFile, member: tarfile.TarInfo, tree: Tree, budget: Budget, links: Links) -> None:
    if member.size < 0:
        raise ArchiveRefused(f"{show(member.name)} has a negative size")
    budget.spend(member.size)
    parts = components(member.name)
    if is_litter(parts):
        return
    if member.issparse():
        raise ArchiveRefused(f"{show(member.name)} is a sparse file")
    if member.isdir():
        os.close(tree.folder(parts))
    elif not (member.isreg() or member.issym() or member.islnk()):
        raise ArchiveRefused(f"{show(member.name)} is {_kind(member)}; only files and folders are accepted")
    elif not parts:
        raise ArchiveRefused(f"{show(member.name)} is a file without a name")
    elif not member.isreg():
        links.add(parts, member.linkname, is_hard=member.islnk())
    else:
        _write(tar, member, tree.file(parts, member.mode))


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, fd: int) -> None:
    try:
        source = tar.extractfile(member)
        left = member.size
        while source is not None and left > 0:
            chunk = source.read(min(_CHUNK, left))
            if not chunk:
                raise ArchiveRefused(f"it ends in the middle of {show(member.name)}")
            left -= len(chunk)
            while chunk:
                chunk = chunk[os.write(fd, chunk) :]
    finally:
        os.close(fd)


def _kind(member: tarfile.TarInfo) -> str:
    if member.isfifo():
        return "a fifo"
    return "a device" if member.isdev() else "of an unknown kind"


def run(archive_path: str, target: str, limits: dict[str, int]) -> tuple[int, str]:
    """Unpack a file into an existing, empty folder. Return a code of this module, and a text: the counts, the reason of
    a refusal, or the number of a system error."""
    try:
        with open(archive_path, "rb") as archive:
            root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            tree = Tree(root, limits["files"])
            budget = Budget(limits, os.fstat(archive.fileno()).st_size)
            unpack(archive, tree, budget)
            tree.make_durable()
            os.close(root)
        return DONE, json.dumps({"files": len(tree.files), "bytes": budget.used})
    except ArchiveRefused as problem:
        return REFUSED, str(problem)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, struct.error) as problem:
        return REFUSED, f"it is damaged, or not a tar archive ({type(problem).__name__})"
    except (MemoryError, RecursionError):
        return REFUSED, "it needs too much memory"
    except (ValueError, OverflowError):
        return REFUSED, "its headers are invalid"
    except OSError as problem:
        # bz2 raises an error without a number for damaged bytes.
        return (REFUSED, "it is damaged") if problem.errno is None else (STORAGE, str(problem.errno))
