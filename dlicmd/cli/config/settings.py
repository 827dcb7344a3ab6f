"""`--config-show`: every connection setting and default in effect, and its source."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from dlicmd.cli.config import profiles
from dlicmd.cli.config.option_file import SECRETS
from dlicmd.cli.config.profile_file import Profile
from dlicmd.cli.render import Output, scalar, show_rows
from dlicmd.contract.argv import CommandLine, Given, parse_argv
from dlicmd.contract.home import home
from dlicmd.contract.options import OPTIONS, PROFILE, Form, Option, Section
from dlicmd.contract.secret import MASK, masked_words
from dlicmd.sdk import paths

COLUMNS = ("setting", "value", "source")
_DEFAULTS = {"--output": "table", "--debug-level": "info", "--http": False, "--insecure": False, "--keyring": False}


class ClientSetting(NamedTuple):
    """A value in effect, and its source."""

    setting: str
    value: Any
    source: str


def show_settings(line: CommandLine, output: Output) -> None:
    """Print the settings in effect for `line`, the command line as typed. Secrets are masked. Raises UsageProblem."""
    profile = profiles.chosen(line)
    rows = [*_places(line, profile)]
    for option in OPTIONS:
        if option is not PROFILE:
            rows += _settings(option, line, profile)
    show_rows([row._asdict() for row in rows], output, COLUMNS, lambda row, name: scalar(row.get(name)))


def _places(line: CommandLine, profile: Profile | None) -> list[ClientSetting]:
    """Return the configuration file, the profile, and the folder of the local backend's state."""
    variable = profiles.ENVIRONMENT[PROFILE.name]
    named = PROFILE.name in line.values
    source = "flag" if named else _variable(variable) if os.environ.get(variable) else "default"
    if profile is not None and source == "default":
        source = f"default of {paths.config_file()}"
    return [
        ClientSetting("config", str(paths.config_file()), _from("DLICMD_CONFIG")),
        ClientSetting("profile", profile.name if profile else None, source),
        ClientSetting("home", str(home()), _from("DLICMD_HOME")),
    ]


def _from(variable: str) -> str:
    return _variable(variable) if os.environ.get(variable) else "default"


def _variable(name: str) -> str:
    return f"environment variable {name}"


def _settings(option: Option, line: CommandLine, profile: Profile | None) -> list[ClientSetting]:
    """Return the values in effect of one option: one or none, or several for a repeatable option."""
    name, variable = option.name, profiles.ENVIRONMENT.get(option.name, "")
    given = profile.options if profile else []
    theirs = [item for item in given if item.option is option and profile and profiles.applies(item, profile, line)]
    source = f"profile {profile.name}" if profile else ""
    rows = [ClientSetting(name[2:], _shown(option, item), source) for item in theirs]
    if name in line.values:
        values = line.many(name) if option.multiple else [line.values[name]]
        rows += [ClientSetting(name[2:], _masked(option, value), "flag") for value in values]
    elif os.environ.get(variable):
        rows = [ClientSetting(name[2:], _of_variable(option, os.environ[variable]), _variable(variable))]
    if not rows and (option.group is Section.CONNECTION or name in _DEFAULTS):
        rows = [_default(option)]
    return rows


def _default(option: Option) -> ClientSetting:
    if option.name == "--jwt-token" and os.path.lexists(paths.token_file()):
        return ClientSetting("jwt-token", MASK, f"token file {paths.token_file()}")
    return ClientSetting(option.name[2:], _DEFAULTS.get(option.name), "default")


def _shown(option: Option, given: Given) -> Any:
    """Return a value of a profile, a number as a number."""
    value = parse_argv(["--config-show", *given.words]).values[option.name]
    return _masked(option, value[0] if isinstance(value, list) else value)


def _of_variable(option: Option, text: str) -> Any:
    return profiles.is_yes(text) if option.kind is Form.FLAG else _masked(option, text)


def _masked(option: Option, value: Any) -> Any:
    """Return a value with its secrets masked."""
    if option.name in SECRETS or not isinstance(value, str):
        return MASK if option.name in SECRETS else value
    return masked_words([option.name, value])[1]
