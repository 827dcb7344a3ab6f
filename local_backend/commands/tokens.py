"""`local-backend token`: tokens for programs, such as pipelines. A running server makes the change. Without one, the
command changes the database itself, which stays locked meanwhile."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from dlicmd.contract import wire
from local_backend.commands.running import answering, base_of, call, offline, owner, refusals, running

if TYPE_CHECKING:
    from collections.abc import Callable

    from local_backend.services.access import Caller
    from local_backend.services.tokens import TokenService

_UNITS = {"m": 60, "h": 3600, "d": 86_400}
_SCOPES = ("read", "submit", "admin", "inference")
_user = click.option("--user", metavar="USER", help="User that the token acts for (default: the user of the server).")


class _Duration(click.ParamType):
    """A time such as 30d, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number, unit = str(value)[:-1], str(value)[-1:]
        if unit not in _UNITS or not (number.isascii() and number.isdigit()) or len(number) > 9:
            self.fail(f"'{value}' is not a time; use a number and m, h or d, such as 30d", param, ctx)
        return int(number) * _UNITS[unit]


@click.group()
def token() -> None:
    """Manage tokens for programs, such as pipelines."""


@token.command()
@click.option("--name", required=True, metavar="NAME", help="Name of the token, which the audit log shows.")
@click.option("--scope", required=True, type=click.Choice(_SCOPES),
              help="read: see own jobs. submit: also submit and stop own jobs. admin: everything that an administrator "
                   "may do. inference: only send requests to models.")
@click.option("--expires", "seconds", type=_Duration(), default="30d", show_default=True,
              help="Time until the token expires: a number and m, h or d.")
@_user
def create(name: str, scope: str, seconds: int, user: str | None) -> None:
    """Make a token and print it. It is shown only once: the server stores its SHA-256."""
    body = {wire.NAME: name, wire.SCOPE: scope, wire.EXPIRES_IN: seconds, **({} if user is None else {wire.USER: user})}

    def made(tokens: TokenService, caller: Caller) -> dict[str, Any]:
        from local_backend.api.objects import token_object

        row, text = tokens.create(caller, name, scope, seconds, user)
        return {**token_object(row), wire.TOKEN: text}

    found = _asked("POST", wire.TOKENS, body, made)
    click.echo(f"local-backend: token {name} acts for {found[wire.USER]} with the scope {scope} until "
               f"{found[wire.EXPIRES]}", err=True)
    click.echo(found[wire.TOKEN])


@token.command("list")
@_user
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Output format.")
def list_tokens(user: str | None, output: str) -> None:
    """List the tokens of a user. The tokens themselves cannot be shown again."""

    def listed(tokens: TokenService, caller: Caller) -> Any:
        from local_backend.api.objects import token_object

        return [token_object(row) for row in tokens.list(caller, user)]

    shown = _asked("GET", wire.TOKENS + _query(user), None, listed)
    if output == "json":
        click.echo(json.dumps(shown, indent=2))
        return
    keys = (wire.NAME, wire.ID, wire.SCOPE, wire.CREATED, wire.EXPIRES)
    rows = [{key: key for key in keys}, *shown]
    widths = {key: max(len(row[key]) for row in rows) for key in keys}
    for row in rows:
        click.echo("  ".join(f"{row[key]:{widths[key]}}" for key in keys).rstrip())


@token.command()
@click.argument("name")
@_user
def revoke(name: str, user: str | None) -> None:
    """Revoke the token with this name or id immediately."""
    path = f"{wire.TOKENS}/{quote(name, safe='')}{_query(user)}"
    if name in ("", ".", ".."):
        raise click.UsageError(f"'{name}' is not a valid name of a token")
    _asked("DELETE", path, None, lambda tokens, caller: tokens.revoke(caller, name, user))
    click.echo(f"revoked {name}")


def _query(user: str | None) -> str:
    return "" if user is None else f"?{wire.USER}={quote(user, safe='')}"


def _asked(
    method: str, path: str, body: dict[str, Any] | None, work: Callable[[TokenService, Caller], Any]
) -> Any:
    """Return the answer of the running server, or the result of `work` on the database if no server runs."""
    found = running()
    if found is not None:
        with answering(found):
            return call(found, method, path, body)
    from local_backend.services.tokens import TokenService

    with offline() as (settings, database), refusals():
        return work(TokenService(base_of(settings, database)), owner(settings))
