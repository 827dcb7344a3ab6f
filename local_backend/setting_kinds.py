"""Statements of settings: name, type, limits, default, meaning. A statement is the metadata of a field of a dataclass.
The reader of values, `local-backend config` and docs/operations.md use the same statement."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dlicmd.contract.sizes import parse_size, show_size

_PREFIX = "DLI_"
_STATEMENT = "setting"
_YES, _NO = ("true", "yes", "1"), ("false", "no", "0")


@dataclass(frozen=True)
class SettingKind:
    """How a value is written. `must` completes the message `VARIABLE must be …`. `parse` returns the value of a text
    that is not empty, or raises ValueError. `show` returns the text of a value for people."""

    must: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str] = str


@dataclass(frozen=True)
class Setting:
    """The statement of a setting. `default` is the text of its default for people."""

    variable: str
    kind: SettingKind
    meaning: str
    default: str
    #: Whether `server.yaml` may contain it.
    in_file: bool = True
    #: Whether its value is never shown.
    secret: bool = False

    @property
    def key(self) -> str:
        """Key of the setting in `server.yaml`."""
        return self.variable.removeprefix(_PREFIX).lower()


def stated(variable: str, kind: SettingKind, meaning: str, default: str, secret: bool = False) -> dict[str, Setting]:
    """Return the metadata of a field with a setting."""
    return {_STATEMENT: Setting(variable, kind, meaning, default, secret=secret)}


def setting(
    value: Any, variable: str, kind: SettingKind, meaning: str, default: str = "", *, secret: bool = False
) -> Any:
    """Return a field of a dataclass with the default `value`. `default` is its text for people; if it is empty, the
    kind makes the text."""
    return field(default=value, metadata=stated(variable, kind, meaning, default or kind.show(value), secret),
                 repr=not secret)


def settings_of(group: type[Any]) -> Iterator[tuple[str, Setting]]:
    """Yield (name of the field, statement) for the settings of a dataclass."""
    for one in fields(group):
        if _STATEMENT in one.metadata:
            yield one.name, one.metadata[_STATEMENT]


def number(least: int, most: int) -> SettingKind:
    """Return the kind of whole numbers between 2 limits, which are included."""
    return SettingKind(f"a whole number between {least} and {most}", partial(_number, least=least, most=most),
                lambda value: f"{value:.0f}")


def size(least: int = 1) -> SettingKind:
    """Return the kind of numbers of bytes: a whole number, or a number with a unit, such as 20G or 1.5T."""
    return SettingKind(f"a number of bytes, optionally with K, M, G or T, for example 20G, and at least {least}",
                partial(_size, least=least), lambda value: show_size(value).replace(".0", " ") + "iB")


def choice(*words: str) -> SettingKind:
    """Return the kind of one of these words, in upper or lower case."""
    return SettingKind(f"one of {', '.join(words)}", partial(_choice, words=words))


def labels(base: Mapping[str, str]) -> SettingKind:
    """Return the kind of labels, as a mapping. It contains those in `base`, too."""
    return SettingKind("label=value,label=value", partial(_labels, base=base))


def _number(text: str, least: int, most: int) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text) or not least <= int(text) <= most:
        raise ValueError(text)
    return int(text)


def _size(text: str, least: int) -> int:
    # `parse_size` reads a number without a unit as MiB.
    found = parse_size(text) if re.search("[kmgtKMGT]", text) else _number(text, 0, 2**60)
    if found < least:
        raise ValueError(text)
    return found


def _choice(text: str, words: tuple[str, ...]) -> str:
    return words[words.index(text.lower())]


def _switch(text: str) -> bool:
    return _choice(text, _YES + _NO) in _YES


def _file(text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as problem:
        raise ValueError(str(problem)) from None


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (word.strip() for word in text.split(","))))


def _labels(text: str, base: Mapping[str, str]) -> dict[str, str]:
    found = dict(base)
    for word in _words(text):
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise ValueError(word)
        found[name.strip()] = value.strip()
    return found


def _issuer(text: str) -> str:
    parts = urlsplit(text)
    local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    permitted = parts.scheme == "https" or (parts.scheme == "http" and local)
    if not (permitted and parts.hostname) or parts.query or parts.fragment:
        raise ValueError(text)
    return text


def _socket(text: str) -> str:
    if not text.startswith("/"):
        host, colon, port = text.rpartition(":")
        if not (host and colon):
            raise ValueError(text)
        _number(port, 1, 65_535)
    return text


TEXT = SettingKind("a text", str)
#: The URL of an OIDC issuer. Answers over plain HTTP could come from any machine between the two.
ISSUER = SettingKind("a URL with https, or with http on the loopback", _issuer)
#: A Unix socket or a UDP port.
SOCKET = SettingKind("the path of a socket, or HOST:PORT", _socket)
#: A path of a file or a folder; `~` is the home directory of the user. The value is absolute.
FILE = SettingKind("a path; ~NAME needs a user NAME", _file)
SWITCH = SettingKind("true or false", _switch, lambda value: str(value).lower())
#: Words, separated by commas, as a tuple.
WORDS = SettingKind("words, separated by commas", _words)
