"""Functions for whole jobs, beyond single calls: submit a folder, wait for the end, fetch the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlicmd import follow, results
from dlicmd.config.option_file import START
from dlicmd.console import debug
from dlicmd.contract.argv import ArgvError, parse_argv
from dlicmd.errors import UsageProblem
from dlicmd.render import Output
from dlicmd.session import Session
from dlicmd.show.views import Silent
from dlicmd.submit import submit as submit_line

if TYPE_CHECKING:
    from dlicmd.client import Client


def submit(client: Client, framework: str, options: Mapping[str, Any], program: Sequence[str]) -> dict[str, Any]:
    """See Client.submit."""
    if not isinstance(options, Mapping):
        raise UsageProblem('the options of a submission must be a mapping, such as {"model-dir": "model"}')
    if isinstance(program, str | bytes):
        raise UsageProblem("the arguments of the program must be a list, such as ['--epochs', '2'], not a text")
    program = [str(word) for word in program]
    words = [START, framework]
    for name, value in options.items():
        for one in value if isinstance(value, list | tuple) else [value]:
            if one is not False:
                words.append(f"--{name}" if one is True else f"--{name}={one}")
    try:
        line = parse_argv([*words, *(["--", *program] if program else [])])
    except ArgvError as problem:
        raise UsageProblem(str(problem)) from None
    unknown = line.program[: len(line.program) - len(program)]
    if unknown:
        raise UsageProblem(f"unknown submission option '{unknown[0].partition('=')[0].removeprefix('--')}'")
    return submit_line(Session(words, line, Output.parse("json"), client), say=debug)


def wait(client: Client, exec_id: str, timeout: int | None) -> dict[str, Any]:
    """See Client.wait."""
    return follow.wait(client, exec_id, Silent(), follow.Clock(exec_id, timeout))


def fetch_result(client: Client, exec_id: str, folder: str | Path, force: bool) -> Path:
    """See Client.fetch_result."""
    return results.fetch(client, exec_id, results.check_folder(str(folder)), force)
