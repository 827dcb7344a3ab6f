"""`local-backend volume`: folders that jobs name as storage volumes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from local_backend.commands.running import owner, refusals, settings_here

if TYPE_CHECKING:
    from local_backend.services.access import Caller
    from local_backend.services.volumes import VolumeService

_users = click.option("--user", "users", multiple=True, metavar="USER",
                      help="User who may use the volume, in addition to administrators. Repeatable. Without this "
                           "option, all users may use it.")


@click.group()
def volume() -> None:
    """Manage storage volumes: folders that jobs name in --data-source."""


@volume.command()
@click.argument("name")
@click.argument("directory", type=click.Path(path_type=Path))
@_users
def add(name: str, directory: Path, users: tuple[str, ...]) -> None:
    """Add DIRECTORY as the volume NAME."""
    target = directory.expanduser().absolute()
    with refusals():
        volumes, caller = _service()
        added = volumes.add(caller, name, target, users)
    click.echo(f"added {added.name}: {target}, for programs {added.path}, for {_shown(users)}")


@volume.command()
@click.argument("name")
@_users
def allow(name: str, users: tuple[str, ...]) -> None:
    """Set which users may use the volume NAME. Applies to jobs that are submitted from now on."""
    with refusals():
        volumes, caller = _service()
        allowed = volumes.allow(caller, name, users)
    click.echo(f"{allowed.name}: usable by {_shown(users)}")


@volume.command("list")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Output format.")
def list_volumes(output: str) -> None:
    """List the volumes."""
    with refusals():
        volumes, _ = _service()
        found = volumes.list()
    if output == "json":
        shown = [{"name": one.name, "path": str(one.path), "directory": one.directory, "there": one.exists,
                  "users": one.users} for one in found]
        click.echo(json.dumps(shown, indent=2))
        return
    rows = [("name", "for", "directory")]
    rows += [(one.name, _shown(one.users or ()), one.directory + ("" if one.exists else "  (missing)"))
             for one in found]
    widths = [max(len(row[at]) for row in rows) for at in range(2)]
    for row in rows:
        click.echo(f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]}")


@volume.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove the volume NAME. Its data is not deleted."""
    with refusals():
        volumes, caller = _service()
        removed = volumes.remove(caller, name)
    click.echo(f"removed {removed.name}")


def _service() -> tuple[VolumeService, Caller]:
    """Return the service, and the user that the server runs as. Volumes are files, so no running server is asked."""
    from local_backend.services.base import Recorder, audit_log
    from local_backend.services.volumes import VolumeService

    settings = settings_here()
    return VolumeService(Recorder(settings, audit_log(settings))), owner(settings)


def _shown(users: Sequence[str]) -> str:
    return ",".join(sorted(set(users))) or "everybody"
