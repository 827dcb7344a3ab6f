"""`local-backend connection`: connections to servers with data, which data sources name. A running server does the
work. Without one, the command works on the database itself, which stays locked meanwhile."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from dlicmd.contract import wire
from dlicmd.contract.exits import Exit
from local_backend.commands.running import (
    answering,
    base_of,
    call,
    fail,
    offline,
    owner,
    refusals,
    running,
    settings_here,
)

if TYPE_CHECKING:
    from local_backend.services.access import Caller
    from local_backend.services.connections import ConnectionService


@click.group()
def connection() -> None:
    """Manage connections to servers that have data. Data sources refer to connections by name."""


@connection.command()
@click.argument("name")
@click.option("--type", "kind", required=True, metavar="KIND",
              help="Kind of the connection; to list the kinds: local-backend connection kinds.")
@click.option("--set", "public", multiple=True, metavar="FIELD=VALUE", help="A value that is not secret. Repeatable.")
@click.option("--secret", "secrets", multiple=True, metavar="FIELD[=PLACE]",
              help="A secret. The command asks for it, or reads it from a line of standard input. With =env:NAME or "
                   "=keyring:SERVICE/USER, the server reads it from there when it needs the secret. Repeatable. The "
                   "command also asks for required secrets that you do not name.")
@click.option("--shared-with", multiple=True, metavar="USER",
              help="User who may also use the connection, or everybody. Repeatable.")
@click.option("--replace", is_flag=True, help="Replace the connection that has this name; its id stays the same.")
def add(  # noqa: PLR0917
    name: str, kind: str, public: tuple[str, ...], secrets: tuple[str, ...], shared_with: tuple[str, ...], replace: bool
) -> None:
    """Add the connection NAME. Never type secrets as arguments: all users of a machine can read its command lines."""
    values = _values(kind, public, secrets)
    shared: Sequence[str] | str = wire.EVERYBODY if wire.EVERYBODY in shared_with else list(shared_with)
    body = {wire.NAME: name, wire.TYPE: kind, wire.VALUES: values, wire.SHARED_WITH: shared, wire.REPLACE: replace}
    found = running()
    if found is not None:
        with answering(found):
            shown = call(found, "POST", wire.CONNECTIONS, body)
    else:
        shown = _offline(lambda connections, caller: connections.add(
            caller, name, kind, values, True if shared == wire.EVERYBODY else list(shared_with), replace
        ))
    click.echo(f"added {name} ({shown[wire.TYPE]}), id {shown[wire.ID]}")


@connection.command("list")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Output format.")
def list_connections(output: str) -> None:
    """List the connections without their secrets."""
    found = running()
    if found is not None:
        with answering(found):
            shown = call(found, "GET", wire.CONNECTIONS)
    else:
        shown = _offline(lambda connections, caller: connections.list(caller))
    if output == "json":
        click.echo(json.dumps(shown, indent=2))
        return
    rows = [("name", "type", "owner", "shared with", "id")]
    for item in shown:
        shared = item[wire.SHARED_WITH]
        rows.append((item[wire.NAME], item[wire.TYPE], item[wire.OWNER],
                     shared if isinstance(shared, str) else ",".join(shared) or "-", item[wire.ID]))
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    for row in rows:
        click.echo("  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[4]]))


@connection.command()
@click.argument("name")
def test(name: str) -> None:
    """Test whether the server of the connection NAME can be reached and accepts its credentials."""
    found = running()
    if found is not None:
        with answering(found):
            answer = call(found, "POST", wire.connection_path(name, wire.TEST))
        problem = None if answer[wire.OK] else answer[wire.MESSAGE]
    else:
        from local_backend.sources.volumes import roots

        # A user of this machine may reach all files and servers on it.
        places = replace(roots(settings_here(), "", True), anywhere=True)
        problem = _offline(lambda connections, caller: connections.test(caller, name, places))
    if problem is not None:
        fail(f"{name}: {problem}")
    click.echo(f"{name}: ok")


@connection.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove the connection NAME (name or id)."""
    found = running()
    if found is not None:
        with answering(found):
            call(found, "DELETE", wire.connection_path(name))
    else:
        _offline(lambda connections, caller: connections.remove(caller, name))
    click.echo(f"removed {name}")


