"""Lists of execs: selected, sorted, and in pages. Each function takes the connection of a transaction (database.py).

The rows of `execs` contain the submissions, so a list is made in two steps. The first step finds the numbers of the
execs in the index `execs_listed`, which has all columns that lists select and sort by, and in the narrow tables of
texts, tags and values. The second step reads the rows of one page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, case, func, not_, or_, select, union_all

from dlicmd.contract.states import RECOVERING
from local_backend.run_values import ValueName
from local_backend.store import exec_values
from local_backend.store.execs import COLUMNS, ExecRow, numbered
from local_backend.store.schema import exec_tags, exec_texts, execs, favorites, searches
from local_backend.store.states import MOVES, shown_as
from local_backend.workload import TRAINING

#: Orders that are not columns, and the order of submission.
STATE, TAG, FAVORITE, NUMBER = "state", "tag", "favorite", "number"
#: Any search.
ANY = "*"
#: Maximum number of rows that one query reads by their numbers.
_TOGETHER = 500
#: Shorter words name no state.
_LEAST_STATE = 3


class TermField(Enum):
    """The part of an exec that a term is about."""

    WORD = "word"
    NAME = "name"
    ID = "id"
    USER = "user"
    FRAMEWORK = "framework"
    STATE = "state"
    TAG = "tag"
    VALUE = "value"
    FAVORITE = "favorite"
    AMOUNT = "amount"
    SEARCH = "search"


@dataclass(frozen=True)
class Term:
    """One condition on an exec: one of `values` fits its `field`. With `negated`, none of them may fit.

    For WORD, any of name, id, user, framework, state, tag and words of the program contains the value. For PARAMETER,
    `name` is that of the parameter. For AMOUNT, `name` and perhaps `kind` are those of a value (run_values.py), and
    `operator` is <, <=, > or >=. For STATE, the values are stored states."""

    field: TermField
    values: tuple[str, ...] = ()
    negated: bool = False
    name: str = ""
    operator: str = ""
    kind: str = ""


@dataclass(frozen=True)
class ListedExecs:
    """The execs that a list contains, their order, and the part of it to return. None stands for all."""

    creator: str | None = None
    states: frozenset[str] | None = None
    terms: tuple[Term, ...] = ()
    #: Ids of searches whose experiments alone are listed.
    parents: frozenset[str] | None = None
    kind: str = TRAINING
    #: The user of FAVORITE and of the order by favorites.
    user: str = ""
    #: A column, or the kind and name of a value.
    sort: str | ValueName = NUMBER
    descending: bool = False
    most: int | None = None
    offset: int = 0
    #: Epoch seconds until which an exec runs that has no end.
    now: float = field(default_factory=time.time, compare=False)


#: Fields that are searched in other tables, of which the database reads a large part.
_IN_TABLES = frozenset({TermField.WORD, TermField.VALUE, TermField.AMOUNT})


def numbers(connection: Connection, wanted: ListedExecs) -> tuple[list[int], int]:
    """Return the numbers of the listed execs in their order, and how many there are without a limit."""
    if isinstance(wanted.sort, ValueName):
        page = _by_value(connection, wanted, wanted.sort)
        return page, _count(connection, wanted, page)
    query = _chosen(wanted).order_by(*_order(wanted))
    if any(term.field in _IN_TABLES for term in wanted.terms):
        # Such a search is slow, so one query finds both the page and the count.
        found = list(connection.execute(query).scalars())
        end = None if wanted.most is None else wanted.offset + wanted.most
        return found[wanted.offset : end], len(found)
    page = list(connection.execute(query.offset(wanted.offset or None).limit(wanted.most)).scalars())
    return page, _count(connection, wanted, page)


def _count(connection: Connection, wanted: ListedExecs, page: Sequence[int]) -> int:
    """Return how many execs there are without a limit. The last page tells it."""
    if (page or not wanted.offset) and (wanted.most is None or len(page) < wanted.most):
        return wanted.offset + len(page)
    return int(connection.execute(select(func.count()).where(*_selected(wanted))).scalar_one())


def _by_value(connection: Connection, wanted: ListedExecs, name: ValueName) -> list[int]:
    """Return the numbers of a list in the order of a value: read from the index of values up to the end of the page,
    and after the last one the execs without the value."""
    known = exec_values.in_order(name, wanted.descending).where(exec_values.exec_number.in_(_chosen(wanted)))
    page = list(connection.execute(known.offset(wanted.offset or None).limit(wanted.most)).scalars())
    if wanted.most is not None and len(page) == wanted.most:
        return page
    skipped = 0
    if wanted.offset and not page:
        count = select(func.count()).select_from(known.order_by(None).subquery())
        skipped = wanted.offset - int(connection.execute(count).scalar_one())
    left = None if wanted.most is None else wanted.most - len(page)
    rest = _chosen(wanted).where(execs.c.number.not_in(exec_values.having(name))).order_by(execs.c.number)
    return [*page, *connection.execute(rest.offset(skipped or None).limit(left)).scalars()]


def listed(connection: Connection, wanted: ListedExecs) -> tuple[list[ExecRow], int]:
    """Return the listed execs, and how many there are without a limit."""
    if wanted.most is None and not (wanted.offset or isinstance(wanted.sort, ValueName)):
        rows = connection.execute(select(*COLUMNS).where(*_selected(wanted)).order_by(*_order(wanted)))
        found = [ExecRow(*row) for row in rows]
        return found, len(found)
    page, total = numbers(connection, wanted)
    return with_numbers(connection, page), total


def with_numbers(connection: Connection, page: Sequence[int]) -> list[ExecRow]:
    """Return the existing execs with these numbers, in this order."""
    found: dict[int, ExecRow] = {}
    for at in range(0, len(page), _TOGETHER):
        found.update((row.number, row) for row in numbered(connection, page[at : at + _TOGETHER]))
    return [found[number] for number in page if number in found]


def counts(connection: Connection, wanted: ListedExecs) -> dict[str, int]:
    """Return the number of the execs in each state, without the limit."""
    query = select(execs.c.state, func.count()).where(*_selected(wanted)).group_by(execs.c.state)
    return {str(state): int(count) for state, count in connection.execute(query)}


def value_names(connection: Connection, wanted: ListedExecs, newest: int) -> dict[ValueName, int]:
    """Return the names of the values of the newest of these execs with the number of execs that have each, the most
    frequent first."""
    return exec_values.names(connection, _chosen(wanted).order_by(execs.c.number.desc()).limit(newest))


def value_spellings(connection: Connection, wanted: ListedExecs, name: str) -> list[ValueName]:
    """Return the names of values of these execs that differ from a name only in the case of letters; metrics first."""
    return exec_values.spellings(connection, name, _chosen(wanted))


def _chosen(wanted: ListedExecs) -> Select[Any]:
    return select(execs.c.number).where(*_selected(wanted))


def _selected(wanted: ListedExecs) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = [execs.c.deleted.is_(False), execs.c.kind == wanted.kind]
    if wanted.creator is not None:
        found.append(execs.c.creator == wanted.creator)
    if wanted.states is not None:
        found.append(execs.c.state.in_(wanted.states))
    if wanted.parents is not None:
        found.append(execs.c.parent.in_(wanted.parents))
    for term in wanted.terms:
        fits = or_(*(_fits(term, value, wanted.user) for value in term.values))
        found.append(not_(fits) if term.negated else fits)
    return found


def _fits(term: Term, value: str, user: str) -> ColumnElement[bool]:
    """Return the condition that one value of a term fits."""
    small = value.lower()
    match term.field:
        case TermField.WORD:
            return _has_word(value)
        case TermField.VALUE:
            return _has_value(ValueName(term.kind, term.name), small)
        case TermField.AMOUNT:
            name = ValueName(term.kind, term.name)
            return execs.c.number.in_(exec_values.compared(name, term.operator, float(value)))
        case TermField.TAG:
            return _tagged(exec_tags.c.tag == value)
        case TermField.FAVORITE:
            return execs.c.id.in_(select(favorites.c.exec_id).where(favorites.c.user == user))
    return _field_fits(term.field, value)


def _field_fits(name: TermField, value: str) -> ColumnElement[bool]:
    if name is TermField.ID:
        return execs.c.id.endswith(f"-{value}", autoescape=True) if value.isdigit() else execs.c.id == value
    if name is TermField.NAME:
        return execs.c.app_name.icontains(value, autoescape=True)
    if name is TermField.STATE:
        return execs.c.state == value
    if name is TermField.SEARCH:
        return _in_search(value)
    column = {TermField.USER: execs.c.creator, TermField.FRAMEWORK: execs.c.framework}[name]
    return func.lower(column) == value.lower()


def _in_search(name: str) -> ColumnElement[bool]:
    """Return the condition that an exec is an experiment of a search; `*` is any search. It is never NULL, so that it
    can be negated."""
    parents = select(searches.c.id)
    if name != ANY:
        parents = parents.where(func.lower(searches.c.name) == name.lower())
    return and_(execs.c.parent.is_not(None), execs.c.parent.in_(parents))


def _states_with(text: str) -> list[str]:
    """Return the states whose shown name contains a text, in small letters."""
    return sorted(state for state in MOVES if len(text) >= _LEAST_STATE and text in shown_as(state).lower())


def _has_word(value: str) -> ColumnElement[bool]:
    """Return the condition that a text, a tag or the state of an exec contains a value. One subquery is faster than
    several: the database then reads the execs from the index of lists."""
    other = execs.alias()
    found = [_with_text(value.lower()), select(other.c.number).join(exec_tags, exec_tags.c.exec_id == other.c.id).where(
        exec_tags.c.tag.icontains(value, autoescape=True))]
    if states := _states_with(value.lower()):
        found.append(select(other.c.number).where(other.c.state.in_(states)))
    return execs.c.number.in_(union_all(*found))


def _has_value(name: ValueName, value: str) -> ColumnElement[bool]:
    """Return the condition that a parameter or a metric of an exec has a value, in small letters."""
    stored = execs.c.number.in_(exec_values.equal(name, value))
    if name.kind:
        return stored
    # `--lr 0.1`, `--lr=0.1`, `-lr 0.1` and `lr=0.1` are words between spaces, also those that are not stored values.
    begins = ((" ", "="), ("-", "="), ("-", " "))
    return or_(stored, *(_text_has(f"{begin}{name.name.lower()}{middle}{value} ") for begin, middle in begins))


def _text_has(text: str) -> ColumnElement[bool]:
    return execs.c.number.in_(_with_text(text))


def _with_text(text: str) -> Select[tuple[int]]:
    return select(exec_texts.c.number).where(exec_texts.c.text.contains(text, autoescape=True))


def _tagged(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    return execs.c.id.in_(select(exec_tags.c.exec_id).where(condition))


def _order(wanted: ListedExecs) -> list[ColumnElement[Any]]:
    """Return the order of a list, if it is not a value. Rows without a cell are the smallest; those without tags come
    last. Of equal rows, the older comes first."""
    sort = str(wanted.sort)
    if sort == NUMBER:
        return [execs.c.number.desc() if wanted.descending else execs.c.number]
    by = _column(sort, wanted)
    order = [by.is_not(None), by]
    if sort == TAG:
        return [by.is_(None), by.desc() if wanted.descending else by, execs.c.number]
    return [*(column.desc() if wanted.descending else column for column in order), execs.c.number]


def _column(sort: str, wanted: ListedExecs) -> ColumnElement[Any]:
    if sort == STATE:
        return case((execs.c.state == RECOVERING, shown_as(RECOVERING)), else_=execs.c.state)
    if sort == "duration":
        return func.coalesce(execs.c.end_time, wanted.now) - execs.c.start_time
    if sort == TAG:
        return select(func.min(exec_tags.c.tag)).where(exec_tags.c.exec_id == execs.c.id).scalar_subquery()
    if sort == FAVORITE:
        liked: Select[tuple[str]] = select(favorites.c.exec_id).where(favorites.c.user == wanted.user)
        return case((execs.c.id.in_(liked), 1), else_=0)
    return execs.c[sort]
