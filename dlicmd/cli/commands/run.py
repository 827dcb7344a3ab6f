"""`run`: from a program to the command line of a submission. The source of the program says how it is run."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from dlicmd.cli.job_file import expand
from dlicmd.contract.argv import CommandLine, parse_argv
from dlicmd.contract.options import FILE, OPTIONS, Section
from dlicmd.contract.verbs import COMMAND, STANDS_FOR, VERBS
from dlicmd.sdk import hints
from dlicmd.sdk.errors import UsageProblem
from dlicmd.sdk.messages import inert, info
from dlicmd.sdk.run import DEVICES, data_option, find_program, run_plan
from dlicmd.sdk.submission import FOLDER, MAIN, START

NAME, WORKERS = "--appName", "--numWorker"
_RUN = next(verb for verb in VERBS if verb.name == "run")
#: Options of `run` that are not part of a submission.
_ALONE = frozenset(option.name for option in _RUN.own) - STANDS_FOR.keys() | {FILE.name}
#: Options whose values may come from the current server, and not from the words of the line.
_CONNECTION = frozenset(option.name for option in OPTIONS if option.group is Section.CONNECTION)


def plain_line(line: CommandLine, follows: bool, usual: Callable[[], int]) -> CommandLine:
    """Return the command line of the submission that a `run` line describes, in the grammar of the long options.

    `follows`: the job is followed unless the line says otherwise. `usual` returns the number of workers for a program
    that can use several. Raises UsageProblem, ArgvError.
    """
    if line.flag("--follow") and line.flag("--no-follow"):
        raise UsageProblem("give --follow or --no-follow, not both")
    words = _words(line, usual)
    found = parse_argv(words)
    found.verb = line.verb
    found.values |= {name: line.values[name] for name in _ALONE | _CONNECTION if name in line.values}
    watches = any(line.flag(name) for name in ("--follow", "--wait", "--no-follow", "--dry-run"))
    if follows and not watches:
        found.values["--follow"] = True
    return found


def _words(line: CommandLine, usual: Callable[[], int]) -> list[str]:
    """Return the words of the submission. A job file gives the program if the command line names none."""
    options = [word for given in line.given if given.option.name not in _ALONE for word in given.words]
    if (data := line.text("--data")) is not None:
        options += data_option(data)
    after = [] if line.after_dashes is None else ["--", *line.after_dashes]
    file = line.text(FILE.name)
    if file is None:
        return [START, *_program_words(line, options, usual)]
    if line.operand is None and line.text("--as") is None:
        return expand([START, FILE.name, file, *options, *after])
    return expand([START, *_program_words(line, [FILE.name, file, *options], usual)])


def _program_words(line: CommandLine, options: list[str], usual: Callable[[], int]) -> list[str]:
    """Return the framework, the options and the words of the program. Say how the program is run."""
    chosen = line.text("--as")
    program = find_program(line.operand, chosen, line.after_dashes, line.text(MAIN))
    plan = run_plan(program, line.number(WORKERS), usual)
    words = [plan.framework, *([] if program.folder is None else [FOLDER, str(program.folder)])]
    if NAME not in line.values:
        words += [NAME, program.name]
    if plan.kind == COMMAND:
        if WORKERS in options:
            at = options.index(WORKERS)
            options = [*options[:at], *options[at + 2 :], *([DEVICES, str(plan.devices)] if plan.devices else [])]
        after = [*program.command, *(line.after_dashes or () if line.operand is not None else ())]
        words += ["--user-cmd", *options, "--", *after]
    else:
        if plan.workers != line.number(WORKERS):
            words += [WORKERS, str(plan.workers)]
        words += [MAIN, program.main, *options]
        words += [] if line.after_dashes is None else ["--", *line.after_dashes]
    if chosen is None:
        info(plan.sentence)
        _say_command(line, program.main)
    return words


def _say_command(line: CommandLine, main: str) -> None:
    """Say how to run the words after `--` as a command, if the first of them is one."""
    words = line.after_dashes or []
    command = hints.repeated("--as", COMMAND)
    if main and command and words and not words[0].startswith("-") and shutil.which(words[0]):
        info(f"the words after -- are arguments of {inert(main)}; to run them as a command: {command}")
