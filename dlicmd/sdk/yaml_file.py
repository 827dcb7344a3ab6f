"""YAML that a user wrote: errors name lines, and features of YAML that could harm us are refused.

Values stay as written (`0123` is that text). Aliases are refused, because a few lines of them can stand for more than
a machine's memory.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import yaml

from dlicmd.sdk.errors import UsageProblem

#: The most bytes of a file that is read.
LARGEST = 256 * 2**10
_TAG = "tag:yaml.org,2002:"
_WRITTEN = frozenset(_TAG + kind for kind in ("str", "int", "float", "bool", "timestamp"))
_SHOWN = 60
#: The most levels of lists and mappings; resource plans and data sources have a handful.
_DEEPEST = 100


class YamlPlace:
    """A value in a file. Its errors name the file and the line."""

    def __init__(self, file: Path, node: yaml.Node) -> None:
        self._file, self._node = file, node

    def refuse(self, what: str) -> NoReturn:
        """Raise UsageProblem with file, line and `what`."""
        raise UsageProblem(f"{self._file}: line {self._node.start_mark.line + 1}: {what}")

    @property
    def is_list(self) -> bool:
        """Whether the value is a list."""
        return isinstance(self._node, yaml.SequenceNode)

    @property
    def is_mapping(self) -> bool:
        """Whether the value is a mapping."""
        return isinstance(self._node, yaml.MappingNode)

    def switch(self) -> bool | None:
        """Return True or False, or None when the value is neither."""
        if self._node.tag != _TAG + "bool":
            return None
        return str(self._node.value).lower() in ("true", "yes", "on")

    def text(self, what: str) -> str:
        """Return a text, number or truth value as written. Raises UsageProblem, which says that `what` needs one."""
        if not isinstance(self._node, yaml.ScalarNode) or self._node.tag not in _WRITTEN:
            self.refuse(f"{what} needs one value, a text or a number")
        text = str(self._node.value)
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            self.refuse(f"{what} contains a character that is not text")
        return text

    def items(self) -> list[YamlPlace]:
        """Return the values of a list, or a single value as a list of one."""
        return [YamlPlace(self._file, node) for node in self._node.value] if self.is_list else [self]

    def entries(self, what: str) -> list[tuple[str, YamlPlace, YamlPlace]]:
        """Return key, place of the key and place of the value for each entry of a mapping, in order. Raises
        UsageProblem when the value is not a mapping, or when a key occurs twice."""
        if not self.is_mapping:
            self.refuse(f"{what} needs lines of 'name: value'")
        found: dict[str, tuple[str, YamlPlace, YamlPlace]] = {}
        for key, value in self._node.value:
            place = YamlPlace(self._file, key)
            name = place.text("a name")
            if name in found:
                place.refuse(f"'{shown(name)}' occurs twice")
            found[name] = (name, place, YamlPlace(self._file, value))
        return list(found.values())

    def data(self) -> Any:
        """Return the value as Python objects. Raises UsageProblem when a type exists in YAML alone, or when a key
        occurs twice."""
        self._check_keys()
        try:
            return yaml.constructor.SafeConstructor().construct_document(self._node)
        except (yaml.YAMLError, ValueError, RecursionError):
            self.refuse("a value is not a text, number, list or mapping")

    def _check_keys(self) -> None:
        if self.is_mapping:
            for _, _, value in self.entries("it"):
                value._check_keys()
        elif self.is_list:
            for item in self.items():
                item._check_keys()

    def json(self, what: str) -> Any:
        """Return the same for a value that becomes JSON. Raises UsageProblem when JSON cannot express a part of
        `what`."""
        found = self.data()
        try:
            json.dumps(found, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            self.refuse(f"{what} contains a value that JSON does not support, such as a date; put it in quotes")
        return found

    def unknown(self, what: str, name: str, known: Iterable[str]) -> NoReturn:
        """Raise UsageProblem: `name` is no `what`. The message suggests a similar name of `known`."""
        near = difflib.get_close_matches(name[:_SHOWN], known, n=1, cutoff=0.6)
        self.refuse(f"unknown {what} '{shown(name)}'" + (f"; did you mean {near[0]}?" if near else ""))


class _Loader(yaml.SafeLoader):
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs lack its type
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not allowed", event.start_mark)
        self._depth += 1
        if self._depth > _DEEPEST:
            raise yaml.composer.ComposerError(None, None, "nested too deeply", event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def read(file: Path) -> YamlPlace | None:
    """Return the content of a YAML file, or None for an empty file. Raises UsageProblem."""
    text = _content(file)
    try:
        node = yaml.compose(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        mark = getattr(problem, "problem_mark", None)
        where = f" line {mark.line + 1}:" if mark is not None else ""
        said = getattr(problem, "problem", None) or "nested too deeply, or not text"
        raise UsageProblem(f"{file}:{where} invalid YAML: {said}") from None
    return None if node is None or node.tag == _TAG + "null" else YamlPlace(file, node)


def _content(file: Path) -> bytes:
    try:
        # Without O_NONBLOCK, a pipe would block here.
        with open(os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as opened:
            text = opened.read(LARGEST + 1) or b""
    except (OSError, ValueError) as problem:
        raise UsageProblem(f"{file}: {getattr(problem, 'strerror', None) or 'invalid file name'}") from None
    if len(text) > LARGEST:
        raise UsageProblem(f"{file}: the file is larger than {LARGEST >> 10} KiB")
    return text


def shown(name: str) -> str:
    """Return a name, shortened for a message."""
    return name if len(name) <= _SHOWN else name[:_SHOWN] + "..."
