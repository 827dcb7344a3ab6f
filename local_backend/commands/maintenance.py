"""`local-backend backup`, `restore`, `doctor`, `prune`, `config` and `renew-key`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from dlicmd.cli.show.progress import bar
from dlicmd.contract import home as home_contract
from dlicmd.contract import wire
from dlicmd.contract.exits import Exit
from dlicmd.contract.sizes import parse_size, show_size
from local_backend.commands.running import call, fail, running, said_here, server_pid, settings_here, settings_of

_OUTPUT = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Output format.")
_KEY = click.option("--key-file", type=click.Path(path_type=Path), metavar="KEY",
                    help="File with the key of the authentication tag: a copy of vault/secrets.key, or 1 line of at "
                         "least 16 characters (default: vault/secrets.key of DLICMD_HOME).")
_FILE = click.argument("file", type=click.Path(path_type=Path))


class _SizeType(click.ParamType):
    """A number of bytes, with or without K, M, G or T."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            size = int(value) if isinstance(value, int) or value.isdecimal() else parse_size(value)
        except ValueError:
            self.fail(f"'{value}' is not a number of bytes; use a form like 500G, 20M or 1000000", param, ctx)
        if size < 1:
            self.fail(f"{value} is too small; the minimum is 1", param, ctx)
        return size


