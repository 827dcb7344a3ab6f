"""The loop that drives searches: it asks their algorithms, submits experiments as execs, and watches these.

A turn changes rows in memory, and stores them in one transaction before anything outside of the server follows from
them: the order in which results become known before a process is asked, experiments together with their first exec. An
exec and its experiment are bound in one transaction. So a server that is killed at any moment goes on where it was: no
experiment runs twice, none is forgotten.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from local_backend.errors import BackendError, Busy, OverQuota, StorageFailed, Unavailable
from local_backend.hypersearch import deciding, experiments
from local_backend.hypersearch.definition import Definition, Known
from local_backend.hypersearch.objective import Found, NoObjective
from local_backend.hypersearch.strategy import next_step
from local_backend.runtime.bundles import BundleLost
from local_backend.runtime.loop import Backoff, Loop
from local_backend.store import execs, searches
from local_backend.store.database import Database
from local_backend.store.execs import ExecRow
from local_backend.store.searches import Changed, ExperimentRow, SearchRow

_log = logging.getLogger(__name__)
#: Questions to algorithms that one user may have at the same time, and seconds for the submissions of one search until
#: it is the turn of the others.
_QUESTIONS, _SUBMITTING = 2, 1.0
#: Questions without an answer in a row, after which a plugin is asked no more.
_DEATHS = 5
#: Seconds until files are tried again that cannot be read.
_UNREADABLE = 5.0
#: Ends after which the value of a resting experiment is its result. After others, a restart may let it go on.
_WITH_RESULTS = frozenset({searches.DONE, searches.TIME})
#: States of experiments whose execs keep no slots.
_NO_LONGER = frozenset({searches.WAITING, searches.FAILED})


class Suggested(NamedTuple):
    """What an algorithm answered: the parameters of experiments, fewer than asked for at the end of its space; and the
    new state of a plugin."""

    suggestions: Sequence[Mapping[str, Any]]
    state: bytes | None = None


class Outside(Protocol):
    """What the loop needs of the rest of the server."""

    def submit(
        self, search: SearchRow, row: ExperimentRow, definition: Definition, bind: Callable[[Connection, str], None]
    ) -> ExecRow:
        """Submit an experiment. Raises BackendError, BundleLost, and the errors of `bind`."""

    def ask(
        self, search: SearchRow, definition: Definition, known: Sequence[Known], count: int
    ) -> Future[Suggested]:
        """Ask the algorithm for suggestions, in another process. The future fails with AlgorithmFailed when the
        algorithm cannot go on; after any other error, the same question may succeed. To cancel the future kills the
        process."""

    def found(self, definition: Definition, exec_row: ExecRow, *, ended: bool) -> Found:
        """Return the values that the program of an exec has delivered. Raises NoObjective, OSError."""

    def wake(self) -> None:
        """Let the supervisor look at the execs now."""


class AlgorithmFailed(Exception):
    """The algorithm of a search cannot go on. The text is a sentence for the user."""


@dataclass
class _Live:
    """A search that is not over, with the rows of its experiments. The loop alone changes these rows, until the search
    is over."""

    row: SearchRow
    definition: Definition
    rows: dict[int, ExperimentRow]
    #: The rows as the database has them.
    stored: dict[int, ExperimentRow]
    question: Future[Suggested] | None = None
    asked: int = 0
    #: Questions in a row that got no answer.
    unanswered: int = 0
    #: The algorithm has no more suggestions.
    exhausted: bool = False
    retry: Backoff = field(default_factory=Backoff)
    #: No question and no submission before this moment (monotonic).
    not_before: float = 0.0
    _known: dict[int, tuple[ExperimentRow, Known]] = field(default_factory=dict)

    def known(self) -> list[Known]:
        """Return the experiments as the algorithms see them. Most rows have not changed since the last time."""
        for number, row in self.rows.items():
            before = self._known.get(number)
            if before is None or before[0] is not row:
                self._known[number] = row, experiments.known(row, self.definition)
        return [self._known[number][1] for number in self.rows]

    def let_go(self) -> None:
        """Ask the algorithm no longer: its process ends, and the user may ask another question."""
        if self.question is not None:
            self.question.cancel()
            self.question = None

    def open(self) -> list[ExperimentRow]:
        return [row for row in self.rows.values() if row.open]

    def tell(self) -> None:
        """Note which results the algorithm knows from now on, and their order."""
        last = max((row.told for row in self.rows.values() if row.told is not None), default=-1)
        told = deciding.told(self.definition, self.rows.values(), self.row.ending)
        for position, number in enumerate(told, last + 1):
            self.rows[number] = replace(self.rows[number], told=position)

    def created(self) -> list[ExperimentRow]:
        """Return the experiments that are not stored yet."""
        return [row for number, row in self.rows.items() if number not in self.stored]

    def changed(self) -> list[tuple[ExperimentRow, ExperimentRow]]:
        """Return the experiments that have changed: their stored rows, and their present ones."""
        return [(before, row) for number, before in self.stored.items() if (row := self.rows[number]) is not before]

    def limit(self, row: ExperimentRow) -> int | None:
        """Return the epoch after which an experiment rests; None if it trains to its end."""
        if not self.definition.resume or row.resource == self.definition.most_resource:
            return None
        return row.resource


class SearchController:
    """Drives the searches. Call `start` first and `close` last."""

    def __init__(self, database: Database, outside: Outside) -> None:
        self._database, self._outside = database, outside
        self._live: dict[int, _Live] = {}
        self.loop = Loop("searches", self._turn)

    def start(self) -> None:
        """Start the thread. Searches of an earlier server go on."""
        self._database.bus.subscribe(self._news)
        self.loop.start()

    def close(self) -> None:
        """End the thread after its current operation, and let go of all questions."""
        self._database.bus.unsubscribe(self._news)
        self.loop.stop()
        for live in self._live.values():
            live.let_go()

    def wake(self) -> None:
        """Look at the searches now."""
        self.loop.wake()

    def _news(self) -> None:
        if self._live:
            self.loop.wake()

    def _turn(self, _ready: Set[int]) -> float | None:
        rows = self._database.read(searches.active)
        before, self._live = self._live, {row.number: self._known(row) for row in rows}
        for live in before.values():
            if self._live.get(live.row.number) is not live:  # it is over, or goes on in another attempt
                live.let_go()
        due: list[float] = []
        for live in list(self._live.values()):
            try:
                due += [at for at in (self._advance(live),) if at is not None]
            except Changed:  # a call has ended it meanwhile
                self._forget(live)
                self.loop.wake()
            except SQLAlchemyError:
                self._forget(live)
                raise
            except OSError as problem:  # files of this search; the others go on
                self._forget(live)
                _log.warning("the search %s waits: %s", live.row.name, problem)
                due.append(time.monotonic() + _UNREADABLE)
            except Exception as problem:
                _log.exception("the search %s failed", live.row.name)
                self._give_up(live, f"the server failed while it ran this search ({type(problem).__name__}); its log "
                                    "says why")
        return min(due, default=None)

    def _forget(self, live: _Live) -> None:
        live.let_go()
        self._live.pop(live.row.number, None)

    def _known(self, row: SearchRow) -> _Live:
        live = self._live.get(row.number)
        if live is None or live.row.attempt != row.attempt:
            rows, exhausted = self._database.read(
                lambda c: (searches.experiments_of(c, row.number), searches.exhausted(c, row.number)))
            known = {one.id: one for one in rows}
            live = _Live(row, Definition.from_json(row.definition), known, dict(known), exhausted=exhausted)
        live.row = row
        return live

    def _advance(self, live: _Live) -> float | None:
        """Do everything that is due for a search. Return when it is due next (monotonic). Raises Changed."""
        self._observe(live)
        live.tell()
        search, definition = live.row, live.definition
        if search.ending is None:
            why = deciding.ending(search, definition, live.rows.values(), time.time())
            if why is not None:
                self._end(live, why)
        if live.row.ending is not None:
            live.let_go()
            self._save(live)
            self._finish(live)
            return None
        if time.monotonic() >= live.not_before:
            self._go_on(live)
            if live.row.number not in self._live:
                return None
        self._save(live)
        left = deciding.due(search, definition, time.time())
        return min((at for at in (
            None if left is None else time.monotonic() + left,
            live.not_before if live.not_before > time.monotonic() else None,
        ) if at is not None), default=None)

    # --- what has happened

    def _observe(self, live: _Live) -> None:
        """Note what the execs of the experiments show."""
        watched = [row for row in live.rows.values()
                   if row.exec_id and (row.open or row.state == searches.WAITING)]
        found = self._database.read(lambda c: execs.with_ids(c, [str(row.exec_id) for row in watched]))
        for row in watched:
            exec_row = found.get(str(row.exec_id))
            new = deciding.seen(row, exec_row, live.row.ending)
            if new is not None:
                live.rows[row.id] = self._changed(live.definition, row, exec_row, new)

    def _changed(
        self, definition: Definition, row: ExperimentRow, exec_row: ExecRow | None, new: deciding.Seen
    ) -> ExperimentRow:
        """Return the row of an experiment in its new state, with the values that its program has delivered."""
        ended = (exec_row.end_time if exec_row else None) or time.time()
        begun = (exec_row.start_time if exec_row else None) or row.start_time
        if new.state in (searches.SUBMITTED, searches.RUNNING):
            return replace(row, state=new.state, start_time=begun)
        row = replace(row, state=new.state, message=new.message, start_time=begun, end_time=ended)
        if new.state not in (searches.FINISHED, searches.WAITING):
            return replace(row, metric=experiments.failed_value(definition), measured=None)
        assert exec_row is not None
        try:
            values = self._outside.found(definition, exec_row, ended=new.state == searches.FINISHED)
        except NoObjective as problem:
            return replace(row, state=searches.FAILED, message=str(problem),
                           metric=experiments.failed_value(definition))
        return replace(row, metric=values.values[definition.metric], measured=json.dumps(dict(values.values)),
                       metrics=json.dumps(values.metrics) if values.metrics else None)

    def _save(self, live: _Live, **columns: Any) -> None:
        """Store everything of a search that has changed, and these columns of it, in one transaction. Raises
        Changed."""
        if columns or live.created() or live.changed():
            self._database.write(lambda c: _store(c, live, columns))
            self._saved(live, columns)

    def _saved(self, live: _Live, columns: Mapping[str, Any]) -> None:
        """Take note of what was stored."""
        changed = live.changed()
        state = searches.RUNNING if changed or live.created() else live.row.state
        noted = {name: value for name, value in columns.items() if name != "plugin_state"}
        live.row, live.stored = replace(live.row, state=state, **noted), dict(live.rows)
        if any(_is_promoted(before, row) or row.state in _NO_LONGER for before, row in changed):
            self._outside.wake()

    # --- the end

    def _end(self, live: _Live, why: str, message: str | None = None) -> None:
        """Let a search start no further experiment."""
        self._save(live, ending=why, message=message or live.row.message)

    def _break(self, live: _Live, message: str) -> None:
        with suppress(Changed):
            self._end(live, searches.BROKEN, message)
            self._finish(live)

    def _give_up(self, live: _Live, message: str) -> None:
        """End a search at once, whatever its experiments do."""
        with suppress(Changed):
            self._database.write(lambda c: searches.end(c, live.row, searches.FAILED, message))
        self._forget(live)
        self._outside.wake()

    def _finish(self, live: _Live) -> None:
        """Stop what runs, and end the search when nothing runs any more."""
        running = [row for row in live.open() if row.exec_id is not None]
        if running:
            ids = [str(row.exec_id) for row in running]
            found = self._database.read(lambda c: execs.with_ids(c, ids))
            asked = [row.id for row in found.values() if not row.stop_requested and not row.terminal]
            if asked:
                self._database.write(lambda c: execs.request_stops(c, asked, None))
                self._outside.wake()
            return
        rows, why = live.rows, str(live.row.ending)
        resting = [row for row in rows.values() if row.state == searches.WAITING] if why in _WITH_RESULTS else []
        rows = rows | {row.id: replace(row, state=searches.FINISHED) for row in resting}
        state, message = deciding.outcome(live.definition, list(rows.values()), why, live.row.message)

        def work(connection: Connection) -> None:
            if resting:
                execs.request_stops(connection, [str(row.exec_id) for row in resting], None)
                for row in resting:
                    searches.change(connection, row.search, row.id, state=searches.FINISHED)
            searches.end(connection, live.row, state, message)

        self._database.write(work)
        self._forget(live)
        self._outside.wake()

    # --- what follows

    def _go_on(self, live: _Live) -> None:
        """Ask the algorithm, and do what it wants."""
        try:
            self._answered(live)
            if not any(row.state == searches.NOTRUN for row in live.rows.values()):
                self._follow(live)
            until = time.monotonic() + _SUBMITTING
            for row in sorted(live.open(), key=lambda row: row.id):
                if row.state != searches.NOTRUN:
                    continue
                if time.monotonic() > until:
                    self.loop.wake()
                    break
                self._submit(live, row)
        except (OverQuota, StorageFailed, Busy, Unavailable) as problem:
            self._wait(live, problem)
        except AlgorithmFailed as problem:
            self._break(live, str(problem))
        except BundleLost:
            self._break(live, "the code of this search is no longer stored, or has changed; start a new search")

    def _wait(self, live: _Live, problem: Exception) -> None:
        """Try again later, and tell the user why nothing happens."""
        live.retry.failed(problem)
        live.not_before = time.monotonic() + live.retry.pause
        self._say(live, f"the next experiment waits: {problem}")

    def _say(self, live: _Live, message: str | None) -> None:
        if live.row.message != message:
            self._save(live, message=message)

    def _answered(self, live: _Live) -> None:
        """Store the experiments that the algorithm has suggested. Raises AlgorithmFailed."""
        if live.question is None or not live.question.done():
            return
        question, live.question = live.question, None
        try:
            answer = question.result()
        except AlgorithmFailed:
            raise
        except Exception as problem:  # its process was killed, or cannot be started now
            _log.warning("the algorithm of the search %s gave no answer: %s", live.row.name, problem)
            live.unanswered += 1
            if live.definition.plugin and live.unanswered >= _DEATHS:
                raise AlgorithmFailed(f"the algorithm {live.definition.algorithm} gave no answer {live.unanswered} "
                                      f"times in a row: {problem}") from None
            raise Unavailable("search.algorithm", f"the algorithm gave no answer ({problem})") from None
        live.unanswered = 0
        live.retry.succeeded()
        exhausted = len(answer.suggestions) < live.asked
        self._create(live, [ExperimentRow(live.row.number, -1, json.dumps(dict(one)), searches.NOTRUN)
                            for one in answer.suggestions])
        state = searches.EXHAUSTED if exhausted else answer.state
        self._save(live, **({} if state is None else {"plugin_state": state}))
        live.exhausted = exhausted

    def _follow(self, live: _Live) -> None:
        """Do what the algorithm wants now."""
        if live.question is not None:
            return
        known = live.known()
        step = next_step(live.definition, live.row.seed, known, live.exhausted)
        if step.start:
            self._create(live, [
                ExperimentRow(live.row.number, -1 if one.id is None else one.id, json.dumps(dict(one.parameters)),
                              searches.NOTRUN, resource=one.resource, bracket=one.bracket, rung=one.rung,
                              origin=one.origin) for one in step.start])
        self._promote(live, step.promote)
        if step.promote or step.ask:
            self._save(live)
        if step.ask and self._questions_of(live.row.creator) >= _QUESTIONS:
            return  # the answer to one of them wakes the loop
        if step.ask:
            live.asked = step.ask
            live.question = self._outside.ask(live.row, live.definition, known, step.ask)
            live.question.add_done_callback(lambda _done: self.loop.wake())
        elif not (step.start or step.promote or live.open()):
            self._end(live, searches.DONE)
            self._finish(live)

    def _questions_of(self, user: str) -> int:
        return sum(one.question is not None and one.row.creator == user for one in self._live.values())

    @staticmethod
    def _create(live: _Live, rows: Sequence[ExperimentRow]) -> None:
        """Add new experiments; one with the id -1 gets the next free id."""
        free = max(live.rows, default=-1) + 1
        for row in rows:
            made = replace(row, id=free) if row.id < 0 else row
            free = max(free, made.id + 1)
            live.rows[made.id] = made

    @staticmethod
    def _promote(live: _Live, wanted: Sequence[tuple[int, int, int]]) -> None:
        """Let resting experiments train on to their next rung, the last one to its end."""
        for number, rung, resource in wanted:
            row = live.rows[number]
            passed = [*(json.loads(row.rungs) if row.rungs else ()), row.metric]
            live.rows[number] = replace(row, state=searches.RUNNING, rung=rung, resource=resource, told=None,
                                        end_time=None, measured=None, rungs=json.dumps(passed))

    def _submit(self, live: _Live, row: ExperimentRow) -> None:
        """Submit an experiment. Raises Changed, OverQuota, StorageFailed, Busy, Unavailable and BundleLost."""
        rest = live.limit(row)

        def bind(connection: Connection, exec_id: str) -> None:
            _store(connection, live, {})
            searches.bind(connection, live.row, row.id, exec_id)
            if rest is not None:
                execs.promote(connection, exec_id, rest)

        try:
            made = self._outside.submit(live.row, row, live.definition, bind)
        except (OverQuota, StorageFailed, Busy, Unavailable):
            raise
        except BackendError as problem:
            live.rows[row.id] = replace(
                row, state=searches.FAILED, message=str(problem), metric=experiments.failed_value(live.definition),
                end_time=time.time())
            live.tell()
            self._save(live)
            self.loop.wake()  # no exec has ended that would wake it
            return
        self._saved(live, {})
        live.rows[row.id] = live.stored[row.id] = replace(
            row, state=searches.SUBMITTED, exec_id=made.id, start_time=made.create_time)
        live.retry.succeeded()
        if live.row.message is not None:
            self._say(live, None)


def _store(connection: Connection, live: _Live, columns: Mapping[str, Any]) -> None:
    """Store everything of a search that has changed, and these columns of it. Raises Changed."""
    created, changed = live.created(), live.changed()
    if created or changed:
        columns = {"state": searches.RUNNING, **columns}
    if columns:
        searches.note(connection, live.row, **columns)
    searches.add(connection, created)
    for before, row in changed:
        searches.change(connection, row.search, row.id, **{
            name: value for name, value in vars(row).items() if value != getattr(before, name)})
        if _is_promoted(before, row):
            execs.promote(connection, str(row.exec_id), live.limit(row))
        elif row.state == searches.FAILED and before.state == searches.RUNNING and row.exec_id is not None:
            execs.request_stops(connection, [row.exec_id], None)  # it may rest, without a usable value


def _is_promoted(before: ExperimentRow, row: ExperimentRow) -> bool:
    return row.rung > before.rung
