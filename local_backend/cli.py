"""`local-backend`: run, show and stop by hand the server that `dlicmd` otherwise starts by itself."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
from http import HTTPStatus
from pathlib import Path
from typing import Any

import click
import psutil

from dlicmd import __version__
from dlicmd.contract import dlim, states, wire
from dlicmd.contract import home as home_contract
from dlicmd.contract.exits import Exit
from local_backend import logs
from local_backend.commands import maintenance
from local_backend.commands.audit import audit
from local_backend.commands.connections import connection
from local_backend.commands.running import call, fail, is_suspended, running, said, settings_of
from local_backend.commands.tokens import token
from local_backend.commands.users import user
from local_backend.commands.volumes import volume

#: Seconds to wait until the jobs, or the server, have ended.
_PATIENCE = 120.0
_POLL = 0.05
#: Maximum number of jobs that a line names.
_NAMED = 20


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Manage the local backend of dlicmd. Its state is in DLICMD_HOME."""


for _command in (*maintenance.COMMANDS, audit, user, token, volume, connection):
    main.add_command(_command)


def _without_password(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """Return the address of a database, None if it is empty. Raises BadParameter for an invalid address, and for an
    address with a password: all users of a machine can read its command lines."""
    if value:
        from local_backend.store.postgres import parse

        try:
            found = parse(value)
        except ValueError as problem:
            raise click.BadParameter(str(problem)) from None
        if found.password or "password" in found.query:
            raise click.BadParameter("all users of this machine can read a password in a command line; put the "
                                     "address into DLI_DATABASE, or the password into PGPASSFILE")
    return value or None


@main.command(short_help="Serve in the foreground until Ctrl-C.")
@click.option("--embedded", is_flag=True,
              help="Serve only this user, with access to all paths of this user. Default without --host, --tls-cert "
                   "and --tls-self-signed.")
@click.option("--host", help="Address to listen on (default 127.0.0.1). Any address other than the loopback needs TLS.")
@click.option("--port", type=click.IntRange(0, 65535),
              help="Port to listen on; the default 0 takes the last port, or any free one.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Certificate (chain) in PEM form.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="Private key of the certificate, in PEM form.")
@click.option("--tls-self-signed", is_flag=True, default=None,
              help="Make a certificate, and show how clients trust it.")
@click.option("--database", metavar="URL", callback=_without_password,
              help="PostgreSQL database, used instead of a file: postgresql+psycopg://USER@HOST/NAME; put a "
                   "password into DLI_DATABASE or PGPASSFILE.")
@click.option("--connections", type=click.Path(path_type=Path), metavar="FILE",
              help="YAML file with connections to servers that have data.")
@click.option("--slots", type=click.IntRange(1, 100_000), help="Number of slots (default: GPUs, else CPU cores).")
@click.option("--log-format", type=click.Choice(logs.FORMATS), help="Format of backend.log (default text).")
@click.option("--log-level", type=click.Choice(logs.LEVELS), help="Lowest level that is logged (default info).")
@click.option("--open-metrics", is_flag=True, default=None, help="Answer GET /metrics without a token.")
@click.option("--jobs-share-server-account", is_flag=True, default=None,
              help="Run jobs without isolation: each can read all files of the server.")
@click.option("--set", "more", metavar="KEY=VALUE", multiple=True,
              help="Any other setting of server.yaml, for this server only (see local-backend config). Repeatable.")
@click.option("--die-with-server", is_flag=True, help="Kill all jobs when the server dies.")
def serve(embedded: bool, more: tuple[str, ...], **flags: Any) -> None:
    """Serve in the foreground until SIGTERM or Ctrl-C. Running jobs continue after the server stops."""
    from local_backend.runtime.overlay import show_title
    from local_backend.serving.server import ServingError
    from local_backend.serving.server import serve as run

    show_title("dlicmd server")
    flags["embedded"] = embedded or None
    for name in ("tls_cert", "tls_key", "connections"):
        flags[name] = flags[name].expanduser().absolute() if flags[name] else None
    try:
        run(settings_of(more, **flags))
    except ServingError as problem:
        fail(str(problem))


@main.command()
def status() -> None:
    """Show the running server."""
    found = running()
    if found is None:
        fail(f"no server is running on {home_contract.home()}")
    try:
        shown = call(found, "GET", wire.STATUS)
    except OSError as problem:
        fail(f"the server (process {found[home_contract.PID]}) does not answer: {problem}")
    click.echo(json.dumps({"url": found[home_contract.URL], "pid": found[home_contract.PID], **shown}, indent=2))


@main.command()
@click.option("--jobs", is_flag=True, help="Stop the jobs and the models as well.")
def stop(jobs: bool) -> None:
    """Stop the server. Running jobs and started models continue unless --jobs is given."""
    found = running()
    if found is None:
        left = _unfinished() if jobs else []
        if left:
            fail(f"no server is running on {home_contract.home()} to stop {_names(left)}; start a server "
                 "(local-backend serve), then run local-backend stop --jobs")
        click.echo(f"no server is running on {home_contract.home()}")
        return
    if is_suspended(found[home_contract.PID]):
        os.kill(found[home_contract.PID], signal.SIGCONT)  # a suspended process does not end on SIGTERM
    active: dict[str, str] = {}
    models: list[str] = []
    try:
        active, models = _active(found), _serving(found)
        if jobs and models:
            _stop_models(found, models)
        if jobs and active:
            _stop_jobs(found, list(active))
    except OSError as problem:
        if jobs:
            fail(f"the server (process {found[home_contract.PID]}) does not answer; its jobs continue: {problem}")
    try:
        server = psutil.Process(found[home_contract.PID])
        server.send_signal(signal.SIGTERM)
        _wait(lambda: not _lives(server), "the server did not stop")
    except psutil.NoSuchProcess:
        pass  # the server had already finished
    click.echo("the server is stopped")
    if (active or models) and not jobs:
        click.echo(_going_on(active, models))


def _going_on(active: dict[str, str], models: list[str]) -> str:
    """Return the line that says which jobs (id → state) and models continue after their server has stopped, and how to
    stop them too."""
    run = [exec_id for exec_id, state in active.items() if state in (states.RUNNING, states.RECOVERING)]
    wait = [exec_id for exec_id in active if exec_id not in run]
    said = [f"{len(ids)} {one if len(ids) == 1 else several} ({_names(ids)})" for ids, one, several in
            ((run, "job continues", "jobs continue"), (wait, "job pending", "jobs pending"),
             (models, "model serves", "models serve")) if ids]
    return f"{', '.join(said)}; the next server takes over. To stop everything: local-backend stop --jobs"


def _unfinished() -> list[str]:
    """Return the ids of the pending and running execs of this home, as its database states them. End the program if the
    database cannot be read."""
    from sqlalchemy.exc import SQLAlchemyError

    from local_backend.store import execs
    from local_backend.store.database import Database
    from local_backend.store.errors import DatabaseError

    where = settings_of().where
    if isinstance(where, Path) and not where.exists():
        return []
    try:
        return [row.id for row in Database(where).read(execs.unfinished) if not row.terminal]
    except (SQLAlchemyError, DatabaseError) as problem:
        fail(f"cannot read the database to find running jobs: {problem}; for details: local-backend doctor")


class _Slots(click.ParamType):
    """A number of slots, or None for "auto"."""

    name = "slots"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        if value == "auto":
            return None
        if not (value.isascii() and value.isdigit()):
            self.fail(f"'{value}' is not a number of slots; use a whole number >= 0, or auto", param, ctx)
        return int(value)


@main.command(short_help="Set the number of slots of a running elastic job.")
@click.argument("exec_id", metavar="EXEC")
@click.argument("slots", metavar="N|auto", type=_Slots())
@click.option("--wait", is_flag=True, help="Wait until the job trains on exactly these slots.")
@click.option("--wait-timeout", type=click.IntRange(min=1), default=120, show_default=True,
              help="Maximum seconds to wait; after that, the exit code is 7.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Output format.")
def resize(exec_id: str, slots: int | None, wait: bool, wait_timeout: int, output: str) -> None:
    """Set the number of slots of the running elastic job EXEC to N; 0 parks the job. With auto, the scheduler sets the
    number again."""
    if slots is None and wait:
        raise click.UsageError("--wait needs a number of slots, not auto")
    found = running()
    if found is None:
        fail(f"no server is running on {home_contract.home()}")
    try:
        answer = call(found, "PUT", wire.exec_path(exec_id, wire.SLOTS), {wire.SLOTS: slots})
        if output == "text":
            after = "the scheduler decides" if slots is None else f"{answer[wire.SLOTS]} slots"
            click.echo(f"{exec_id}: {answer[wire.BEFORE]} → {after}")
        shown = _wait_for_slots(found, exec_id, slots, wait_timeout) if wait and slots is not None else {}
    except urllib.error.HTTPError as problem:
        if problem.code == 404:  # the id does not fit into a path
            fail(f"Exec {exec_id!r} is not found", Exit.NO_SUCH_ID)
        fail(said(problem), Exit.NO_SUCH_ID if problem.code == 400 else Exit.FAILED)
    except OSError as problem:
        fail(f"the server (process {found[home_contract.PID]}) does not answer: {problem}")
    if output == "json":
        click.echo(json.dumps(answer | shown, indent=2))
    elif wait:
        click.echo(f"{exec_id}: " + (f"trains on {slots} slot{'' if slots == 1 else 's'}" if slots else "is parked"))


def _wait_for_slots(found: dict[str, Any], exec_id: str, slots: int, seconds: float) -> dict[str, Any]:
    """Wait until the exec trains on this number of slots and holds no other slot. Return its state and workers. End the
    program when the exec ends before that, or after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        shown = call(found, "GET", wire.exec_path(exec_id))
        state, held, workers = shown[wire.STATE], shown.get(wire.SLOTS), shown.get(wire.WORKERS)
        if states.is_terminal(state):
            fail(f"{exec_id} ended with state {state}")
        if state == states.RUNNING and not shown.get(wire.RECOVERING) and held == workers == slots:
            return {wire.STATE: state, wire.WORKERS: workers}
        if time.monotonic() > deadline:
            fail(f"timeout after {seconds} s: {exec_id} is {state}; workers: {workers}, slots: {held}",
                 Exit.TIMED_OUT)
        time.sleep(_POLL)


def _lives(process: psutil.Process) -> bool:
    """Return whether a process runs. A zombie, which only waits for its parent, does not count."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _stop_jobs(found: dict[str, Any], active: list[str]) -> None:
    grace = call(found, "GET", wire.STATUS)[wire.STOP_GRACE]
    click.echo(f"stopping {_names(active)}; jobs have {grace:g} s to finish")
    for at in range(0, len(active), wire.MOST_IDS):
        call(found, "POST", wire.STOP_MANY, {wire.IDS: active[at : at + wire.MOST_IDS]})
    asked = set(active)
    # The oldest active exec is enough: execs that are submitted meanwhile are younger than all of these.
    _wait(lambda: not asked.intersection(_active(found, most=1)), "the jobs did not stop")
    click.echo(f"stopped {_names(active)}")


def _stop_models(found: dict[str, Any], models: list[str]) -> None:
    click.echo(f"stopping {_names(models)}; the kernels answer what they have")
    for name in models:
        call(found, "PUT", dlim.model_path(name, dlim.STOP))
    _wait(lambda: not _serving(found), "the models did not stop")
    click.echo(f"stopped {_names(models)}")


def _serving(found: dict[str, Any]) -> list[str]:
    """Return the names of the models that are not stopped. Servers of earlier versions have no models."""
    try:
        models = call(found, "GET", dlim.MODELS)
    except urllib.error.HTTPError as problem:
        if problem.code == HTTPStatus.NOT_FOUND:
            return []
        raise
    return [item[dlim.NAME] for item in models if item[dlim.STATE] not in (dlim.STOPPED, dlim.FAILED_STATE)]


def _active(found: dict[str, Any], most: int | None = None) -> dict[str, str]:
    """Return the id and state of each active exec of all users, oldest first, at most `most`."""
    query = (f"{wire.ALL}=true&{wire.STATE}={','.join(sorted(states.ACTIVE))}"
             + ("" if most is None else f"&{wire.LIMIT}={most}"))
    return {item[wire.ID]: item[wire.STATE] for item in call(found, "GET", f"{wire.EXECS}?{query}")}


def _names(ids: list[str]) -> str:
    """Return the first ids, and the number of the others, for a line."""
    more = len(ids) - _NAMED
    return ", ".join(ids[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _wait(done: Any, failure: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not done():
        if time.monotonic() > deadline:
            fail(f"{failure} within {_PATIENCE:.0f} s")
        time.sleep(_POLL)


if __name__ == "__main__":
    main()