@connection.command("kinds")
@click.argument("kind", required=False)
def kinds_(kind: str | None) -> None:
    """List the kinds of connections, or the fields of KIND and the packages that it needs."""
    from local_backend.data import registry
    from local_backend.data.errors import DataError

    if kind is None:
        for one in registry.every().values():
            click.echo(f"{one.name:16}  {one.title}")
        return
    try:
        found = registry.find(kind)
    except DataError as problem:
        fail(str(problem))
    for field in found.fields:
        marks = ", ".join(word for word, there in (("required", field.required), ("secret", field.secret)) if there)
        click.echo(f"{field.name:24}  {field.help}{f' ({marks})' if marks else ''}")
    try:
        found.require()
    except DataError as problem:
        # Standard output contains only the fields.
        click.echo(f"local-backend: {problem}", err=True)


def _offline(work: Callable[[ConnectionService, Caller], Any]) -> Any:
    """Return the result of `work` on the database while no server runs, with connections as the API shows them."""
    from local_backend.api.objects import connection_object
    from local_backend.data.errors import DataError
    from local_backend.services.connections import ConnectionService
    from local_backend.sources.connections import Connections
    from local_backend.store.connections import ConnectionRow

    with offline() as (settings, database), refusals():
        try:
            connections = ConnectionService(base_of(settings, database), Connections(settings, database))
        except DataError as problem:
            fail(str(problem))
        caller = owner(settings)
        found = work(connections, caller)
        if isinstance(found, ConnectionRow):
            return connection_object(found, caller, connections)
        if isinstance(found, list):
            return [connection_object(row, caller, connections) for row in found]
        return found


def _values(kind_name: str, public: tuple[str, ...], secrets: tuple[str, ...]) -> dict[str, Any]:
    """Return the values of a new connection, as the server expects them. A wrong value ends the program."""
    from local_backend.data import registry
    from local_backend.data.errors import DataError
    from local_backend.sources.values import place_of

    try:
        kind = registry.find(kind_name)
    except DataError as problem:
        fail(str(problem), Exit.USAGE)
    fields = {alias: field for field in kind.fields for alias in (field.name, *field.aliases)}
    values: dict[str, Any] = {}
    for word in public:
        name, equals, value = word.partition("=")
        if not equals or name not in fields:
            fail(f"--set takes FIELD=VALUE with a field of {kind.name}{f', not {name!r}' if equals else ''}. Fields: "
                 f"{', '.join(field.name for field in kind.fields if not field.secret)}", Exit.USAGE)
        if fields[name].secret:
            fail(f"--set {name}: all users can read a command line. Use --secret {name}; the command then asks for "
                 "the value", Exit.USAGE)
        if fields[name].name in values:
            fail(f"--set {name}: field '{fields[name].name}' is given twice", Exit.USAGE)
        values[fields[name].name] = value
    asked: list[str] = []
    for word in secrets:
        name, equals, place = word.partition("=")
        if name not in fields or not fields[name].secret:
            fail(f"--secret takes a secret field of {kind.name}. Secret fields: "
                 f"{', '.join(field.name for field in kind.fields if field.secret) or 'none'}", Exit.USAGE)
        if fields[name].name in {*values, *asked}:
            fail(f"--secret {name}: field '{fields[name].name}' is given twice", Exit.USAGE)
        if equals and place_of(place) is None:
            fail(f"--secret {name}: all users can read a command line. Use --secret {name} alone (the command then "
                 f"asks for the value), {name}=env:NAME or {name}=keyring:SERVICE/USER", Exit.USAGE)
        if equals:
            values[fields[name].name] = place_of(place)
        else:
            asked.append(fields[name].name)
    asked += [field.name for field in kind.fields
              if field.secret and field.required and field.name not in {*values, *asked}]
    return values | {name: _ask(name) for name in asked}


def _ask(field: str) -> str:
    """Return a secret: typed input, or the next line of standard input."""
    if sys.stdin.isatty():
        return str(click.prompt(field, hide_input=True, err=True))
    text = sys.stdin.readline().rstrip("\r\n")
    if not text:
        fail(f"{field} is missing: pipe in one line for each secret, in the order of --secret, or use --secret "
             f"{field}=env:NAME", Exit.USAGE)
    return text
