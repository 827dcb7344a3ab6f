"""The help of dlim, from its table of commands, laid out by click."""

from __future__ import annotations

from click import HelpFormatter

from dlicmd.cli.commands.help import MOST_COLUMNS, sentence, write_examples, write_list, write_options, write_text
from dlicmd.contract.dlim_argv import OPTIONS_TOPIC
from dlicmd.contract.dlim_commands import BY_COMMAND, COMMANDS, COMMON, GROUPS, DlimCommand
from dlicmd.contract.exits import MEANING

_PURPOSE = "Deploy trained models, and let them answer requests."
_EXAMPLES = (
    ("dlim run ./digits", "deploy a folder, start it, print how to call it"),
    ("dlim invoke digits input.json", "send a request"),
    ("dlim model view digits -s", "see what it does"),
    ("dlim model stop digits", "stop it"),
)
_COMMON = "Every command also takes -o json or -o yaml, and the options of: dlim help options"


def help_text(topic: str | None = None) -> str:
    """Return the help about a command, about a group of commands, about the options of every command, or about all
    commands."""
    page = HelpFormatter(max_width=MOST_COLUMNS)
    if topic == OPTIONS_TOPIC:
        page.write_usage("dlim", "COMMAND [OPTIONS]")
        write_options(page, "Options of every command", [one for one in COMMON if not one.hidden])
        with page.section("Exit codes"):
            write_list(page, [(str(int(code)), text.replace("`", "")) for code, text in MEANING.items()])
    elif topic in BY_COMMAND:
        _write_command(page, BY_COMMAND[topic])
    else:
        _write_commands(page, topic if topic in GROUPS else None)
    return page.getvalue().strip("\n")


def _write_commands(page: HelpFormatter, group: str | None) -> None:
    page.write_usage("dlim", f"{group} COMMAND [OPTIONS]" if group else "COMMAND [OPTIONS]")
    page.write_paragraph()
    page.write_text(_PURPOSE)
    shown = [one for one in COMMANDS if group is None or one.name.startswith(f"{group} ")]
    with page.section("Commands"):
        write_list(page, [(f"{one.name} {one.operands}".strip(), one.help) for one in shown])
    if group is None:
        write_examples(page, _EXAMPLES)
    page.write_paragraph()
    write_text(page, "If you name no server, dlim uses the one of dlim config -c or dlicmd login, else the local "
                     "backend of this machine, and starts it if necessary.")
    write_text(page, "Options of a command: dlim help COMMAND. Options of every command, exit codes: dlim help options")


def _write_command(page: HelpFormatter, command: DlimCommand) -> None:
    page.write_usage(f"dlim {command.name}", f"{command.operands} [OPTIONS]".lstrip())
    page.write_paragraph()
    page.write_text(sentence(command.help))
    write_examples(page, command.examples)
    write_options(page, "Options", command.options)
    page.write_paragraph()
    write_text(page, _COMMON)
