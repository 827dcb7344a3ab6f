"""Algorithms of searches: the built-in ones, and those that users install."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from local_backend.errors import Unavailable
from local_backend.hypersearch import experiments
from local_backend.hypersearch.controller import AlgorithmFailed, Suggested
from local_backend.hypersearch.definition import BUILT_IN, Definition, Known
from local_backend.hypersearch.suggesting import Suggester, SuggesterFailed, SuggesterLost
from local_backend.services.access import Caller
from local_backend.services.base import Base
from local_backend.services.searches import SearchService
from local_backend.store.searches import Page, SearchRow

BUILD_IN, USER_PLUGIN = "BUILD_IN", "USER_PLUGIN"
#: Seconds that a call waits for the importance of parameters.
_PATIENCE = 60.0


@dataclass(frozen=True)
class AlgorithmRow:
    """An algorithm, as it is listed."""

    name: str
    type: str = BUILD_IN
    remote_exec: bool = False


def ask(  # noqa: PLR0917
    suggester: Suggester, search: SearchRow, definition: Definition, known: Sequence[Known], earlier: Sequence[Known],
    count: int,
) -> Future[Suggested]:
    """Ask the algorithm of a search for suggestions. The future raises AlgorithmFailed, SuggesterLost."""
    return _changed(suggester.ask(definition, search.seed, known, count, earlier),
                    lambda answer: Suggested(answer, None))


def _changed(asked: Future[Any], made: Callable[[Any], Suggested]) -> Future[Suggested]:
    """Return the future of an answer in the form of the loop."""
    found: Future[Suggested] = Future()

    def done(question: Future[Any]) -> None:
        try:
            found.set_result(made(question.result()))
        except SuggesterFailed as problem:
            found.set_exception(AlgorithmFailed(f"the algorithm failed: {problem}"))
        except BaseException as problem:
            found.set_exception(problem)

    asked.add_done_callback(done)
    return found


@dataclass(frozen=True)
class AlgorithmService:
    """Operations on algorithms."""

    base: Base
    searches: SearchService
    suggester: Suggester

    def list(self, kind: str | None = None) -> list[AlgorithmRow]:
        """Return the algorithms of a type, or all: first the built-in ones."""
        return [one for one in map(AlgorithmRow, BUILT_IN) if kind in (None, one.type)]

    def find(self, name: str) -> AlgorithmRow | None:
        """Return one algorithm, None if there is none of this name."""
        return next((one for one in self.list() if one.name.lower() == name.lower()), None)

    def importances(self, caller: Caller, name: str) -> dict[str, float]:
        """Return how much each parameter of a search matters. Raises NotFound (`search.not_found`), Unavailable."""
        row, definition, rows, _ = self.searches.experiments(caller, name, Page())
        known = [experiments.known(one, definition) for one in rows]
        try:
            return self.suggester.importances(definition, known).result(_PATIENCE)
        except (SuggesterFailed, SuggesterLost, TimeoutError) as problem:
            sentence = f"the importances of {row.name} are not known now: {problem}"
            raise Unavailable("search.importances", sentence) from None
