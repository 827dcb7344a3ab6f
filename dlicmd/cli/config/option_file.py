"""Options in a YAML file: names without dashes, and values, each checked as on a command line."""

from __future__ import annotations

import json
from collections.abc import Sequence

from dlicmd.contract.argv import ArgvError, CommandLine, Given, parse_argv
from dlicmd.contract.options import BY_NAME, COMMAND_NAMES, Form, Option
from dlicmd.sdk.yaml_file import YamlPlace

START, SOURCE = "--exec-start", "--data-source"
#: Options of the form NAME=VALUE. A file may also give them as a mapping.
PAIRS = ("--msd-env", "--msd-attr")
SECRETS = ("--password", "--jwt-token")
KEYS: dict[str, Option] = {
    spelling[2:]: option for spelling, option in BY_NAME.items()
    if spelling.startswith("--") and spelling not in COMMAND_NAMES
}
#: The most characters shown of the grammar's message about a value.
_SHOWN = 200


def overruled(given: Given, line: CommandLine) -> bool:
    """Return whether the command line gives this option, too; for a NAME=VALUE option, the same name."""
    if given.option.name in PAIRS and given.text is not None:
        names = {text.partition("=")[0] for text in line.many(given.option.name)}
        return given.text.partition("=")[0] in names
    return given.option.name in line.values


def known_option(key: str, place: YamlPlace, more: Sequence[str] = ()) -> Option:
    """Return the option that a key names. Raises UsageProblem when there is none, or when it must not be in a file.

    `more` are keys of that file that are not options.
    """
    option = KEYS.get(key)
    if option is None:
        place.unknown("option", key, [*KEYS, *more])
    if option.name in SECRETS:
        place.refuse(f"'{key}' is not allowed in a file; set DLICMD_TOKEN or DLICMD_PASSWORD, or log on")
    return option


def option_values(option: Option, key: str, value: YamlPlace) -> list[Given]:
    """Return the checked values that a file gives an option. Raises UsageProblem."""
    if option.kind is Form.FLAG:
        switch = value.switch()
        if switch is None:
            value.refuse(f"{key} must be true or false")
        return [Given(option, None)] if switch else []
    if option.name == SOURCE:
        return [_sources(option, key, value)]
    if option.name in PAIRS and value.is_mapping:
        return [_checked(option, f"{name}={item.text(name)}", value) for name, _, item in value.entries(key)]
    if value.is_list and not option.multiple:
        value.refuse(f"{key} takes one value, not a list")
    return [_checked(option, item.text(key), item) for item in value.items()]


def _checked(option: Option, text: str, place: YamlPlace) -> Given:
    """Return the value. Raises UsageProblem when a command line would not accept it."""
    given = Given(option, text)
    try:
        parse_argv([START, "PyTorch", *given.words])
    except ArgvError as problem:
        place.refuse(str(problem).removeprefix("--")[:_SHOWN])
    return given


def _sources(option: Option, key: str, value: YamlPlace) -> Given:
    if not value.is_list or not all(item.is_mapping for item in value.items()):
        value.refuse(f"{key} needs a list of data sources, each with 'type' and 'location'")
    return Given(option, json.dumps(value.json(key)))
