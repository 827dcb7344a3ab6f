"""`local-backend volume`: directories that jobs name as storage volumes. Each is a link in the folder of volumes: by
that its place for programs stays the same wherever its data lies."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import click

from local_backend.commands.running import fail, settings_here
from local_backend.settings import Settings

_users = click.option("--user", "users", multiple=True, metavar="USER",
                      help="A user that may use it, beside administrators; repeatable. Everybody without.")


@click.group()
def volume() -> None:
    """Storage volumes: directories that jobs name in --data-source."""


@volume.command()
@click.argument("name")
@click.argument("directory", type=click.Path(path_type=Path))
@_users
def add(name: str, directory: Path, users: tuple[str, ...]) -> None:
    """Make DIRECTORY known as the volume NAME."""
    from local_backend.data.errors import DataError
    from local_backend.sources.volumes import check_directory

    settings, place = _place(name)
    target = directory.expanduser().absolute()
    if not target.is_dir():
        fail(f"{target} is not a directory")
    try:
        check_directory(settings, target)
    except DataError as problem:
        fail(str(problem))
    if os.path.lexists(place):
        shown = f"leads to {os.readlink(place)}" if place.is_symlink() else "is a folder with its data"
        fail(f"there is a volume {place.name} already: {place} {shown}; remove that first")
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Before it is there: at no moment is it everybody's.
        _allow(settings, place.name, users)
        place.symlink_to(target)
    except OSError as problem:
        fail(f"cannot make {place}: {problem.strerror}; volumes lie in {place.parent} (DLI_VOLUMES)")
    click.echo(f"added {place.name}: {target}, for programs {place}, for {_shown(users)}")


@volume.command()
@click.argument("name")
@_users
def allow(name: str, users: tuple[str, ...]) -> None:
    """Say who may use the volume NAME. Counts for what is submitted from now on."""
    settings, place = _place(name)
    if not place.is_dir():
        fail(f"there is no volume {place.name}: local-backend volume list")
    _allow(settings, place.name, users)
    click.echo(f"{place.name} is for {_shown(users)}")


@volume.command("list")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="How to show them.")
def list_volumes(output: str) -> None:
    """List the volumes."""
    from local_backend.data.errors import DataError
    from local_backend.sources.volumes import users_of

    settings = settings_here()
    folder = settings.volumes
    try:
        users = users_of(settings)
        paths = sorted(folder.glob("[!.]*")) if folder.is_dir() else []
    except (DataError, OSError) as problem:
        fail(str(problem))
    found = [{"name": path.name, "path": str(path), "directory": os.path.realpath(path), "there": path.is_dir(),
              "users": users.get(path.name)} for path in paths]
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
    rows = [("name", "for", "directory")]
    rows += [(str(item["name"]), _shown(users.get(str(item["name"]), ())),
              str(item["directory"]) + ("" if item["there"] else "  (is not there)")) for item in found]
    widths = [max(len(row[at]) for row in rows) for at in range(2)]
    for row in rows:
        click.echo(f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]}")


@volume.command()
@click.argument("name")
def remove(name: str) -> None:
    """Forget the volume NAME. Its data stays where it is."""
    settings, place = _place(name)
    if not os.path.lexists(place):
        fail(f"there is no volume {place.name}: local-backend volume list")
    if not place.is_symlink():
        fail(f"{place} is no link but the folder with the data itself; move or remove that by hand")
    try:
        place.unlink()
    except OSError as problem:
        fail(f"cannot remove {place}: {problem.strerror}")
    _allow(settings, place.name, ())
    click.echo(f"removed {place.name}")


def _allow(settings: Settings, name: str, users: Sequence[str]) -> None:
    from local_backend.data.errors import DataError
    from local_backend.sources.volumes import allow as allow_users
    from local_backend.store.users import is_name

    wrong = [user for user in users if not is_name(user)]
    if wrong:
        fail(f"'{wrong[0][:80]}' cannot be the name of a user")
    try:
        settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        allow_users(settings, name, users)
    except DataError as problem:
        fail(str(problem))
    except OSError as problem:
        fail(f"cannot write {settings.paths.volume_users}: {problem.strerror}")


def _shown(users: Sequence[str]) -> str:
    return ",".join(sorted(set(users))) or "everybody"


def _place(name: str) -> tuple[Settings, Path]:
    """The settings of this home, and where the volume is mounted. Ends the command when that is no name for one."""
    from local_backend.data.errors import DataError
    from local_backend.data.fs import volume_directory

    settings = settings_here()
    try:
        return settings, settings.volumes / volume_directory(name)
    except DataError as problem:
        fail(str(problem))
