"""argv → one command → exit code. All errors are handled here; nothing else of the client needs to."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from dlicmd import console
from dlicmd.contract.argv import ArgvError, CommandLine, help_sections, parse_argv
from dlicmd.contract.exits import Exit
from dlicmd.contract.options import Option
from dlicmd.errors import DlicmdError, UsageProblem

HINT = "Try 'dlicmd --help'."


class _Command(click.Command):
    """The frame of click around our own grammar: options are matched exactly, and what is not ours is the program's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the parsed command line into `ctx.obj`. Raises click.UsageError."""
        try:
            ctx.obj = _parse(args)
        except ArgvError as problem:
            raise click.UsageError(str(problem), ctx) from None
        ctx.args = args
        return []

    def invoke(self, ctx: click.Context) -> int:
        """Run the command; its exit code."""
        line: CommandLine = ctx.obj
        if line.command == "--help":
            click.echo(self.get_help(ctx))
            return Exit.DONE
        from dlicmd.commands import run
        from dlicmd.render import Output
        from dlicmd.session import Session

        with Session(ctx.args, line, Output.parse(line.text("--output"))) as session:
            return run(session)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The first line of the help."""
        formatter.write_usage("dlicmd", "COMMAND [OPTIONS] [-- WORDS OF THE PROGRAM]")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The option table, by section."""
        for group, options in help_sections().items():
            with formatter.section(group.value):
                formatter.write_dl([(_spelling(option), option.help) for option in options], col_max=34)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What the sections do not say."""
        formatter.write_paragraph()
        formatter.write_text(
            "What is not an option of dlicmd goes to the program, and so does everything after --. "
            "Without --rest-host the local backend is used, and started when it does not run."
        )


def _spelling(option: Option) -> str:
    return ", ".join((option.name, *option.aliases)) + (f" {_value(option)}" if _value(option) else "")


def _value(option: Option) -> str:
    return option.metavar or "|".join(option.choices)


def _parse(words: list[str]) -> CommandLine:
    own = words[: words.index("--")] if "--" in words else words
    if "--help" in own or own[:1] == ["-h"]:
        return CommandLine(command="--help")
    for word in words:
        if not word.isascii() and word.encode("utf-8", "replace").decode() != word:
            raise ArgvError(f"{word.encode('utf-8', 'backslashreplace').decode()!r} is not text in UTF-8")
    line = parse_argv(words)
    console.set_level(line.text("--debug-level") or "info")
    return line


COMMAND = _Command(
    "dlicmd", help="Submit a model folder with one command and follow it to its result.",
    context_settings={"max_content_width": 120},
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run dlicmd with the given words (default: those of the process); returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Callable[..., Any] | None = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        return _program(words)
    except BrokenPipeError:
        # Whoever read our output has gone; Python must not complain about that when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except (KeyboardInterrupt, Exception) as problem:  # the last fence: users see a line, never a traceback
        if console.is_debug():
            import traceback

            traceback.print_exc()
        text, code = _explained(problem)
        console.error(text)
        return code


def _program(words: list[str]) -> int:
    """The command line as if nothing could fail."""
    if not words:
        click.echo(COMMAND.get_help(click.Context(COMMAND, **COMMAND.context_settings)))
        return Exit.USAGE
    return int(COMMAND.main(words, "dlicmd", standalone_mode=False))


def _explained(problem: BaseException) -> tuple[str, Exit]:
    """The line for the user about an exception, and the exit code."""
    if isinstance(problem, click.UsageError):
        return _with_hint(problem.message), Exit.USAGE
    if isinstance(problem, UsageProblem):
        return _with_hint(str(problem)), Exit.USAGE
    if isinstance(problem, DlicmdError):
        return str(problem), problem.exit_code
    if isinstance(problem, KeyboardInterrupt | click.Abort):
        return "interrupted", Exit.INTERRUPTED
    what = " ".join(str(problem).split()) or "no reason given"
    return (
        f"unexpected {type(problem).__name__}: {what}; run with --debug-level debug for the traceback", Exit.FAILED
    )


def _with_hint(text: str) -> str:
    return f"{text}{'' if text.endswith(('.', '?')) else '.'} {HINT}"


if __name__ == "__main__":
    sys.exit(main())
