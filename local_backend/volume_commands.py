"""`local-backend volume`: directories that jobs name as storage volumes. Each is a link in DLICMD_HOME/volumes: by that
its place for programs stays the same wherever its data lies."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from local_backend.running import fail, settings_here


@click.group()
def volume() -> None:
    """Storage volumes: directories that jobs name in --data-source."""


@volume.command()
@click.argument("name")
@click.argument("directory", type=click.Path(path_type=Path))
def add(name: str, directory: Path) -> None:
    """Make DIRECTORY known as the volume NAME."""
    place = _place(name)
    target = directory.expanduser().absolute()
    if not target.is_dir():
        fail(f"{target} is not a directory")
    if os.path.lexists(place):
        shown = f"leads to {os.readlink(place)}" if place.is_symlink() else "is a folder with its data"
        fail(f"there is a volume {place.name} already: {place} {shown}; remove that first")
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    place.symlink_to(target)
    click.echo(f"added {place.name}: {target}, for programs {place}")


@volume.command("list")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="How to show them.")
def list_volumes(output: str) -> None:
    """List the volumes."""
    folder = settings_here().paths.volumes
    found = [{"name": path.name, "path": str(path), "directory": os.path.realpath(path), "there": path.is_dir()}
             for path in (sorted(folder.iterdir()) if folder.is_dir() else ())]
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
    width = max([4, *(len(str(item["name"])) for item in found)])
    click.echo(f"{'name':{width}}  directory")
    for item in found:
        click.echo(f"{item['name']:{width}}  {item['directory']}" + ("" if item["there"] else "  (is not there)"))


@volume.command()
@click.argument("name")
def remove(name: str) -> None:
    """Forget the volume NAME. Its data stays where it is."""
    place = _place(name)
    if not os.path.lexists(place):
        fail(f"there is no volume {place.name}: local-backend volume list")
    if not place.is_symlink():
        fail(f"{place} is no link but the folder with the data itself; move or remove that by hand")
    place.unlink()
    click.echo(f"removed {place.name}")


def _place(name: str) -> Path:
    """Where a volume is mounted. Ends the command when that is no name for one."""
    from local_backend.data.errors import DataError
    from local_backend.data.fs import volume_directory

    try:
        return settings_here().paths.volumes / volume_directory(name)
    except DataError as problem:
        fail(str(problem))
