"""Queries on searches for hyper-parameters and their experiments. Each takes the connection of a transaction (see
database.py) and does one thing. Times are epoch seconds."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, case, delete, func, insert, select, update

from local_backend.store import execs
from local_backend.store.schema import execs as schema_execs
from local_backend.store.schema import experiments, search_algorithms, searches, sequences

#: States of a search. While it is active, it may start experiments.
SUBMITTED, RUNNING, STOPPED, FINISHED, FAILED = "SUBMITTED", "RUNNING", "STOPPED", "FINISHED", "FAILED"
ACTIVE = frozenset({SUBMITTED, RUNNING})
STATES = (SUBMITTED, RUNNING, STOPPED, FINISHED, FAILED)

#: States of an experiment, beside those above: not submitted yet; set aside at a rung; ended by a stop.
NOTRUN, WAITING, KILLED = "NOTRUN", "WAITING", "KILLED"
#: An experiment that needs the controller. One that waits at a rung needs a decision of the algorithm.
OPEN = frozenset({NOTRUN, SUBMITTED, RUNNING})
EXPERIMENT_STATES = (NOTRUN, SUBMITTED, RUNNING, WAITING, FINISHED, FAILED, KILLED)

#: Why a search starts no further experiment: its user stopped it; its time is over; too many experiments failed; its
#: algorithm has nothing more; it cannot go on.
STOP, TIME, FAILURES, DONE, BROKEN = "stop", "time", "failures", "done", "broken"

#: The stored state of an algorithm that has no more suggestions. The state of a plugin is never empty.
EXHAUSTED = b""


class Changed(Exception):
    """The search or the experiment is no longer in the state that the change needs."""


@dataclass(frozen=True)
class SearchRow:
    """One row of `searches`, with the same names."""

    number: int
    id: str
    creator: str
    name: str
    definition: str
    workload: str
    args: str
    data_source: str | None
    sealed: str | None
    targets: str | None
    bundle: str
    seed: int
    state: str
    ending: str | None
    attempt: int
    create_time: float
    begin_time: float
    end_time: float | None
    used: float
    message: str | None

    @property
    def active(self) -> bool:
        """Whether the search is not over."""
        return self.state in ACTIVE

    def seconds(self, now: float) -> float:
        """Return the run time in seconds, of all attempts."""
        return self.used + max(0.0, (self.end_time or now) - self.begin_time)


@dataclass(frozen=True)
class ExperimentRow:
    """One row of `experiments`, with the same names."""

    search: int
    id: int
    parameters: str
    state: str
    metric: float | None = None
    measured: str | None = None
    metrics: str | None = None
    exec_id: str | None = None
    resource: int | None = None
    bracket: int = 0
    rung: int = 0
    origin: int | None = None
    told: int | None = None
    rungs: str | None = None
    start_time: float | None = None
    end_time: float | None = None
    message: str | None = None

    @property
    def values(self) -> dict[str, Any]:
        """Name → value of its hyper-parameters."""
        found: dict[str, Any] = json.loads(self.parameters)
        return found

    @property
    def measures(self) -> dict[str, float]:
        """Name → value of its metrics; empty while they are unknown."""
        found: dict[str, float] = json.loads(self.measured) if self.measured else {}
        return found

    @property
    def open(self) -> bool:
        """Whether the experiment is to run, or runs."""
        return self.state in OPEN


@dataclass(frozen=True)
class Counts:
    """Numbers of experiments of a search."""

    all: int = 0
    running: int = 0
    complete: int = 0
    failed: int = 0
    #: Those that are set aside at a rung.
    resting: int = 0


class RungCount(NamedTuple):
    """Numbers of the experiments whose last rung is this one."""

    bracket: int
    rung: int
    resource: int
    all: int
    running: int
    resting: int
    finished: int
    failed: int


@dataclass(frozen=True)
class Page:
    """Which experiments a list contains, and their order. `states` and `most` are None for all."""

    states: Collection[str] | None = None
    sort: str = "id"
    down: bool = False
    most: int | None = None
    skipped: int = 0


_COLUMNS = [searches.c[field.name] for field in fields(SearchRow)]
_EXPERIMENT = [experiments.c[field.name] for field in fields(ExperimentRow)]
#: States of experiments that count as complete, as the recorded server counts.
_COMPLETE = (FINISHED, FAILED, KILLED)


def search_id(number: int) -> str:
    """Return the id of a search, which is the parent of its execs."""
    return f"{execs.SEARCH}{number}"


def next_number(connection: Connection) -> int:
    """Return a number that was never issued before."""
    last = connection.execute(select(sequences.c.last).where(sequences.c.name == "search")).scalar()
    if last is None:
        connection.execute(insert(sequences).values(name="search", last=1))
        return 1
    connection.execute(update(sequences).where(sequences.c.name == "search").values(last=last + 1))
    return int(last) + 1


def create(connection: Connection, row: SearchRow, earlier: str | None) -> None:
    """Insert a search. `earlier` has results of another search, as JSON."""
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    connection.execute(insert(searches).values(values | {"earlier": earlier}))


def earlier(connection: Connection, number: int) -> str | None:
    """Return the results of another search with which a search has begun, as JSON."""
    found: str | None = connection.execute(select(searches.c.earlier).where(searches.c.number == number)).scalar()
    return found


def numbered(connection: Connection, number: int) -> SearchRow | None:
    """Return the search with this number, None if there is none."""
    found = connection.execute(select(*_COLUMNS).where(searches.c.number == number)).first()
    return SearchRow(*found) if found else None


def named(connection: Connection, name: str, creator: str, everyone: bool = False) -> SearchRow | None:
    """Return the search of this name: that of `creator`, or, with `everyone`, the newest of any user."""
    query = select(*_COLUMNS).where(searches.c.name == name)
    found = connection.execute(query.where(searches.c.creator == creator)).first()
    if found is None and everyone:
        found = connection.execute(query.order_by(searches.c.number.desc()).limit(1)).first()
    return SearchRow(*found) if found else None


def of_user(  # noqa: PLR0917
    connection: Connection, creator: str | None, states: Collection[str] | None = None, name: str | None = None,
    sort: str = "number", down: bool = False, most: int | None = None, skipped: int = 0,
) -> list[SearchRow]:
    """Return the searches of a user (None: of all users), oldest first unless `sort` names another column."""
    where = _selected(creator, states, name)
    order = [searches.c[sort].desc() if down else searches.c[sort], searches.c.number]
    query = select(*_COLUMNS).where(*where).order_by(*order).limit(most)
    return [SearchRow(*found) for found in connection.execute(query.offset(skipped) if skipped else query)]


def count_of_user(
    connection: Connection, creator: str | None, states: Collection[str] | None = None, name: str | None = None
) -> int:
    """Return how many searches `of_user` returns without a limit."""
    query = select(func.count()).select_from(searches).where(*_selected(creator, states, name))
    return int(connection.execute(query).scalar_one())


def _selected(
    creator: str | None, states: Collection[str] | None, name: str | None
) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if creator is not None:
        found.append(searches.c.creator == creator)
    if states is not None:
        found.append(searches.c.state.in_(states))
    if name is not None:
        found.append(searches.c.name == name)
    return found


def active(connection: Connection) -> list[SearchRow]:
    """Return the searches that are not over, oldest first."""
    query = select(*_COLUMNS).where(searches.c.state.in_(sorted(ACTIVE))).order_by(searches.c.number)
    return [SearchRow(*found) for found in connection.execute(query)]


def plugin_state(connection: Connection, number: int) -> bytes | None:
    """Return the state of the plugin of a search; it may be large."""
    found: bytes | None = connection.execute(
        select(searches.c.plugin_state).where(searches.c.number == number)).scalar()
    return found


def exhausted(connection: Connection, number: int) -> bool:
    """Return whether the algorithm of a search has no more suggestions."""
    state = searches.c.plugin_state
    return connection.execute(select(searches.c.number).where(
        searches.c.number == number, state == EXHAUSTED)).first() is not None


def note(connection: Connection, search: SearchRow, **values: Any) -> None:
    """Set columns of a search that is still in this attempt, and not over. Raises Changed if it is neither."""
    this = (searches.c.number == search.number, searches.c.attempt == search.attempt)
    change = update(searches).where(*this, searches.c.state.in_(sorted(ACTIVE))).values(**values)
    if not connection.execute(change).rowcount:
        raise Changed


def end(connection: Connection, search: SearchRow, state: str, message: str | None) -> None:
    """End a search: open experiments become KILLED, and their execs are stopped. Experiments that wait at a rung, and
    their execs, stay as they are: a restart lets them go on. Raises Changed."""
    now = time.time()
    note(connection, search, state=state, end_time=now, message=message)
    killed = (experiments.c.search == search.number, experiments.c.state.in_(sorted(OPEN)))
    execs.request_stops(connection, _execs_of(connection, *killed), None)
    connection.execute(update(experiments).where(*killed).values(state=KILLED, end_time=now, told=None))


def _execs_of(connection: Connection, *where: ColumnElement[bool]) -> list[str]:
    query = select(experiments.c.exec_id).where(*where, experiments.c.exec_id.is_not(None))
    return [str(found) for found in connection.execute(query).scalars()]


def restart(connection: Connection, search: SearchRow) -> None:
    """Let a search that is over go on. The experiments that its end has killed run again, with new execs, except those
    whose execs had ended before they could be stopped: these have their results. So do the experiments that waited at a
    rung, if their execs are gone. Raises Changed if it is not over."""
    change = (
        update(searches).where(searches.c.number == search.number, searches.c.state.not_in(sorted(ACTIVE)))
        .values(state=RUNNING, ending=None, attempt=searches.c.attempt + 1, begin_time=time.time(), end_time=None,
                used=search.seconds(time.time()), message=None)
    )
    if not connection.execute(change).rowcount:
        raise Changed
    c, mine = experiments.c, experiments.c.search == search.number
    connection.execute(update(experiments).where(
        mine, c.state == WAITING, c.exec_id.not_in(execs.with_result()), c.exec_id.not_in(execs.going_on())
    ).values(state=KILLED, told=None))
    again = update(experiments).where(mine, c.state == KILLED, c.told.is_(None)).values(
        end_time=None, message=None, metric=None, measured=None, metrics=None)
    connection.execute(again.where(c.exec_id.in_(execs.with_result())).values(state=RUNNING))
    connection.execute(again.values(state=NOTRUN, exec_id=None, start_time=None))


def remove(connection: Connection, number: int) -> str:
    """Remove a search that is over, with its experiments, and return the bundle of its code. Its execs stay; those that
    rest are stopped, because nothing lets them train on. Raises Changed if it is not over."""
    gone = delete(searches).where(searches.c.number == number, searches.c.state.not_in(sorted(ACTIVE)))
    found = connection.execute(gone.returning(searches.c.bundle)).first()
    if found is None:
        raise Changed
    mine = experiments.c.search == number
    execs.request_stops(connection, _execs_of(connection, mine, experiments.c.state == WAITING), None)
    connection.execute(delete(experiments).where(mine))
    return str(found.bundle)


def awaits(connection: Connection, exec_id: str) -> bool:
    """Return whether a search has yet to decide how an experiment goes on that has begun to rest."""
    query = select(experiments.c.id).join(searches, searches.c.number == experiments.c.search).where(
        experiments.c.exec_id == exec_id, experiments.c.state.in_((SUBMITTED, RUNNING)),
        searches.c.state.in_(sorted(ACTIVE)))
    return connection.execute(query).first() is not None


def over(connection: Connection, ids: Collection[str]) -> set[str]:
    """Return which of these searches are over."""
    query = select(searches.c.id).where(searches.c.id.in_(ids), searches.c.state.not_in(sorted(ACTIVE)))
    return set(connection.execute(query).scalars())


def bundles(connection: Connection) -> set[str]:
    """Return the code bundles that any search names."""
    return set(connection.execute(select(searches.c.bundle).distinct()).scalars())


# --- installed algorithms


def install(connection: Connection, name: str, creator: str, description: str) -> None:
    """Insert an installed algorithm."""
    connection.execute(insert(search_algorithms).values(name=name, creator=creator, description=description))


def installed(connection: Connection) -> dict[str, tuple[str, str]]:
    """Return the installed algorithms, sorted by name: name → (creator, description)."""
    query = select(search_algorithms).order_by(search_algorithms.c.name)
    return {row.name: (row.creator, row.description) for row in connection.execute(query)}


def uninstall(connection: Connection, name: str) -> None:
    """Remove an installed algorithm."""
    connection.execute(delete(search_algorithms).where(search_algorithms.c.name == name))


# --- experiments


def add(connection: Connection, rows: Sequence[ExperimentRow]) -> None:
    """Insert experiments."""
    if rows:
        connection.execute(insert(experiments), [
            {field.name: getattr(row, field.name) for field in fields(row)} for row in rows])


def change(connection: Connection, search: int, id_: int, **values: Any) -> None:
    """Set columns of an experiment."""
    connection.execute(
        update(experiments).where(experiments.c.search == search, experiments.c.id == id_).values(**values))


def bind(connection: Connection, search: SearchRow, id_: int, exec_id: str) -> None:
    """Record which exec runs an experiment. Raises Changed unless the search goes on and the experiment was not
    submitted yet."""
    going = select(searches.c.number).where(
        searches.c.number == search.number, searches.c.attempt == search.attempt, searches.c.ending.is_(None),
        searches.c.state.in_(sorted(ACTIVE)))
    if connection.execute(going).first() is None:
        raise Changed
    one = (experiments.c.search == search.number, experiments.c.id == id_, experiments.c.state == NOTRUN)
    if not connection.execute(
        update(experiments).where(*one).values(state=SUBMITTED, exec_id=exec_id, start_time=time.time())
    ).rowcount:
        raise Changed


def experiments_of(connection: Connection, number: int, page: Page | None = None) -> list[ExperimentRow]:
    """Return experiments of a search, by id unless `page` says otherwise. Rows without a value are the smallest, and of
    equal rows the older comes first."""
    page = page or Page()
    column, id_ = experiments.c[page.sort], experiments.c.id
    # Spelled so that indexes help, which hold NULL as the smallest value.
    order = [column.desc().nulls_last() if page.down else column.nulls_first(), id_]
    if page.sort == "id":
        order = [id_.desc() if page.down else id_]
    if page.most is None:
        query = select(*_EXPERIMENT).where(*_of(number, page.states)).order_by(*order)
        return [ExperimentRow(*row) for row in connection.execute(query)][page.skipped :]
    # The rows are wide: sort their ids alone.
    ids = select(id_).where(*_of(number, page.states)).order_by(*order).limit(page.most)
    wanted = list(connection.execute(ids.offset(page.skipped) if page.skipped else ids).scalars())
    found: dict[int, ExperimentRow] = {}
    for at in range(0, len(wanted), 500):  # databases limit the number of parameters
        these = (experiments.c.search == number, id_.in_(wanted[at : at + 500]))
        found.update((row.id, ExperimentRow(*row)) for row in connection.execute(select(*_EXPERIMENT).where(*these)))
    return [found[one] for one in wanted if one in found]


def experiment(connection: Connection, number: int, id_: int) -> ExperimentRow | None:
    """Return one experiment, None if there is none."""
    query = select(*_EXPERIMENT).where(experiments.c.search == number, experiments.c.id == id_)
    found = connection.execute(query).first()
    return ExperimentRow(*found) if found else None


def count(connection: Connection, number: int, states: Collection[str] | None = None) -> int:
    """Return how many experiments of a search are in one of these states."""
    query = select(func.count()).select_from(experiments).where(*_of(number, states))
    return int(connection.execute(query).scalar_one())


def _of(number: int, states: Collection[str] | None) -> list[ColumnElement[bool]]:
    found = [experiments.c.search == number]
    return found if states is None else [*found, experiments.c.state.in_(states)]


def counts(connection: Connection, numbers: Collection[int]) -> dict[int, Counts]:
    """Return the numbers of experiments of these searches."""
    state = experiments.c.state
    columns = (func.count(), _sum(state.in_((SUBMITTED, RUNNING))), _sum(state.in_(_COMPLETE)), _sum(state == FAILED),
               _sum(state == WAITING))
    query = select(experiments.c.search, *columns).where(experiments.c.search.in_(numbers))
    return {int(found[0]): Counts(*(int(one or 0) for one in found[1:]))
            for found in connection.execute(query.group_by(experiments.c.search))}


def _sum(condition: ColumnElement[bool]) -> ColumnElement[Any]:
    return func.sum(case((condition, 1), else_=0))


def best(connection: Connection, number: int, maximize: bool) -> ExperimentRow | None:
    """Return the best finished experiment of a search, the oldest of equal ones; None without one."""
    by = experiments.c.metric.desc() if maximize else experiments.c.metric
    query = select(*_EXPERIMENT).where(
        experiments.c.search == number, experiments.c.state == FINISHED, experiments.c.metric.is_not(None))
    found = connection.execute(query.order_by(by, experiments.c.id).limit(1)).first()
    return ExperimentRow(*found) if found else None


def best_execs(connection: Connection, number: int, maximize: bool, most: int) -> list[str]:
    """Return the ids of the execs of the best finished experiments of a search that still exist, the best first."""
    c, x = experiments.c, schema_execs.c
    query = select(c.exec_id).join(schema_execs, x.id == c.exec_id).where(
        c.search == number, c.state == FINISHED, c.metric.is_not(None), x.deleted.is_(False))
    by = c.metric.desc() if maximize else c.metric
    return list(connection.execute(query.order_by(by, c.id).limit(most)).scalars())


def curve(connection: Connection, number: int) -> list[tuple[int, float, float]]:
    """Return id, end time and metric of the finished experiments of a search, in the order in which they ended."""
    c = experiments.c
    query = select(c.id, c.end_time, c.metric).where(
        c.search == number, c.state == FINISHED, c.metric.is_not(None)).order_by(c.end_time, c.id)
    return [(int(id_), float(at or 0.0), float(value)) for id_, at, value in connection.execute(query)]


def sample(connection: Connection, number: int, most: int) -> list[ExperimentRow]:
    """Return at most `most` finished experiments of a search with a value, by id, evenly among all experiments."""
    c = experiments.c
    last = connection.execute(select(func.max(c.id)).where(c.search == number)).scalar()
    step = int(last or 0) // most + 1
    query = select(*_EXPERIMENT).where(
        c.search == number, c.state == FINISHED, c.metric.is_not(None), c.id % step == 0).order_by(c.id).limit(most)
    return [ExperimentRow(*found) for found in connection.execute(query)]


def rungs_of(connection: Connection, number: int) -> list[RungCount]:
    """Return the rungs of a search, by bracket and rung."""
    c = experiments.c
    counted = (func.count(), _sum(c.state.in_((SUBMITTED, RUNNING))), _sum(c.state == WAITING),
               _sum(c.state == FINISHED), _sum(c.state == FAILED))
    query = select(c.bracket, c.rung, func.max(c.resource), *counted).where(
        c.search == number, c.resource.is_not(None)).group_by(c.bracket, c.rung).order_by(c.bracket, c.rung)
    return [RungCount(*(int(one or 0) for one in found)) for found in connection.execute(query)]


def parents_named(connection: Connection, name: str, creator: str | None) -> list[str]:
    """Return the ids of the searches of this name, of one user or of all."""
    return list(connection.execute(select(searches.c.id).where(*_selected(creator, None, name))).scalars())
