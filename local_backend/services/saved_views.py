"""Saved views: what the lists of execs of a user show, under a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection

from local_backend.errors import Invalid, NotFound
from local_backend.run_values import LONGEST_NAME, named
from local_backend.services import run_query
from local_backend.services.access import Caller
from local_backend.services.base import Base
from local_backend.services.execs import states_named
from local_backend.store import saved_views

#: Maximum number of characters of a name, of columns of a view, and of views of a user.
LONGEST, MOST_COLUMNS, MOST_VIEWS = 60, 20, 100


@dataclass(frozen=True)
class StoredView:
    """What a list of execs shows. The values are those of the query of GET /execs."""

    name: str
    find: str = ""
    state: str = ""
    sort_by: str = ""
    everyone: bool = False
    #: Metrics and parameters, such as `metric.f1` and `param.lr`. None for the usual columns.
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class SavedViewService:
    """Operations on saved views. Users see and change their own."""

    base: Base

    def all(self, caller: Caller) -> list[StoredView]:
        """Return the views of the caller in the order of their names."""
        found = self.base.database.read(lambda c: saved_views.of(c, caller.name))
        return [_view(name, query) for name, query in found.items()]

    def save(self, caller: Caller, view: StoredView) -> None:
        """Save a view of the caller, and replace the view of this name. Raises Invalid (`query.find`, `query.state`,
        `view.invalid`)."""
        def work(connection: Connection) -> None:
            others = saved_views.of(connection, caller.name).keys() - {view.name}
            if len(others) >= MOST_VIEWS:
                raise Invalid("view.invalid", f"You have {MOST_VIEWS} views; delete one")
            saved_views.write(connection, caller.name, view.name, _stored(view))

        with self.base.recorded(caller, "view.save", view.name):
            _check(view)
            self.base.database.write(work)

    def delete(self, caller: Caller, name: str) -> None:
        """Delete a view of the caller. Raises NotFound (`view.not_found`)."""
        with self.base.recorded(caller, "view.delete", name):
            # A name beyond the limit, or with a zero character, is no name of a view and no text of a database.
            if not _is_name(name) or not self.base.database.write(lambda c: saved_views.remove(c, caller.name, name)):
                raise NotFound("view.not_found", f"You have no view {name[:LONGEST]!r}")


def _stored(view: StoredView) -> dict[str, Any]:
    return {key: value for key, value in asdict(view).items() if key != "name"}


def _view(name: str, stored: Mapping[str, Any]) -> StoredView:
    return StoredView(**{**stored, "name": name, "columns": tuple(stored["columns"])})


def _is_name(name: str) -> bool:
    return 0 < len(name) <= LONGEST and name.isprintable() and name == name.strip()


def _check(view: StoredView) -> None:
    """Refuse a view that no list can show. Raises Invalid."""
    if not _is_name(view.name):
        raise Invalid("view.invalid", f"{view.name[:LONGEST]!r} is not a name of a view; use 1 to {LONGEST} "
                                      "characters, without spaces at the ends")
    run_query.parsed(view.find)
    states_named(view.state)
    wrong = next((one for one in (*view.columns, view.sort_by) if not one.isprintable() or len(one) > 2 * LONGEST_NAME),
                 next((one for one in view.columns if not named(one).kind), None))
    if wrong is not None:
        raise Invalid("view.invalid", f"{wrong[:LONGEST_NAME]!r} is not a column; write metric.NAME or param.NAME")
    if len(view.columns) > MOST_COLUMNS:
        raise Invalid("view.invalid", f"The view has {len(view.columns)} columns; at most {MOST_COLUMNS} are possible")
