"""What the commands of `local-backend` share: the running server of this home, and how to ask it."""

from __future__ import annotations

import contextlib
import json
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from dlicmd.contract import home as home_contract
from dlicmd.contract.exits import Exit
from local_backend.files import read_json
from local_backend.runtime.paths import HomePaths
from local_backend.serving import served
from local_backend.setting_source import Given
from local_backend.settings import Settings

if TYPE_CHECKING:
    from local_backend.services.access import Caller
    from local_backend.services.base import Base
    from local_backend.store.database import Database


def running() -> dict[str, Any] | None:
    """What backend.json says, when the process that wrote it holds the lock of this home."""
    try:
        found = read_json(home_contract.home() / home_contract.BACKEND_FILE)
    except OSError as problem:
        fail(f"cannot read {problem.filename}: {problem.strerror}; remove it")
    pid = server_pid()
    return found if isinstance(found, dict) and pid is not None and found.get(home_contract.PID) == pid else None


def server_pid() -> int | None:
    """Process id of the server that runs on this home, whether it answers or not."""
    from local_backend.serving.server import holder

    home = home_contract.home()
    return holder(HomePaths(home, home, home).lock)


def settings_of(more: Sequence[str] = (), **flags: Any) -> Settings:
    """The settings of this home; what is wrong with them ends the program."""
    try:
        return Settings.from_environment(more, **flags)
    except ValueError as problem:
        fail(str(problem))


def settings_here() -> Settings:
    """The settings of the server that runs on this home, whatever flags and environment it was started with; where none
    runs, those of one that is started now without flags. What is wrong with them ends the program."""
    left = _served()
    try:
        return settings_of() if left is None else left.settings(home_contract.home())
    except ValueError as problem:
        fail(str(problem))


def said_here() -> Given:
    """What was said of these settings, and where; without the secrets of a server that runs."""
    left = _served()
    return settings_of().said if left is None else left.said


def _served() -> served.Served | None:
    """What the server that runs on this home has left about its start; None where none runs."""
    if running() is None:
        return None
    try:
        return served.read(home_contract.home() / home_contract.SERVED_FILE)
    except OSError as problem:
        fail(f"cannot read {problem.filename}: {problem.strerror}")


def call(found: dict[str, Any], method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """One call to the server of this home, with a JSON body where there is one. Raises OSError."""
    context = None
    if found.get(home_contract.CERTIFICATE):
        # The very certificate that the server was started with; the name in it may be another than the loopback's.
        context = ssl.create_default_context(cafile=found[home_contract.CERTIFICATE])
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = False
    headers = {"Authorization": f"Bearer {found[home_contract.TOKEN]}"}
    content = None if body is None else json.dumps(body).encode()
    if content is not None:
        headers["Content-Type"] = "application/json"
    request = urllib.request.Request(found[home_contract.URL] + path, content, headers, method=method)
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    with opener.open(request, timeout=60) as answer:
        said = answer.read()
    return json.loads(said) if said else None


@contextlib.contextmanager
def answering(found: dict[str, Any]) -> Iterator[None]:
    """Say what the server has against it, and end the program."""
    try:
        yield
    except urllib.error.HTTPError as problem:
        fail(said(problem), Exit.NO_SUCH_ID if problem.code == 404 else Exit.FAILED)
    except OSError as problem:
        fail(f"the server (process {found[home_contract.PID]}) does not answer: {problem}")


def base_of(settings: Settings, database: Database) -> Base:
    """Return the base of services for a command while no server runs: no supervisor is woken."""
    from local_backend.audit import AuditLog
    from local_backend.services.base import Base

    return Base(settings, AuditLog(settings.paths.audit), database, lambda: None)


def owner(settings: Settings) -> Caller:
    """Return the user that the server runs as, who uses its commands."""
    from local_backend.services.access import Caller

    return Caller(settings.user, True)


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """End the program with the sentence of an error that a service raises."""
    from local_backend.errors import BackendError, NotFound
    from local_backend.vault import VaultError

    try:
        yield
    except BackendError as problem:
        fail(str(problem).rstrip("."), Exit.NO_SUCH_ID if isinstance(problem, NotFound) else Exit.FAILED)
    except VaultError as problem:
        fail(str(problem).rstrip("."))


@contextlib.contextmanager
def offline() -> Iterator[tuple[Settings, Database]]:
    """The database of a server that does not run, and cannot be started meanwhile. What is in the way ends the
    program."""
    from sqlalchemy.exc import SQLAlchemyError

    from local_backend.serving.home_database import opened
    from local_backend.serving.server import ServerError, locked, make_home
    from local_backend.store.errors import DatabaseError

    settings = settings_here()
    try:
        make_home(settings)
        with locked(settings), contextlib.closing(opened(settings)) as database:
            yield settings, database
    except (ServerError, DatabaseError) as problem:
        fail(str(problem))
    except SQLAlchemyError as problem:
        fail(f"cannot use {settings.paths.database}: {getattr(problem, 'orig', None) or type(problem).__name__}")


def said(problem: urllib.error.HTTPError) -> str:
    """The sentence of an answer other than success, without its full stop."""
    sentence = problem.read().decode(errors="replace").partition(": ")[2].strip().rstrip(".")
    return sentence or str(problem)


def fail(text: str, code: int = Exit.FAILED) -> NoReturn:
    """End the program with a line on standard error."""
    click.echo(f"local-backend: {text}", err=True)
    sys.exit(code)
