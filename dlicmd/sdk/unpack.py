"""`--exec-trainresult --unpack`: the files of a result, without its zip.

The zip is not trusted. All its names are checked before anything is written. All its files are complete before the
first one is moved to its place: a refused zip leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from dlicmd.contract.sizes import show_size
from dlicmd.sdk import results
from dlicmd.sdk.client import Client
from dlicmd.sdk.errors import ResultError
from dlicmd.sdk.messages import Progress, inert, silent
from dlicmd.sdk.paths import safe_path
from dlicmd.sdk.results import Wanted

_CHUNK = 2**20
_ENCRYPTED = 1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: Errors from reading a damaged zip.
_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError)


def fetch_unpacked(client: Client, exec_id: str, folder: Path, force: bool, progress: Progress = silent) -> int:
    """Fetch the result of an exec, unpack it into `folder`, and return the number of files.

    The zip goes into a hidden folder beside the files. An interrupted download stays there and is resumed later. An
    existing file with the same bytes is kept. Raises DlicmdError.
    """
    hidden = results.unpacking(folder, exec_id)
    try:
        with _hidden(hidden):
            packed = results.fetch(client, Wanted(exec_id), hidden, force=True, progress=progress)
            try:
                return _unpack(packed, hidden, folder, exec_id, force)
            finally:
                packed.unlink(missing_ok=True)
    except OSError as problem:
        raise ResultError(f"cannot unpack into {folder}: {problem.strerror or problem}") from None


@contextmanager
def _hidden(path: Path) -> Iterator[None]:
    """Create a folder of our own, and remove it at the end unless it holds an unfinished download."""
    if path.is_symlink():
        raise ResultError(f"{path} is a symbolic link; remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.rmdir()


def _unpack(packed: Path, hidden: Path, folder: Path, exec_id: str, force: bool) -> int:
    """Unpack a zip by way of `hidden`, which is on the same disk as `folder`. Return the number of its files."""
    staging = Path(tempfile.mkdtemp(dir=hidden))
    try:
        with zipfile.ZipFile(packed) as archive:
            members = [(member, _checked_name(member)) for member in archive.infolist()]
            _check_room(members, folder)
            if not force:
                results.check_hidden([name for _, name in members], folder, exec_id)
            results.check_distinct([name for _, name in members], folder)
            for member, name in members:
                _extract(archive, member, staging / name)
        for member, name in members:
            _check_target(None if member.is_dir() else staging / name, folder, name, force)
        for member, name in members:
            _settle(staging / name, folder / name, member.is_dir(), force)
    except _DAMAGED as problem:
        raise ResultError(f"cannot unpack the result, because it is not a valid zip: {_said(problem)}; "
                          "fetch it without --unpack to inspect it") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return sum(not member.is_dir() for member, _ in members)


def _said(problem: Exception) -> str:
    return inert(" ".join(str(problem).split()))[:200] or type(problem).__name__


def _checked_name(member: zipfile.ZipInfo) -> PurePosixPath:
    """Return where a member goes below the folder. Raises ResultError for a member that must not be unpacked."""
    name = member.orig_filename
    found = safe_path(name.rstrip("/"))
    if found is None:
        raise _refused(name, "its name is invalid or points outside of the folder")
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFDIR if member.is_dir() else stat.S_IFREG):
        raise _refused(name, "it is a link or a special file")
    if member.flag_bits & _ENCRYPTED:
        raise _refused(name, "it is encrypted")
    if member.compress_type not in _METHODS:
        raise _refused(name, "its compression method is unknown")
    return found


def _refused(name: str, why: str) -> ResultError:
    return ResultError(f"nothing was unpacked: '{inert(name)[:100]}' in the result is not safe: {why}; "
                       "fetch it without --unpack to inspect it")


def _check_room(members: list[tuple[zipfile.ZipInfo, PurePosixPath]], folder: Path) -> None:
    """Raise ResultError when two members have the same name, or when the files would fill the disk."""
    names = [name for _, name in members]
    if len(set(names)) < len(names):
        raise ResultError("nothing was unpacked: the result contains a name twice; fetch it without --unpack")
    needed, free = sum(member.file_size for member, _ in members), shutil.disk_usage(folder).free
    if needed >= free:
        raise ResultError(f"nothing was unpacked: the result needs {show_size(needed)}, and {folder} has "
                          f"{show_size(free)} free; choose --to DIR")


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> None:
    """Write one member, which does not exist yet. Raises OSError; zipfile's errors when the member is damaged."""
    if member.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(member) as source, target.open("xb") as file:
        shutil.copyfileobj(source, file, _CHUNK)


def _check_target(staged: Path | None, folder: Path, name: PurePosixPath, force: bool) -> None:
    """Raise ResultError when a file, or for None a folder, cannot be stored at its target. Nothing is moved before
    this check."""
    for above in list(name.parents)[:-1]:
        _check_folder(folder / above)
    target = folder / name
    if staged is None:
        _check_folder(target)
        return
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not target.is_file():
        raise ResultError(f"nothing was unpacked: {target} exists already and is not a file; move it, "
                          "or choose --to DIR")
    if not force and not filecmp.cmp(staged, target, shallow=False):
        raise ResultError(f"nothing was unpacked: {target} exists already; overwrite it with --force, "
                          "or choose --to DIR")


def _check_folder(path: Path) -> None:
    """Raise ResultError when the path exists and is not a folder, or is a link to one."""
    if os.path.lexists(path) and (path.is_symlink() or not path.is_dir()):
        raise ResultError(f"nothing was unpacked: {path} exists already and is not a folder; move it, "
                          "or choose --to DIR")


def _settle(staged: Path, target: Path, is_dir: bool, force: bool) -> None:
    """Move one file to its place, or create a folder there. Raises ResultError when another file appeared in
    between."""
    if is_dir:
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if not (target.is_file() and filecmp.cmp(staged, target, shallow=False)):
        results.place(staged, target, force)
