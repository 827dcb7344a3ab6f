"""Queries on execs. Each takes the connection of a transaction (see database.py) and does one thing."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, case, delete, func, insert, select, update

from dlicmd.contract import wire
from dlicmd.contract.secret import masked_arguments
from dlicmd.contract.states import ERROR, FINISHED, KILLED, PENDING, RECOVERING, RUNNING, SUBMITTED, TERMINAL
from local_backend.measures import RECOVERIES, REQUEUES
from local_backend.store import events, exec_secrets, exec_values, holdings, labels, models, saved_models, team_objects
from local_backend.store.holdings import SlotPart
from local_backend.store.schema import exec_texts, execs, experiments, searches, sequences
from local_backend.store.states import MOVES, shown_as, sources
from local_backend.workload import SERVICE, TRAINING, Workload

NAMESPACE = "local"


@dataclass(frozen=True)
class ExecRow:
    """One row of `execs`, with the same names."""

    number: int
    id: str
    creator: str
    framework: str
    app_name: str
    args: str
    spec: str
    kind: str
    parent: str | None
    bundle: str | None
    data_source: str | None
    elastic: bool
    num_worker: int
    work_dir: str
    state: str
    attempt: int
    slots: str | None
    create_time: float
    start_time: float | None
    end_time: float | None
    exit_code: int | None
    message: str | None
    reason: str | None
    stop_requested: bool
    deleted: bool
    pinned: int | None
    progress: str | None
    rest_after: int | None
    rested: int | None
    promoted: float | None
    #: Kernels that a service can use now; None: at least as many as it has at least.
    wanted: int | None
    #: Kernels that a service has at least, also while it runs; None: as many as its workload says.
    least: int | None

    @property
    def workload(self) -> Workload:
        """The submission."""
        return Workload.from_json(self.spec)

    @property
    def shown_state(self) -> str:
        """The state as clients see it."""
        return shown_as(self.state)

    @property
    def user(self) -> str:
        """The user that its slots count for: its creator, or the user that it was submitted for."""
        return self.workload.scheduling.user

    @property
    def terminal(self) -> bool:
        return self.state in TERMINAL

    @property
    def has_driver(self) -> bool:
        """Whether a driver runs beside its workers."""
        return self.elastic and self.kind != SERVICE

    @property
    def idle(self) -> bool:
        """Whether it is a service that needs no kernel now, because there are no requests."""
        if self.kind != SERVICE:
            return False
        if self.wanted is not None:
            return not self.wanted
        return not (self.workload.resources.min_workers if self.least is None else self.least)

    def seconds(self, now: float) -> int | None:
        """Return the run time in seconds, or None before the start. It is the difference of the times of the exec
        object, which are whole seconds, so that pages and clients show the same."""
        return None if self.start_time is None else int(self.end_time or now) - int(self.start_time)

    @property
    def rests(self) -> bool:
        """Whether it needs no slot until a search promotes it, or until a request arrives."""
        return self.rested is not None or self.idle


@dataclass(frozen=True)
class Brief:
    """The columns of an exec without its submission, for queries on all execs."""

    number: int
    id: str
    creator: str
    app_name: str
    state: str
    create_time: float
    start_time: float | None
    end_time: float | None
    bundle: str | None
    deleted: bool

    @property
    def terminal(self) -> bool:
        return self.state in TERMINAL

    @property
    def over_since(self) -> float:
        """End time in epoch seconds; the creation time of an exec without an end time."""
        return self.end_time or self.create_time


#: Creator, framework, name and number of workers.
Likeness = tuple[str, str, str, int]
#: Begins the ids of searches.
SEARCH = "search-"
_UNFINISHED = sorted(MOVES.keys() - TERMINAL)
#: Columns that the event of a new state contains, and their names there.
_TOLD = {"message": wire.MESSAGE, "reason": wire.REASON, "exit_code": wire.EXIT_CODE}
COLUMNS = [execs.c[field.name] for field in fields(ExecRow)]


def next_number(connection: Connection) -> int:
    """Return a number that was never issued before."""
    last = connection.execute(select(sequences.c.last).where(sequences.c.name == "exec")).scalar()
    if last is None:
        connection.execute(insert(sequences).values(name="exec", last=1))
        return 1
    connection.execute(update(sequences).where(sequences.c.name == "exec").values(last=last + 1))
    return int(last) + 1


def exec_id(number: int) -> str:
    """Return the exec id, which is also the application id: `<namespace>-<n>`."""
    return f"{NAMESPACE}-{number}"


def is_exec_id(text: str) -> bool:
    """Return whether a text has the form of an exec id of this server."""
    return re.fullmatch(rf"{NAMESPACE}-[1-9][0-9]{{0,17}}", text) is not None


def last_number(connection: Connection) -> int:
    """Return the last issued number; 0 before the first."""
    return connection.execute(select(sequences.c.last).where(sequences.c.name == "exec")).scalar() or 0


def create(  # noqa: PLR0917
    connection: Connection, number: int, spec: Workload, args: str, data_source: list[Any] | None, work_dir: str
) -> ExecRow:
    """Insert a submission in state SUBMITTED. After the commit the submission is acknowledged and never lost."""
    connection.execute(
        insert(execs).values(
            number=number, id=spec.id, creator=spec.creator, framework=spec.program.framework, app_name=spec.name,
            args=args, spec=spec.to_json(), kind=spec.kind, parent=spec.parent, bundle=spec.program.bundle,
            data_source=json.dumps(data_source) if data_source is not None else None,
            elastic=spec.resources.elastic, num_worker=spec.resources.num_worker, work_dir=work_dir, state=SUBMITTED,
            attempt=0, create_time=time.time(), stop_requested=False, deleted=False,
        )
    )
    connection.execute(insert(exec_texts).values(number=number, text=_text(spec)))
    exec_values.add_parameters(connection, number, spec.program)
    events.append(connection, spec.id, events.STATE, {wire.STATE: SUBMITTED})
    row = get(connection, spec.id)
    assert row is not None
    return row


def _text(spec: Workload) -> str:
    """Return the words by which an exec is found, in small letters: its name, id, creator and framework in lines, then
    the words of its program between spaces."""
    program = spec.program
    words = [f"{name}={value}" for name, value in (program.parameters or {}).items()]
    words += masked_arguments(program.user_cmd or program.arguments)
    return "\n".join([spec.name, spec.id, spec.creator, program.framework, f" {' '.join(words)} "]).lower()


def get(connection: Connection, exec_id: str, deleted: bool = False) -> ExecRow | None:
    """Return one exec, or None. A deleted exec is found only with `deleted`."""
    query = select(*COLUMNS).where(execs.c.id == exec_id)
    if not deleted:
        query = query.where(execs.c.deleted.is_(False))
    found = connection.execute(query).first()
    return ExecRow(*found) if found else None


def of_user(
    connection: Connection, creator: str | None, states: Collection[str] | None = None,
    kinds: Collection[str] = (TRAINING,),
) -> list[ExecRow]:
    """Return the execs of these kinds of one user (None: of all users) that are not deleted, oldest first. With
    `states`, return only execs in one of these states. For selected, sorted and partial lists, see run_lists.py."""
    query = select(*COLUMNS).where(execs.c.deleted.is_(False), execs.c.kind.in_(kinds)).order_by(execs.c.number)
    if creator is not None:
        query = query.where(execs.c.creator == creator)
    if states is not None:
        query = query.where(execs.c.state.in_(states))
    return [ExecRow(*found) for found in connection.execute(query)]


def of_bundle(connection: Connection, bundle: str, most: int) -> list[ExecRow]:
    """Return the newest training execs of this code that are not deleted, at most so many."""
    query = select(*COLUMNS).where(execs.c.bundle == bundle, execs.c.deleted.is_(False), execs.c.kind == TRAINING)
    return [ExecRow(*found) for found in connection.execute(query.order_by(execs.c.number.desc()).limit(most))]


def count(connection: Connection, creator: str) -> tuple[int, int]:
    """Return how many training execs of a user are not over, and how many exist; deleted ones do not count. An exec
    that rests for a search that is over trains no further unless the search is restarted, so it counts as over."""
    goes_on = select(searches.c.id).where(searches.c.state.in_((SUBMITTED, RUNNING)))
    is_left = execs.c.rested.is_not(None) & execs.c.parent.is_not(None) & execs.c.parent.not_in(goes_on)
    active = func.sum(case((execs.c.state.in_(TERMINAL), 0), (is_left, 0), else_=1))
    shown = execs.c.deleted.is_(False) & (execs.c.kind == TRAINING)
    query = select(active, func.count()).where(execs.c.creator == creator, shown)
    found = connection.execute(query).one()
    return int(found[0] or 0), int(found[1])


def ids_of(connection: Connection, creator: str) -> list[str]:
    """Return the ids of the execs of a user that are not deleted."""
    query = select(execs.c.id).where(execs.c.creator == creator, execs.c.deleted.is_(False))
    return list(connection.execute(query).scalars())


def briefs(connection: Connection) -> list[Brief]:
    """Return all execs, deleted ones included, oldest first."""
    query = select(*(execs.c[field.name] for field in fields(Brief))).order_by(execs.c.number)
    return [Brief(*found) for found in connection.execute(query)]


def unfinished(connection: Connection) -> list[ExecRow]:
    """Return the execs that need the supervisor: not terminal, or deleted with files left. Oldest first."""
    return [ExecRow(*found) for found in connection.execute(of_unfinished(COLUMNS))]


def of_unfinished(columns: Sequence[ColumnElement[Any]]) -> Select[Any]:
    """Build a query for some columns of the unfinished execs, oldest first."""
    # With each state named, the database uses the index, and skips the ended execs, which are nearly all rows.
    query = select(*columns).where(execs.c.state.in_(_UNFINISHED) | execs.c.deleted.is_(True))
    return query.order_by(execs.c.number)


def numbered(connection: Connection, numbers: Collection[int]) -> list[ExecRow]:
    """Return the existing execs with these numbers, which must be few enough for the parameters of one query."""
    query = select(*COLUMNS).where(execs.c.number.in_(numbers))
    return [ExecRow(*found) for found in connection.execute(query)]


def with_ids(connection: Connection, ids: Collection[str]) -> dict[str, ExecRow]:
    """Return those of these execs that exist, by their id, deleted ones included."""
    found: dict[str, ExecRow] = {}
    wanted = sorted(ids)
    for at in range(0, len(wanted), 500):  # databases limit the number of parameters
        query = select(*COLUMNS).where(execs.c.id.in_(wanted[at : at + 500]))
        found.update((row.id, ExecRow(*row)) for row in connection.execute(query))
    return found


def running(connection: Connection) -> list[ExecRow]:
    """Return the running execs, including deleted ones that have not stopped. Oldest first."""
    query = select(*COLUMNS).where(execs.c.state.in_((RECOVERING, RUNNING))).order_by(execs.c.number)
    return [ExecRow(*found) for found in connection.execute(query)]


def states_of(connection: Connection, ids: list[str]) -> dict[str, str]:
    """Return the states of the given execs. Missing and deleted execs are left out."""
    found: dict[str, str] = {}
    for at in range(0, len(ids), 500):  # databases limit the number of parameters
        query = select(execs.c.id, execs.c.state).where(execs.c.id.in_(ids[at : at + 500]), execs.c.deleted.is_(False))
        found.update((str(row.id), str(row.state)) for row in connection.execute(query))
    return found


def counts(connection: Connection, creator: str | None = None) -> dict[str, int]:
    """Return the number of training execs (of this user) in each state, without deleted ones."""
    shown = execs.c.deleted.is_(False) & (execs.c.kind == TRAINING)
    query = select(execs.c.state, func.count()).where(shown).group_by(execs.c.state)
    if creator is not None:
        query = query.where(execs.c.creator == creator)
    return {str(state): int(count) for state, count in connection.execute(query)}


def all_ids(connection: Connection) -> set[str]:
    """Return the ids of all rows, deleted ones included."""
    return set(connection.execute(select(execs.c.id)).scalars())


def all_bundles(connection: Connection) -> set[str]:
    """Return the bundles that any exec, search, model or definition names, deleted execs included."""
    found = set(connection.execute(select(execs.c.bundle).where(execs.c.bundle.is_not(None)).distinct()).scalars())
    found |= set(connection.execute(select(searches.c.bundle).distinct()).scalars())
    found |= models.bundles(connection) | saved_models.bundles(connection)
    return found | team_objects.bundles(connection)


def bundles(connection: Connection, of: Collection[str]) -> set[str]:
    """Return those of these bundles that any exec, search, model or definition names. There must be few enough for one
    query."""
    found = set(connection.execute(select(execs.c.bundle).where(execs.c.bundle.in_(of)).distinct()).scalars())
    found |= set(connection.execute(select(searches.c.bundle).where(searches.c.bundle.in_(of))).scalars())
    found |= models.bundles(connection, of) | saved_models.bundles(connection, of)
    return found | team_objects.bundles(connection, of)


def likeness(row: ExecRow) -> Likeness:
    """Return the values that are equal for execs that probably do the same: those of one search, or of one name."""
    return row.creator, row.framework, str(row.parent) if _in_search(row) else row.app_name, row.num_worker


def _in_search(row: ExecRow) -> bool:
    return (row.parent or "").startswith(SEARCH)


def earlier_runs(connection: Connection, row: ExecRow, most: int) -> list[float]:
    """Return the run times in seconds of the last `most` execs like this one that ended well, newest first."""
    columns = (execs.c.creator, execs.c.framework, execs.c.parent if _in_search(row) else execs.c.app_name,
               execs.c.num_worker)
    alike = [column == value for column, value in zip(columns, likeness(row), strict=True)]
    query = (
        select(execs.c.end_time - execs.c.start_time)
        .where(*alike, execs.c.state == FINISHED, execs.c.start_time.is_not(None))
        .order_by(execs.c.number.desc()).limit(most)
    )
    return [float(seconds) for seconds in connection.execute(query).scalars()]


def damaged(connection: Connection) -> str | None:
    """Return the id of an exec with an invalid row; None if all are valid. For a possibly damaged database file."""
    for found in connection.execute(select(*COLUMNS)):
        row = ExecRow(*found)
        try:
            sound = row.workload.id == row.id == exec_id(row.number) and row.state in MOVES
            json.loads(row.data_source or "[]"), json.loads(row.slots or "[]")
            sound = sound and isinstance(json.loads(row.progress or "{}"), dict)
            sound = sound and all(0 <= (when or 0) < 2**40 for when in (row.create_time, row.start_time, row.end_time))
        except (ValueError, TypeError, KeyError, AttributeError):
            sound = False
        if not sound:
            return str(row.id)
    return None


def transition(
    connection: Connection, exec_id: str, to: str, *, attempt: int | None = None, **values: Any
) -> bool:
    """Move an exec to state `to`, and append the event. Only this function changes a state.

    Return False and change nothing if the move is not legal from the present state, or if `attempt` is not the
    current attempt (a report of a stale runner). Entering RUNNING sets `start_time`, except from RECOVERING, because
    the exec has run all the time. Entering a terminal state sets `end_time`. A short program may have an end that is
    earlier than its recorded start: then `start_time` becomes `end_time`. In PENDING and terminal states an exec
    holds no slots.
    """
    assert "slots" not in values
    now = time.time()
    if to in TERMINAL:
        ended = values.setdefault("end_time", now)
        values["start_time"] = case((execs.c.start_time > ended, ended), else_=execs.c.start_time)
    if to == KILLED and (why := _set_aside(connection, exec_id)) is not None:
        values["message"] = why
    if to == RUNNING:
        values.setdefault("start_time", case((execs.c.state == RECOVERING, execs.c.start_time), else_=now))
    change = update(execs).where(execs.c.id == exec_id, execs.c.state.in_(sources(to))).values(state=to, **values)
    if attempt is not None:
        change = change.where(execs.c.attempt == attempt)
    told = (execs.c.number, execs.c.slots, execs.c.attempt, execs.c.rested)
    moved = connection.execute(change.returning(*told)).first()
    if moved is None:
        return False
    if values.get("progress"):
        exec_values.replace_metrics(connection, moved.number, json.loads(values["progress"]))
    if to == RECOVERING:
        RECOVERIES.inc()
    elif to == PENDING and moved.attempt and moved.rested is None:
        REQUEUES.inc()
    if to == PENDING or to in TERMINAL:
        release(connection, exec_id, min(now, values.get("end_time") or now))
    if to in TERMINAL:
        exec_secrets.forget(connection, exec_id)
    data = {name: values[column] for column, name in _TOLD.items() if values.get(column) is not None}
    if to == RUNNING:
        data[wire.SLOTS] = len(_ids(moved.slots))
    events.append(connection, exec_id, events.STATE, {wire.STATE: to} | data)
    return True


def begin_attempt(connection: Connection, exec_id: str, parts: Iterable[SlotPart], consumer: str) -> int:
    """Count a new attempt of an exec that is not over, on these slots. Return its number, which fences all earlier
    attempts. The slots count for the resource plan with the path `consumer`."""
    active = [state for state in MOVES if state not in TERMINAL]
    change = (
        update(execs)
        .where(execs.c.id == exec_id, execs.c.state.in_(active))
        .values(attempt=execs.c.attempt + 1)
        .returning(execs.c.attempt)
    )
    attempt = int(connection.execute(change).scalar_one())
    _hold(connection, exec_id, list(parts), consumer)
    return attempt


def hold(connection: Connection, exec_id: str, parts: Iterable[SlotPart], consumer: str) -> None:
    """Record that a running exec holds exactly these slots from now on, for the resource plan with the path
    `consumer`. Append an event if the slots differ."""
    parts = list(parts)
    before = _ids(connection.execute(select(execs.c.slots).where(execs.c.id == exec_id)).scalar_one())
    _hold(connection, exec_id, parts, consumer)
    if sorted(before) != sorted(part.slot for part in parts):
        data = {wire.BEFORE: len(before), wire.SLOTS: len(parts)}
        events.append(connection, exec_id, events.RESIZE, data)


def _hold(connection: Connection, exec_id: str, parts: list[SlotPart], consumer: str) -> None:
    ids = json.dumps([part.slot for part in parts])
    change = update(execs).where(execs.c.id == exec_id).values(slots=ids).returning(execs.c.spec)
    user = Workload.from_json(connection.execute(change).scalar_one()).scheduling.user
    holdings.hold(connection, exec_id, user, consumer, parts, time.time())


def _ids(slots: str | None) -> list[str]:
    """Return the slot ids in a value of the column `slots`."""
    return json.loads(slots) if slots else []


def release(connection: Connection, exec_id: str, when: float | None = None) -> None:
    """Record that an exec holds no slots since `when` (epoch seconds), by default from now on."""
    connection.execute(update(execs).where(execs.c.id == exec_id).values(slots=None))
    holdings.release(connection, exec_id, time.time() if when is None else when)


def note(connection: Connection, exec_id: str, **values: Any) -> None:
    """Set columns other than the state and the slots: `message`, `stop_requested`, `deleted`, `pinned`, ... Append an
    event for each change that users see."""
    assert not {"state", "slots"} & set(values)
    query = select(execs.c.creator, execs.c.message, execs.c.pinned, execs.c.deleted).where(execs.c.id == exec_id)
    before = connection.execute(query).first()
    connection.execute(update(execs).where(execs.c.id == exec_id).values(**values))
    if before is None:
        return
    if values.get("message", before.message) != before.message:
        events.append(connection, exec_id, events.MESSAGE, {wire.MESSAGE: values["message"]})
    if values.get("pinned", before.pinned) != before.pinned:
        events.append(connection, exec_id, events.FIXED, {wire.FIXED_SLOTS: values["pinned"]})
    if values.get("deleted", before.deleted) and not before.deleted:
        events.append(connection, exec_id, events.DELETED, {wire.CREATOR: before.creator})


def _set_aside(connection: Connection, exec_id: str) -> str | None:
    """Return why an exec is stopped that rests, when its search has its result and needs it no further."""
    query = select(execs.c.rested).join(experiments, experiments.c.exec_id == execs.c.id).where(
        execs.c.id == exec_id, execs.c.rested.is_not(None), experiments.c.state == FINISHED)
    epoch = connection.execute(query).scalar()
    return None if epoch is None else f"the search set it aside after epoch {epoch}, and did not need it further"


def rest(connection: Connection, exec_id: str, epochs: int) -> bool:
    """Record that an exec rests after this number of finished epochs, and append the event. Return False and change
    nothing if it may train on, because it was promoted meanwhile, or if it rests already."""
    may = execs.c.rest_after.is_not(None) & (execs.c.rest_after <= epochs) & execs.c.rested.is_(None)
    change = update(execs).where(execs.c.id == exec_id, may, execs.c.state.not_in(TERMINAL)).values(rested=epochs)
    if not connection.execute(change).rowcount:
        return False
    events.append(connection, exec_id, events.RESTED, {wire.EPOCH: epochs})
    return True


def promote(connection: Connection, exec_id: str, rest_after: int | None) -> None:
    """Let an elastic exec train until it has finished `rest_after` epochs, where it rests, or to its end (None). If it
    rests now, it competes for slots again. Wake the supervisor after the commit. Call this for a new exec, too, in the
    transaction that creates it."""
    values = {"rest_after": rest_after, "rested": None, "promoted": time.time()}
    connection.execute(update(execs).where(execs.c.id == exec_id, execs.c.state.not_in(TERMINAL)).values(**values))


def want(connection: Connection, exec_id: str, kernels: int | None, least: int | None = None) -> bool:
    """Set how many kernels a service can use now; with None, its minimum. Set this minimum, too; with None, that of its
    workload. Append the event. Wake the supervisor after the commit. Return whether a number has changed. Call this for
    a new exec, too, in the transaction that creates it."""
    row = get(connection, exec_id, deleted=True)
    if row is None or row.terminal or (row.wanted, row.least) == (kernels, least):
        return False
    # A service that needed no kernel did not wait until now.
    since = {"promoted": time.time()} if row.idle else {}
    connection.execute(update(execs).where(execs.c.id == exec_id).values(wanted=kernels, least=least, **since))
    if row.wanted != kernels:
        events.append(connection, exec_id, events.WANTED, {wire.WANTED: kernels})
    return True


def with_result() -> Select[tuple[str]]:
    """Return a query for the ids of the execs that have ended by themselves, and are not deleted."""
    return select(execs.c.id).where(execs.c.state.in_((FINISHED, ERROR)), execs.c.deleted.is_(False))


def going_on() -> Select[tuple[str]]:
    """Return a query for the ids of the execs that are not over, and that nobody has stopped or deleted."""
    asked = execs.c.stop_requested.is_(True) | execs.c.deleted.is_(True)
    return select(execs.c.id).where(execs.c.state.not_in(TERMINAL), ~asked)


def request_stops(connection: Connection, ids: list[str], creator: str | None) -> dict[str, str]:
    """Request a stop of the given execs (of this user; None: of any user) that are not over. Return the states of
    all given execs; missing and deleted execs are left out."""
    found: dict[str, str] = {}
    for at in range(0, len(ids), 500):  # databases limit the number of parameters
        these = execs.c.id.in_(ids[at : at + 500]) & execs.c.deleted.is_(False)
        if creator is not None:
            these &= execs.c.creator == creator
        rows = connection.execute(select(execs.c.id, execs.c.state).where(these))
        found.update((str(row.id), str(row.state)) for row in rows)
        connection.execute(update(execs).where(these, execs.c.state.not_in(TERMINAL)).values(stop_requested=True))
    return found


def remove(connection: Connection, *ids: str) -> set[str]:
    """Remove deleted execs whose files are gone, and return the code bundles that they named. The history of their
    slots stays."""
    named: set[str | None] = set()
    for exec_id in ids:
        release(connection, exec_id)
        gone = delete(execs).where(execs.c.id == exec_id).returning(execs.c.number, execs.c.bundle)
        for number, bundle in connection.execute(gone).all():
            connection.execute(delete(exec_texts).where(exec_texts.c.number == number))
            exec_values.forget(connection, number)
            named.add(bundle)
        events.forget(connection, exec_id)
        exec_secrets.forget(connection, exec_id)
        labels.forget(connection, exec_id)
    return {name for name in named if name is not None}
