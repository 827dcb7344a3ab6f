"""A job file: options of a submission as YAML (docs/job-file.md). The file becomes words of a command line.

The command line takes precedence over the file, option by option. The program's words on the command line follow those
of the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dlicmd.cli.config.option_file import SOURCE, START, known_option, option_values, overruled
from dlicmd.cli.mistyped import say_mistyped
from dlicmd.contract.argv import CommandLine, Given, parse_argv
from dlicmd.contract.options import FILE
from dlicmd.sdk.data import change_meta, change_source
from dlicmd.sdk.errors import UsageProblem
from dlicmd.sdk.messages import info
from dlicmd.sdk.yaml_file import YamlPlace, read, shown

FRAMEWORK, ARGS = "framework", "args"
META, MAIN, FOLDER = "--cs-datastore-meta", "--model-main", "--model-dir"
SUFFIXES = (".yaml", ".yml")
#: Options that name a file of the user, beside the program.
_NAMED_FILES = (FOLDER, "--conda-env-yaml", "--conda-package", "--ca-cert")


@dataclass
class JobFile:
    """The content of a job file. `args` are the program's words in groups, each with the name of its option or ""."""

    framework: str | None = None
    options: list[Given] = field(default_factory=list)
    args: list[tuple[str, list[str]]] = field(default_factory=list)


def expand(words: list[str]) -> list[str]:
    """Return the command line, with the job file that it names replaced by the file's content.

    Raises UsageProblem, ArgvError.
    """
    end = words.index("--") if "--" in words else len(words)
    found = _named(words[:end])
    if found is None:
        return words
    at, used, name = found
    rest = words[:at] + words[at + used :]
    if _named(rest[: end - used]) is not None:
        raise UsageProblem("-f was given twice; give only 1 job file")
    job = read_job(Path(name))
    line = parse_argv(_with_framework(rest, job, name))
    say_mistyped(line)
    return _merged(line, job, Path(name).parent)


def _named(own: Sequence[str]) -> tuple[int, int, str] | None:
    """Return the position of the job file in the words before any `--`, its number of words, and its name; else None.

    `-f` before anything but an existing YAML file belongs to the program.
    """
    if not any(word.partition("=")[0] == START for word in own):
        return None
    for at, word in enumerate(own):
        spelling, equals, glued = word.partition("=")
        name = glued if equals else own[at + 1] if at + 1 < len(own) else ""
        if spelling not in (FILE.name, *FILE.aliases) or not name.lower().endswith(SUFFIXES):
            continue
        if os.path.isfile(name):
            return at, 1 if equals else 2, name
        if spelling == FILE.name or (at and own[at - 1] == START):
            raise UsageProblem(f"{spelling} {name}: the file does not exist")
        info(f"the file {name} does not exist: passed {spelling} {name} to your program")
    return None


def _with_framework(words: list[str], job: JobFile, name: str) -> list[str]:
    """Return `words` with the file's framework as the operand of --exec-start, unless it has one."""
    at = next((at for at, word in enumerate(words) if word == START), None)
    if at is None or (at + 1 < len(words) and not words[at + 1].startswith("-")):
        return words
    if job.framework is None:
        raise UsageProblem(f"{name}: no framework given; write 'framework: NAME' in the file, or use {START} NAME")
    return [*words[: at + 1], job.framework, *words[at + 1 :]]


def _merged(line: CommandLine, job: JobFile, folder: Path) -> list[str]:
    """Return the words of the command line and, for options that it does not give, those of the file."""
    options = [word for given in job.options if not overruled(given, line)
               for word in _beside(given, folder, job, line).words]
    args = [word for name, group in job.args if not _is_given(name, line.program) for word in group]
    program = [*args, *line.program]
    return [*line.own, *options, *(["--", *program] if program or line.after_dashes is not None else [])]


def _is_given(name: str, program: Sequence[str]) -> bool:
    return name != "" and any(word.partition("=")[0] == name for word in program)


def _beside(given: Given, folder: Path, job: JobFile, line: CommandLine) -> Given:
    """Return the option with paths relative to the current folder. In the file they are relative to the file's
    folder."""
    name, text = given.option.name, given.text
    if text is None:
        return given
    whole = FOLDER in line.values or any(other.option.name == FOLDER for other in job.options)
    if name in _NAMED_FILES or (name == MAIN and not whole):
        # The name of a program in a model folder is its path in that folder.
        return given._replace(text=str(folder / os.path.expanduser(text)) if text else text)
    change = _data_beside(folder)
    if name == META:
        return given._replace(text=change_meta(text, change))
    if name == SOURCE:
        return given._replace(text=json.dumps([change_source(source, change) for source in json.loads(text)]))
    return given


def _data_beside(folder: Path) -> Callable[[str], str]:
    """Return a function for data paths that begin with `.` or `..`, and so refer to the user's machine. The function
    makes such a path relative to the current folder."""

    def change(text: str) -> str:
        if text.split("/", maxsplit=1)[0] not in (".", ".."):
            return text
        path = os.path.normpath(os.path.join(folder, text))
        return path if os.path.isabs(path) or path.startswith("..") else f"./{path}"

    return change


def read_job(file: Path) -> JobFile:
    """Return the content of a job file, every value checked as on a command line. Raises UsageProblem."""
    found = read(file)
    if found is None:
        raise UsageProblem(f"{file}: the job file is empty")
    job = JobFile()
    for key, place, value in found.entries("a job file"):
        if key == FRAMEWORK:
            job.framework = _framework(value)
        elif key == ARGS:
            job.args = _args(value)
        else:
            option = known_option(key, place, (FRAMEWORK, ARGS))
            if any(given.option is option for given in job.options):
                place.refuse(f"'{key}' means {option.name}, which is already set")
            job.options += option_values(option, key, value)
    return job


def _framework(value: YamlPlace) -> str:
    text = value.text(FRAMEWORK)
    if not text.strip() or text.startswith("-"):
        value.refuse(f"'{shown(text)}' is not the name of a framework")
    return text


def _args(value: YamlPlace) -> list[tuple[str, list[str]]]:
    """Return the program's words: a list unchanged, a mapping as `--name value`."""
    if not value.is_mapping:
        if not value.is_list:
            value.refuse("args needs a list of words, or a mapping of option names to values")
        return [("", [item.text("a word of args")]) for item in value.items()]
    return [_arg(key, item) for key, _, item in value.entries(ARGS)]


def _arg(key: str, value: YamlPlace) -> tuple[str, list[str]]:
    """Return the words of one option of the program: for true its name alone, for false none, for a list several
    words."""
    name = key if key.startswith("-") else f"--{key}"
    switch = value.switch()
    if switch is not None:
        return name, [name] if switch else []
    texts = [item.text(f"args: {shown(key)}") for item in value.items()]
    if len(texts) == 1 and texts[0].startswith("-"):
        return name, [f"{name}={texts[0]}"]
    return name, [name, *texts]
