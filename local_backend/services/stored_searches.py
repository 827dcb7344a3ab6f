"""Searches of code that the server has already: that of an exec, or of a model definition."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlicmd.contract.argv import join_args, split_args
from dlicmd.contract.metric_names import losses_first
from dlicmd.contract.program_words import placed
from dlicmd.contract.secret import masked_arguments
from local_backend.errors import Invalid
from local_backend.fields import NAME, Fields
from local_backend.hypersearch import literal, refusals
from local_backend.services.access import Caller
from local_backend.services.curves import CurveService
from local_backend.services.definitions import DefinitionService, TrainingDefinition
from local_backend.services.execs import ExecService
from local_backend.services.searches import SearchRequest, SearchService
from local_backend.services.submissions import SubmissionService, Template
from local_backend.store.execs import ExecRow
from local_backend.store.searches import SearchRow

#: Frameworks of programs that use several workers.
_SEVERAL = frozenset({"edtPyTorch", "distPyTorch"})
#: Members of modelSpec that name code.
_EXEC, _DEFINITION = "exec", "definition"


@dataclass(frozen=True)
class NamedCode:
    """The code of an exec, or of a version of a model definition; None for the newest version. `args` are the words of
    the program; None for those with which the code is stored."""

    exec_id: str | None = None
    definition: str | None = None
    version: int | None = None
    args: str | None = None
    workers: int | None = None


@dataclass(frozen=True)
class SearchSource:
    """Stored code that a search can run. `words` are those of the program, with masked secrets."""

    words: Sequence[str]
    #: The Python file that runs; None for another command.
    main: str | None
    metrics: Sequence[str] = ()
    asks_workers: bool = False
    row: ExecRow | None = None
    found: TrainingDefinition | None = None


@dataclass(frozen=True)
class StoredSearchService:
    """Starts searches, also those whose definition names stored code."""

    searches: SearchService
    submissions: SubmissionService
    execs: ExecService
    definitions: DefinitionService
    curves: CurveService

    def source(self, caller: Caller, code: NamedCode) -> SearchSource:
        """Return stored code. Raises NotFound (`exec.not_found`, `definition.not_found`)."""
        if code.exec_id is not None:
            row = self.execs.find(caller, code.exec_id)
            words = masked_arguments(self.submissions.arguments(row))
            program = row.workload.program
            return SearchSource(words, None if program.user_cmd else program.main or "",
                                losses_first(self.curves.names(row)), row=row)
        found = self.definitions.find(caller, code.definition or "", code.version)
        before, after = _command(found)
        return SearchSource(after, before[-1] if before else None, asks_workers=found.framework in _SEVERAL,
                            found=found)

    def create(self, caller: Caller, asked: SearchRequest, folder: Path) -> SearchRow:
        """Start a search of stored code, if its definition names some; else a search of the code in the request.

        Raises the errors of `source` and of `SearchService.create`, and Denied (`exec.of_another_user`).
        """
        code = stored_code(asked.text or "")
        if code is None:
            return self.searches.create(caller, asked, folder)
        if asked.upload.files:
            raise Invalid("search.definition", "the request has files, and modelSpec names stored code; leave out one")
        return self.start(caller, code, str(asked.text))

    def start(self, caller: Caller, code: NamedCode, text: str) -> SearchRow:
        """Start a search of stored code. `text` is its definition. Raises the errors of `source` and of
        `SearchService.create`, and Denied (`exec.of_another_user`)."""
        return self.searches.create_from(caller, text, lambda names: self._template(caller, code, names))

    def _template(self, caller: Caller, code: NamedCode, names: Collection[str]) -> Template:
        """Return the submission of the experiments. In the stored words, each parameter takes the place of its value;
        words of the request stay as they are."""
        source = self.source(caller, code)
        words = placed(source.words, names) if code.args is None else split_args(code.args)
        if source.row is not None:
            same = list(words) == list(source.words)
            return self.submissions.template_of_exec(caller, source.row.id, None if same else words)
        assert source.found is not None
        before, _ = _command(source.found)
        workers = (code.workers or 1) if source.asks_workers else None
        return self.definitions.template(caller, source.found, join_args([*before, *words]), workers)


def stored_code(text: str) -> NamedCode | None:
    """Return the code that the definition of a search names; None if the code comes with the request. Raises Invalid
    (`search.definition`)."""
    try:
        value: Any = literal.read(text)
    except ValueError:
        return None  # the reader of definitions says what is wrong
    model = value.get("modelSpec") if isinstance(value, dict) else None
    if not isinstance(model, dict) or not {_EXEC, _DEFINITION} & model.keys():
        return None
    fields = Fields(model, "modelSpec", refusals.definition)
    if _EXEC in model and _DEFINITION in model:
        raise fields.refuse(_DEFINITION, "and exec are given; name one of them")
    if _EXEC in model:
        # The code of an exec is run as the exec was.
        wrong = next((name for name in ("version", "numWorker") if model.get(name) is not None), None)
        if wrong is not None:
            raise fields.refuse(wrong, "needs a model definition; leave it out for an exec")
    fields.check_names((_EXEC, "args") if _EXEC in model else (_DEFINITION, "version", "args", "numWorker"))
    args = None if model.get("args") is None else fields.text("args")
    if _EXEC in model:
        return NamedCode(exec_id=fields.required(_EXEC, most=NAME), args=args)
    return NamedCode(None, fields.required(_DEFINITION, most=NAME), _count(fields, "version"), args,
                      _count(fields, "numWorker"))


def _command(found: TrainingDefinition) -> tuple[list[str], list[str]]:
    """Return the execution command of a definition up to its Python file, and the words after it. A command without a
    Python file has only words."""
    words = split_args(found.shown_command)
    after = next((at + 1 for at, word in enumerate(words) if word.endswith(".py")), 0)
    return words[:after], words[after:]


def _count(fields: Fields, name: str) -> int | None:
    found = fields.whole(name)
    if found is not None and found < 1:
        raise fields.refuse(name, f"must be at least 1, but it is {found}")
    return found
