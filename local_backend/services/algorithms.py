"""Algorithms of searches: the built-in ones, and those that users install."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local_backend.errors import AccessDenied, Conflict, Invalid, NotFound, StorageFailed, Unavailable
from local_backend.hypersearch import plugins
from local_backend.hypersearch.controller import AlgorithmFailed, Suggested
from local_backend.hypersearch.definition import Definition, Known
from local_backend.hypersearch.plugin_process import PluginAnswer, ask, environment_of
from local_backend.hypersearch.questions import Hold, Question, Questions, SuggesterFailed, SuggesterLost
from local_backend.hypersearch.suggesting import Suggester
from local_backend.services.access import Caller
from local_backend.services.base import Base
from local_backend.store import searches
from local_backend.store.searches import SearchRow
from local_backend.submit.receive import ReceivedUpload

#: Seconds that a call waits for the importance of parameters.
_PATIENCE = 60.0
#: How often such a call asks processes that get lost.
_TRIES = 3
#: Most installed algorithms of a user.
_MOST_INSTALLED = 100
#: Plugins that answer at the same time: more than those of one user may.
_PLUGINS = 3


@dataclass(frozen=True)
class AlgorithmService:
    """Operations on algorithms, and questions to them."""

    base: Base
    #: The control group that is delegated to this process: it limits plugins.
    control_group: Path | None = None
    suggester: Suggester = field(default_factory=Suggester)
    _questions: Questions = field(default_factory=lambda: Questions(_PLUGINS, "plugin"))

    def names(self) -> Collection[str]:
        """Return the names of the installed algorithms."""
        return self._installed().keys()

    def list(self, kind: str | None = None) -> list[Mapping[str, Any]]:
        """Return the descriptions of the algorithms of a type, or of all: first the built-in ones."""
        found = [*plugins.built_in(), *(json.loads(text) for _, text in self._installed().values())]
        return [one for one in found if kind in (None, "", one["type"])]

    def find(self, name: str) -> Mapping[str, Any] | None:
        """Return the description of one algorithm, None if there is none of this name."""
        return next((one for one in self.list() if one["name"].lower() == name.lower()), None)

    def install(self, caller: Caller, text: str | None, upload: ReceivedUpload) -> Mapping[str, Any]:
        """Install an algorithm from an archive, or from a folder of the server's machine. Raises Invalid
        (`search.plugin`), Conflict (`search.algorithm_exists`), StorageFailed."""
        with self.base.recorded(caller, "algorithm.install") as record:
            request = plugins.PluginRequest.parse(text or "")
            record.about.append(request.name)
            if self.find(request.name) is not None:
                raise Conflict("search.algorithm_exists", f"an algorithm {request.name} is already installed; "
                                                          "delete it first, or choose another name")
            if sum(creator == caller.name for creator, _ in self._installed().values()) >= _MOST_INSTALLED:
                raise Invalid("search.plugin", f"{caller.name} has installed {_MOST_INSTALLED} algorithms, which is "
                                               "the limit; delete one first")
            if len(upload.files) > 1:
                raise Invalid("search.plugin", "the request contains more than one file")
            environment_of(self.base.settings, request.described(Path(), caller.name, ""))
            plugins.delete(self.base.settings, request.name)  # an interrupted installation may have left files
            try:
                folder = plugins.install(self.base.settings, request, upload.files[0][1] if upload.files else None)
            except OSError as problem:
                raise StorageFailed.from_os(problem) from None
            created = time.strftime("%Y-%m-%d %H:%M:%S")
            shown = request.described(folder, caller.name, created)
            self.base.database.write(lambda c: searches.install(c, request.name, caller.name, json.dumps(shown)))
        return shown

    def delete(self, caller: Caller, name: str) -> None:
        """Remove an installed algorithm. Raises NotFound (`search.algorithm_not_found`), Denied
        (`search.algorithm_of_another_user`), Conflict (`search.algorithm_in_use`)."""
        with self.base.recorded(caller, "algorithm.delete", name):
            found = next((one for one in self.names() if one.lower() == name.lower()), None)
            if found is None:
                raise NotFound("search.algorithm_not_found", f"no installed algorithm has the name {name[:80]!r}")
            creator = self._installed()[found][0]
            if not (caller.admin or caller.name == creator):
                raise AccessDenied("search.algorithm_of_another_user", f"The algorithm {found} belongs to {creator}")
            for row in self.base.database.read(searches.active):
                if Definition.from_json(row.definition).algorithm == found:
                    what = f"the search {row.name}" if row.creator == caller.name else "a search"
                    raise Conflict("search.algorithm_in_use", f"{what} of {row.creator} uses {found}")
            self.base.database.write(lambda c: searches.uninstall(c, found))
            plugins.delete(self.base.settings, found)

    def ask(
        self, search: SearchRow, definition: Definition, known: Sequence[Known], earlier: Sequence[Known], count: int
    ) -> Question[Suggested]:
        """Ask the algorithm of a search for suggestions. The future raises AlgorithmFailed, SuggesterLost."""
        if not definition.plugin:
            asked = self.suggester.ask(definition, search.seed, known, count, earlier)
            return _changed(asked, Suggested)
        return _changed(self._questions.ask(lambda hold: self._ask_plugin(hold, search, definition, known, count)),
                        lambda answer: Suggested(answer.suggestions, answer.state))

    def importances(self, definition: Definition, known: Sequence[Known]) -> dict[str, float]:
        """Return how much each parameter of a search matters. Raises Unavailable (`search.importances`)."""
        why: Exception = SuggesterLost()
        for _ in range(_TRIES):
            asked = self.suggester.importances(definition, known)
            try:
                return asked.result(_PATIENCE)
            except SuggesterLost as problem:  # its process was killed
                why = problem
            except (SuggesterFailed, FutureTimeoutError) as problem:
                why = problem
                break
            finally:
                asked.cancel()
        raise Unavailable("search.importances", f"the importance of the parameters is not available: {why}")

    def close(self) -> None:
        """End all processes, and wait for their ends. Questions in progress fail."""
        self.suggester.close()
        self._questions.close()

    def _installed(self) -> dict[str, tuple[str, str]]:
        return self.base.database.read(searches.installed)

    def _ask_plugin(
        self, hold: Hold, search: SearchRow, definition: Definition, known: Sequence[Known], count: int
    ) -> PluginAnswer:
        found = self._installed().get(definition.algorithm)
        if found is None:
            raise SuggesterFailed(f"{definition.algorithm} is no longer installed")
        # Each batch has `parallel` experiments; the last one of a search may have fewer.
        last = [one for one in known[-definition.parallel :] if one.told is not None]
        log = self.base.settings.paths.search_log(search.id)
        log.parent.mkdir(mode=0o700, exist_ok=True)
        state = self.base.database.read(lambda c: searches.plugin_state(c, search.number))
        try:
            return ask(self.base.settings, json.loads(found[1]), definition, name=search.name, count=count, last=last,
                       state=state, log=log, hold=hold, control_group=self.control_group)
        except SuggesterLost as problem:
            raise SuggesterLost(f"{problem}; its log is {log}") from None


def _changed(asked: Question[Any], made: Callable[[Any], Suggested]) -> Question[Suggested]:
    """Return an answer in the form of the loop."""
    found: Question[Suggested] = Question(asked.cancel)

    def done(question: Future[Any]) -> None:
        if not found.set_running_or_notify_cancel():
            return
        try:
            found.set_result(made(question.result()))
        except SuggesterFailed as problem:
            found.set_exception(AlgorithmFailed(str(problem)))
        except BaseException as problem:
            found.set_exception(problem)

    asked.add_done_callback(done)
    return found
