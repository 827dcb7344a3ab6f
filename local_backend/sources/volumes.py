"""Storage volumes, and the users who may use them. A volume is a directory, or a link to one, in the folder of all
volumes. DLICMD_HOME/volumes.json lists the users of each volume that is not open to all users."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from dlicmd.contract.data_sources import LOCAL
from local_backend.data import areas, storage
from local_backend.data.errors import DataError
from local_backend.data.storage import DataRoots, inside
from local_backend.files import read_json, write_json
from local_backend.settings import Settings


def roots(settings: Settings, user: str, admin: bool) -> DataRoots:
    """Return the places where data of a user may lie. Administrators may use all volumes and all areas of users. Raises
    DataError."""
    kept = [settings.cache, settings.shared_cache_dir, settings.paths.jobs]
    if not settings.embedded:
        kept += _own(settings)
    closed: dict[str, Path] = {}
    if not admin:
        closed = {name: settings.volumes / name for name, users in users_of(settings).items() if user not in users}
        closed |= {str(area): area for area in areas.others(settings.data_fs, user)}
    return DataRoots(settings.data_fs, settings.volumes, settings.embedded,
                     {name: os.path.realpath(place) for name, place in closed.items()},
                     tuple(os.path.realpath(folder) for folder in kept if folder is not None),
                     settings.shared_cache_dir, "" if settings.embedded else areas.area_of(user))


def cache_for(settings: Settings, target: str) -> Path:
    """Return the cache for files that are fetched to this target. The folder may not exist yet. Raises DataError."""
    return settings.cache if target == LOCAL else storage.cache_of(target, roots(settings, "", admin=True))


def check_directory(settings: Settings, directory: Path) -> None:
    """Raise DataError for a directory that may not become a volume: jobs would get the server's own files as data, such
    as its keys and the results of all users."""
    real = os.path.realpath(directory)
    own = {"DLICMD_HOME": settings.home, "DLI_RESULT_FS": settings.result_fs, "DLI_CACHE_DIR": settings.cache,
           "DLI_SHARED_CACHE_DIR": settings.shared_cache_dir, "DLI_VOLUMES": settings.volumes}
    places = {name: os.path.realpath(folder) for name, folder in own.items() if folder is not None}
    # These two folders may be in the home, and volumes may be in them.
    free = [os.path.realpath(folder) for folder in (settings.data_fs, settings.volumes)]
    for name, place in places.items():
        how = "is" if real == place else "holds" if inside(place, real) else "is in" if inside(real, place) else ""
        if how and not (how == "is in" and any(inside(one, place) and inside(real, one) for one in free)):
            raise DataError(f"{directory} {how} {place} ({name}), a folder of the server; jobs can read all files "
                            "of a volume. Name a folder that contains only data for jobs")


def is_volume(settings: Settings, path: Path) -> bool:
    """Return whether the directory of a volume is what the administrator named: neither a folder of the server, nor
    reached through a folder of another volume, in which programs could make a link."""
    if not path.is_dir():
        return False
    try:
        check_directory(settings, path)
    except DataError:
        return False
    others = [os.path.realpath(other) for other in settings.volumes.glob("*") if other != path]
    named, real = os.readlink(path) if path.is_symlink() else str(path), os.path.realpath(path)
    return named == real or not any(inside(named, other) for other in others)


def _own(settings: Settings) -> list[Path]:
    """Return the server's own files in the home of a team's server, if the home is inside DLI_DATA_FS. Entries that
    contain DLI_DATA_FS or the volumes are left out. Raises DataError."""
    seen = [os.path.realpath(folder) for folder in (settings.data_fs, settings.volumes)]
    home = os.path.realpath(settings.home)
    if not inside(home, seen[0]):
        return []
    try:
        return [Path(home, name) for name in os.listdir(home)
                if not any(inside(folder, os.path.join(home, name)) for folder in seen)]
    except OSError as problem:
        raise DataError(f"cannot read {home}: {problem.strerror}") from None


def users_of(settings: Settings) -> dict[str, list[str]]:
    """Return the users of volumes: directory of the volume → users. Volumes that are open to all users are left out.
    Raises DataError when the file cannot be read, because the server then does not know which users to refuse."""
    path = settings.paths.volume_users
    try:
        found = read_json(path)
    except OSError as problem:
        raise DataError(f"cannot read {path}, the list of users of each volume: {problem.strerror}") from None
    if found is None and not path.exists():
        return {}
    if isinstance(found, dict) and all(isinstance(users, list) for users in found.values()):
        return found
    raise DataError(f"{path}, the list of users of each volume, is damaged. Restore it; or remove it and run "
                    "local-backend volume allow for every volume that not all users may use")


def allow(settings: Settings, name: str, users: Sequence[str]) -> None:
    """Open a volume, given by its directory, to these users only; to all users if there are none. Raises DataError and
    OSError."""
    known = users_of(settings)
    known.pop(name, None)
    write_json(settings.paths.volume_users, known | ({name: sorted(set(users))} if users else {}))
