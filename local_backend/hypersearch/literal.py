"""Reads the text of a definition, as JSON or as a Python literal, within bounds."""

from __future__ import annotations

import ast
import json
import math
import re
from typing import Any

from local_backend.fields import Refusal

#: Most characters of a text, values in it, and levels of lists and objects.
CHARACTERS, VALUES, LEVELS = 8_000_000, 500_000, 20
#: Larger whole numbers are not exact as floating-point numbers.
LARGEST = 2**53
_TOKEN = re.compile(r"""
    \s* (?: (?P<sign>[\[\]{}(),:]) | (?P<text>[uU]? (?:'(?:[^'\\\n]|\\.)*' | "(?:[^"\\\n]|\\.)*"))
        | (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?) | (?P<word>[A-Za-z]+) ) \s*""", re.VERBOSE | re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_DIGITS = 400
_CLOSING = {"[": "]", "{": "}", "(": ")"}


def value_of(text: str, what: str, refuse: Refusal) -> Any:
    """Return the value of a text that sentences call `what`. Raises the error of `refuse`."""
    try:
        return read(text)
    except ValueError as problem:
        raise refuse(f"{what} {problem}") from None


def read(text: str) -> Any:
    """Return the value of a text. Raises ValueError with a sentence that begins with a verb."""
    if len(text) > CHARACTERS:
        raise ValueError(f"has {len(text)} characters; the limit is {CHARACTERS}")
    try:
        value = json.loads(text, parse_constant=_constant)
    except RecursionError:
        raise ValueError(f"has more than {LEVELS} levels") from None
    except _NotFinite:
        raise
    except ValueError as problem:
        try:
            value = _Literals(text).whole()
        except _NotLiteral as other:
            raise ValueError(f"is neither JSON ({problem}) nor a Python literal ({other})") from None
    _check(value)
    return value


class _NotFinite(ValueError):
    """A number that is not finite."""


class _NotLiteral(Exception):
    """The text is not a Python literal. The text says where."""


def _constant(word: str) -> float:
    raise _NotFinite(f"has the number {word}; all numbers must be finite")


def _check(top: Any) -> None:
    """Raise ValueError if a value has too many parts or levels, or a number that is not finite or too large."""
    count, level = 0, [top]
    for _ in range(LEVELS + 1):
        count += len(level)
        if count > VALUES:
            raise ValueError(f"has more than {VALUES} values")
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below += [*one, *one.values()]
            elif isinstance(one, list):
                below += one
            elif isinstance(one, float) and not math.isfinite(one):
                _constant(repr(one))
            elif isinstance(one, str) and not one.isascii() and _SURROGATE.search(one):
                raise ValueError("has a text that is not Unicode: half of a surrogate pair")
            elif isinstance(one, int) and abs(one) > LARGEST:
                raise ValueError(f"has a whole number beyond {LARGEST}, which cannot be stored exactly")
        if not below:
            return
        level = below
    raise ValueError(f"has more than {LEVELS} levels")


class _Literals:
    """Reads dicts, lists, tuples, texts, numbers, True, False and None; nothing else."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._count = text, 0, 0
        self._kind, self._token = "", ""
        self._next()

    def whole(self) -> Any:
        """Return the value of the whole text. Raises _NotLiteral."""
        value = self._value(0)
        if self._kind:
            raise self._wrong()
        return value

    def _wrong(self) -> _NotLiteral:
        return _NotLiteral(f"unexpected {self._token!r:.40} before character {self._at + 1}" if self._kind else
                           "the text ends too early")

    def _next(self) -> None:
        if self._at == len(self._text):
            self._kind = self._token = ""
            return
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            self._kind, self._token = "unknown", self._text[self._at:self._at + 20]
            raise self._wrong()
        self._kind, self._token, self._at = found.lastgroup or "", found[found.lastgroup or 0], found.end()

    def _take(self, sign: str) -> bool:
        if self._kind != "sign" or self._token != sign:
            return False
        self._next()
        return True

    def _value(self, level: int) -> Any:
        self._count += 1
        if self._count > VALUES or level > LEVELS:
            raise ValueError(f"has more than {LEVELS} levels or {VALUES} values")
        kind, token = self._kind, self._token
        if kind == "sign" and token in _CLOSING:
            self._next()
            return self._inside(token, level)
        if kind == "text":
            return self._texts()
        if kind == "number" and len(token) <= _DIGITS:
            self._next()
            return int(token) if token.lstrip("+-").isdigit() else float(token)
        if kind == "word" and token in _WORDS:
            self._next()
            return _WORDS[token]
        if kind == "word" and token in ("nan", "inf", "NaN", "Infinity"):
            _constant(token)
        raise self._wrong()

    def _texts(self) -> str:
        """Return neighboring texts as one, as Python does."""
        found = ""
        while self._kind == "text":
            try:
                found += ast.literal_eval(self._token)
            except (ValueError, SyntaxError):  # a bad escape
                raise self._wrong() from None
            self._next()
            self._count += self._kind == "text"
            if self._count > VALUES:
                raise ValueError(f"has more than {VALUES} values")
        return found

    def _inside(self, opening: str, level: int) -> Any:
        """Return a dict, list or tuple after its opening sign. A tuple becomes a list."""
        closing = _CLOSING[opening]
        items: list[Any] = []
        pairs: dict[str, Any] = {}
        comma = False
        while not self._take(closing):
            if opening == "{":
                if self._kind != "text":
                    raise self._wrong()
                key = self._texts()
                if not self._take(":"):
                    raise self._wrong()
                pairs[key] = self._value(level + 1)
            else:
                items.append(self._value(level + 1))
            comma = self._take(",")
            if not comma and not (self._kind == "sign" and self._token == closing):
                raise self._wrong()
        if opening == "(" and len(items) == 1 and not comma:
            return items[0]  # only parentheses
        return pairs if opening == "{" else items
