"""The files of a search algorithm as one upload."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

from dlicmd.contract import wire
from dlicmd.sdk.errors import PackageError, UsageProblem
from dlicmd.sdk.package import single_file
from dlicmd.sdk.transport import FilePart

#: The file with the class of the algorithm.
MAIN = "optimizer.py"
_OPTION = "--hpo-algorithm-install"
#: The most bytes of all files of a folder.
_LARGEST = 64 << 20


def packed(path: str) -> tuple[FilePart, str]:
    """Return the upload for a folder or a packed file, and the name for its algorithm. The caller closes the file.

    The files of a folder are packed flat, without their folder; folders in it are left out. Raises UsageProblem,
    PackageError.
    """
    place = Path(os.path.expanduser(path))
    name = Path(os.path.abspath(place)).name.split(".")[0]
    if place.is_dir():
        return _folder(place, f"{name}.tar"), name
    if place.suffix == ".py":
        return _files([place], f"{name}.tar", {place: MAIN}), name
    return single_file(str(place), _OPTION), name


def _folder(folder: Path, filename: str) -> FilePart:
    if not (folder / MAIN).is_file():
        raise UsageProblem(f"{_OPTION}: there is no {MAIN} in '{folder}'")
    found = sorted(one for one in folder.iterdir() if one.is_file() and not one.name.startswith("."))
    if sum(one.stat().st_size for one in found) > _LARGEST:
        raise UsageProblem(f"{_OPTION}: the files in '{folder}' have more than {_LARGEST >> 20} MiB")
    return _files(found, filename, {})


def _files(found: list[Path], filename: str, names: dict[Path, str]) -> FilePart:
    made = io.BytesIO()
    try:
        with tarfile.open(fileobj=made, mode="w:gz") as archive:
            for one in found:
                content = one.read_bytes()
                member = tarfile.TarInfo(names.get(one, one.name))
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    except OSError as problem:
        raise PackageError(f"{_OPTION}: cannot read '{problem.filename}': {problem.strerror}") from None
    size = made.tell()
    made.seek(0)
    return FilePart(wire.PART_FILE, filename, made, size)
