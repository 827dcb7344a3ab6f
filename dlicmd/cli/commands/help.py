"""The help: the option table by section, laid out by click."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from click import HelpFormatter

from dlicmd.contract.exits import MEANING
from dlicmd.contract.options import Local, Option, help_sections

MOST_COLUMNS = 120
#: Wider terms of a list get a line of their own.
_WIDEST_TERM = 36
_USAGE = ("dlicmd", "COMMAND [OPTIONS] [-- PROGRAM ARGUMENTS]")
_PURPOSE = "Submit a model folder with one command and follow it to its result."
_EXAMPLES = (
    ("dlicmd --demo", "train a sample model"),
    ("dlicmd --exec-start PyTorch --model-dir . --model-main train.py --follow -- --epochs 10", "train and follow"),
    ("dlicmd --exec-get-all", "list your jobs"),
    ("dlicmd --exec-trainresult ID", "fetch the trained model"),
)
_NOTE = (
    "dlicmd passes unknown options and everything after -- to the program. "
    "In place of the ID of an exec or application, last means your newest one. "
    "Without --rest-host, dlicmd uses the local backend, and starts it if necessary. "
    "The local backend ignores options marked *."
)


def help_text() -> str:
    """Return the whole help, as wide as the terminal."""
    page = HelpFormatter(max_width=MOST_COLUMNS)
    page.write_usage(*_USAGE)
    page.write_paragraph()
    page.write_text(_PURPOSE)
    with page.section("Examples"):
        for example, meaning in _EXAMPLES:
            page.write(f"{'':{page.current_indent}}{example}  # {meaning}\n")
    for group, options in help_sections().items():
        with page.section(group.value):
            _list(page, [(_spelling(option), option.help) for option in options])
    with page.section("Exit codes"):
        _list(page, [(str(int(code)), text.replace("`", "")) for code, text in MEANING.items()])
    page.write_paragraph()
    page.write_text(_NOTE)
    return page.getvalue().rstrip("\n")


def _list(page: HelpFormatter, rows: Sequence[tuple[str, str]]) -> None:
    """Write terms with their meanings beside them, as `page.write_dl` does. No word that a user may copy is broken."""
    first = min(_WIDEST_TERM, max(len(term) for term, _ in rows)) + 2
    margin = " " * page.current_indent
    for term, meaning in rows:
        lines = textwrap.wrap(
            meaning, max(20, page.width - len(margin) - first), break_long_words=False, break_on_hyphens=False
        )
        begins = f"{term:{first}}" if len(term) + 2 <= first else f"{term}\n{margin}{'':{first}}"
        page.write(f"{margin}{begins}{lines[0]}\n")
        for line in lines[1:]:
            page.write(f"{margin}{'':{first}}{line}\n")


def short_usage() -> str:
    """Return the text for a call without words."""
    page = HelpFormatter(max_width=MOST_COLUMNS)
    page.write_usage(*_USAGE)
    for example, meaning in _EXAMPLES[:3]:
        page.write(f"  {example}  # {meaning}\n")
    return page.getvalue() + "All commands and options: dlicmd --help"


def _spelling(option: Option) -> str:
    value = option.metavar or "|".join(option.choices)
    mark = " *" if option.local is Local.IGNORED else ""
    return ", ".join((option.name, *option.aliases)) + (f" {value}" if value else "") + mark
