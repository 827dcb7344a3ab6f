"""Storage volumes: folders that jobs name in their data sources. Each volume is a link in the folder of volumes, so
programs use the same path when the data moves."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from local_backend.data.errors import DataError
from local_backend.data.storage import volume_directory
from local_backend.errors import Conflict, Invalid, NotFound, StorageFailed
from local_backend.services.access import Caller
from local_backend.services.base import Recorder
from local_backend.sources.volumes import allow, check_directory, users_of
from local_backend.store.users import is_name

_ACTION = "change volumes"


@dataclass(frozen=True)
class Volume:
    """One volume. `users` and administrators may use it; None means all users."""

    name: str
    path: Path
    users: Sequence[str] | None

    @property
    def directory(self) -> str:
        """The folder with the data."""
        return os.path.realpath(self.path)

    @property
    def exists(self) -> bool:
        """Whether the folder with the data exists."""
        return self.path.is_dir()


@dataclass(frozen=True)
class VolumeService:
    """Operations on volumes. Volumes are files of the server's machine, so only commands on that machine change
    them."""

    recorder: Recorder

    def list(self) -> list[Volume]:
        """Return all volumes by name. Raises StorageFailed (`volume.unreadable`)."""
        folder = self.recorder.settings.volumes
        try:
            users = users_of(self.recorder.settings)
            paths = sorted(folder.glob("[!.]*")) if folder.is_dir() else []
        except (DataError, OSError) as problem:
            raise StorageFailed("volume.unreadable", str(problem)) from None
        return [Volume(path.name, path, users.get(path.name)) for path in paths]

    def visible(self, caller: Caller) -> Sequence[Volume]:
        """Return the volumes that the caller may use, by name. Raises StorageFailed (`volume.unreadable`)."""
        return [one for one in self.list() if caller.admin or one.users is None or caller.name in one.users]

    def add(self, caller: Caller, name: str, directory: Path, users: Sequence[str]) -> Volume:
        """Add a folder as a volume for these users, for all users if the list is empty. Raises Denied, Invalid
        (`volume.invalid`, `volume.directory`), Conflict (`volume.exists`), StorageFailed (`volume.failed`,
        `volume.unreadable`)."""
        with self.recorder.recorded(caller, "volume.add", name):
            caller.check_admin(_ACTION)
            place = self._place(name)
            if not directory.is_dir():
                raise Invalid("volume.directory", f"{directory} is not a directory")
            try:
                check_directory(self.recorder.settings, directory)
            except DataError as problem:
                raise Invalid("volume.directory", str(problem)) from None
            if os.path.lexists(place):
                shown = f"is a link to {os.readlink(place)}" if place.is_symlink() else "is a folder with data"
                raise Conflict("volume.exists", f"volume {place.name} already exists: {place} {shown}; remove it first")
            try:
                place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                # Set the users before the link exists, so that the volume is never open to all users.
                self._allow(place.name, users)
                place.symlink_to(directory)
            except OSError as problem:
                raise StorageFailed(
                    "volume.failed",
                    f"cannot create {place}: {problem.strerror}; the folder of all volumes is {place.parent} "
                    "(DLI_VOLUMES)",
                ) from None
            return Volume(place.name, place, users or None)

    def allow(self, caller: Caller, name: str, users: Sequence[str]) -> Volume:
        """Set the users of a volume for later submissions; an empty list means all users. Raises Denied, Invalid
        (`volume.invalid`), NotFound (`volume.not_found`), StorageFailed (`volume.failed`, `volume.unreadable`)."""
        with self.recorder.recorded(caller, "volume.allow", name):
            caller.check_admin(_ACTION)
            place = self._place(name)
            if not place.is_dir():
                raise NotFound(
                    "volume.not_found",
                    f"volume {place.name} does not exist; to list the volumes: local-backend volume list",
                )
            self._allow(place.name, users)
            return Volume(place.name, place, users or None)

    def remove(self, caller: Caller, name: str) -> Volume:
        """Remove a volume; its data stays. Raises Denied, Invalid (`volume.invalid`), NotFound (`volume.not_found`),
        Conflict (`volume.is_folder`), StorageFailed (`volume.failed`, `volume.unreadable`)."""
        with self.recorder.recorded(caller, "volume.remove", name):
            caller.check_admin(_ACTION)
            place = self._place(name)
            if not os.path.lexists(place):
                raise NotFound(
                    "volume.not_found",
                    f"volume {place.name} does not exist; to list the volumes: local-backend volume list",
                )
            if not place.is_symlink():
                raise Conflict(
                    "volume.is_folder",
                    f"{place} is the folder with the data itself, not a link; move or remove it by hand",
                )
            try:
                place.unlink()
            except OSError as problem:
                raise StorageFailed("volume.failed", f"cannot remove {place}: {problem.strerror}") from None
            self._allow(place.name, ())
            return Volume(place.name, place, None)

    def _place(self, name: str) -> Path:
        try:
            return self.recorder.settings.volumes / volume_directory(name)
        except DataError as problem:
            raise Invalid("volume.invalid", str(problem)) from None

    def _allow(self, name: str, users: Sequence[str]) -> None:
        wrong = [user for user in users if not is_name(user)]
        if wrong:
            raise Invalid("volume.invalid", f"'{wrong[0][:80]}' is not a valid user name")
        try:
            self.recorder.settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            allow(self.recorder.settings, name, users)
        except DataError as problem:
            raise StorageFailed("volume.unreadable", str(problem)) from None
        except OSError as problem:
            where = self.recorder.settings.paths.volume_users
            raise StorageFailed("volume.failed", f"cannot write {where}: {problem.strerror}") from None
