"""Data of type `fs`: a directory below DLI_DATA_FS, or a named storage volume."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_backend.data.errors import DataError

_VOLUME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]{0,127}")


@dataclass(frozen=True)
class DataRoots:
    """Where data may lie. With `anywhere` absolute paths of this machine are allowed: its user is the submitter."""

    data_fs: Path
    volumes: Path
    anywhere: bool


def from_meta(meta: str, roots: DataRoots) -> str:
    """DATA_DIR for a `--cs-datastore-meta` text, as a real path; DLI_DATA_FS when it names no path.

    Raises DataError.
    """
    values: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in meta.split(","))):
        key, equals, value = item.partition("=")
        if not equals:
            raise DataError(f"--cs-datastore-meta: '{item}' is not KEY=VALUE; write type=fs,data_path=PATH")
        values[key.strip()] = value.strip()
    kind = values.pop("type", "fs")
    if kind != "fs":
        raise DataError(_other_kind(kind))
    path = values.pop("data_path", "")
    if values:
        raise DataError(f"--cs-datastore-meta: unknown key '{next(iter(values))}'; known are type and data_path")
    return _directory(path, roots)


def from_sources(sources: Sequence[Any], roots: DataRoots) -> str:
    """DATA_DIR for the entries of a `dataSource` list: the first path of the first entry. All are checked.

    Raises DataError.
    """
    found = [path for number, source in enumerate(sources, 1) for path in _one(source, number, roots)]
    return found[0] if found else _directory("", roots)


def volume_directory(name: str) -> str:
    """The directory name at which a volume is mounted: `cpd::demo-project-pvc` → `demo_project_pvc`."""
    return name.rpartition("::")[2].replace("-", "_")


def _one(source: Any, number: int, roots: DataRoots) -> list[str]:
    if not isinstance(source, dict):
        raise DataError(f"data source {number} is not a JSON object")
    kind = source.get("type")
    if kind != "fs":
        raise DataError(_other_kind(str(kind)[:80] if kind is not None else "") + f" (data source {number})")
    location = source.get("location", {})
    if not isinstance(location, dict):
        raise DataError(f"data source {number}: 'location' is not a JSON object")
    if "volume" in location:
        base = _volume(location["volume"], number, roots)
        paths = _paths(location, number)
        return [_below(base, path, f"volume {location['volume']}") for path in paths or [""]]
    return [_directory(path, roots) for path in _paths(location, number) or [""]]


def _paths(location: dict[str, Any], number: int) -> list[str]:
    """`paths` or `path`: one path, several separated by commas, or a list of paths."""
    value = location.get("paths", location.get("path", []))
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list) or not all(isinstance(path, str) for path in value):
        raise DataError(f"data source {number}: 'paths' is neither a text nor a list of texts")
    return [path.strip() for path in value if path.strip()]


def _volume(name: Any, number: int, roots: DataRoots) -> Path:
    directory = volume_directory(name) if isinstance(name, str) else ""
    if not _VOLUME.fullmatch(directory):
        raise DataError(f"data source {number}: '{str(name)[:80]}' is not the name of a storage volume")
    path = roots.volumes / directory
    if not path.is_dir():
        raise DataError(f"there is no storage volume '{name}': {path} is not a directory (make it, or a link to one)")
    return path


def _directory(path: str, roots: DataRoots) -> str:
    """A path below DLI_DATA_FS, or, where that is allowed, anywhere on this machine; empty when no path was asked for
    and there is no DLI_DATA_FS: such a job brings its data along."""
    _check_characters(path)
    if not path and not roots.data_fs.exists():
        return ""
    if not os.path.isabs(path):
        return _below(roots.data_fs, path, "DLI_DATA_FS")
    real = os.path.realpath(path)
    if _inside(real, os.path.realpath(roots.data_fs)) or (roots.anywhere and os.path.exists(real)):
        return _existing(real, path)
    # WMLA joined the path to DLI_DATA_FS, whether it began with a slash or not.
    if os.path.exists(roots.data_fs / path.lstrip("/")):
        return _below(roots.data_fs, path.lstrip("/"), "DLI_DATA_FS")
    if roots.anywhere:
        return _existing(real, path)
    raise DataError(f"the data path {path} is not below DLI_DATA_FS ({roots.data_fs}); give it relative to that")


def _below(base: Path, path: str, what: str) -> str:
    _check_characters(path)
    root = os.path.realpath(base)
    real = os.path.realpath(os.path.join(root, path))
    if not _inside(real, root):
        raise DataError(f"the data path '{path}' leads out of {what} ({root})")
    return _existing(real, path)


def _inside(path: str, root: str) -> bool:
    return os.path.commonpath([path, root]) == root


def _existing(real: str, path: str) -> str:
    """`real` when the path is there; a file is as good as a directory: DATA_DIR names it then."""
    if not os.path.exists(real):
        raise DataError(f"the data path '{path}' does not exist: there is no {real} on the server")
    return real


def _check_characters(path: str) -> None:
    if any(ord(character) < 32 for character in path) or len(path) > 4000:
        raise DataError("a data path is too long or contains control characters")


def _other_kind(kind: str) -> str:
    if not kind:
        return "a data source needs a 'type'; the local backend knows 'fs'"
    return f"data of type '{kind}' is not supported by the local backend yet; it knows 'fs'"
