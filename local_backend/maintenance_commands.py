"""`local-backend backup`, `restore` and `doctor`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from dlicmd.contract import wire
from dlicmd.contract.exits import Exit
from dlicmd.contract.sizes import show_size
from local_backend.running import call, fail, running, settings_of

_OUTPUT = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="How to say it.")
_FILE = click.argument("file", type=click.Path(path_type=Path))


@click.command()
@_FILE
@click.option("--results", is_flag=True, help="With models, checkpoints and logs of the programs, too.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@_OUTPUT
def backup(file: Path, results: bool, force: bool, output: str) -> None:
    """Write the database, the submitted programs and what is known of every exec to FILE, while the server runs. FILE
    holds the environments of jobs, secrets included; tokens and keys are not in it."""
    from local_backend.backup import BackupError
    from local_backend.backup import backup as make

    try:
        made = make(settings_of(), file.expanduser().absolute(), results, force)
    except BackupError as problem:
        fail(str(problem))
    if output == "json":
        click.echo(json.dumps({"file": str(file), "bytes": made.size, "leftOut": made.left_out,
                               **asdict(made.manifest)}, indent=2))
        return
    click.echo(f"{file}: {made.manifest.execs} execs, {show_size(made.size)}, " +
               ("with results" if results else "without results"))
    if made.left_out:
        click.echo(f"{made.left_out} links and unreadable files were left out", err=True)


@click.command()
@_FILE
@click.option("--force", is_flag=True, help="Even where there are execs: they are moved into a folder of DLICMD_HOME.")
def restore(file: Path, force: bool) -> None:
    """Put the backup in FILE into DLICMD_HOME, whole or not at all. No server and no job may run there. Results that
    are there already stay as they are."""
    from local_backend.backup import BackupError
    from local_backend.restore import restore as put_back

    try:
        done = put_back(settings_of(), file.expanduser().absolute(), force)
    except BackupError as problem:
        fail(str(problem))
    click.echo(f"{done.manifest.execs} execs are back" + ("" if done.manifest.results else ", without their results"))
    if done.kept is not None:
        click.echo(f"what was there before is in {done.kept}")


@click.command()
@_OUTPUT
def doctor(output: str) -> None:
    """Look for what is wrong with DLICMD_HOME, its server and this machine. Exit code 1 when there is a problem."""
    from local_backend.doctor import OK, PROBLEM, Patient, examine
    from local_backend.server import holder

    settings = settings_of()

    def status() -> object:
        found = running()
        if found is None:
            raise OSError("its backend.json is not there")
        return call(found, "GET", wire.STATUS)

    findings = examine(Patient(settings, holder(settings), status))
    problems = [finding for finding in findings if finding.level == PROBLEM]
    if output == "json":
        click.echo(json.dumps({"ok": not problems, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        for finding in findings:
            click.echo(f"{finding.level:8} {finding.check:9} {finding.what}")
            if finding.level != OK:
                click.echo(f"{'':18} → {finding.do}")
    sys.exit(Exit.FAILED if problems else 0)


COMMANDS = (backup, restore, doctor)
