"""Execs that need the supervisor, kept between its looks: there may be thousands that wait, and few change."""

from __future__ import annotations

from dataclasses import fields

from sqlalchemy import Connection

from local_backend.store import execs
from local_backend.store.execs import ExecRow
from local_backend.store.schema import execs as table

#: What never changes once an exec is there, and takes most of the room: the submission.
_FIXED = frozenset({
    "id", "creator", "framework", "app_name", "args", "spec", "data_source", "elastic", "num_worker", "work_dir",
    "create_time",
})
_MARK = [table.c[field.name] for field in fields(ExecRow) if field.name not in _FIXED]
_TOGETHER = 500


class Unfinished:
    """Used by one thread."""

    def __init__(self) -> None:
        #: By number: what may change, and the whole row.
        self._kept: dict[int, tuple[tuple[object, ...], ExecRow]] = {}

    def read(self, connection: Connection) -> list[ExecRow]:
        """The rows of `execs.unfinished`; only those are read whole that have changed since the last time."""
        marks = {mark[0]: tuple(mark) for mark in connection.execute(execs.of_unfinished(_MARK))}
        kept = self._kept
        stale = [number for number, mark in marks.items() if number not in kept or kept[number][0] != mark]
        found = {
            row.number: (marks[row.number], row)
            for at in range(0, len(stale), _TOGETHER)
            for row in execs.numbered(connection, stale[at : at + _TOGETHER])
        }
        # One that is gone between the two looks, where each sees what is committed by then, is left out.
        self._kept = {
            number: found.get(number) or kept[number] for number in marks if number in found or number in kept
        }
        return [row for _, row in self._kept.values()]
