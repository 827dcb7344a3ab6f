"""Commands with the streams and exit codes of the original client: all output is on standard output."""

from __future__ import annotations

import json

from dlicmd.cli import console
from dlicmd.cli.commands.each import is_logon_needed
from dlicmd.cli.commands.table import run
from dlicmd.cli.render import Output, emit
from dlicmd.cli.session import Session
from dlicmd.cli.show.recorded import NOTHING
from dlicmd.contract.argv import ArgvError, CommandLine
from dlicmd.contract.exits import Exit
from dlicmd.contract.options import COMMAND_NAMES, SEARCH_OPTIONS
from dlicmd.contract.original import NEVER_FAIL, WITH_FORMATS, CheckFailed
from dlicmd.sdk.errors import Denied, ServerError
from dlicmd.sdk.messages import inert, set_level

#: Commands that say in a sentence of their own that the server refused the call.
_SAID = NEVER_FAIL - {"--app-wait", "--app-stop-all"}
_DENIED = "Authentication error. The request was denied."


def run_as_original(session: Session) -> int:
    """Run the command of a session, and return its exit code. Without a command, print the help."""
    command = session.line.command
    if not session.line.text("--debug-level"):
        set_level("warn")
    console.set_errors(shown=False)
    if command is None:
        from dlicmd.cli.commands.help import help_as_original  # needs click

        emit(help_as_original())
        return Exit.FAILED
    if command not in WITH_FORMATS:
        session.output = Output(manner=session.output.manner)
    try:
        code = run(session)
    except ServerError as problem:
        return _refused(command, problem)
    except ArgvError as problem:
        return report(problem, Exit.USAGE)
    return Exit.DONE if command in NEVER_FAIL else min(code, Exit.FAILED)


def _refused(command: str, problem: ServerError) -> int:
    """Print the answer of a server that refused the call, and return the exit code. Raises an error without an
    answer."""
    denied = is_logon_needed(problem) or (command == "--logon" and isinstance(problem, Denied))
    if command in _SAID and not denied:
        return Exit.DONE
    if not problem.body:
        raise problem
    if denied:
        emit(_DENIED)
    try:
        emit(json.dumps(json.loads(problem.body), indent=2))
    except (ValueError, RecursionError):
        emit(inert(problem.body))
    if command == "--pj-get-all" and not denied:
        emit(NOTHING)
        return Exit.DONE
    return Exit.FAILED


def report(problem: BaseException, status: Exit) -> int:
    """Print an error, and return the exit code; `status` is that of `dlicmd`. An interrupt is not printed."""
    if isinstance(problem, KeyboardInterrupt):
        return status
    if isinstance(problem, ArgvError) and not isinstance(problem, CheckFailed):
        emit(f"dlicmd.py: error: {inert(str(problem))}")
        return Exit.USAGE
    emit(f"[Error]: {inert(str(problem)) or type(problem).__name__}")
    return Exit.FAILED


def is_ours(line: CommandLine) -> bool:
    """Return whether the original client lacks the command, or an option that changes what the command does."""
    return line.command in _OUR_COMMANDS or not _OUR_OPTIONS.isdisjoint(line.values)


#: Begins the names of commands of the experiment builder.
_OF_EXPERIMENTS = ("--definition-", "--hardware-", "--experiment-")
_OUR_COMMANDS = frozenset({
    "--version", "--completion", "--config-show", "--data-preview", "--exec-why", "--exec-diff", "--exec-plot",
    "--exec-verify", "--exec-again", "--top", "--rp-apply", "--rp-usage", "--demo", "--follow", "--wait", "--hpo-plot",
    "--hpo-export", "--hpo-algorithm-install",
    *(name for name in COMMAND_NAMES if name.startswith(_OF_EXPERIMENTS)),
})
_OUR_OPTIONS = frozenset({"--wait", "--follow", "--wait-timeout", "--pass-exit-code", "--junit", "--dry-run"}) | {
    option.name for option in SEARCH_OPTIONS}
