"""GET /console/searches/-/new: a form that starts a search of the code of a run, or of a model definition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from dlicmd.contract.argv import join_args
from dlicmd.contract.program_words import parameters_in
from local_backend.api.bulk import in_turn
from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places
from local_backend.console.changes import TheForm, field
from local_backend.console.experiments import number_of
from local_backend.console.rendering import HEADERS, page
from local_backend.console.route import router as pages
from local_backend.console.search_form import ROWS, SearchForm, checked, command, form_of
from local_backend.console.searches import search_path
from local_backend.errors import Conflict, Invalid, OverQuota
from local_backend.services.execs import ExecSelection
from local_backend.services.load import UPLOAD
from local_backend.services.object_words import in_object_words
from local_backend.services.services import Services
from local_backend.services.stored_searches import NamedCode, SearchSource

router = pages()
PREVIEW = f"{places.NEW_SEARCH}/preview"
#: Runs to choose from.
_RECENT = 20
#: An algorithm whose experiments a file lists.
_LISTED = "ExperimentGridSearch"
#: Error code → field of the form.
_FIELDS = {"search.algorithm": "algorithm", "search.exists": "name", "search.space": "parameter-0",
           "submission.never_schedulable": "workers"}


@dataclass(frozen=True)
class SourceQuery:
    """The code of the search: a run, or a version of a model definition."""

    run: str = ""
    definition: str = ""
    version: str = ""


TheSource = Annotated[SourceQuery, Depends()]


@router.get(places.NEW_SEARCH)
def new_search(request: Request, services: TheServices, caller: TheCaller, query: TheSource) -> Response:
    """Show the form; without code, what code there is."""
    if not (query.run or query.definition):
        runs, _ = services.execs.list(caller, ExecSelection(descending=True, most=_RECENT, find="-search:*"))
        return page(request, "search_source.html", runs=runs, definitions=services.definitions.all(caller))
    source = services.stored_searches.source(caller, _code(query))
    known = parameters_in(source.words)
    form = SearchForm(rows=[(name, "") for name in known], words=join_args(source.words),
                      metric=next(iter(source.metrics), ""))
    return _shown(request, services, source, form.with_rows(len(known) + (not known) * ROWS), {})


@router.post(PREVIEW)
def preview(
    request: Request, services: TheServices, caller: TheCaller, query: TheSource, form: TheForm
) -> Response:
    """Show the command that the form stands for, as a part of the page."""
    asked, source = form_of(form), services.stored_searches.source(caller, _code(query))
    return page(request, "search_command.html", command=_command(source, asked))


@router.post(places.NEW_SEARCH)
async def start(
    request: Request, services: TheServices, caller: TheCaller, query: TheSource, sent: TheForm
) -> Response:
    """Start the search; or show the form again, with a further row, or with its mistakes."""
    form, code = form_of(sent), _code(query)
    if field(sent, "op") == "add":
        return await _again(request, services, caller, code, form.with_rows(len(form.rows) + 1), {})
    found = checked(form)
    problems = dict(found.problems)
    if not problems:
        try:
            services.load.users.submission(caller.name)
            asked = replace(code, args=join_args(found.words), workers=found.workers)
            row = await in_turn(services.load, UPLOAD, caller.name, partial(
                services.stored_searches.start, caller, asked, json.dumps(found.definition)))
            return RedirectResponse(search_path(row.name), 303, HEADERS)
        except (Invalid, Conflict, OverQuota) as problem:
            problems[_FIELDS.get(problem.code, "form")] = _said(str(problem))
    return await _again(request, services, caller, code, form, problems)


async def _again(  # noqa: PLR0917
    request: Request, services: Services, caller: TheCaller, code: NamedCode, form: SearchForm,
    problems: Mapping[str, str],
) -> Response:
    """Show the form again."""
    source = await run_in_threadpool(services.stored_searches.source, caller, code)
    return _shown(request, services, source, form, problems)


def _code(query: SourceQuery) -> NamedCode:
    if query.run:
        return NamedCode(query.run)
    return NamedCode(None, query.definition, number_of(query.version))


def _shown(
    request: Request, services: Services, source: SearchSource, form: SearchForm, problems: Mapping[str, str]
) -> Response:
    algorithms = [one["name"] for one in services.algorithms.list() if one["name"] != _LISTED]
    known = parameters_in(source.words)
    title, path, fields = _named(source)
    return page(
        request, "new_search.html", 400 if problems else 200, source=source, form=form, problems=problems, known=known,
        code_title=title, code_path=path, algorithms=algorithms, command=_command(source, form),
        preview=f"{PREVIEW}?{urlencode(fields)}", address=f"{places.NEW_SEARCH}?{urlencode(fields)}", form_path="",
        form_target="")


def _named(source: SearchSource) -> tuple[str, str, dict[str, str]]:
    """Return the title of the code, the path of its page, and what the address of the form says of it."""
    if source.row is not None:
        return f"{source.row.app_name} ({source.row.id})", f"{places.RUNS}/{source.row.id}", {"run": source.row.id}
    assert source.found is not None
    found = source.found.row
    return (f"{found.name}, version {found.version}", f"{places.DEFINITIONS}/{found.label}",
            {"definition": found.label, "version": str(found.version)})


def _command(source: SearchSource, form: SearchForm) -> str:
    """Return the command that the form stands for; empty while the form has mistakes."""
    if source.row is not None:
        options = ["--job", source.row.id]
    else:
        assert source.found is not None
        options = ["--definition", source.found.row.label, "--of-version", str(source.found.row.version)]
    return command(checked(form), form.given, options, source.words)


def _said(sentence: str) -> str:
    """Return a sentence about a definition or a submission in the words of the form."""
    return in_object_words(sentence).replace("modelSpec: args has", "The arguments have").replace("hpoName", "name")
