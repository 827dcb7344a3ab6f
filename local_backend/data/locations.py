"""What a location names: files, or the rows of a table or of a query that only reads."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlicmd.contract import data_sources as wire
from local_backend.data.errors import DataError

_LONGEST_NAME = 255
#: Characters that no database name has. Some drivers write the name unquoted into the text that also has host and
#: password. They would read these characters as more than a name.
_MORE_THAN_A_NAME = frozenset(";=/\\?'\"`{}")

#: Signs that no reading query has outside quotes: a second statement, or a comment that the server may not read as one.
_SIGNS = {";": "a second statement", "--": "a comment", "/*": "a comment", "\0": "a control character"}
#: Words that change something, in any SQL dialect.
_CHANGING = frozenset({
    "insert", "update", "delete", "merge", "upsert", "drop", "alter", "create", "truncate", "rename", "grant", "revoke",
    "into", "outfile", "dumpfile", "load_file", "exec", "execute", "call", "handler", "lock", "unlock", "vacuum",
    "analyze", "pragma", "attach", "detach",
})
_READING = frozenset({"select", "with", "values", "table"})

_PLAIN = r"""'(?:[^']|'')*' | "(?:[^"]|"")*" """
#: Quoted texts, for servers without backslash escapes and for servers with them.
_TEXTS = (_PLAIN, r"""'(?:[^'\\]|''|\\.)*' | "(?:[^"\\]|""|\\.)*" """)
_BRACKETS = ("", r"\[ (?:[^\]]|\]\])* \] |")
_DOLLARS = ("", r"\$(?P<tag>(?:[A-Za-z_]\w*)?)\$ .*? \$(?P=tag)\$ |")
_BACKTICKS = "`(?:[^`]|``)*` |"
#: Every way in which a server may split a query. A word that one way hides in quotes is visible in another.
_WAYS = tuple(
    re.compile(rf"(?P<quoted>{dollar} {_BACKTICKS} {bracket} {text}) | (?P<word>\w+) | (?P<sign>--|/\*|[^\s\w])",
               re.VERBOSE | re.DOTALL)
    for text, bracket, dollar in itertools.product(_TEXTS, _BRACKETS, _DOLLARS)
)


def named(location: Mapping[str, Any]) -> list[str]:
    """Return the paths of a location as written, from the first of `paths`, `path` and `file_name` that names any. The
    value is one text with commas between paths, or a list. An empty result means all data.

    Raises DataError when a value is neither a text nor a list of texts.
    """
    for key in wire.PATH_KEYS:
        value: Any = location.get(key) or []
        if not isinstance(value, str | list) or any(not isinstance(word, str) for word in value):
            raise DataError(f"'{key}' must be a text or a list of texts")
        if found := wire.paths_in(value):
            return found
    return []


def paths_of(location: Mapping[str, Any]) -> list[str]:
    """Return the paths of a location for servers, without a leading slash. Every `..` is resolved here: on a server, a
    folder that is a link leads elsewhere than its name says. Raises DataError, also for a path that leads out of the
    place that its connection names."""
    return [path for path in (resolved(word.lstrip("/")) for word in named(location)) if path]


def resolved(path: str) -> str:
    """Return the path with every `..` resolved. Raises DataError when the path leads out of its base."""
    if ".." not in path.split("/"):
        return path
    found = posixpath.normpath(path)
    if found == ".." or found.startswith("../"):
        raise outside(path)
    return "" if found == "." else found + ("/" if path.endswith("/") else "")


