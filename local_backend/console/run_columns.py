"""The columns of the table of runs for metrics and parameters: those that a user has chosen, which the browser keeps
in a cookie, or those that fit the listed runs; and the dialog that chooses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Annotated
from urllib.parse import parse_qsl, urlencode

from fastapi import Form, Query, Request
from starlette.responses import RedirectResponse, Response

from dlicmd.contract import metric_names, states
from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places
from local_backend.console.rendering import HEADERS, page
from local_backend.console.route import router as pages
from local_backend.console.runs_query import MAIN, MOST_COLUMNS, RunsQuery, TheQuery, columns_named, query_in
from local_backend.console.sessions import attributes
from local_backend.errors import Invalid
from local_backend.run_values import METRIC, PARAMETER, ValueName, named, with_main
from local_backend.services.access import Caller
from local_backend.services.execs import states_named
from local_backend.services.services import Services
from local_backend.services.views import ExecView

router = pages()
CHOICE, CHOOSE = f"{places.RUNS}/parts/columns", f"{places.RUNS}/columns"
COOKIE = "dlicmd-columns"
#: Maximum number of characters of the cookie, which every browser keeps; seconds that browsers keep it.
_LONGEST_COOKIE, _YEAR = 3500, 365 * 24 * 3600
#: Newest runs whose metrics decide about columns, and whose names are offered; maximum number of offered names.
_DECIDING, _OFFERING, _MOST_OFFERED = 200, 1000, 100


def remembered(request: Request) -> tuple[ValueName, ...]:
    """Return the columns that the browser has kept; none if it has none."""
    return columns_named([value for _, value in parse_qsl(request.cookies.get(COOKIE, ""))])


def columns_of(
    services: Services, caller: Caller, query: RunsQuery, views: Collection[ExecView]
) -> tuple[ValueName, ...]:
    """Return the columns of values: the chosen ones, or those that fit the runs; and the value that sorts the table.
    Raises Invalid (`query.find`)."""
    columns = query.columns or _fitting(_metrics(services, caller, query, views), query.shown)
    return columns if query.value is None or query.value in columns else (*columns, query.value)


def _metrics(services: Services, caller: Caller, query: RunsQuery, views: Collection[ExecView]) -> Counter[ValueName]:
    """Return the metrics of the newest listed runs, and of those on the page that are active, with the number of their
    runs."""
    found = services.execs.value_names(caller, query.selection(), _DECIDING)
    known = Counter({name: count for name, count in found.items() if name.kind == METRIC})
    for view in views:
        if not view.row.terminal:
            known.update(ValueName(METRIC, name) for name in with_main(view.metrics))
    return known


def _fitting(known: Counter[ValueName], before: Sequence[ValueName]) -> tuple[ValueName, ...]:
    """Return loss and accuracy. Another known metric replaces one of these that no run has: first one whose name says
    which values are better, then the most frequent. The columns that the page shows (`before`) stay while known."""
    others = sorted(known, key=lambda one: (metric_names.is_loss(one.name), not metric_names.has_direction(one.name),
                                            -known[one], one.name))
    found = {main: name for main, name in zip(MAIN, before, strict=False) if name in known}
    for main in MAIN:
        free = [name for name in others if name not in (*MAIN, *found.values())]
        if main not in found:
            found[main] = main if main in known or not free else free[0]
    return tuple(found[main] for main in MAIN)


@router.get(CHOICE)
def choice(
    *, request: Request, services: TheServices, caller: TheCaller, query: TheQuery, name: Annotated[str, Query()] = "",
    is_list: Annotated[str, Query(alias="list")] = "",
) -> Response:
    """Show the dialog, or with `list` its names alone: the chosen ones, then those of the listed runs that contain
    `name`."""
    kind, text = named(name.strip())
    if not is_list:
        query = replace(query, columns=query.columns or query.shown)
    counts = _offered(services, caller, query, text)
    offered = [one for one in counts if kind in ("", one.kind) and text.lower() in one.name.lower()
               and one not in query.columns]
    names, left = [*query.columns, *offered[:_MOST_OFFERED]], max(0, len(offered) - _MOST_OFFERED)
    return page(request, "runs_columns_list.html" if is_list else "runs_columns.html", query=query, counts=counts,
                names=names, left=left, nothing_new=not offered and bool(text or not names),
                most=MOST_COLUMNS, choice=CHOICE, choose=CHOOSE, parameter=PARAMETER)


def _offered(services: Services, caller: Caller, query: RunsQuery, name: str) -> Counter[ValueName]:
    """Return the names of the values of the newest listed runs, and of the first running ones, with the number of their
    runs, the most frequent first; and a name that only older runs have, if it is asked for."""
    try:
        selection = query.selection()
        found = Counter(services.execs.value_names(caller, selection, _OFFERING))
    except Invalid:  # an unfinished search narrows nothing
        return _offered(services, caller, replace(query, find=""), name)
    running = frozenset(states_named("running") or ()) & frozenset(selection.states or states.ACTIVE)
    rows, _ = services.execs.list(caller, replace(selection, states=running, offset=0))
    for view in services.execs.views(rows):
        found.update(ValueName(METRIC, one) for one in with_main(view.metrics))
    for one in services.execs.value_spellings(caller, selection, name) if name else ():
        found.setdefault(one, 0)
    return Counter(dict(found.most_common()))


@router.post(CHOOSE)
def choose(
    request: Request, query: Annotated[str, Form()] = "", column: Annotated[Sequence[str], Form()] = (),
    act: Annotated[str, Form()] = "",
) -> Response:
    """Keep the chosen columns in the browser, and show the table with them. Without any, the columns fit the runs
    again. Raises Invalid (`console.form`)."""
    if act == "choose" and len(set(column)) > MOST_COLUMNS:
        raise Invalid("console.form", f"{len(set(column))} columns are chosen; choose at most {MOST_COLUMNS}")
    columns = columns_named(column) if act == "choose" else ()
    answer = RedirectResponse(query_in(query).link(columns=columns), 303, HEADERS)
    about = {**attributes(request), "path": places.RUNS}
    text = urlencode([("column", str(name)) for name in columns])
    if text and len(text) <= _LONGEST_COOKIE:
        answer.set_cookie(COOKIE, text, max_age=_YEAR, **about)
    else:
        answer.delete_cookie(COOKIE, **about)
    return answer
