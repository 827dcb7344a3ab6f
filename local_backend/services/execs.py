"""Execs: find, list, stop, delete, and resize them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from sqlalchemy import Connection

from dlicmd.contract import states
from local_backend.curves.answers import CurveAnswers
from local_backend.errors import Conflict, Invalid, NotFound, StorageFailed, Unavailable
from local_backend.run_values import ValueName
from local_backend.runtime.paths import ExecPaths
from local_backend.runtime.resizing import Resized, ResizeError
from local_backend.runtime.written import WrittenFiles
from local_backend.services import run_query
from local_backend.services.access import Caller
from local_backend.services.base import Base, SupervisorCalls
from local_backend.services.kept_lists import KeptLists
from local_backend.services.views import ExecView, Sight
from local_backend.store import events, execs, run_lists, searches
from local_backend.store.events import Event
from local_backend.store.execs import ExecRow
from local_backend.store.run_lists import ListedExecs, TermField
from local_backend.store.states import meant, shown_as
from local_backend.workload import TRAINING, Kind


@dataclass(frozen=True)
class ExecSelection:
    """The execs that a list contains, and their order. `states` and `most` are None for all."""

    states: Collection[str] | None = None
    #: A column, or the name of a value. Without its kind, the metric of this name counts if a listed exec has it, and
    #: otherwise the parameter.
    sort: str | ValueName = "number"
    descending: bool = False
    most: int | None = None
    #: The execs of all users, if the caller is an administrator; otherwise only the caller's.
    everyone: bool = False
    #: Name of a search whose experiments alone are listed.
    search: str | None = None
    #: The kind of the listed execs.
    kind: Kind = TRAINING
    #: Words that find execs, see run_query.py.
    find: str = ""
    #: Number of execs to leave out at the begin.
    offset: int = 0


@dataclass(frozen=True)
class Pending:
    """A pending exec, and the running execs that hold slots of the kind that it needs."""

    view: ExecView
    rivals: list[ExecRow]


@dataclass(frozen=True)
class ExecService:
    """Operations on execs."""

    base: Base
    supervisor: SupervisorCalls
    sight: Sight
    kept: KeptLists
    curve_answers: CurveAnswers = field(default_factory=CurveAnswers)

    def find(self, caller: Caller, exec_id: str) -> ExecRow:
        """Return an exec. Raises NotFound (`exec.not_found`), also for an exec of another user."""
        return self.base.database.read(lambda c: _seen(c, caller, exec_id))

    def find_each(self, caller: Caller, ids: Sequence[str]) -> list[ExecRow]:
        """Return these execs in their order. Raises NotFound (`exec.not_found`), also for execs of another user."""
        known = self.base.database.read(lambda c: execs.with_ids(c, [one for one in ids if execs.is_exec_id(one)]))
        found = [known.get(one) for one in ids]
        for one, row in zip(ids, found, strict=True):
            if row is None or row.deleted or not caller.sees(row):
                raise _missing(one)
        return [row for row in found if row is not None]

    def news(self, caller: Caller, exec_id: str, last: int) -> tuple[ExecRow, list[Event]]:
        """Return an exec and its events after the event `last`. Raises NotFound (`exec.not_found`)."""
        def work(connection: Connection) -> tuple[ExecRow, list[Event]]:
            return _seen(connection, caller, exec_id), events.since(connection, last, exec_id)

        return self.base.database.read(work)

    def listening(self, exec_id: str | None) -> AbstractContextManager[asyncio.Event]:
        """Return a context with an event that is set when an exec, or any exec, has new events. The reader clears it
        first."""
        return self.base.database.bus.listening(exec_id)

    @property
    def event_count(self) -> int:
        """A number that grows with every event of any exec: the reason why an exec waits may have changed."""
        return self.base.database.bus.count

    def paths(self, row: ExecRow) -> ExecPaths:
        """Return the files of an exec."""
        return self.sight.paths(row)

    def written(self, row: ExecRow) -> WrittenFiles:
        """Return the files that the program of an exec wrote."""
        return WrittenFiles(self.base.settings.paths, self.paths(row), row)

    def file(self, row: ExecRow, path: str) -> BinaryIO:
        """Open a file that the program of an exec wrote. Raises NotFound (`exec.no_file`)."""
        found = self.written(row).opened(path)
        if found is None:
            raise NotFound("exec.no_file", f"The program of {row.id} has written no file {path[:200]!r} that the "
                           "server can read")
        return found

    def curves(self, row: ExecRow, metrics: Collection[str], since: str) -> bytes:
        """Return the curves of an exec as a JSON object (`curves/answers.py`): those named in `metrics`, or all; with a
        cursor in `since`, only their later points. Raises StorageFailed."""
        return self._curves(row, self.paths(row).curves, metrics, since)

    def resources(self, row: ExecRow, metrics: Collection[str], since: str) -> bytes:
        """Return the CPU cores and the memory that the processes of an exec used over time, as `curves` does."""
        return self._curves(row, self.paths(row).resources, metrics, since)

    def _curves(self, row: ExecRow, file: Path, metrics: Collection[str], since: str) -> bytes:
        try:
            return self.curve_answers.of(self.paths(row).opened(file), since, metrics)
        except OSError as problem:
            raise StorageFailed("exec.result_failed", f"The server cannot read the curves of {row.id} "
                                f"({problem.strerror})") from None

    def view(self, row: ExecRow) -> ExecView:
        """Return the view of an exec."""
        return ExecView(row, self.sight)

    def views(self, rows: Iterable[ExecRow]) -> list[ExecView]:
        """Return the views of these execs."""
        return [ExecView(row, self.sight) for row in rows]

    def list(self, caller: Caller, wanted: ExecSelection) -> tuple[list[ExecRow], int]:
        """Return the caller's execs, or those of all users that the caller sees, oldest first unless `wanted` says
        otherwise; and their number without the limit. Raises Invalid (`query.find`, `query.sort`)."""
        listed = self._listed(caller, wanted)
        if listed.most is None and not listed.offset:
            return self.base.database.read(lambda c: run_lists.listed(c, listed))

        def work(connection: Connection) -> tuple[list[ExecRow], int]:
            page, total = self.kept.get(listed, lambda: run_lists.numbers(connection, listed))
            return run_lists.with_numbers(connection, page), total

        return self.base.database.read(work)

    def state_counts(self, caller: Caller, wanted: ExecSelection) -> dict[str, int]:
        """Return the number of the listed execs in each state as clients see it, without the limit. Raises Invalid
        (`query.find`)."""
        listed = self._whole(caller, wanted)
        key = ("counts", listed)
        counts = self.base.database.read(lambda c: self.kept.get(key, lambda: run_lists.counts(c, listed)))
        shown: dict[str, int] = {}
        for state, count in counts.items():
            shown[shown_as(state)] = shown.get(shown_as(state), 0) + count
        return shown

    def value_names(self, caller: Caller, wanted: ExecSelection, newest: int) -> dict[ValueName, int]:
        """Return the names of the stored values of the newest execs that are listed without the limit, with the number
        of execs that have each; the most frequent first. Raises Invalid (`query.find`)."""
        listed = self._whole(caller, wanted)
        key = ("names", listed, newest)
        return self.base.database.read(
            lambda c: self.kept.get(key, lambda: run_lists.value_names(c, listed, newest)))

    def value_spellings(self, caller: Caller, wanted: ExecSelection, name: str) -> Sequence[ValueName]:
        """Return the names of stored values of the listed execs that differ from a name only in the case of letters;
        metrics first. Raises Invalid (`query.find`)."""
        listed = self._whole(caller, wanted)
        return self.base.database.read(lambda c: run_lists.value_spellings(c, listed, name))

    def unknown_value(self, caller: Caller, wanted: ExecSelection) -> ValueName | None:
        """Return the first name that the search compares and that none of the caller's execs has."""
        everything = ExecSelection(everyone=wanted.everyone, search=wanted.search, kind=wanted.kind)
        for term in run_query.parsed(wanted.find):
            is_stored = term.field is TermField.AMOUNT or (term.field is TermField.VALUE and term.kind)
            if is_stored and not term.negated:
                known = self.value_spellings(caller, everything, term.name)
                if not any(term.kind in ("", one.kind) for one in known):
                    return ValueName(term.kind, term.name)
        return None

    def _whole(self, caller: Caller, wanted: ExecSelection) -> ListedExecs:
        """Return the execs of a list without its limit and order."""
        plain = replace(wanted, most=None, offset=0, sort=run_lists.NUMBER, descending=False)
        return self._listed(caller, plain)

    def _listed(self, caller: Caller, wanted: ExecSelection) -> ListedExecs:
        creator = caller.sees_of if wanted.everyone else caller.name
        parents = None
        if wanted.search is not None:
            name = wanted.search
            parents = frozenset(self.base.database.read(lambda c: searches.parents_named(c, name, creator)))
        states = None if wanted.states is None else frozenset(wanted.states)
        listed = ListedExecs(creator, states, run_query.parsed(wanted.find), parents, wanted.kind, caller.name,
                             wanted.sort, wanted.descending, wanted.most, wanted.offset)
        if isinstance(wanted.sort, ValueName) and not wanted.sort.kind:
            return replace(listed, sort=self._with_kind(listed, wanted.sort.name))
        return listed

    def _with_kind(self, listed: ListedExecs, name: str) -> ValueName:
        """Return the name of a value with its kind. Raises Invalid (`query.sort`) if no listed exec has it."""
        known = self.base.database.read(lambda c: run_lists.value_spellings(c, listed, name))
        found = next((one for one in known if one.name == name), next(iter(known), None))
        if found is None:
            raise Invalid("query.sort", f"sort_by: {name[:80]!r} is not a field, and no listed exec has a metric or a "
                          "parameter of this name")
        return found

    def pending(self, caller: Caller, exec_id: str) -> Pending:
        """Return an exec with its rivals. Raises NotFound (`exec.not_found`)."""
        view = self.view(self.find(caller, exec_id))
        # Pending execs are left out: there may be thousands, and they hold no slots.
        others = [row for row in self.base.database.read(execs.running) if caller.sees(row)]
        return Pending(view, [row for row in others if self.sight.kind(row) == view.kind])

    def stop(self, caller: Caller, exec_id: str) -> ExecRow:
        """Request that an exec stops. Raises NotFound (`exec.not_found`), Conflict (`exec.ended`)."""
        with self.base.recorded(caller, "exec.stop", exec_id):
            row = self.find(caller, exec_id)
            self.request_stop(row)
        return row

    def request_stop(self, row: ExecRow) -> None:
        """Record the request to stop an exec, and wake the supervisor. Raises Conflict (`exec.ended`)."""
        if row.terminal:
            raise Conflict("exec.ended", f"Exec {row.id} is already {row.state}")
        self.base.database.write(lambda c: execs.note(c, row.id, stop_requested=True))
        self.base.wake()

    def delete(self, caller: Caller, exec_id: str) -> None:
        """Delete an exec and its files. A running exec is stopped first. The exec disappears from all lists at once.
        Raises NotFound (`exec.not_found`)."""
        with self.base.recorded(caller, "exec.delete", exec_id):
            row = self.find(caller, exec_id)
            self.base.database.write(lambda c: execs.note(c, row.id, stop_requested=True, deleted=True))
        self.base.wake()

    def delete_many(self, caller: Caller, ids: Sequence[str]) -> Sequence[str]:
        """Delete those of these execs that exist, and their files, in one transaction. Return their ids."""

        def work(connection: Connection) -> Sequence[str]:
            known = execs.with_ids(connection, [name for name in ids if execs.is_exec_id(name)])
            found = [name for name, row in known.items() if caller.sees(row) and not row.deleted]
            for name in found:
                execs.note(connection, name, stop_requested=True, deleted=True)
            return found

        with self.base.recorded(caller, "exec.delete") as record:
            record.about += (done := self.base.database.write(work))
        self.base.wake()
        return done

    def delete_all(self, caller: Caller) -> None:
        """Delete all execs of the caller, not those of other users that an administrator sees."""

        def work(connection: Connection) -> list[str]:
            names = [row.id for row in execs.of_user(connection, caller.name)]
            for name in names:
                execs.note(connection, name, stop_requested=True, deleted=True)
            return names

        with self.base.recorded(caller, "exec.delete") as record:
            record.about += self.base.database.write(work)
        self.base.wake()

    def resize(self, caller: Caller, exec_id: str, count: object) -> Resized:
        """Fix the number of slots of a running elastic exec; None returns the decision to the scheduler.

        Raises NotFound (`exec.not_found`), Denied, Invalid (`exec.slots`), Conflict (`exec.not_resizable`),
        Unavailable (`exec.resize_timeout`).
        """
        with self.base.recorded(caller, "exec.resize", exec_id):
            row = self.find(caller, exec_id)
            caller.check_admin("fix the slots of an exec")
            if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 0):
                raise Invalid(
                    "exec.slots", 'The body must be {"slots": N} with a whole number N >= 0, or null'
                )
            try:
                return self.supervisor.resize(row.id, count)
            except ResizeError as problem:
                raise Conflict("exec.not_resizable", str(problem)) from None
            except (CancelledError, FutureTimeoutError):
                raise Unavailable(
                    "exec.resize_timeout",
                    f"The server did not process the request in time; the slots of {row.id} are unchanged",
                ) from None


def _seen(connection: Connection, caller: Caller, exec_id: str) -> ExecRow:
    row = execs.get(connection, exec_id) if execs.is_exec_id(exec_id) else None
    if row is None or not caller.sees(row):
        raise _missing(exec_id)
    return row


def _missing(exec_id: str) -> NotFound:
    return NotFound("exec.not_found", f"Exec {exec_id[:80]!r} is not found")


def states_named(text: str | None) -> frozenset[str] | None:
    """Return the stored states that clients see under the names of a comma-separated list, None for all. Raises Invalid
    (`query.state`)."""
    if text is None or not text.strip():
        return None
    try:
        return meant(states.selected(text))
    except ValueError as problem:
        raise Invalid("query.state", f"state: {problem}") from None