@click.command(short_help="Back up the database, programs and jobs to FILE.")
@_FILE
@click.option("--results", is_flag=True, help="Include models, checkpoints and logs of the programs.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@_KEY
@_OUTPUT
def backup(file: Path, results: bool, force: bool, key_file: Path | None, output: str) -> None:
    """Back up the database, the submitted programs and the data of every exec to FILE. The server may run meanwhile.
    FILE ends with an authentication tag. The backup does not include tokens and keys: keep a copy of
    vault/secrets.key, because without it the secrets in the backup are lost, and the tag cannot be verified."""
    from local_backend.commands.backup import backup as make
    from local_backend.commands.backup_tag import BackupError

    try:
        with bar("backing up") as advance:
            made = make(settings_here(), file.expanduser().absolute(), results, force, key=key_file, advance=advance)
    except BackupError as problem:
        fail(f"{problem} [{problem.code}]")
    if output == "json":
        click.echo(json.dumps({"file": str(file), "bytes": made.size, "leftOut": made.left_out,
                               **asdict(made.manifest)}, indent=2))
        return
    click.echo(f"{file}: {show_size(made.size)}, execs: {made.manifest.execs}, " +
               ("with results" if results else "without results"))
    if made.left_out:
        click.echo(f"not in the backup, because they are links or unreadable: {made.left_out}", err=True)


@click.command(short_help="Restore a backup into DLICMD_HOME.")
@_FILE
@click.option("--force", is_flag=True,
              help="Restore even if DLICMD_HOME has execs; they are moved into a folder of DLICMD_HOME.")
@_KEY
@click.option("--allow-untagged", is_flag=True,
              help="Restore a backup of an earlier version, which has no authentication tag. Changes to it remain "
                   "unnoticed.")
def restore(file: Path, force: bool, key_file: Path | None, allow_untagged: bool) -> None:
    """Restore the backup FILE into DLICMD_HOME, completely or not at all. No server and no job may be running there.
    Existing results are not changed. The authentication tag of FILE is verified first. FILE may also be a copy of the
    database in the folder before-upgrade of DLICMD_HOME; then only the database is restored."""
    from local_backend.commands.backup_tag import BackupError
    from local_backend.commands.restore import BackupSource
    from local_backend.commands.restore import restore as put_back

    file = file.expanduser().absolute()
    try:
        with bar("reading the backup", file.stat().st_size if file.is_file() else None) as advance:
            done = put_back(settings_of(), BackupSource(file, key_file, allow_untagged, advance), force)
    except BackupError as problem:
        fail(f"{problem} [{problem.code}]")
    click.echo("restored the database" if done.manifest is None else f"restored execs: {done.manifest.execs}")
    if done.manifest is not None and done.manifest.execs and not done.manifest.results:
        click.echo("without results: the backup was made without --results, so logs, models and checkpoints exist "
                   "only where they were still in place; launcher logs of the execs note this")
    if done.kept is not None:
        click.echo(f"the previous content was moved to {done.kept}")


@click.command(short_help="Find problems and show how to fix them.")
@_OUTPUT
def doctor(output: str) -> None:
    """Check DLICMD_HOME, its server and this machine for problems. The exit code is 1 if there is a problem."""
    from local_backend.services.health import OK, PROBLEM
    from local_backend.serving.doctor import Patient, examine

    def status() -> object:
        found = running()
        if found is None:
            raise OSError("its backend.json is missing")
        return call(found, "GET", wire.STATUS)

    findings = []
    for finding in examine(Patient(settings_here(), server_pid(), status)):
        findings.append(finding)
        if output == "text":
            click.echo(f"{finding.level:8} {finding.check:10} {finding.what}")
            if finding.level != OK:
                click.echo(f"{'':19} → {finding.do}")
    healthy = all(finding.level != PROBLEM for finding in findings)
    if output == "json":
        click.echo(json.dumps({"ok": healthy, "findings": [asdict(finding) for finding in findings]}, indent=2))
    sys.exit(0 if healthy else Exit.FAILED)


@click.command(short_help="Remove finished execs.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed, but remove nothing.")
@click.option("--keep-days", type=click.IntRange(min=1),
              help="Remove execs that finished more than this number of days ago (default: DLI_KEEP_DAYS).")
@click.option("--keep-bytes", type=_SizeType(),
              help="Remove the oldest execs until all execs together use at most this number of bytes (default: "
                   "DLI_KEEP_BYTES).")
@_OUTPUT
def prune(dry_run: bool, keep_days: int | None, keep_bytes: int | None, output: str) -> None:
    """Remove finished execs with their results and logs, by the same rules as the server with DLI_KEEP_DAYS or
    DLI_KEEP_BYTES. Pending and running execs stay."""
    from local_backend.commands.prune import PruneError, candidates, remove

    settings = settings_here()
    quotas = settings.quotas
    quotas = replace(quotas, keep_days=keep_days or quotas.keep_days, keep_bytes=keep_bytes or quotas.keep_bytes)
    if quotas.keep_days is None and quotas.keep_bytes is None:
        raise click.UsageError("no limit given; add --keep-days N or --keep-bytes SIZE, or set DLI_KEEP_DAYS or "
                               "DLI_KEEP_BYTES")
    try:
        found = candidates(settings, quotas)
        if found and not dry_run:
            server = running()
            found = remove(settings, found, None if server is None else lambda path: call(server, "DELETE", path))
    except PruneError as problem:
        fail(str(problem))
    if output == "json":
        shown = [{wire.ID: item.row.id, wire.CREATOR: item.row.creator, "bytes": item.size, "why": item.why}
                 for item in found]
        click.echo(json.dumps({"removed": not dry_run, "execs": shown}, indent=2))
        return
    for item in found:
        click.echo(item.sentence)
    total = show_size(sum(item.size for item in found))
    click.echo(f"{'would be removed' if dry_run else 'removed'}: {len(found)} ({total})")


@click.command(short_help="Show all settings and their sources.")
@_OUTPUT
def config(output: str) -> None:
    """Show every setting with its value and its source: the settings of the running server, or those of a server
    started now without options."""
    from local_backend.settings import TABLE

    found, pid = said_here(), server_pid()
    rows = []
    for setting in TABLE:
        source = found.sources.get(setting.variable, "default")
        text = found.text(setting.variable) or setting.default.replace("`", "")
        value = "***" if setting.secret and source != "default" else text
        if setting.variable == "DLICMD_HOME":
            value = str(home_contract.home())
        rows.append({"setting": setting.variable, "value": value, "source": source})
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    if pid is not None:
        click.echo(f"settings of the running server, process {pid}:", err=True)
    for row in rows:
        source = "" if row["source"] == "default" else f"  ({row['source']})"
        click.echo(f"{row['setting']:24} {row['value']}{source}")


@click.command("renew-key")
def renew_key() -> None:
    """Encrypt all secrets with a new key and delete the old key. Stop the server first."""
    from sqlalchemy.exc import SQLAlchemyError

    from local_backend.commands.sealed import renew_key as renew
    from local_backend.serving.server import ServingError
    from local_backend.store.errors import DatabaseError
    from local_backend.vault import VaultError

    settings = settings_of()
    try:
        renew(settings)
    except (ServingError, DatabaseError, VaultError, SQLAlchemyError, OSError) as problem:
        fail(str(getattr(problem, "orig", None) or problem))
    click.echo(f"all secrets are encrypted with a new key in {settings.paths.vault}; keep a copy of that file")


COMMANDS = (backup, restore, doctor, prune, config, renew_key)
