"""Commands with the streams and exit codes of the original client: all output is on standard output."""

from __future__ import annotations

import json

from dlicmd.cli import console
from dlicmd.cli.commands.table import run
from dlicmd.cli.render import emit
from dlicmd.cli.session import Session
from dlicmd.cli.show.recorded import NOTHING
from dlicmd.contract.argv import ArgvError, CommandLine
from dlicmd.contract.exits import Exit
from dlicmd.contract.original import NEVER_FAIL
from dlicmd.sdk.errors import DlicmdError, ServerError
from dlicmd.sdk.messages import inert, set_level

#: Commands that say in a sentence of their own that the server refused the call.
_SAID = NEVER_FAIL - {"--app-wait", "--app-stop-all"}


def run_as_original(session: Session) -> int:
    """Run the command of a session, and return its exit code."""
    command = session.line.command or ""
    if not session.line.text("--debug-level"):
        set_level("warn")
    console.set_errors(shown=False)
    try:
        code = run(session)
    except ServerError as problem:
        if command in _SAID:
            return Exit.DONE
        if not problem.body:
            raise
        show_body(problem)
        if command == "--pj-get-all":
            emit(NOTHING)
            return Exit.DONE
        return Exit.FAILED
    return Exit.DONE if command in NEVER_FAIL else min(code, Exit.FAILED)


def report(problem: BaseException, status: Exit) -> int:
    """Print an error, and return the exit code; `status` is that of `dlicmd`."""
    if isinstance(problem, ArgvError):
        emit(f"dlicmd.py: error: {inert(str(problem))}")
        return Exit.USAGE
    emit(f"[Error]: {inert(str(problem)) or type(problem).__name__}")
    return status if isinstance(problem, KeyboardInterrupt) else Exit.FAILED


def show_body(problem: DlicmdError) -> None:
    """Print the answer of the server: JSON with an indent of 2, or the text with one newline more."""
    text = problem.body if isinstance(problem, ServerError) else str(problem)
    try:
        emit(json.dumps(json.loads(text), indent=2))
    except (ValueError, RecursionError):
        emit(inert(text))


def is_ours(line: CommandLine) -> bool:
    """Return whether the original client lacks the command, or an option that changes what the command prints."""
    return line.command in _OURS or line.flag("--wait") or line.flag("--follow")


_OURS = frozenset({
    None, "--version", "--completion", "--config-show", "--data-preview", "--exec-why", "--exec-diff", "--exec-plot",
    "--exec-verify", "--top", "--rp-apply", "--rp-usage", "--demo", "--follow", "--wait",
})
