"""Sources of settings: flags, `--set`, the environment, and `DLICMD_HOME/server.yaml`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_backend.setting_kinds import Setting

#: The file in DLICMD_HOME.
SETTINGS_FILE = "server.yaml"
#: Address and TLS of a server for a team. An embedded server ignores them in environment and file.
_ADDRESS = ("DLI_HOST", "DLI_PORT", "DLI_TLS_CERT", "DLI_TLS_KEY")


@dataclass(frozen=True)
class GivenSettings:
    """Values from flags, environment and file: variable → text, and variable → its source. A hidden secret has a source
    and no text."""

    values: Mapping[str, str]
    sources: Mapping[str, str]

    def text(self, variable: str) -> str | None:
        """Return the value; None if it is missing or empty."""
        return self.values.get(variable) or None

    def value(self, setting: Setting) -> Any:
        """Return the value of a setting in its type; None if it is missing. Raises ValueError."""
        text = self.text(setting.variable)
        try:
            return None if text is None else setting.kind.parse(text)
        except ValueError:
            raise self.wrong(setting, setting.kind.must) from None

    def wrong(self, setting: Setting, must: str) -> ValueError:
        """Return the error for a bad value, which names its source. The error shows no secret."""
        variable = setting.variable
        shown = "" if setting.secret else f", not '{self.values.get(variable, '')[:80]}'"
        return ValueError(f"{self.sources.get(variable, variable)} must be {must}{shown}")


def given(table: Iterable[Setting], home: Path, more: Sequence[str] = (),
          flags: Mapping[str, object] | None = None) -> GivenSettings:
    """Return the values of the settings in `table`, and their sources. For each setting, the first source that has it
    counts: the `flags` of `serve` that are not None; `more`, the words of `--set`, of the form `key=value` with the
    keys of the file; the environment; the file.

    With the flag `embedded`, the environment and the file cannot set an address or a certificate. Raises ValueError for
    a file that cannot be used, for a bad word in `more`, and for an unknown key.
    """
    rows = list(table)
    keys = {row.key: row for row in rows if row.in_file}
    found = _of_file(home / SETTINGS_FILE, keys)
    found |= {row.variable: (os.environ[row.variable], row.variable) for row in rows if os.environ.get(row.variable)}
    flags = flags or {}
    if flags.get("embedded"):
        found = {variable: value for variable, value in found.items() if variable not in _ADDRESS}
    found |= dict(_of_word(word, keys) for word in more)
    for key, value in flags.items():
        if key in keys and value is not None:
            text = "true" if value is True else str(value)
            found[keys[key].variable] = text, "--" + key.replace("_", "-")
    return GivenSettings({variable: text for variable, (text, _) in found.items()},
                 {variable: source for variable, (_, source) in found.items()})


def _of_word(word: str, keys: Mapping[str, Setting]) -> tuple[str, tuple[str, str]]:
    """Return the variable that a word of `--set` sets, with its text and source. Raises ValueError."""
    key, equals, text = word.partition("=")
    if key not in keys:
        near = difflib.get_close_matches(key, [name for name, row in keys.items() if not row.secret], n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"--set needs KEY=VALUE with a key of {SETTINGS_FILE}; '{key[:80]}' is not a key{meant}")
    if keys[key].secret:
        raise ValueError(f"--set {key}: all users can read a command line; set it in {SETTINGS_FILE} or as "
                         f"{keys[key].variable}")
    if not text:
        raise ValueError(f"--set {key}: " + ("no value after =" if equals else "=VALUE is missing"))
    return keys[key].variable, (text, f"--set {key}")


def _of_file(file: Path, keys: Mapping[str, Setting]) -> dict[str, tuple[str, str]]:
    """Return variable → (text, source) of the file, if it exists. Raises ValueError."""
    if not file.exists():
        return {}
    # The import of yaml takes longer than all settings, and most homes have no file.
    from dlicmd.sdk.errors import UsageProblem
    from dlicmd.sdk.yaml_file import read

    try:
        content = read(file)
        entries = [] if content is None else content.entries("the settings")
        for key, place, _ in entries:
            if key not in keys:
                place.unknown("setting", key, keys)
        found = {keys[key].variable: (value.text(key), f"{file}: {key}") for key, _, value in entries}
    except UsageProblem as problem:
        raise ValueError(str(problem)) from None
    if any(keys[key].secret for key, _, _ in entries) and file.stat().st_mode & 0o077:
        raise ValueError(f"{file} contains a secret and other users can read it; run chmod 600 {file}")
    return found
