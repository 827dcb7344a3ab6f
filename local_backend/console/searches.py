"""Searches for hyper-parameters: the list, and the page of one search with its charts and its actions."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from local_backend.api.bulk import bulk, in_turn
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.search_objects import pareto
from local_backend.console import places
from local_backend.console.changes import done
from local_backend.console.compare import COMPARE
from local_backend.console.queries import TableQuery, TheTable, query_of
from local_backend.console.rendering import HEADERS, page
from local_backend.console.route import router as pages
from local_backend.errors import Unavailable
from local_backend.services.access import Caller
from local_backend.services.load import READING
from local_backend.services.searches import SEARCH_SORTABLE, SORTABLE, SearchSelection, SearchView, thinned
from local_backend.services.services import Services
from local_backend.store.searches import EXPERIMENT_STATES, FINISHED, STATES, SUBMITTED, ExperimentRow, Page

router = pages()

#: Rows of a page of a table, and most lines of the parallel coordinates.
ROWS, LINES = 25, 1000
#: Most experiments that say why they wait.
_REASONS = 3
#: A name that a query need not quote.
_PLAIN = re.compile(r"[\w.-]+")
#: Best runs that a link compares.
_BEST = 10
_ONE = places.SEARCHES + "/{name}"
_Rows = Sequence[ExperimentRow]


@router.get(places.SEARCHES)
@bulk(READING, stream=False)
def searches(request: Request, services: TheServices, caller: TheCaller, table: TheTable) -> Response:
    """Show the list of searches."""
    return _list("searches.html", request, services, caller, table)


@router.get(places.HOME + "/parts/searches")
@bulk(READING, stream=False)
def searches_part(request: Request, services: TheServices, caller: TheCaller, table: TheTable) -> Response:
    """Show the table of searches."""
    return _list("searches_part.html", request, services, caller, table)


def _list(template: str, request: Request, services: Services, caller: Caller, table: TableQuery) -> Response:
    state = table.state if table.state in STATES else ""
    sort, down = (table.sort, table.down == "true") if table.sort in SEARCH_SORTABLE else ("createtime", True)
    views, total = services.searches.list(caller, SearchSelection(
        states=[state] if state else None, sort=SEARCH_SORTABLE[sort], down=down, most=ROWS,
        skipped=(table.number - 1) * ROWS, brief=True))
    return page(request, template, views=views, total=total, size=ROWS, number=table.number, state=state, states=STATES,
                sort=sort, down=down, now=time.time(), base=places.SEARCHES,
                query=query_of(state=state, sort=sort, down=down, page=table.number), kept=query_of(state=state))


# --- one search


@router.get(_ONE)
@bulk(READING, stream=False)
def search(request: Request, services: TheServices, caller: TheCaller, name: str, table: TheTable) -> Response:
    """Show the page of one search."""
    view = services.searches.view(caller, name, brief=True)
    return page(request, "search.html", by="time" if table.by == "time" else "experiments",
                **(_about(services, caller, view) | _table(services, caller, view, table)))


@router.get(_ONE + "/part")
@bulk(READING, stream=False)
def search_part(request: Request, services: TheServices, caller: TheCaller, name: str) -> Response:
    """Show the state of a search, its best experiment, its rungs and its Pareto front."""
    return page(request, "search_part.html",
                **_about(services, caller, services.searches.view(caller, name, brief=True)))


@router.get(_ONE + "/experiments")
@bulk(READING, stream=False)
def experiments(request: Request, services: TheServices, caller: TheCaller, name: str, table: TheTable) -> Response:
    """Show the table of experiments."""
    view = services.searches.view(caller, name, brief=True)
    return page(request, "search_experiments.html", **_table(services, caller, view, table))


def _about(services: Services, caller: Caller, view: SearchView) -> dict[str, Any]:
    name, definition, counts = view.row.name, view.definition, view.counts
    several = len(definition.objectives) > 1
    finished: _Rows = services.searches.experiments(caller, name, Page([FINISHED]))[2] if several else ()
    front = set(pareto(finished, definition))
    expected = max(counts.all, definition.max_experiments or 0, len(definition.given))
    return {
        "row": view.row, "definition": definition, "counts": counts, "best": view.best,
        "front": [one for one in finished if one.id in front][:ROWS], "front_size": len(front),
        "front_parameters": _parameters(view, finished), "rungs": services.searches.rungs(caller, name),
        "runs": f"{places.RUNS}?{urlencode({'find': _found(name)})}", "compared": _compared(services, caller, name),
        "waits": _waits(services, caller, name), "base": search_path(name), "now": time.time(),
        "expected": expected if view.row.active else counts.all, "commands": _commands(view),
    }


def _found(name: str) -> str:
    """Return the words that find the runs of a search: those of its name, if that has a quote."""
    if _PLAIN.fullmatch(name):
        return f"search:{name}"
    return f'search:"{name}"' if '"' not in name else name.replace('"', " ")


def _compared(services: Services, caller: Caller, name: str) -> tuple[int, str]:
    """Return the number of the best runs, and the address that compares them."""
    ids = services.searches.best_execs(caller, name, _BEST)
    return len(ids), f"{COMPARE}?{urlencode([('id', one) for one in ids])}"


def _table(services: Services, caller: Caller, view: SearchView, table: TableQuery) -> dict[str, Any]:
    name, definition = view.row.name, view.definition
    state = table.state if table.state in EXPERIMENT_STATES else ""
    sort, down = table.sort, table.down == "true"
    if sort not in SORTABLE:  # the best values first, or the newest experiments while there is no value
        sort, down = ("metricVal", definition.maximize) if view.best is not None else ("id", True)
    _, _, rows, total = services.searches.experiments(caller, name, Page(
        [state] if state else None, SORTABLE[sort], down, ROWS, (table.number - 1) * ROWS))
    return {
        "definition": definition, "best": view.best, "rows": rows, "total": total, "size": ROWS,
        "number": table.number, "state": state, "states": EXPERIMENT_STATES, "sort": sort, "down": down,
        "parameters": _parameters(view, rows), "base": search_path(name), "now": time.time(),
        "metrics": [one for one in definition.wanted if one != definition.metric],
        "query": query_of(state=state, sort=sort, down=down, page=table.number), "kept": query_of(state=state),
    }


def search_path(name: str) -> str:
    """Return the path of the page of a search."""
    return f"{places.SEARCHES}/{quote(name, safe='')}"


def _parameters(view: SearchView, rows: _Rows) -> list[str]:
    """Return the names of the parameters that experiments have."""
    names = dict.fromkeys(one.name for one in view.definition.parameters)
    names.update(dict.fromkeys(name for row in rows for name in row.values))
    return list(names)


def _waits(services: Services, caller: Caller, name: str) -> list[tuple[ExperimentRow, str]]:
    """Return the first experiments that wait for slots, with the reasons."""
    _, _, rows, _ = services.searches.experiments(caller, name, Page([SUBMITTED], most=_REASONS))
    found = []
    for row in rows:
        if row.exec_id is not None:
            reason = services.execs.pending(caller, row.exec_id).view.reason
            if reason is not None:
                found.append((row, reason.sentence))
    return found


def _commands(view: SearchView) -> list[tuple[str, str]]:
    """Return what a user can do with a search, and the commands that do it."""
    name = shlex.quote(view.row.name)
    found = [("Show", f"dlicmd --hpo-get {name}"), ("Follow", f"dlicmd --hpo-get {name} --follow"),
             ("Plot the best value", f"dlicmd --hpo-plot {name}"),
             ("Export the experiments", f"dlicmd --hpo-export {name} experiments.csv")]
    if view.best is not None and view.best.exec_id:
        found.append(("Fetch the result of the best experiment", f"dlicmd --exec-trainresult {view.best.exec_id}"))
    if view.row.active:
        return [*found, ("Stop", f"dlicmd --hpo-stop {name}")]
    return [*found, ("Restart", f"dlicmd --hpo-restart {name}"), ("Delete", f"dlicmd --hpo-delete {name}")]


@router.get(_ONE + "/progress")
@bulk(READING, stream=False)
def progress(  # noqa: PLR0917
    request: Request, services: TheServices, caller: TheCaller, name: str, by: str = "", width: str = ""
) -> Response:
    """Return the chart of the values and of the best value so far."""
    found = services.searches.progress(caller, name)
    pixels = min(4000, max(100, int(width))) if width.isdecimal() and len(width) < 6 else 800
    timed = by == "time"
    values = [(ended if timed else float(place), value) for place, (_, ended, value) in enumerate(found.values, 1)]
    at = dict(zip((number for number, _, _ in found.values), values, strict=True))
    best = [at[number] for number, _, _ in found.best]
    if best:
        best.append((values[-1][0], best[-1][1]))
    shown = ((f"best {found.metric}", best, {"color": 1, "step": True}),
             (found.metric, thinned(values, 2 * pixels), {"color": 8, "dash": True}))
    series = [{"name": label, "x": [x for x, _ in points], "y": [y for _, y in points], **look}
              for label, points, look in shown]
    return JSONResponse({
        "x": {"label": "time" if timed else "experiments", "kind": "time" if timed else "number"},
        "y": {"label": found.metric}, "series": series if values else [], "marks": []}, headers=HEADERS)


@router.get(_ONE + "/parallel")
@bulk(READING, stream=False)
def parallel(request: Request, services: TheServices, caller: TheCaller, name: str) -> Response:
    """Return the parameters and the values of finished experiments, for the parallel coordinates."""
    definition, rows = services.searches.sample(caller, name, LINES)
    names = list(dict.fromkeys([*(one.name for one in definition.parameters), *(key for row in rows
                                                                                for key in row.values)]))
    log = {one.name for one in definition.parameters if one.log}
    answer = {
        "metric": definition.metric, "maximize": definition.maximize,
        "axes": [{"name": one, "log": one in log} for one in names],
        "lines": [{"id": row.id, "run": row.exec_id, "value": row.metric,
                   "at": [row.values.get(one) for one in names]} for row in rows],
    }
    return JSONResponse(answer, headers=HEADERS)


@router.get(_ONE + "/importances")
async def importances(request: Request, services: TheServices, caller: TheCaller, name: str) -> Response:
    """Show how much each parameter matters."""
    def asked() -> tuple[dict[str, float], str]:
        definition, known = services.searches.known(caller, name)
        try:
            return services.algorithms.importances(definition, known), ""
        except Unavailable as problem:
            return {}, str(problem)

    shares, problem = await in_turn(services.load, READING, caller.name, asked)
    return page(request, "search_importances.html", shares=shares, problem=problem)


# --- changes


@router.post(_ONE + "/stop")
async def stop(request: Request, services: TheServices, caller: TheCaller, name: str) -> Response:
    """Stop a search and its running experiments."""
    row = await run_in_threadpool(services.searches.stop, caller, name)
    return done(request, search_path(row.name))


@router.post(_ONE + "/force")
async def force(request: Request, services: TheServices, caller: TheCaller, name: str) -> Response:
    """Stop a search at once."""
    row = await run_in_threadpool(partial(services.searches.stop, caller, name, force=True))
    return done(request, search_path(row.name))


@router.post(_ONE + "/restart")
async def restart(request: Request, services: TheServices, caller: TheCaller, name: str) -> Response:
    """Continue a stopped or failed search."""
    row = await run_in_threadpool(services.searches.restart, caller, name)
    return done(request, search_path(row.name))


@router.post(_ONE + "/delete")
async def delete(request: Request, services: TheServices, caller: TheCaller, name: str) -> Response:
    """Delete a search that is over."""
    await run_in_threadpool(services.searches.delete, caller, name)
    return done(request, places.SEARCHES)
