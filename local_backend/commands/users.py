"""`local-backend user`: the users of a server that serves other machines. A running server makes the change. Without
one, the command changes the database itself, which stays locked meanwhile."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from dlicmd.contract import wire
from dlicmd.contract.exits import Exit
from local_backend.commands.running import answering, base_of, call, fail, offline, owner, refusals, running

if TYPE_CHECKING:
    from local_backend.services.access import Caller
    from local_backend.services.users import UserService

    #: Function that works on the users while no server runs.
    Work = Callable[[UserService, Caller], Any]

#: Variable with the password of the user to add or to change.
PASSWORD_VARIABLE = "DLI_USER_PASSWORD"
_ROLES = ("user", "admin")
_password_stdin = click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")


@click.group()
def user() -> None:
    """Manage the users of a server for a team."""


@user.command()
@click.argument("name")
@click.option("--role", type=click.Choice(_ROLES), default="user", show_default=True,
              help="An admin sees and stops the jobs of all users, and changes resource plans and users.")
@_password_stdin
def add(name: str, role: str, password_stdin: bool) -> None:
    """Add the user NAME. The password comes from DLI_USER_PASSWORD; if it is not set, the command asks for it."""
    from local_backend.settings import user_name

    _mind_name(name, new=True)
    if name == user_name() and role != "admin":
        fail(f"the server runs as {name}, so {name} is an administrator; add --role admin")
    password = _password(password_stdin)

    body = {wire.NAME: name, wire.PASSWORD: password, wire.ROLE: role}
    _change("POST", wire.USERS, body, lambda users, caller: users.add(caller, name, password, role))
    click.echo(f"added {name} ({role})")
    found = running()
    if found is not None:
        with answering(found):
            if call(found, "GET", wire.STATUS)[wire.EMBEDDED]:
                click.echo("local-backend: the running server accepts only its own user; to serve other "
                           "users, start it with --host or --tls-self-signed", err=True)


@user.command("list")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Output format.")
def list_users(output: str) -> None:
    """List the users."""
    shown = _listed()
    if output == "json":
        click.echo(json.dumps(shown, indent=2))
        return
    width = max([4, *(len(item[wire.NAME]) for item in shown)])
    for item in [{wire.NAME: "name", wire.ROLE: "role", wire.CREATED: "created"}, *shown]:
        click.echo(f"{item[wire.NAME]:{width}}  {item[wire.ROLE]:5}  {item[wire.CREATED]}")


@user.command()
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before an administrator is removed.")
def remove(name: str, yes: bool) -> None:
    """Remove the user NAME. The tokens of that user become invalid. The packages that the user installed are removed;
    jobs and results stay. The command asks before it removes an administrator, and never removes the last one."""
    _mind_name(name, new=False)
    if not yes and {item[wire.NAME]: item[wire.ROLE] for item in _listed()}.get(name) == "admin":
        _ask_about(name)

    _change("DELETE", wire.user_path(name), None, lambda users, caller: users.remove(caller, name))
    click.echo(f"removed {name}")


@user.command()
@click.argument("name")
@_password_stdin
def passwd(name: str, password_stdin: bool) -> None:
    """Change the password of the user NAME. Tokens made with the old password become invalid."""
    _mind_name(name, new=False)
    password = _password(password_stdin)

    body = {wire.PASSWORD: password}
    _change("PUT", wire.user_path(name, wire.PASSWORD), body,
            lambda users, caller: users.set_password(caller, name, password))
    click.echo(f"changed the password of {name}")


@user.command()
@click.argument("name")
@click.argument("role", type=click.Choice(_ROLES))
def role(name: str, role: str) -> None:
    """Change the ROLE of the user NAME to user or admin."""
    _mind_name(name, new=False)
    _change("PUT", wire.user_path(name, wire.ROLE), {wire.ROLE: role},
            lambda users, caller: users.set_role(caller, name, role))
    click.echo(f"{name} is {role} now")


@user.command()
@click.argument("name")
@click.argument("subject")
def link(name: str, subject: str) -> None:
    """Let the account of the OIDC issuer with this SUBJECT log on as the user NAME."""
    _mind_name(name, new=False)
    _change("PUT", wire.user_path(name, wire.SUBJECT), {wire.SUBJECT: subject},
            lambda users, caller: users.link(caller, name, subject))
    click.echo(f"linked {name} with {subject}")


def _listed() -> Sequence[Mapping[str, Any]]:
    """Return all users, without their passwords."""
    found = running()
    if found is None:
        from local_backend.api.objects import user_object

        return [user_object(row) for row in _offline(lambda users, caller: users.list(caller))]
    with answering(found):
        return list(call(found, "GET", wire.USERS))


def _ask_about(name: str) -> None:
    """Ask whether to remove this administrator. End the program if the answer is no, or if standard input is not a
    terminal."""
    if not sys.stdin.isatty():
        fail(f"{name} is an administrator; add --yes to remove that user", Exit.USAGE)
    if not click.confirm(f"{name} is an administrator. Remove?", err=True):
        fail(f"{name} was not removed")


def _change(method: str, path: str, body: dict[str, Any] | None, offline: Work) -> None:
    """Make a change through the running server, or by `offline` if no server runs."""
    found = running()
    if found is None:
        _offline(offline)
        return
    with answering(found):
        call(found, method, path, body)


def _offline(work: Work) -> Any:
    """Return the result of `work` on the database of a server that does not run."""
    from local_backend.services.users import UserService

    with offline() as (settings, database), refusals():
        return work(UserService(base_of(settings, database)), owner(settings))


def _mind_name(name: str, new: bool) -> None:
    """End the program if no user can have this name. Such a name makes no valid path of a call, either."""
    from local_backend.store.users import NoSuchUser, UserError, checked_name

    try:
        checked_name(name)
    except UserError as problem:
        if new:
            fail(str(problem))
        fail(str(NoSuchUser(name)), Exit.NO_SUCH_ID)


def _password(from_stdin: bool) -> str:
    """Return the password: the first line of standard input, DLI_USER_PASSWORD, or typed input (asked twice). It is
    never an argument, because all users of a machine can read its command lines."""
    from local_backend.store.users import UserError, checked_password

    named = os.environ.get(PASSWORD_VARIABLE)
    if from_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    elif named:
        password = named
    elif sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        fail(f"no password given; pipe it in with --password-stdin, or set {PASSWORD_VARIABLE}", Exit.USAGE)
    try:
        return checked_password(password)
    except UserError as problem:
        fail(str(problem))
