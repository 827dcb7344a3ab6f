"""The help: verbs, commands and options from their tables, laid out by click."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from click import HelpFormatter

from dlicmd.cli.manner import FILE_NAME
from dlicmd.contract.argv import SUBMITTING, WITH_PROGRAM
from dlicmd.contract.examples import EXAMPLES
from dlicmd.contract.exits import MEANING
from dlicmd.contract.options import BY_NAME, FILE, OPTIONS, OWN_OPTIONS, Local, Option, Section, help_sections
from dlicmd.contract.verb_argv import OPTIONS_TOPIC
from dlicmd.contract.verbs import BY_VERB, VERBS, Verb

MOST_COLUMNS = 120
#: Wider terms of a list get a line of their own.
_WIDEST_TERM = 36
_PURPOSE = "Submit a program with one command and follow it to its result."
_EXAMPLES = (
    ("dlicmd demo", "train a sample model"),
    ("dlicmd run train.py", "submit your program, and follow it"),
    ("dlicmd ls", "list your jobs"),
    ("dlicmd result last", "fetch the trained model of your newest job"),
)
#: Verbs that `dlicmd` without arguments explains.
_EVERY_DAY = ("run", "ls", "logs", "follow", "stop", "rm", "result", "plot", "why", "top", "demo", "login")
_NOTE = (
    "An ID is the id of a job such as local-7, its number (7), its name if only 1 job has it, or last for your newest "
    "job. If you name no server, dlicmd uses the local backend of this machine, and starts it if necessary."
)
_LONG_NOTE = (
    "With these commands, an ID is the id of a job, or last for your newest job. dlicmd passes unknown options to the "
    "program. The local backend ignores options marked *."
)
_COMMON = (
    "Every command also takes -o FORMAT (table, json, jsonl, yaml, custom-columns=...) and the connection options of: "
    "dlicmd help options"
)
_OF_SUBMISSIONS = (Section.SUBMIT, Section.RESOURCES, Section.SCHEDULING)
#: Options of submissions that the help of verbs shows: remedies that messages name.
_REMEDIES = ("--allow-cpu", "--workerMemory", "--create-data-path")
#: Output options of the commands that wait for a job.
_OF_WAITING = ("--follow", "--wait", "--wait-timeout", "--junit", "--pass-exit-code")


def help_text(topic: str | None = None) -> str:
    """Return the help about a verb, a long command or an option, about all long commands and options (`OPTIONS_TOPIC`),
    or about all verbs. It is as wide as the terminal."""
    page = HelpFormatter(max_width=MOST_COLUMNS)
    if topic is None:
        page.write_usage("dlicmd", "COMMAND [OPTIONS] [-- PROGRAM ARGUMENTS]")
        page.write_paragraph()
        page.write_text(_PURPOSE)
        _write_verbs(page, VERBS)
        write_examples(page, _EXAMPLES)
        page.write_paragraph()
        write_text(page, _NOTE)
        write_text(page, "Options of a command: dlicmd help COMMAND. Long commands of WMLA, all options, exit codes: "
                          "dlicmd help options")
    elif topic == OPTIONS_TOPIC:
        page.write_usage("dlicmd", "COMMAND [OPTIONS] [-- PROGRAM ARGUMENTS]")
        _write_long_options(page)
        write_text(page, _LONG_NOTE)
    elif topic in BY_VERB:
        _write_verb(page, BY_VERB[topic])
    elif topic in EXAMPLES:
        _write_command(page, BY_NAME[topic])
    else:
        page.write_usage("dlicmd", "COMMAND [OPTIONS] [-- PROGRAM ARGUMENTS]")
        write_options(page, BY_NAME[topic].group.value, [BY_NAME[topic]])
        page.write_paragraph()
        write_text(page, "All commands and options: dlicmd help options")
    return page.getvalue().strip("\n")


def help_as_original() -> str:
    """Return the help of `dlicmd.py`, which knows no verbs."""
    page = HelpFormatter(max_width=MOST_COLUMNS)
    page.write_usage(FILE_NAME, "COMMAND [OPTIONS] [-- PROGRAM ARGUMENTS]")
    _write_long_options(page)
    page.write_text(
        "In place of an ID, last means your newest job. dlicmd passes unknown options to the program. The local "
        "backend ignores options marked *."
    )
    return page.getvalue().rstrip("\n")


def short_usage() -> str:
    """Return the text for `dlicmd` without arguments. It fits a terminal of 24 lines."""
    page = HelpFormatter(max_width=MOST_COLUMNS)
    page.write_usage("dlicmd", "COMMAND [OPTIONS]")
    _write_verbs(page, [verb for verb in VERBS if verb.name in _EVERY_DAY])
    page.write_text(f"More: {', '.join(verb.name for verb in VERBS if verb.name not in _EVERY_DAY)}")
    write_examples(page, _EXAMPLES[:2])
    return page.getvalue() + "\nOptions of a command: dlicmd help COMMAND. All commands: dlicmd --help"


def _write_long_options(page: HelpFormatter) -> None:
    for group, options in help_sections().items():
        write_options(page, "Long commands" if group is Section.COMMAND else group.value, options)
    with page.section("Exit codes"):
        write_list(page, [(str(int(code)), text.replace("`", "")) for code, text in MEANING.items()])
    page.write_paragraph()


#: Options that watch a search.
_OF_SEARCHES = ("--follow", "--wait", "--wait-timeout")


def _write_verb(page: HelpFormatter, verb: Verb) -> None:
    rest = " [-- PROGRAM ARGUMENTS]" if verb.program else ""
    page.write_usage(f"dlicmd {verb.name}", f"{verb.operands} [OPTIONS]{rest}".lstrip())
    page.write_paragraph()
    page.write_text(f"{sentence(verb.help)} The long option is {verb.command}.")
    write_examples(page, verb.examples)
    taken = [option for option in verb.takes if option.group not in _OF_SUBMISSIONS or option.name in _REMEDIES]
    for group in Section:
        write_options(page, group.value, [option for option in (*verb.own, *taken) if option.group is group])
    page.write_paragraph()
    if len(taken) < len(verb.takes):
        write_text(page, "More options of a submission: dlicmd --exec-start --help")
    write_text(page, _COMMON)


def _write_command(page: HelpFormatter, command: Option) -> None:
    verb = next((verb for verb in VERBS if verb.command == command.name), None)
    submits = command.name in SUBMITTING
    value = f" {_value(command)}" if _value(command) else ""
    rest = " [-- PROGRAM ARGUMENTS]" if submits or command.name in WITH_PROGRAM else ""
    page.write_usage("dlicmd", f"{command.name}{value} [OPTIONS]{rest}")
    page.write_paragraph()
    write_text(page, sentence(command.help) + (f" The short form is: dlicmd {verb.name}." if verb else ""))
    write_examples(page, EXAMPLES[command.name])
    ignored = Local.IGNORED if command.name == "--demo" else None  # the demo runs on the local backend alone
    taken = [option for option in OPTIONS if not option.hidden and option.local is not ignored and (
        (submits and option.group in _OF_SUBMISSIONS) or option.name in _names_of(command.name))]
    own = OWN_OPTIONS.get(command.name, ())
    for group in Section:
        files = [FILE] if group is Section.SUBMIT and command.name == "--exec-start" else []
        write_options(page, group.value, [*files, *(option for option in (*own, *taken) if option.group is group)])
    page.write_paragraph()
    write_text(page, _COMMON)


def _names_of(command: str) -> Sequence[str]:
    """Return the names of options beside those of submissions that have an effect on a long command."""
    if command in SUBMITTING:
        return ("--dry-run", *_OF_WAITING)
    return {
        "--logon": ("--rest-host", "--rest-port", "--username", "--password", "--keyring"),
        "--logoff": ("--rest-host", "--rest-port"),
        "--hpo-start": ("--model-dir", "--model-main", "--dry-run", *_OF_SEARCHES), "--hpo-get": _OF_SEARCHES,
        "--hpo-restart": _OF_SEARCHES, "--hpo-get-all": ("--query-args",),
        "--exec-get-all": ("--query-args",), "--rp-apply": ("--dry-run",),
        "--rp-usage": ("--query-args",), "--exec-verify": _OF_WAITING,
        "--exec-again": ("--appName", "--numWorker", *_OF_WAITING),
        "--exec-trainresult": ("--to", "--unpack", "--force"), "--app-wait": ("--wait-timeout", "--pass-exit-code"),
    }.get(command, ())


def _write_verbs(page: HelpFormatter, verbs: Iterable[Verb]) -> None:
    with page.section("Commands"):
        write_list(page, [(f"{verb.name} {verb.operands}".strip(), verb.help) for verb in verbs])


def write_examples(page: HelpFormatter, examples: Iterable[tuple[str, str]]) -> None:
    """Write command lines with their meanings."""
    with page.section("Examples"):
        write_list(page, list(examples))


def write_options(page: HelpFormatter, title: str, options: Sequence[Option]) -> None:
    """Write a section with options, if there are any."""
    if options:
        with page.section(title):
            write_list(page, [(_spelling(option), option.help) for option in options])


def write_list(page: HelpFormatter, rows: Sequence[tuple[str, str]]) -> None:
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


def write_text(page: HelpFormatter, text: str) -> None:
    """Write a text as `page.write_text` does, but break no word that a user may copy."""
    page.write("\n".join(textwrap.wrap(text, page.width, break_long_words=False, break_on_hyphens=False)) + "\n")


def sentence(text: str) -> str:
    """Return a help text as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."


def _value(option: Option) -> str:
    return option.metavar or "|".join(option.choices)


def _spelling(option: Option) -> str:
    value = _value(option)
    mark = " *" if option.local is Local.IGNORED else ""
    return ", ".join((option.name, *option.aliases)) + (f" {value}" if value else "") + mark
