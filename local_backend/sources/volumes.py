"""Who may use which storage volume. A volume is a directory, or a link to one, in the folder of all volumes; those that
are not for everybody stand with their users in DLICMD_HOME/volumes.json."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from dlicmd.contract.data_sources import LOCAL
from local_backend.data import fs
from local_backend.data.cache_place import inside
from local_backend.data.errors import DataError
from local_backend.data.fs import DataRoots
from local_backend.files import read_json, write_json
from local_backend.settings import Settings


def roots(settings: Settings, user: str, admin: bool) -> DataRoots:
    """Where the data of a user may lie: administrators use all volumes. Raises DataError."""
    kept = [settings.cache, settings.shared_cache_dir, settings.paths.jobs]
    if not settings.embedded:
        kept += _own(settings)
    closed = [] if admin else [name for name, users in users_of(settings).items() if user not in users]
    return DataRoots(settings.data_fs, settings.volumes, settings.embedded,
                     {name: os.path.realpath(settings.volumes / name) for name in closed},
                     tuple(os.path.realpath(folder) for folder in kept if folder is not None),
                     settings.shared_cache_dir)


def cache_for(settings: Settings, target: str) -> Path:
    """Where the cache is that files come through which are fetched to this target. It may not be there yet. Raises
    DataError."""
    return settings.cache if target == LOCAL else fs.cache_of(target, roots(settings, "", admin=True))


def check_directory(settings: Settings, directory: Path) -> None:
    """Raises DataError for a directory that may be no volume: jobs would get what the server has for itself, its keys
    and everybody's results, as data."""
    real = os.path.realpath(directory)
    own = {"DLICMD_HOME": settings.home, "DLI_RESULT_FS": settings.result_fs, "DLI_CACHE_DIR": settings.cache,
           "DLI_SHARED_CACHE_DIR": settings.shared_cache_dir, "DLI_VOLUMES": settings.volumes}
    places = {name: os.path.realpath(folder) for name, folder in own.items() if folder is not None}
    # These may be in the home, and volumes in them.
    free = [os.path.realpath(folder) for folder in (settings.data_fs, settings.volumes)]
    for name, place in places.items():
        how = "is" if real == place else "holds" if inside(place, real) else "is in" if inside(real, place) else ""
        if how and not (how == "is in" and any(inside(one, place) and inside(real, one) for one in free)):
            raise DataError(f"{directory} {how} {place} ({name}), which the server has for itself, and what a volume "
                            "has is for jobs; name a folder that has their data alone")


def _own(settings: Settings) -> list[Path]:
    """What a team's server has for itself in its home, for one that was put where the data lies."""
    seen = [os.path.realpath(folder) for folder in (settings.data_fs, settings.volumes)]
    home = os.path.realpath(settings.home)
    if not inside(home, seen[0]):
        return []
    try:
        return [Path(home, name) for name in os.listdir(home)
                if not any(inside(folder, os.path.join(home, name)) for folder in seen)]
    except OSError as problem:
        raise DataError(f"{home} cannot be read: {problem.strerror}") from None


def users_of(settings: Settings) -> dict[str, list[str]]:
    """Volume, by its directory → its users; those that are for everybody are not in it. Raises DataError: with a file
    that cannot be read nobody knows whom to keep out."""
    path = settings.paths.volume_users
    try:
        found = read_json(path)
    except OSError as problem:
        raise DataError(f"{path}, which says who may use which volume, cannot be read: {problem.strerror}") from None
    if found is None and not path.exists():
        return {}
    if isinstance(found, dict) and all(isinstance(users, list) for users in found.values()):
        return found
    raise DataError(f"{path}, which says who may use which volume, is damaged; restore it, or remove it and run "
                    "local-backend volume allow for every volume that is not for everybody")


def allow(settings: Settings, name: str, users: Sequence[str]) -> None:
    """Have a volume, by its directory, for these users alone; for everybody when there are none. Raises DataError and
    OSError."""
    known = users_of(settings)
    known.pop(name, None)
    write_json(settings.paths.volume_users, known | ({name: sorted(set(users))} if users else {}))
