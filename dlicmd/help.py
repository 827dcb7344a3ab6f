"""The help: the option table, by section. click lays it out."""

from __future__ import annotations

from click import HelpFormatter

from dlicmd.contract.argv import help_sections
from dlicmd.contract.options import Option

MOST_COLUMNS = 120
_PURPOSE = "Submit a model folder with one command and follow it to its result."
_NOTE = (
    "What is not an option of dlicmd goes to the program, and so does everything after --. "
    "Without --rest-host the local backend is used, and started when it does not run."
)


def help_text() -> str:
    """The whole help, as wide as the terminal."""
    page = HelpFormatter(max_width=MOST_COLUMNS)
    page.write_usage("dlicmd", "COMMAND [OPTIONS] [-- WORDS OF THE PROGRAM]")
    page.write_paragraph()
    page.write_text(_PURPOSE)
    for group, options in help_sections().items():
        with page.section(group.value):
            page.write_dl([(_spelling(option), option.help) for option in options], col_max=36)
    page.write_paragraph()
    page.write_text(_NOTE)
    return page.getvalue().rstrip("\n")


def _spelling(option: Option) -> str:
    value = option.metavar or "|".join(option.choices)
    return ", ".join((option.name, *option.aliases)) + (f" {value}" if value else "")
