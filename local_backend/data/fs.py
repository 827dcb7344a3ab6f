"""Data of type `fs`: a directory below DLI_DATA_FS, or a named storage volume."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlicmd.contract import data_sources as wire
from local_backend.data.cache_place import beside, inside, is_kept
from local_backend.data.errors import DataError
from local_backend.data.listing import named

_VOLUME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]{0,127}")


@dataclass(frozen=True)
class DataRoots:
    """The places where data may lie. `anywhere` permits absolute paths of this machine: its user is the submitter.
    `closed` are the volumes that the submitter may not use: directory name → real path. No data source may lead into
    `kept`, which are real paths. `shared_cache` is the configured cache for data fetched to DLI_DATA_FS, if any."""

    data_fs: Path
    volumes: Path
    anywhere: bool
    closed: Mapping[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    shared_cache: Path | None = None


def from_meta(meta: str, roots: DataRoots) -> str:
    """Return DATA_DIR as a real path for a `--cs-datastore-meta` text; DLI_DATA_FS when the text names no path.

    Raises DataError.
    """
    values: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in meta.split(","))):
        key, equals, value = item.partition("=")
        if not equals:
            raise DataError(f"--cs-datastore-meta: '{item}' is not KEY=VALUE; write type=fs,data_path=PATH")
        if values.setdefault(key.strip(), value.strip()) != value.strip():
            raise DataError(f"--cs-datastore-meta: '{key.strip()[:80]}' is given twice with different values; "
                            "give it once")
    kind = values.pop("type", wire.FS)
    if kind != wire.FS:
        raise DataError(f"--cs-datastore-meta: the type must be fs, not '{kind[:80]}'; for other data use "
                        "--data-source")
    path = values.pop("data_path", "")
    if values:
        raise DataError(f"--cs-datastore-meta: unknown key '{next(iter(values))}'; the known keys are type and "
                        "data_path")
    return _directory(path, roots)


def places(location: Mapping[str, Any], roots: DataRoots) -> list[str]:
    """Return the paths that a location of type fs names, in its order, as absolute paths that exist. Without paths: the
    volume itself, or DLI_DATA_FS (empty if that does not exist). Raises DataError."""
    paths = named(location)
    if wire.VOLUME in location:
        place, what = volume(location[wire.VOLUME], roots), f"volume {location[wire.VOLUME]}"
        return [_below(place, path, what, roots) for path in paths or [""]]
    return [_directory(path, roots) for path in paths or [""]]


def mounted(values: Mapping[str, str], location: Mapping[str, Any], roots: DataRoots) -> list[str]:
    """Return the paths that a location names on the volume of a connection, as `places` does. Raises DataError."""
    base, what = volume(values["volume"], roots), f"volume {values['volume']}"
    if folder := values.get("folder", "").strip("/"):
        base, what = Path(_below(base, folder, what, roots)), f"{what}, folder {folder}"
    return [_below(base, path.lstrip("/"), what, roots) for path in named(location) or [""]]


def volume_directory(name: str) -> str:
    """Return the name of the directory at which a volume is mounted: `cpd::demo-project-pvc` → `demo_project_pvc`.
    Raises DataError."""
    directory = name.rpartition("::")[2].replace("-", "_")
    if not _VOLUME.fullmatch(directory):
        raise DataError(f"'{name[:80]}' is not a valid name of a storage volume")
    return directory


def volume(name: str, roots: DataRoots) -> Path:
    """Return the path at which a volume is mounted. The path stays the same wherever the data lies. Raises DataError,
    with the same words for a missing volume and for a volume that the submitter may not use."""
    path = roots.volumes / volume_directory(name)
    if path.name in roots.closed or not path.is_dir():
        raise DataError(f"storage volume '{name}' does not exist, or you may not use it; list the volumes with: "
                        f"local-backend volume list (create one with: local-backend volume add {path.name} DIR)")
    return path


def cache_of(target: str, roots: DataRoots) -> Path:
    """Return the cache folder for data that is fetched to shared storage, or to the volume mounted at `target`. Raises
    DataError."""
    shared = target == wire.SHARED
    if shared and roots.shared_cache is not None:
        return roots.shared_cache
    storage = roots.data_fs if shared else Path(target)
    if not storage.is_dir():
        raise DataError(f"cannot fetch data to {storage}: the folder does not exist")
    volumes = [one for one in roots.volumes.iterdir() if one.is_dir()] if roots.volumes.is_dir() else []
    return beside(storage, [roots.data_fs, *volumes], ", or set DLI_SHARED_CACHE_DIR" if shared else "")


def _directory(path: str, roots: DataRoots) -> str:
    """Return a path below DLI_DATA_FS, or, where permitted, anywhere on this machine. Return an empty text if no path
    is given and DLI_DATA_FS does not exist: such a job brings its own data."""
    _check_characters(path)
    if not path and not roots.data_fs.exists():
        return ""
    if not os.path.isabs(path):
        return _real(roots.data_fs, path, "DLI_DATA_FS", roots)
    real = os.path.realpath(path)
    if inside(real, os.path.realpath(roots.data_fs)) or (roots.anywhere and os.path.exists(real)):
        return _existing(real, path, roots)
    # WMLA joined the path to DLI_DATA_FS, with or without a leading slash.
    if os.path.exists(roots.data_fs / path.lstrip("/")):
        return _real(roots.data_fs, path.lstrip("/"), "DLI_DATA_FS", roots)
    if roots.anywhere:
        return _existing(real, path, roots)
    raise DataError(f"the data path {path} is not below DLI_DATA_FS ({roots.data_fs}); give a path relative to "
                    "DLI_DATA_FS")


def _below(base: Path, path: str, what: str, roots: DataRoots) -> str:
    """Return a path below the stable name `base`, which may be a link: keep the name, check its target."""
    _real(base, path, what, roots)
    return str(base / path)


def _real(base: Path, path: str, what: str, roots: DataRoots) -> str:
    _check_characters(path)
    root = os.path.realpath(base)
    real = os.path.realpath(os.path.join(root, path))
    if not inside(real, root):
        raise DataError(f"the data path '{path}' is outside {what} ({root})")
    return _existing(real, path, roots)


def _existing(real: str, path: str, roots: DataRoots) -> str:
    """Return `real` if the path exists. A file is permitted: then DATA_DIR names the file. Data of a volume is for its
    users alone, by any path. Fetched data is only for users who may use its connection. Raises DataError."""
    if is_kept(real, roots.kept):
        raise DataError(f"the data path '{path}' is in a folder that is reserved for the server, such as its cache; "
                        "for data of another server name its connection (type connection)")
    if any(inside(real, closed) for closed in roots.closed.values()):
        raise DataError(f"the data path '{path}' is on a storage volume that you may not use")
    if not os.path.exists(real):
        raise DataError(f"the data path '{path}' does not exist on the server ({real})")
    return real


def _check_characters(path: str) -> None:
    if any(ord(character) < 32 for character in path) or len(path) > 4000:
        raise DataError("a data path is too long or contains control characters")
