"""Execs that need the supervisor, cached between its passes: thousands may be pending, and few change."""

from __future__ import annotations

from dataclasses import fields

from sqlalchemy import Connection

from local_backend.store import execs
from local_backend.store.execs import ExecRow
from local_backend.store.schema import execs as table

#: Columns that never change once an exec exists, and that take most of the space: the submission.
_FIXED = frozenset({
    "id", "creator", "framework", "app_name", "args", "spec", "kind", "parent", "bundle", "data_source", "elastic",
    "num_worker", "work_dir", "create_time",
})
_MARK = [table.c[field.name] for field in fields(ExecRow) if field.name not in _FIXED]
_TOGETHER = 500


class Unfinished:
    """A cache of unfinished execs, for use by one thread."""

    def __init__(self) -> None:
        #: Number of an exec → its columns that may change, and the whole row.
        self._kept: dict[int, tuple[tuple[object, ...], ExecRow]] = {}

    def read(self, connection: Connection) -> list[ExecRow]:
        """Return the rows of `execs.unfinished`. Only rows that have changed since the last call are read whole."""
        marks = {mark[0]: tuple(mark) for mark in connection.execute(execs.of_unfinished(_MARK))}
        kept = self._kept
        stale = [number for number, mark in marks.items() if number not in kept or kept[number][0] != mark]
        found = {
            row.number: (marks[row.number], row)
            for at in range(0, len(stale), _TOGETHER)
            for row in execs.numbered(connection, stale[at : at + _TOGETHER])
        }
        # Each of the two queries sees what is committed by then. An exec that is removed between them is left out.
        self._kept = {
            number: found.get(number) or kept[number] for number in marks if number in found or number in kept
        }
        return [row for _, row in self._kept.values()]
