"""The folder of a model for the inference service: checked, and packed as one upload."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dlicmd.contract import dlim
from dlicmd.sdk.errors import PackageError, UsageProblem
from dlicmd.sdk.messages import Progress, inert, silent
from dlicmd.sdk.package import base_name, pack
from dlicmd.sdk.selection import Selection, select
from dlicmd.sdk.transport import FilePart

#: The most bytes of model.json.
_LARGEST = 2**20


class ModelFolder(NamedTuple):
    """A checked folder: the name of its model, and the files to send."""

    name: str
    selection: Selection
    kernel_type: str | None = None

    @property
    def files(self) -> list[str]:
        """The absolute paths of the files to send."""
        return [str(Path(entry.path).resolve()) for entry in self.selection.files]

    def packed(self, progress: Progress = silent) -> FilePart:
        """Return the files as one upload. The caller closes the file. Raises PackageError."""
        return pack(self.selection, progress)


def model_folder(text: str, kernel_type: str | None = None, name: str | None = None) -> ModelFolder:
    """Check a folder before any of its files is packed.

    Args:
        text: The folder, with `model.json`, `README.md` and the file of the kernel.
        kernel_type: Kind of a ready-made kernel. The folder then needs none of these files.
        name: Name of the model. Only with `kernel_type`; the default is that of `model.json`, or of the folder.

    Raises:
        UsageProblem: There is no such folder, or the name or kind of kernel is wrong.
        PackageError: A file is missing, or `model.json` is wrong.
    """
    folder = Path(text)
    if not folder.is_dir():
        raise UsageProblem(f"'{inert(text)}' {'is not a folder' if folder.exists() else 'does not exist'}")
    if kernel_type is not None and kernel_type not in dlim.KERNEL_TYPES:
        raise UsageProblem(f"kernel type '{inert(kernel_type)}' is not one of {', '.join(dlim.KERNEL_TYPES)}")
    if name is not None and kernel_type is None:
        raise UsageProblem(f"a name is only for a ready-made kernel; write it as '{dlim.NAME}' into {dlim.MODEL_JSON}")
    needed: Sequence[str] = ()
    if kernel_type is not None and not (folder / dlim.MODEL_JSON).is_file():
        found = name or usual_name(folder)
    else:
        described = _object(folder / dlim.MODEL_JSON)
        needed = _checked(folder, described, bool(kernel_type or described.get(dlim.KERNEL_TYPE)))
        found = str(described.get(dlim.NAME) or name or usual_name(folder))
    checked_name(found)
    selection = select(folder)
    selection.tell()
    if not selection.files:
        raise PackageError(f"{inert(str(folder))} contains no files to send")
    _check_sent(folder, selection, needed)
    return ModelFolder(found, selection, kernel_type)


def checked_name(name: str) -> str:
    """Return the name of a model. Raises UsageProblem when no model can have it."""
    if len(name) > dlim.LONGEST_NAME or not dlim.NAME_PATTERN.fullmatch(name):
        raise UsageProblem(f"the model's name '{inert(name)[:100]}' is not usable: only a-z, 0-9 and - inside, at most "
                           f"{dlim.LONGEST_NAME} characters")
    return name


def usual_name(folder: Path) -> str:
    """Return the name of a folder as the name of a model; "" if nothing usable is left."""
    return dlim.usual_name(base_name(folder))


def _checked(folder: Path, found: dict[str, Any], ready_made: bool) -> list[str]:
    """Return the files that the model of a model.json needs. Raises PackageError for a wrong key or a missing file."""
    path = folder / dlim.MODEL_JSON
    for key in dlim.REQUIRED if not ready_made else ():
        value = found.get(key)
        if value is None:
            raise PackageError(f"{path}: '{key}' is missing; required: {', '.join(dlim.REQUIRED)}")
        is_text = isinstance(value, str) and (key == dlim.TAG or value.strip())
        if not is_text and not (key == dlim.SCHEMA and value == 1):
            raise PackageError(f"{path}: '{key}' must be a text, not {inert(json.dumps(value))[:80]}")
    name = found.get(dlim.NAME)
    if name is not None and (not isinstance(name, str) or not dlim.NAME_PATTERN.fullmatch(name)):
        raise PackageError(f"{path}: 'name' is {inert(json.dumps(name))[:80]}; allowed: a-z, 0-9 and - inside")
    if ready_made:
        return [dlim.MODEL_JSON]
    readme, kernel = str(found.get(dlim.READ_ME) or dlim.README_FILE), str(found[dlim.KERNEL_PATH])
    if not _is_inside(folder, readme):
        raise PackageError(f"{inert(readme)[:80]} is missing in {folder}; write what the model does and takes")
    if not _is_inside(folder, kernel):
        raise PackageError(f"{path}: 'kernel_path' is '{inert(kernel)[:80]}', but {folder} has no such file")
    return [dlim.MODEL_JSON, readme, kernel]


def _is_inside(folder: Path, name: str) -> bool:
    """Return whether a folder has a file at a relative path."""
    path = Path(name)
    return not path.is_absolute() and ".." not in path.parts and "\0" not in name and (folder / path).is_file()


def _object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file. Raises PackageError."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except FileNotFoundError:
        raise PackageError(f"{path.name} is missing in {path.parent}; or add --kernel-type for a ready-made kernel"
                           ) from None
    except OSError as problem:
        raise PackageError(f"cannot read {path}: {problem.strerror}") from None
    if len(content) > _LARGEST:
        raise PackageError(f"{path} is larger than {_LARGEST >> 20} MiB")
    try:
        found = json.loads(content)
    except json.JSONDecodeError as problem:
        raise PackageError(f"{path}: not JSON at line {problem.lineno}, column {problem.colno}: {problem.msg}"
                           ) from None
    except (ValueError, RecursionError):
        raise PackageError(f"{path}: not JSON") from None
    if not isinstance(found, dict):
        raise PackageError(f"{path}: a JSON object is required, not {type(found).__name__}")
    return found


def _check_sent(folder: Path, selection: Selection, needed: Sequence[str]) -> None:
    """Raise PackageError if an ignore rule leaves out a required file."""
    sent = {entry.name for entry in selection.files}
    for name in needed:
        if Path(name).as_posix() not in sent:
            raise PackageError(f"an ignore rule of {folder} leaves out '{inert(name)}', which the model needs")
