"""The outermost frame of a command line program: its streams, and all errors as one line with an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from dlicmd.cli import console
from dlicmd.contract.exits import Exit
from dlicmd.sdk import messages
from dlicmd.sdk.errors import DlicmdError


def prepare_streams() -> None:
    """Make standard output and standard error usable for any text, also if the process was started without them."""
    for name in ("stdout", "stderr"):  # None when the process was started without them
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Callable[..., Any] | None = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def guarded(run: Callable[[], int], explained: Callable[[BaseException], tuple[str, str, Exit]]) -> int:
    """Run a program and return its exit code. An error becomes one line, never a traceback. `explained` returns the
    text for the user, the code (contract.error_codes) and the exit code of an error."""
    try:
        return run()
    except BrokenPipeError:
        # The reader of our output has closed the pipe. Python must not complain about that at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except (KeyboardInterrupt, Exception) as problem:  # last handler: users see a line, never a traceback
        if messages.is_debug():
            import traceback  # only for debugging

            traceback.print_exc()
        text, code, status = explained(problem)
        console.error(text, code, status)
        return status


def explained_any(problem: BaseException) -> tuple[str, str, Exit]:
    """Return the text, the code and the exit code of an error that is not one of the command line."""
    if isinstance(problem, DlicmdError):
        return str(problem), problem.code, problem.exit_code
    if isinstance(problem, KeyboardInterrupt):
        return "interrupted", "client.interrupted", Exit.INTERRUPTED
    what = " ".join(str(problem).split()) or "no reason given"
    text = f"unexpected {type(problem).__name__}: {what}; run with --debug-level debug for the traceback"
    return text, "client.unexpected", Exit.FAILED
