"""The configuration file of the client: profiles by name, and the name of the default one (docs/profiles.md)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from dlicmd.cli.config.option_file import known_option, option_values
from dlicmd.cli.render import Output
from dlicmd.contract.argv import Given
from dlicmd.contract.options import NO_PROFILE, PROFILE, Option, Section
from dlicmd.sdk.errors import UsageProblem
from dlicmd.sdk.yaml_file import YamlPlace, read, shown

DEFAULT, PROFILES = "default", "profiles"
#: Output options that a profile may hold, beside connection settings and options of a submission.
_OUTPUT = ("--output", "--debug-level")


class Profile(NamedTuple):
    """A named set of options."""

    name: str
    options: list[Given]

    def text(self, name: str) -> str | None:
        """Return the profile's value of an option, or None."""
        return next((given.text for given in self.options if given.option.name == name), None)


def load(file: Path, named: str | None) -> Profile | None:
    """Return the profile with the name, or without a name the default profile, if there is one. The whole file is
    checked. Raises UsageProblem."""
    if named is not None and not os.path.lexists(file):
        raise UsageProblem(f"unknown profile '{shown(named)}', because {file} does not exist; docs/profiles.md "
                           "describes this file")
    found = read(file)
    entries = {} if found is None else {key: (at, value) for key, at, value in found.entries("the configuration")}
    for key, (at, _) in entries.items():
        if key not in (DEFAULT, PROFILES):
            at.unknown("setting", key, (DEFAULT, PROFILES))
    profiles = _profiles(entries[PROFILES][1], file.parent) if PROFILES in entries else {}
    if DEFAULT in entries:
        value = entries[DEFAULT][1]
        default = value.text(DEFAULT)
        if default not in profiles:
            value.unknown("profile", default, profiles)
        named = default if named is None else named
    if named is not None and named not in profiles:
        raise UsageProblem(f"unknown profile '{shown(named)}': {file} has {_listed(profiles)}")
    return None if named is None else profiles[named]


def _listed(profiles: dict[str, Profile]) -> str:
    names = ", ".join(shown(name) for name in list(profiles)[:10])
    return f"only {names}" if names else "no profiles"


def _profiles(value: YamlPlace, folder: Path) -> dict[str, Profile]:
    found = {}
    for name, place, settings in value.entries(PROFILES):
        if name == NO_PROFILE or not name.strip():
            place.refuse(f"a profile cannot have the name '{name}'")
        found[name] = Profile(name, _settings(settings, folder))
    return found


def _settings(value: YamlPlace, folder: Path) -> list[Given]:
    found: list[Given] = []
    for key, place, setting in value.entries("a profile"):
        option = known_option(key, place)
        if option is PROFILE or (option.group is Section.OUTPUT and option.name not in _OUTPUT):
            place.refuse(f"'{key}' is allowed only on the command line")
        if any(given.option is option for given in found):
            place.refuse(f"'{key}' means {option.name}, which is already set")
        found += [_usable(option, given, setting, folder) for given in option_values(option, key, setting)]
    return found


def _usable(option: Option, given: Given, place: YamlPlace, folder: Path) -> Given:
    """Return the setting. The path of a certificate is relative to the file. Raises UsageProblem for an unknown output
    format."""
    if option.name == "--output":
        try:
            Output.parse(given.text)
        except UsageProblem as problem:
            place.refuse(str(problem).replace("-o: ", "output: ")[:200])
    if option.name == "--ca-cert" and given.text:
        return given._replace(text=str(folder / os.path.expanduser(given.text)))
    return given