def plain_path(path: str) -> str:
    """Return the path without parts that mean nothing to a disk: names that are a dot, and superfluous slashes."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    return "/".join(names) + ("/" if names and path.endswith("/") else "")


def outside(path: str) -> DataError:
    """Return the error for a path that leads out of its base."""
    return DataError(f"the data path '{path}' is outside the data of its connection")


def path_below(asked: str, several: bool, key: str) -> str:
    """Return the relative path for the file `key`, which was found at or below the path `asked`.

    Files below the only requested folder go to the top. The only requested file goes there under its own name. With
    several requested paths each file keeps its path.
    """
    if several:
        return key
    if key == asked:
        return key.rpartition("/")[2]
    return key[len(asked):].lstrip("/") if asked else key


@dataclass(frozen=True)
class FileSelection:
    """The table or query that a location names. Exactly one of `query` and `table` is set."""

    table: str = ""
    schema: str = ""
    catalog: str = ""
    query: str = ""

    @property
    def title(self) -> str:
        """Name for messages."""
        return "the query" if self.query else ".".join(filter(None, (self.catalog, self.schema, self.table)))


def selection_of(location: Mapping[str, Any], table: str = "table_name") -> FileSelection:
    """Return the table or query that a location names; `table` is the location key of the table name. Raises DataError
    when the location names neither or both, and for an invalid name."""
    names = {key: _name(location, key) for key in (table, wire.SCHEMA_NAME, wire.CATALOG_NAME)}
    query = location.get(wire.QUERY, "")
    if bool(names[table]) == bool(query):
        raise DataError(f"the location needs either '{table}' or 'query'" + (", not both" if query else ""))
    return FileSelection(names[table], names[wire.SCHEMA_NAME], names[wire.CATALOG_NAME], query)


def database_of(location: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return the database that a location names under one of `keys`; empty if it names none. Raises DataError for an
    invalid name and for two different names."""
    names = {key: _name(location, key) for key in keys if location.get(key)}
    for key, name in names.items():
        if _MORE_THAN_A_NAME & set(name) or name in (".", ".."):
            raise DataError(f"'{key}' is not a valid name of a database")
    if len(set(names.values())) > 1:
        one, other = list(names)[:2]
        raise DataError(f"the location names two databases, in '{one}' and in '{other}'")
    return next(iter(names.values()), "")


def other_case(name: str, names: Iterable[str]) -> str | None:
    """Return the only one of `names` that differs from `name` in case alone; None if none does. Raises DataError when
    several do."""
    found = sorted({one for one in names if one.casefold() == name.casefold()})
    if len(found) > 1:
        raise DataError(f"there is no '{name}', but {len(found)} names differ from it only in case: "
                        + ", ".join(f"'{one}'" for one in found) + "; write one of them")
    return found[0] if found else None


def check_query(query: Any, more: frozenset[str] = frozenset(), signs: frozenset[str] = frozenset()) -> str:
    """Return the query without a semicolon at its end. Raises DataError unless the query is one statement that reads.

    `more` are words and `signs` are characters that this kind of server must not get either. This check looks at words
    alone. Where the server supports it, its family also tells it to allow no writes.
    """
    if not isinstance(query, str):
        raise DataError("'query' must be a text for this kind of server, such as SELECT …; JSON objects are for "
                        "document databases")
    if len(query) > wire.LONGEST:
        raise DataError(f"'query' has {len(query):,} characters; the limit is {wire.LONGEST:,}")
    text = query.strip().removesuffix(";").rstrip()
    if not text:
        raise DataError("'query' is empty; write SELECT …")
    for way in _WAYS:
        words = _words(way, text, signs)
        first = next(words, "")
        if first not in _READING:
            raise DataError(f"the query must only read, but it begins with '{first[:40]}'; write SELECT …")
        for word in words:
            if word in _CHANGING or word in more:
                raise DataError(f"the query has the word '{word}', which can change data; quote it if it is a name")
    return text


def _words(way: re.Pattern[str], query: str, signs: frozenset[str]) -> Iterator[str]:
    """Yield the words outside quotes, in lower case. Raises DataError for an open quote and for a forbidden sign."""
    for found in way.finditer(query):
        sign = found["sign"]
        if found["word"]:
            yield found["word"].lower()
        elif sign in ("'", '"', "`"):
            raise DataError("the query has an unclosed quote, or a quote that some servers read as unclosed: "
                            "write '' for a quote in a text, and no backslash before a quote")
        elif sign in _SIGNS or sign in signs:
            raise DataError(f"the query has '{sign}' outside of quotes: {_SIGNS.get(sign or '', 'a comment')}")


def _name(location: Mapping[str, Any], key: str) -> str:
    """Return a name from the location; empty if missing. The server's dialect must quote it. Raises DataError if it is
    no name."""
    name = location.get(key, "")
    if not isinstance(name, str) or len(name) > _LONGEST_NAME or any(ord(character) < 32 for character in name):
        raise DataError(f"'{key}' is not a valid name: at most {_LONGEST_NAME} characters, no control characters")
    return name
