"""Puts uploaded files where the program will find them, and finds the program among them."""

from __future__ import annotations

import os
import posixpath
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dlicmd.contract import wire
from dlicmd.contract.program import program_places
from dlicmd.contract.program_kinds import MAIN_NAMES
from local_backend.errors import Invalid
from local_backend.files import sync_directory
from local_backend.settings import Limits
from local_backend.submit.receive import ReceivedUpload
from local_backend.submit.staged import take
from local_backend.submit.unpack import unpack
from local_backend.submit.unpacker import ArchiveRefused, Tree, components, is_litter
from local_backend.workload import Program

_ARCHIVES = (wire.ARCHIVE_SUFFIX, ".tar", ".tar.gz", ".tgz")


def place(
    upload: ReceivedUpload, program: Program, submitted: Path, limits: Limits, *, elastic: bool, runs: bool = True
) -> Program:
    """Fill the empty folder `submitted` from the upload. Return the program with the actual `model_dir` and `main`.
    Without `runs`, the upload may lack the program.

    Raises Invalid, StorageFailed or OSError. Files that were written before the error stay.
    """
    typed = posixpath.basename(program.main or "")
    if upload.is_folder:
        _put_folder(upload, submitted, limits)
        upload = ReceivedUpload()
    has_folder = next(submitted.iterdir(), None) is not None
    files = [(name or _nameless(path, typed), path) for name, path in upload.files]
    archives = _model_archives(files, typed, upload.staged is not None)
    if upload.staged is not None:
        take(upload.staged, submitted, limits)
    for archive in archives:
        unpack(archive, submitted, limits)
        archive.unlink()  # before it is written to the disk, if possible
    for name, path in files:
        if path not in archives:
            _put(path, submitted, base_name(name))
    sync_directory(submitted)
    if program.user_cmd is not None or not runs:
        return replace(program, model_dir=next(_folders(submitted, program.model_dir), None))
    has_folder = has_folder or bool(archives) or upload.staged is not None
    program = _with_main(program, submitted, has_folder, [base_name(name) for name, _ in files])
    return program if elastic else as_command(program, submitted)


def located(program: Program, folder: Path) -> Program:
    """Return the program with its actual `model_dir` and `main` in a folder with code that was stored before. Raises
    Invalid or OSError."""
    if program.user_cmd is not None:
        return replace(program, model_dir=next(_folders(folder, program.model_dir), None))
    return _with_main(program, folder, True, [])


def _model_archives(files: list[tuple[str, Path]], main: str, is_staged: bool) -> list[Path]:
    """Return the archive with the model folder, or nothing. Raises Invalid for several."""
    packed = [(name, path) for name, path in files if name.endswith(_ARCHIVES) and base_name(name) != main]
    archives = [path for name, path in packed if name.endswith(wire.ARCHIVE_SUFFIX)]
    if not archives and not is_staged:  # otherwise a package of --conda-package: a plain file beside the folder
        archives = [path for _, path in packed]
    if len(archives) + is_staged > 1:
        raise Invalid("submission.files", "the upload contains more than one archive")
    return archives


def _nameless(path: Path, main: str) -> str:
    """Return a name for a file that came without one: an archive suffix if the content looks like an archive, else the
    name of the program."""
    with path.open("rb") as file:
        start = file.read(262)
    is_archive = start.startswith(b"\x1f\x8b") or start[257:262] == b"ustar"
    return wire.ARCHIVE_SUFFIX if is_archive else main or "main.py"


def base_name(name: str) -> str:
    """Return the last part of a file name from a client, on any operating system. Raises Invalid."""
    base = name.replace("\\", "/").rpartition("/")[2]
    if base in {"", ".", ".."} or not base.isprintable() or len(os.fsencode(base)) > 255:
        raise Invalid("submission.files", f"the upload contains a file with an invalid name: {name[:120]!a}")
    return base


def _put(source: Path, folder: Path, name: str) -> None:
    target = folder / name
    if os.path.lexists(target):
        raise Invalid("submission.files", f"the upload contains 2 files with the name '{name}'")
    shutil.move(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())


def _put_folder(upload: ReceivedUpload, submitted: Path, limits: Limits) -> None:
    """Move the files of a folder that a browser sent to their paths. Raises Invalid or OSError."""
    root = os.open(submitted, os.O_RDONLY | os.O_DIRECTORY)
    try:
        tree = Tree(root, limits.unpacked_files)
        for name, path in upload.files:
            parts = components(name.replace("\\", "/"))
            if not parts or is_litter(parts):
                continue
            with open(tree.file(parts, 0o644), "wb") as target, path.open("rb") as source:
                shutil.copyfileobj(source, target)
            path.unlink()
    except ArchiveRefused as problem:
        raise Invalid("submission.files", f"the uploaded folder is refused: {problem}") from None
    finally:
        os.close(root)


def _with_main(program: Program, submitted: Path, has_folder: bool, names: list[str]) -> Program:
    if not names and not has_folder:
        raise Invalid("submission.no_program", "no program was uploaded; add --model-main, --model-dir or --user-cmd")
    if program.main is None and not has_folder:
        program = replace(program, main=names[0])
    if program.main is not None and ("\0" in program.main or len(program.main) > 4000 or not program.main):
        raise Invalid("submission.no_program", "--model-main is empty, too long or contains a NUL character")
    for model_dir in (*_folders(submitted, program.model_dir), None):
        folder = submitted / model_dir if model_dir else submitted
        main = _find(folder, program.main, program.model_dir) if program.main else _guess(folder)
        if main is not None:
            return replace(program, model_dir=model_dir, main=main)
    if program.main:
        raise Invalid(
            "submission.no_program", f"--model-main: the upload does not contain the file '{program.main[:200]}'"
        )
    raise Invalid(
        "submission.no_program",
        "--model-main is missing, and the folder has neither main.py nor train.py nor exactly one Python file; add "
        "--model-main FILE",
    )


def as_command(program: Program, submitted: Path) -> Program:
    """Return a Python program unchanged; turn a foreign script or a binary into a command. Raises OSError."""
    path = submitted / (program.model_dir or "") / str(program.main)
    with path.open("rb") as file:
        start = file.readline(256)
    is_foreign_script = start.startswith(b"#!") and b"python" not in start and path.suffix != ".py"
    if not (is_foreign_script or start.startswith(b"\x7fELF")):
        return program
    path.chmod(0o700)
    return replace(program, user_cmd=(str(path.absolute()), *program.arguments), main=None, arguments=())


def _folders(submitted: Path, asked: str | None) -> Iterator[str]:
    """Yield the folder of the upload that may be the model folder: the named one, or else the only one."""
    found = sorted(path.name for path in submitted.iterdir())
    if asked is not None and asked not in {".", ".."} and (submitted / asked).is_dir():
        yield asked
    elif len(found) == 1 and (submitted / found[0]).is_dir():
        yield found[0]


def _find(folder: Path, main: str, model_dir: str | None) -> str | None:
    """Return `main` relative to `folder`, from the first possible place that has it; None if none has. A client on
    Windows sends backslashes."""
    places = program_places(main, model_dir) + program_places(main.replace("\\", "/"), model_dir)
    return next((place for place in places if (folder / place).is_file()), None)


def _guess(folder: Path) -> str | None:
    """Return the program of a folder if the submission names none: main.py as on the recorded server, else train.py,
    else the only Python file, else None."""
    programs = sorted(path.name for path in folder.iterdir() if path.suffix == ".py" and path.is_file())
    known = [name for name in reversed(MAIN_NAMES) if name in programs]
    return next(iter(known or programs), None) if known or len(programs) == 1 else None
