"""Profiles: values that the command line does not give come from the environment, then from a profile of the
configuration file.

Every command imports this module. Only users with such a file pay for the import of YAML.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dlicmd.contract.argv import CommandLine, convert, parse_argv
from dlicmd.contract.options import NO_PROFILE, PROFILE, Section
from dlicmd.sdk import paths

if TYPE_CHECKING:
    from dlicmd.cli.config.profile_file import Profile
    from dlicmd.contract.argv import Given

HOST = "--rest-host"
#: Option → the variable that may give its value.
ENVIRONMENT = {
    "--username": "DLICMD_USERNAME", "--password": "DLICMD_PASSWORD", "--jwt-token": "DLICMD_TOKEN",
    "--ca-cert": "DLICMD_CA_CERT", "--insecure": "DLICMD_INSECURE",
    "--call-timeout": "DLICMD_TIMEOUT", "--keyring": "DLICMD_KEYRING", PROFILE.name: "DLICMD_PROFILE",
}
#: Commands that must work with any content of the file.
_WITHOUT = ("--help", "--version", "--completion")


def is_yes(text: str) -> bool:
    """Return whether the value of a variable switches its flag on."""
    return text.lower() in ("1", "true", "yes")


def applied(words: list[str], line: CommandLine) -> CommandLine:
    """Return the command line, with the values that neither it nor the environment gives taken from its profile.

    `words` are those of `line`. Raises UsageProblem.
    """
    profile = None if line.command in _WITHOUT else chosen(line)
    if profile is None:
        return line
    end = words.index("--") if "--" in words else len(words)
    more = [word for given in profile.options if applies(given, profile, line) for word in given.words]
    if line.verb is None:
        return parse_argv([*words[:end], *more, *words[end:]])
    from dlicmd.contract.verb_argv import parse_verb  # only for a verb

    return parse_verb([*words[:end], *more, *words[end:]])


def fill(line: CommandLine) -> None:
    """Give a command line of `dlim` the values of its profile that neither it nor the environment gives. Raises
    UsageProblem."""
    profile = chosen(line)
    if profile is None:
        return
    for given in profile.options:
        if applies(given, profile, line):
            line.values[given.option.name] = True if given.text is None else convert(given.option, given.text)


def chosen(line: CommandLine) -> Profile | None:
    """Return the profile that the command line, DLICMD_PROFILE or the file's default names, in this order; None for
    none. Raises UsageProblem."""
    named = line.text(PROFILE.name)
    if named is None:
        named = os.environ.get(ENVIRONMENT[PROFILE.name]) or None
    file = paths.config_file()
    if named == NO_PROFILE or (named is None and not os.environ.get("DLICMD_CONFIG") and not os.path.lexists(file)):
        return None
    from dlicmd.cli.config.profile_file import load  # needs YAML

    return load(file, named)


def applies(given: Given, profile: Profile, line: CommandLine) -> bool:
    """Return whether a setting of a profile counts for a command line."""
    from dlicmd.cli.config.option_file import START, overruled  # needs YAML

    name, group = given.option.name, given.option.group
    if overruled(given, line) or os.environ.get(ENVIRONMENT.get(name, "")):
        return False
    if group is Section.CONNECTION:
        return line.command != "--demo" and _is_its_server(profile, line)
    return group is Section.OUTPUT or line.command in (START, "--config-show")


def _is_its_server(profile: Profile, line: CommandLine) -> bool:
    """Return whether the command goes to the server of the profile's connection settings.

    If the command line names another server, that server must not inherit `insecure` or `http` from the profile.
    """
    named, own = line.text(HOST), profile.text(HOST)
    return (named or own) is not None and (named is None or own is None or named == own)
