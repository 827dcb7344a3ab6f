"""Shared functions of the commands of `local-backend`: find the running server of this home, and call it."""

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
import psutil

from dlicmd.contract import home as home_contract
from dlicmd.contract.exits import Exit
from local_backend.files import read_json
from local_backend.runtime.paths import HomePaths
from local_backend.serving import served
from local_backend.setting_source import GivenSettings
from local_backend.settings import Settings

if TYPE_CHECKING:
    from local_backend.services.access import Caller
    from local_backend.services.base import Base
    from local_backend.store.database import Database


def running() -> dict[str, Any] | None:
    """Return the content of backend.json if the process that wrote it holds the lock of this home, else None."""
    try:
        found = read_json(home_contract.home() / home_contract.BACKEND_FILE)
    except OSError as problem:
        fail(f"cannot read {problem.filename}: {problem.strerror}; remove it")
    pid = server_pid()
    return found if isinstance(found, dict) and pid is not None and found.get(home_contract.PID) == pid else None


def server_pid() -> int | None:
    """Return the process id of the server that runs on this home, even if it does not answer. Return None if no
    server runs."""
    from local_backend.serving.server import holder

    home = home_contract.home()
    return holder(HomePaths(home, home, home).lock)


def settings_of(more: Sequence[str] = (), **flags: Any) -> Settings:
    """Return the settings of this home. A wrong setting ends the program."""
    try:
        return Settings.from_environment(more, **flags)
    except ValueError as problem:
        fail(str(problem))


def settings_here() -> Settings:
    """Return the settings of the running server of this home, from the flags and environment that it was started
    with. If no server runs, return the settings of a server that starts now without flags. A wrong setting ends the
    program."""
    left = _served()
    try:
        return settings_of() if left is None else left.settings(home_contract.home())
    except ValueError as problem:
        fail(str(problem))


def said_here() -> GivenSettings:
    """Return the texts and the sources of these settings, without the secrets of a running server."""
    left = _served()
    return settings_of().said if left is None else left.said


def _served() -> served.Served | None:
    """Return what the running server of this home has recorded about its start, None if no server runs."""
    if running() is None:
        return None
    try:
        return served.read(home_contract.home() / home_contract.SERVED_FILE)
    except OSError as problem:
        fail(f"cannot read {problem.filename}: {problem.strerror}")


def call(found: dict[str, Any], method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Call the server of this home, with a JSON body if given, and return the JSON of its answer. Raises OSError."""
    pid = found[home_contract.PID]
    if is_suspended(pid):
        raise TimeoutError(f"it is suspended; to continue it: kill -CONT {pid}")
    context = None
    if found.get(home_contract.CERTIFICATE):
        # Trust exactly the certificate that the server was started with. Its name may differ from the loopback names.
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


def is_suspended(pid: int) -> bool:
    """Return whether a signal or a debugger has stopped a process."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


@contextlib.contextmanager
def answering(found: dict[str, Any]) -> Iterator[None]:
    """End the program with the server's message when a call fails."""
    try:
        yield
    except urllib.error.HTTPError as problem:
        fail(said(problem), Exit.NO_SUCH_ID if problem.code == 404 else Exit.FAILED)
    except OSError as problem:
        fail(f"the server (process {found[home_contract.PID]}) does not answer: {problem}")


def base_of(settings: Settings, database: Database) -> Base:
    """Return the base of services for a command while no server runs. Its `wake` does nothing."""
    from local_backend.services.base import Base, audit_log

    return Base(settings, audit_log(settings), database, lambda: None)


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
    """Yield the settings and the database of a home. No server runs on the home, and none can start meanwhile. The
    program ends if this is impossible."""
    from sqlalchemy.exc import SQLAlchemyError

    from local_backend.serving.home_database import opened
    from local_backend.serving.server import ServingError, locked, make_home
    from local_backend.store.errors import DatabaseError

    settings = settings_here()
    try:
        make_home(settings)
        with locked(settings), contextlib.closing(opened(settings)) as database:
            yield settings, database
    except (ServingError, DatabaseError) as problem:
        fail(str(problem))
    except SQLAlchemyError as problem:
        fail(f"cannot use {settings.paths.database}: {getattr(problem, 'orig', None) or type(problem).__name__}")


def said(problem: urllib.error.HTTPError) -> str:
    """Return the sentence of an error answer, without its period."""
    sentence = problem.read().decode(errors="replace").partition(": ")[2].strip().rstrip(".")
    return sentence or str(problem)


def fail(text: str, code: int = Exit.FAILED) -> NoReturn:
    """Print a line on standard error, and end the program."""
    click.echo(f"local-backend: {text}", err=True)
    sys.exit(code)
