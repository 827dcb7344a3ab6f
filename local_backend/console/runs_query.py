"""The address of the table of runs: what it shows, in which order, and with which columns of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any
from urllib.parse import parse_qs, parse_qsl, urlencode

from fastapi import Depends, Query

from dlicmd.contract import metric_names, wire
from local_backend.console import places
from local_backend.run_values import METRIC, ValueName, named
from local_backend.services.execs import ExecSelection, states_named

#: Rows of one page, and maximum number of a page and of columns of values.
SIZE, MOST_PAGE, MOST_COLUMNS = 50, 1_000_000, 20
#: Heading in the address → column of the list, and whether the first click sorts from the largest down.
SORTS: Mapping[str, tuple[str, bool]] = {
    "name": ("app_name", False), "id": ("number", True), "user": ("creator", False), "state": ("state", False),
    "started": ("start_time", True), "duration": ("duration", True), "workers": ("num_worker", True),
    "tags": ("tag", False), "favorite": ("favorite", True),
}
#: Columns of values without a choice, and their titles.
MAIN = (ValueName(METRIC, wire.LOSS), ValueName(METRIC, wire.ACCURACY))
#: Names of the states that can be selected, in the order of the life of a run.
STATES = ("pending", "running", "finished", "error", "killed")


@dataclass(frozen=True)
class RunsQuery:
    """What the table shows; the query of the address."""

    find: str = ""
    state: str = ""
    favorites: bool = False
    everyone: bool = False
    #: A key of SORTS, or the kind and name of a value.
    sort: str = "id"
    #: Whether the order is the reverse of the usual one of the column.
    back: bool = False
    number: int = 1
    #: The chosen columns of values; none for those that fit the runs.
    columns: tuple[ValueName, ...] = ()
    #: The columns of values that the page shows without a choice.
    shown: tuple[ValueName, ...] = ()
    #: Whether charts of the metrics are beside the table.
    charts: bool = False

    def text(self, **changes: Any) -> str:
        """Return the query of the address after changes. A change other than that of the page leads to the first
        page."""
        one = replace(self, **({"number": 1} | changes))
        values = {
            "find": one.find, "state": one.state, "favorites": "1" * one.favorites, "all": "1" * one.everyone,
            "sort": one.sort if one.sort != "id" else "", "back": "1" * one.back,
            "page": str(one.number) if one.number > 1 else "", "column": [str(name) for name in one.columns],
            "charts": "1" * one.charts,
        }
        return urlencode({name: value for name, value in values.items() if value}, doseq=True)

    @property
    def kept(self) -> list[tuple[str, str]]:
        """The values that a new search keeps."""
        return [pair for pair in parse_qsl(self.text()) if pair[0] != "find"]

    def live(self, columns: Sequence[ValueName]) -> str:
        """Return the query for the same table as it is now, which has these columns of values."""
        shown = [] if self.columns else [("shown", str(name)) for name in columns]
        return "&".join(filter(None, (self.text(number=self.number), urlencode(shown))))

    @property
    def is_narrow(self) -> bool:
        """Whether words or filters leave runs out."""
        return bool(self.find or self.state or self.favorites)

    def link(self, **changes: Any) -> str:
        """Return the path of the page after changes."""
        text = self.text(**changes)
        return f"{places.RUNS}?{text}" if text else places.RUNS

    def sorted_by(self, name: str) -> str:
        """Return the path of the page sorted by a column; by the same column, in the reverse order."""
        return self.link(sort=name, back=not self.back if name == self.sort else False)

    @property
    def value(self) -> ValueName | None:
        """The value that the table is sorted by; None if it is sorted by another column."""
        return None if self.sort in SORTS else named(self.sort)

    @property
    def descending(self) -> bool:
        """Whether the largest come first: usually the best metrics, and the smallest parameters."""
        if (value := self.value) is None:
            return SORTS[self.sort][1] != self.back
        return (value.kind == METRIC and not metric_names.is_lower_better(value.name)) != self.back

    def with_state(self, name: str) -> str:
        """Return the path of the page with a state selected, or no longer selected."""
        chosen = {*self.states} ^ {name}
        return self.link(state=",".join(one for one in STATES if one in chosen))

    @property
    def states(self) -> list[str]:
        """The selected states; none for all."""
        return [one for one in self.state.split(",") if one in STATES]

    def selection(self, is_all: bool = False) -> ExecSelection:
        """Return the execs of the page; with `is_all`, of any state and all pages. Raises Invalid (`query.find`)."""
        wanted = None if is_all else ",".join(self.states)
        find = f"{self.find} is:favorite" if self.favorites else self.find
        return ExecSelection(
            states_named(wanted), self.value or SORTS[self.sort][0], self.descending, SIZE,
            everyone=self.everyone, find=find, offset=(self.number - 1) * SIZE,
        )


def query_of(
    *, find: Annotated[str, Query()] = "", state: str = "", favorites: str = "", everyone: Annotated[
        str, Query(alias="all")] = "", sort: str = "id", back: str = "",
    number: Annotated[str, Query(alias="page")] = "1", column: Annotated[Sequence[str], Query()] = (),
    shown: Annotated[Sequence[str], Query()] = (), charts: str = "",
) -> RunsQuery:
    """Return the query of an address. Impossible values are left out, so that an old link still leads to the table."""
    whole = int(number) if number.isascii() and number.isdigit() and len(number) < 8 else 1
    return RunsQuery(find, state, favorites == "1", everyone == "1", _sort(sort), back == "1",
                     min(max(1, whole), MOST_PAGE), columns_named(column), columns_named(shown), charts == "1")


TheQuery = Annotated[RunsQuery, Depends(query_of)]


def query_in(text: str) -> RunsQuery:
    """Return the query of a text."""
    found = parse_qs(text)
    names = {"find": "find", "state": "state", "favorites": "favorites", "all": "everyone", "sort": "sort",
             "back": "back", "page": "number", "charts": "charts"}
    return query_of(**{names[name]: values[-1] for name, values in found.items() if name in names},
                    column=found.get("column", ()), shown=found.get("shown", ()))


def columns_named(texts: Sequence[str]) -> tuple[ValueName, ...]:
    """Return the columns of values with these names, each once. Texts that name no kind are left out."""
    names = dict.fromkeys(name for name in map(named, texts) if name.kind)
    return tuple(names)[:MOST_COLUMNS]


def _sort(text: str) -> str:
    """Return a key of SORTS, or the kind and name of a value. A main metric needs no kind."""
    for name in MAIN:
        if text == name.name:
            return str(name)
    return text if text in SORTS or named(text).kind else "id"
