"""GET /console/searches/-/new: a form that starts a search of the code of a run, or of a model definition."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from dlicmd.contract.argv import join_args, split_args
from dlicmd.contract.metric_names import losses_first
from dlicmd.contract.secret import masked_arguments
from local_backend.api.bulk import in_turn
from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places
from local_backend.console.changes import TheForm, field
from local_backend.console.experiments import number_of
from local_backend.console.rendering import HEADERS, page
from local_backend.console.route import router as pages
from local_backend.console.search_form import ROWS, CheckedForm, SearchForm, checked, command, form_of, parameters_in
from local_backend.console.searches import search_path
from local_backend.errors import Conflict, Invalid, OverQuota
from local_backend.services.access import Caller
from local_backend.services.definitions import TrainingDefinition
from local_backend.services.execs import ExecSelection
from local_backend.services.load import UPLOAD
from local_backend.services.object_words import in_object_words
from local_backend.services.services import Services
from local_backend.services.submissions import Template
from local_backend.store.execs import ExecRow

router = pages()
PREVIEW = f"{places.NEW_SEARCH}/preview"
#: Runs to choose from. Frameworks of programs that use several workers.
_RECENT, _SEVERAL = 20, frozenset({"edtPyTorch", "distPyTorch"})
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


@dataclass(frozen=True)
class _StoredCode:
    """What the form shows of the code. `words` are those of the program, or a command of a definition."""

    title: str
    path: str
    fields: Mapping[str, str]
    words: Sequence[str]
    #: The Python file that runs; None for another command.
    main: str | None
    metrics: Sequence[str] = ()
    asks_workers: bool = False
    row: ExecRow | None = None
    found: TrainingDefinition | None = None


@router.get(places.NEW_SEARCH)
def new_search(request: Request, services: TheServices, caller: TheCaller, query: TheSource) -> Response:
    """Show the form; without code, what code there is."""
    if not (query.run or query.definition):
        runs, _ = services.execs.list(caller, ExecSelection(descending=True, most=_RECENT, find="-search:*"))
        return page(request, "search_source.html", runs=runs, definitions=services.definitions.all(caller))
    source = _source(services, caller, query)
    known = parameters_in(source.words)
    form = SearchForm(rows=[(name, "") for name in known], words=join_args(source.words),
                      metric=next(iter(source.metrics), ""))
    return _shown(request, services, source, form.with_rows(len(known) + (not known) * ROWS), {})


@router.post(PREVIEW)
def preview(
    request: Request, services: TheServices, caller: TheCaller, query: TheSource, form: TheForm
) -> Response:
    """Show the command that the form stands for, as a part of the page."""
    asked, source = form_of(form), _source(services, caller, query)
    return page(request, "search_command.html", command=_command(source, asked))


@router.post(places.NEW_SEARCH)
async def start(request: Request, services: TheServices, caller: TheCaller, query: TheSource) -> Response:
    """Start the search; or show the form again, with a further row, or with its mistakes."""
    sent = await request.form()
    form = form_of(sent)
    source = await run_in_threadpool(_source, services, caller, query)
    if field(sent, "op") == "add":
        return _shown(request, services, source, form.with_rows(len(form.rows) + 1), {})
    found = checked(form)
    problems = dict(found.problems)
    if not problems:
        try:
            services.load.users.submission(caller.name)
            row = await in_turn(services.load, UPLOAD, caller.name, partial(
                services.searches.create_from, caller, json.dumps(found.definition),
                lambda: _template(services, caller, source, found)))
            return RedirectResponse(search_path(row.name), 303, HEADERS)
        except (Invalid, Conflict, OverQuota) as problem:
            problems[_FIELDS.get(problem.code, "form")] = _said(str(problem))
    return _shown(request, services, source, form, problems)


def _source(services: Services, caller: Caller, query: SourceQuery) -> _StoredCode:
    """Return the code. Raises NotFound (`exec.not_found`, `definition.not_found`)."""
    if query.run:
        row = services.execs.find(caller, query.run)
        words = masked_arguments(services.submissions.arguments(row))
        program = row.workload.program
        return _StoredCode(f"{row.app_name} ({row.id})", f"{places.RUNS}/{row.id}", {"run": row.id}, words,
                       None if program.user_cmd else program.main or "", losses_first(services.curves.names(row)),
                       row=row)
    found = services.definitions.find(caller, query.definition, number_of(query.version))
    label = found.row.label
    words = split_args(found.shown_command)
    main = next((word for word in words if word.endswith(".py")), None)
    return _StoredCode(f"{found.row.name}, version {found.row.version}", f"{places.DEFINITIONS}/{label}",
                   {"definition": label, "version": str(found.row.version)}, words, main, found=found,
                   asks_workers=found.framework in _SEVERAL)


def _template(services: Services, caller: Caller, source: _StoredCode, found: CheckedForm) -> Template:
    """Return the submission of the experiments. Raises the errors of a submission."""
    if source.found is not None:
        workers = (found.workers or 1) if source.asks_workers else None
        return services.definitions.template(caller, source.found, join_args(found.words), workers)
    assert source.row is not None
    same = list(found.words) == list(source.words)
    return services.submissions.template_of_exec(caller, source.row.id, None if same else found.words)


def _shown(
    request: Request, services: Services, source: _StoredCode, form: SearchForm, problems: Mapping[str, str]
) -> Response:
    algorithms = [one["name"] for one in services.algorithms.list() if one["name"] != _LISTED]
    known = parameters_in(source.words)
    return page(
        request, "new_search.html", 400 if problems else 200, source=source, form=form, problems=problems, known=known,
        algorithms=algorithms, command=_command(source, form), preview=f"{PREVIEW}?{urlencode(source.fields)}",
        address=f"{places.NEW_SEARCH}?{urlencode(source.fields)}", form_path="", form_target="")


def _command(source: _StoredCode, form: SearchForm) -> str:
    """Return the command that a form stands for; empty while it has mistakes, and for code that is no Python file."""
    found = checked(form)
    if found.problems or source.main is None:
        return ""
    words = list(found.words)
    if source.found is not None and source.main in words:
        words = words[words.index(source.main) + 1:]
    return command(replace(found, words=words), form.given, source.main or "train.py")


def _said(sentence: str) -> str:
    """Return a sentence about a definition or a submission in the words of the form."""
    return in_object_words(sentence).replace("modelSpec: args has", "The arguments have").replace("hpoName", "name")
