"""Which rows a location names: a table, or a query that must do nothing but read."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlicmd.contract import data_sources as wire
from local_backend.data.errors import DataError

_LONGEST_NAME = 255
#: What no database has in its name, and what some drivers would take for more than a name: they write it into the text
#: that says where to connect to, and with whose password.
_MORE_THAN_A_NAME = frozenset(";=/\\?'\"`{}")

#: What no query that reads has outside of quotes: a second statement, a comment that the server may read as none.
_SIGNS = {";": "a second statement", "--": "a comment", "/*": "a comment", "\0": "a control character"}
#: Words that change something, whatever the SQL.
_CHANGING = frozenset({
    "insert", "update", "delete", "merge", "upsert", "drop", "alter", "create", "truncate", "rename", "grant", "revoke",
    "into", "outfile", "dumpfile", "load_file", "exec", "execute", "call", "handler", "lock", "unlock", "vacuum",
    "analyze", "pragma", "attach", "detach",
})
_READING = frozenset({"select", "with", "values", "table"})

_PLAIN = r"""'(?:[^']|'')*' | "(?:[^"]|"")*" """
#: As servers do that know no backslash in a text, and as those do that know it.
_TEXTS = (_PLAIN, r"""'(?:[^'\\]|''|\\.)*' | "(?:[^"\\]|""|\\.)*" """)
_BRACKETS = ("", r"\[ (?:[^\]]|\]\])* \] |")
_DOLLARS = ("", r"\$(?P<tag>(?:[A-Za-z_]\w*)?)\$ .*? \$(?P=tag)\$ |")
_BACKTICKS = "`(?:[^`]|``)*` |"
#: Every way in which a server may divide a query: one that hides a word from us in one way shows it in another.
_WAYS = tuple(
    re.compile(rf"(?P<quoted>{dollar} {_BACKTICKS} {bracket} {text}) | (?P<word>\w+) | (?P<sign>--|/\*|[^\s\w])",
               re.VERBOSE | re.DOTALL)
    for text, bracket, dollar in itertools.product(_TEXTS, _BRACKETS, _DOLLARS)
)


@dataclass(frozen=True)
class Wanted:
    """Either `query` or `table` is there."""

    table: str = ""
    schema: str = ""
    catalog: str = ""
    query: str = ""

    @property
    def title(self) -> str:
        """What people call it."""
        return "the query" if self.query else ".".join(filter(None, (self.catalog, self.schema, self.table)))


def wanted(location: Mapping[str, Any], table: str = "table_name") -> Wanted:
    """What a location names; `table` is the key under which tables are called something else. Raises DataError."""
    names = {key: _name(location, key) for key in (table, wire.SCHEMA_NAME, wire.CATALOG_NAME)}
    query = location.get(wire.QUERY, "")
    if bool(names[table]) == bool(query):
        raise DataError(f"the location needs either '{table}' or 'query'" + (", not both" if query else ""))
    return Wanted(names[table], names[wire.SCHEMA_NAME], names[wire.CATALOG_NAME], query)


def database(location: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The database that a location names under one of these keys; empty when it names none. Raises DataError, also for
    two different ones."""
    names = {key: _name(location, key) for key in keys if location.get(key)}
    for key, name in names.items():
        if _MORE_THAN_A_NAME & set(name) or name in (".", ".."):
            raise DataError(f"'{key}' is not the name of a database")
    if len(set(names.values())) > 1:
        one, other = list(names)[:2]
        raise DataError(f"the location names two databases, in '{one}' and in '{other}'")
    return next(iter(names.values()), "")


def other_case(name: str, names: Iterable[str]) -> str | None:
    """The only one of these names that differs from `name` in case alone; None when there is none. Raises DataError
    when there are several."""
    found = sorted({one for one in names if one.casefold() == name.casefold()})
    if len(found) > 1:
        raise DataError(f"there is no '{name}', and {len(found)} whose names differ from it in case alone: "
                        + ", ".join(f"'{one}'" for one in found) + "; write the one that is meant")
    return found[0] if found else None


def check_query(query: Any, more: frozenset[str] = frozenset(), signs: frozenset[str] = frozenset()) -> str:
    """The query, without a semicolon at its end. Raises DataError unless it is one statement that reads.

    `more` are words, and `signs` characters, that this kind of server must not be given either. This looks at words
    alone: a server that can is told as well that nothing may be written.
    """
    if not isinstance(query, str):
        raise DataError("'query' is no text, and this kind of server takes nothing else: SELECT …; JSON objects are "
                        "for those that have documents")
    if len(query) > wire.LONGEST:
        raise DataError(f"'query' has {len(query):,} characters, and may have {wire.LONGEST:,}")
    query = query.strip().removesuffix(";").rstrip()
    if not query:
        raise DataError("'query' has nothing in it; write SELECT …")
    for way in _WAYS:
        words = _words(way, query, signs)
        first = next(words, "")
        if first not in _READING:
            raise DataError(f"the query does not read: it begins with '{first[:40]}'; write SELECT …")
        for word in words:
            if word in _CHANGING or word in more:
                raise DataError(f"the query has the word '{word}', which changes things; quote it if it is a name")
    return query


def _words(way: re.Pattern[str], query: str, signs: frozenset[str]) -> Iterator[str]:
    """The words outside of quotes, in small letters. Raises DataError."""
    for found in way.finditer(query):
        sign = found["sign"]
        if found["word"]:
            yield found["word"].lower()
        elif sign in ("'", '"', "`"):
            raise DataError("the query has a quote that is not closed, or that some servers would not see closed: "
                            "write '' for a quote in a text, and no backslash before a quote")
        elif sign in _SIGNS or sign in signs:
            raise DataError(f"the query has '{sign}' outside of quotes: {_SIGNS.get(sign or '', 'a comment')}")


def _name(location: Mapping[str, Any], key: str) -> str:
    """A name of the location; empty when there is none. Quoting it is up to the server's dialect."""
    name = location.get(key, "")
    if not isinstance(name, str) or len(name) > _LONGEST_NAME or any(ord(character) < 32 for character in name):
        raise DataError(f"'{key}' is not a name of at most {_LONGEST_NAME} characters")
    return name
