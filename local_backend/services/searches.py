"""Searches for hyper-parameters: create, list, show, stop, restart and delete them."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from local_backend.curves.answers import CurveAnswers
from local_backend.errors import Conflict, Invalid, NotFound, OverQuota
from local_backend.hypersearch import experiments, objective
from local_backend.hypersearch.controller import Suggested
from local_backend.hypersearch.definition import Definition, Known
from local_backend.hypersearch.legacy import completed, words_of
from local_backend.hypersearch.objective import Found, NoObjective
from local_backend.hypersearch.reading import parse
from local_backend.runtime import bundles
from local_backend.services.access import Caller, caller_named
from local_backend.services.base import AuditRecord, Base
from local_backend.services.submissions import SubmissionRequest, SubmissionService, Template
from local_backend.store import searches
from local_backend.store.execs import ExecRow
from local_backend.store.searches import Changed, Counts, ExperimentRow, Page, RungCount, SearchRow
from local_backend.submit import catalogue
from local_backend.submit.receive import ReceivedUpload
from local_backend.workload import Workload

#: Names that are parts of paths.
_RESERVED = frozenset({"algorithm", ".", ".."})
_LONGEST = 200
#: Columns by which experiments can be sorted: the names of their keys.
SORTABLE = {"id": "id", "state": "state", "metricVal": "metric", "appId": "exec_id", "startTime": "start_time",
            "endTime": "end_time", "resource": "resource", "rung": "rung"}
SEARCH_SORTABLE = {"hpoName": "name", "state": "state", "createtime": "number", "creator": "creator"}
#: Most points of an answer with values.
MOST_POINTS = 2000


@dataclass(frozen=True)
class SearchView:
    """A search, and what answers show of its experiments. `experiments` is None if they are not asked for."""

    row: SearchRow
    definition: Definition
    counts: Counts
    best: ExperimentRow | None
    experiments: Sequence[ExperimentRow] | None


@dataclass(frozen=True)
class SearchRequest:
    """A search as it arrived: its definition, and its code. With `legacy`, the definition may have `resDef` and no
    modelSpec. `strict` is that of a submission."""

    text: str | None
    upload: ReceivedUpload
    legacy: bool = False
    strict: bool = False


@dataclass(frozen=True)
class SearchSelection:
    """The searches that a list contains, and their order."""

    states: Collection[str] | None = None
    name: str | None = None
    sort: str = "number"
    down: bool = False
    most: int | None = None
    skipped: int = 0
    #: Whether the experiments are left out.
    brief: bool = False


@dataclass(frozen=True)
class SearchProgress:
    """The values of the experiments of a search in the order in which they ended: id, epoch seconds, value. `best` has
    those that were better than all before."""

    metric: str
    values: Sequence[tuple[int, float, float]]
    best: Sequence[tuple[int, float, float]]


@dataclass(frozen=True)
class SearchService:
    """Operations on searches."""

    base: Base
    submissions: SubmissionService
    #: Makes the loop look at the searches.
    wake: Callable[[], None]
    #: The names of the installed algorithms.
    plugins: Callable[[], Collection[str]]
    curve_answers: CurveAnswers = field(default_factory=CurveAnswers)

    def create(self, caller: Caller, asked: SearchRequest, folder: Path) -> SearchRow:
        """Start a search. `folder` is a new folder.

        Raises Invalid (`search.*`, and the errors of a submission), Conflict (`search.exists`), OverQuota,
        StorageFailed.
        """
        with self.base.recorded(caller, "hpo.create") as record:
            text = asked.text or ""
            if not text.strip():
                raise Invalid("search.definition", "the request has no part 'data' with the definition of the search")
            words = words_of(text) if asked.legacy else None
            definition = parse(completed(text) if asked.legacy else text, self.plugins(), words)
            row = self.submissions.keep(caller, SubmissionRequest(
                definition.args, asked.upload, definition.sig_name, strict=asked.strict), folder,
                self._storing(caller, definition, record))
        self.wake()
        return row

    def create_from(
        self, caller: Caller, text: str, template: Callable[[Collection[str]], Template]
    ) -> SearchRow:
        """Start a search of code that is stored already: `template` returns the submission of its experiments for the
        names of the parameters. `text` is the definition of the search, whose modelSpec does not matter. Raises the
        errors of `create` and of `template`."""
        with self.base.recorded(caller, "hpo.create") as record:
            definition = parse(text, self.plugins(), "")
            made = template(experiments.names_of(definition))
            definition = replace(definition, args=made.args)
            # The experiments have names of the search, as if the submission named none.
            spec = replace(made.spec, name=catalogue.BY_NAME[made.spec.program.framework].app_name)
            row = self.submissions.store_template(
                caller, replace(made, spec=spec), self._storing(caller, definition, record))
        self.wake()
        return row

    def _storing(
        self, caller: Caller, definition: Definition, record: AuditRecord
    ) -> Callable[[Connection, Template], SearchRow]:
        """Return the function that stores a search in a transaction."""
        name = _name(definition.name or f"{caller.name}-hpo-{time.time_ns() % 10**16}")
        record.about.append(name)
        earlier = self._earlier(caller, definition)

        def store(connection: Connection, template: Template) -> SearchRow:
            self._check_room(connection, caller, name)
            if definition.resume and not template.spec.resources.elastic:
                raise Invalid("search.definition", "algoDef: resume needs a program with FabricModel, and "
                                                   "its elastic framework edtPyTorch")
            _check_places(definition, template.spec)
            return _insert(connection, caller, name, definition, template, earlier)

        return store

    def find(self, caller: Caller, name: str) -> SearchRow:
        """Return a search: the caller's own, for an administrator else the newest of this name. Raises NotFound
        (`search.not_found`)."""
        row = self.base.database.read(lambda c: searches.named(c, name, caller.name, caller.admin))
        if row is None:
            raise NotFound("search.not_found", f"Model tuning {name[:80]} is not found")
        return row

    def view(self, caller: Caller, name: str, brief: bool = False) -> SearchView:
        """Return a search with its experiments, or, if `brief`, without. Raises NotFound (`search.not_found`)."""
        return self._views([self.find(caller, name)], brief)[0]

    def list(self, caller: Caller, wanted: SearchSelection) -> tuple[Sequence[SearchView], int]:
        """Return the searches that the caller sees, and their number without the limit."""
        def work(connection: Connection) -> tuple[Sequence[SearchRow], int]:
            rows = searches.of_user(connection, caller.sees_of, wanted.states, wanted.name, wanted.sort, wanted.down,
                                    wanted.most, wanted.skipped)
            cut = wanted.most is not None or wanted.skipped
            return rows, searches.count_of_user(connection, caller.sees_of, wanted.states,
                                                wanted.name) if cut else len(rows)

        rows, total = self.base.database.read(work)
        return self._views(rows, wanted.brief), total

    def stop(self, caller: Caller, name: str, force: bool = False) -> SearchRow:
        """Stop a search and its running experiments. With `force`, the search is over at once. Raises NotFound
        (`search.not_found`), Conflict (`search.ended`)."""
        with self.base.recorded(caller, "hpo.stop", name):
            row = self.find(caller, name)

            def work(connection: Connection) -> None:
                if force:
                    searches.end(connection, row, searches.STOPPED, None)
                elif row.ending is None:
                    searches.note(connection, row, ending=searches.STOP)

            try:
                if not row.active:
                    raise Changed
                self.base.database.write(work)
            except Changed:
                raise Conflict("search.ended", f"Model tuning {name} is already stopped") from None
        self.wake()
        self.base.wake()
        return row

    def restart(self, caller: Caller, name: str) -> SearchRow:
        """Continue a stopped or failed search. Raises NotFound (`search.not_found`), Conflict (`search.not_stopped`),
        OverQuota."""
        with self.base.recorded(caller, "hpo.restart", name):
            row = self.find(caller, name)

            def work(connection: Connection) -> None:
                self._check_quota(connection, row.creator)
                searches.restart(connection, row)

            try:
                if row.state not in (searches.STOPPED, searches.FAILED):
                    raise Changed
                self.base.database.write(work)
            except Changed:
                raise Conflict("search.not_stopped", f"Model tuning {name} is not stopped") from None
        self.wake()
        return row

    def delete(self, caller: Caller, name: str) -> None:
        """Delete a search that is over. Its execs stay. Raises NotFound (`search.not_found`), Conflict
        (`search.active`)."""
        with self.base.recorded(caller, "hpo.delete", name):
            self._remove([self.find(caller, name)])

    def delete_all(self, caller: Caller) -> None:
        """Delete all searches of the caller. Raises Conflict (`search.active`) if one is not over; then none is
        deleted."""
        with self.base.recorded(caller, "hpo.delete") as record:
            rows = self.base.database.read(lambda c: searches.of_user(c, caller.name))
            record.about += [row.name for row in rows]
            self._remove(rows)

    def experiments(
        self, caller: Caller, name: str, page: Page
    ) -> tuple[SearchRow, Definition, Sequence[ExperimentRow], int]:
        """Return experiments of a search, and their number without the limit. Raises NotFound."""
        row = self.find(caller, name)

        def work(connection: Connection) -> tuple[Sequence[ExperimentRow], int]:
            return (searches.experiments_of(connection, row.number, page),
                    searches.count(connection, row.number, page.states))

        rows, total = self.base.database.read(work)
        return row, Definition.from_json(row.definition), rows, total

    def known(self, caller: Caller, name: str) -> tuple[Definition, Sequence[Known]]:
        """Return a search as its algorithm sees it. Raises NotFound (`search.not_found`)."""
        _, definition, rows, _ = self.experiments(caller, name, Page())
        return definition, [experiments.known(row, definition) for row in rows]

    def progress(self, caller: Caller, name: str) -> SearchProgress:
        """Return how the values of a search became better. Raises NotFound (`search.not_found`)."""
        row = self.find(caller, name)
        definition = Definition.from_json(row.definition)
        found = self.base.database.read(lambda c: searches.curve(c, row.number))
        best: list[tuple[int, float, float]] = []
        for one in found:
            if not best or (one[2] > best[-1][2] if definition.maximize else one[2] < best[-1][2]):
                best.append(one)
        return SearchProgress(definition.metric, found, best)

    def sample(self, caller: Caller, name: str, most: int) -> tuple[Definition, Sequence[ExperimentRow]]:
        """Return at most `most` finished experiments of a search, evenly among all, and the best one. Raises NotFound
        (`search.not_found`)."""
        row = self.find(caller, name)
        definition = Definition.from_json(row.definition)

        def work(connection: Connection) -> Sequence[ExperimentRow]:
            rows = searches.sample(connection, row.number, most)
            best = searches.best(connection, row.number, definition.maximize)
            if best is None or best in rows:
                return rows
            return sorted([*rows[:most - 1], best], key=lambda one: one.id)

        return definition, self.base.database.read(work)

    def best_execs(self, caller: Caller, name: str, most: int) -> Sequence[str]:
        """Return the ids of the execs of the best finished experiments. Raises NotFound (`search.not_found`)."""
        row = self.find(caller, name)
        maximize = Definition.from_json(row.definition).maximize
        return self.base.database.read(lambda c: searches.best_execs(c, row.number, maximize, most))

    def rungs(self, caller: Caller, name: str) -> Sequence[RungCount]:
        """Return the rungs of a search with the numbers of their experiments. Raises NotFound (`search.not_found`)."""
        number = self.find(caller, name).number
        return self.base.database.read(lambda c: searches.rungs_of(c, number))

    def values(
        self, caller: Caller, name: str, number: int, points: int
    ) -> tuple[str, Sequence[tuple[float, float]]]:
        """Return the metric of a search, and its values in one experiment, by step, with at most this many points: of
        neighbors, the smallest and the largest are kept. Raises NotFound (`search.not_found`,
        `experiment.not_found`)."""
        row = self.find(caller, name)
        found = self.base.database.read(lambda c: searches.experiment(c, row.number, number))
        if found is None:
            raise NotFound("experiment.not_found", f"Model tuning {name} has no experiment {number}")
        metric = Definition.from_json(row.definition).metric
        return metric, thinned(self._curve(row, found, metric), points)

    def _curve(self, row: SearchRow, found: ExperimentRow, metric: str) -> Sequence[tuple[float, float]]:
        paths = self.base.settings.paths.job(found.exec_id or "", row.creator)
        if found.exec_id is None:
            return []
        names = objective.names_of_curves(metric)
        try:
            curves = json.loads(self.curve_answers.of(paths.opened(paths.curves), "", names))["curves"]
        except (OSError, ValueError):
            return []
        by_name = {str(curve["name"]).lower(): curve["points"] for curve in curves}
        points: Any = next((by_name[name.lower()] for name in names if by_name.get(name.lower())), [])
        return [(float(step), float(value)) for step, value, _ in points]

    def _views(self, rows: Sequence[SearchRow], brief: bool = False) -> Sequence[SearchView]:
        definitions = [Definition.from_json(row.definition) for row in rows]

        def work(connection: Connection) -> Sequence[SearchView]:
            numbers = searches.counts(connection, [row.number for row in rows])
            return [
                SearchView(row, one, numbers.get(row.number, Counts()),
                           searches.best(connection, row.number, one.maximize),
                           None if brief else searches.experiments_of(connection, row.number))
                for row, one in zip(rows, definitions, strict=True)
            ]

        return self.base.database.read(work) if rows else []

    def _remove(self, rows: Sequence[SearchRow]) -> None:
        """Remove searches, all or none, and their code."""
        def work(connection: Connection) -> set[str]:
            found: set[str] = set()
            for row in rows:
                try:
                    bundle = searches.remove(connection, row.number)
                except Changed:
                    raise Conflict("search.active", f"Model tuning {row.name} is not over; stop it first") from None
                found.add(bundle)
            return found

        gone = self.base.database.write(work)
        self.base.wake()
        for row in rows:
            with suppress(OSError):
                self.base.settings.paths.search_log(row.id).unlink(missing_ok=True)
        with suppress(OSError, SQLAlchemyError):  # else the next server removes them
            bundles.drop(self.base.settings.paths, self.base.database, gone)

    def _earlier(self, caller: Caller, definition: Definition) -> str | None:
        """Return the present results of the search that a search begins with, as JSON; None without one. Raises
        NotFound (`search.not_found`)."""
        if definition.warm_start is None:
            return None
        _, _, rows, _ = self.experiments(caller, definition.warm_start, Page([searches.FINISHED]))
        known = [experiments.known(row, definition) for row in rows]
        return json.dumps([[one.id, dict(one.parameters), one.value, dict(one.metrics), one.told] for one in known])

    def _check_room(self, connection: Connection, caller: Caller, name: str) -> None:
        self._check_quota(connection, caller.name)
        most = self.base.settings.quotas.stored_searches
        if most is not None and searches.count_of_user(connection, caller.name) >= most:
            raise OverQuota("quota.searches", f"{caller.name} has {most} searches, which is the limit. Delete some")
        if searches.named(connection, name, caller.name) is not None:
            raise Conflict("search.exists", f"Model tuning {name} already exists; choose another hpoName")

    def _check_quota(self, connection: Connection, user: str) -> None:
        most = self.base.settings.quotas.active_searches
        if most is not None and searches.count_of_user(connection, user, searches.ACTIVE) >= most:
            raise OverQuota("quota.searches", f"{user} has {most} searches that are not over, which is the limit. Wait "
                            "until one is over, or stop one")


def _name(name: str) -> str:
    if name in _RESERVED or len(name) > _LONGEST or not name.isprintable() or not name.strip() or "/" in name:
        raise Invalid("search.definition", f"hpoName must have 1 to {_LONGEST} printable characters without /, and "
                                           f"must not be {', '.join(sorted(_RESERVED))}")
    return name


def _check_places(definition: Definition, spec: Workload) -> None:
    """Refuse words of the program with a misspelled parameter in braces. Raises Invalid."""
    names = sorted(experiments.names_of(definition))
    found = experiments.misspelled([*spec.program.arguments, *(spec.program.user_cmd or ())], names)
    if found is not None:
        wrong, near = found
        raise Invalid("search.definition", f"modelSpec: args has {{{wrong}}}, which is not a parameter of the search; "
                                           f"write {{{near}}}, or another one of {', '.join(names)}")


def _insert(  # noqa: PLR0917
    connection: Connection, caller: Caller, name: str, definition: Definition, template: Template, earlier: str | None
) -> SearchRow:
    number, now = searches.next_number(connection), time.time()
    row = SearchRow(
        number=number, id=searches.search_id(number), creator=caller.name, name=name, definition=definition.to_json(),
        workload=template.spec.to_json(), args=template.args,
        data_source=None if template.data_source is None else json.dumps(template.data_source),
        sealed=template.sealed, targets=template.targets, bundle=str(template.spec.program.bundle),
        seed=secrets.randbelow(2**31) if definition.seed is None else definition.seed % 2**31, state=searches.SUBMITTED,
        ending=None, attempt=1, create_time=now, begin_time=now, end_time=None, used=0.0, message=None,
    )
    searches.create(connection, row, earlier)
    return row


def thinned(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """Return at most `most` points: the smallest and the largest value of each part of the curve."""
    if len(points) <= most:
        return list(points)
    parts = max(1, most // 2)
    found: list[tuple[float, float]] = []
    for part in range(parts):
        some = range(part * len(points) // parts, (part + 1) * len(points) // parts)
        ends = sorted({min(some, key=lambda at: points[at][1]), max(some, key=lambda at: points[at][1])})
        found += [points[at] for at in ends]
    return found[:most]


@dataclass(frozen=True)
class ExperimentWork:
    """What the loop of the searches needs of the rest of the server (`Outside`)."""

    base: Base
    submissions: SubmissionService
    #: Asks an algorithm in another process.
    asked: Callable[[SearchRow, Definition, Sequence[Known], Sequence[Known], int], Future[Suggested]]
    curve_answers: CurveAnswers = field(default_factory=CurveAnswers)

    def submit(
        self, search: SearchRow, row: ExperimentRow, definition: Definition, bind: Callable[[Connection, str], None]
    ) -> ExecRow:
        """Submit an experiment. Raises BackendError, BundleLost, and the errors of `bind`."""
        caller = self.base.database.read(lambda c: caller_named(c, search.creator, self.base.settings))
        if caller is None:
            raise Invalid("user.not_found", f"the user {search.creator} no longer exists")
        template = Template(
            Workload.from_json(search.workload), search.args,
            None if search.data_source is None else json.loads(search.data_source), search.sealed, search.targets,
        )
        return self.submissions.again(caller, template, experiments.workload(search, row, definition), bind)

    def ask(
        self, search: SearchRow, definition: Definition, known: Sequence[Known], count: int
    ) -> Future[Suggested]:
        """Ask the algorithm for suggestions. See `Outside`."""
        return self.asked(search, definition, known, self._earlier(search), count)

    def found(self, definition: Definition, exec_row: ExecRow, *, ended: bool) -> Found:
        """Return the values that the program of an exec has delivered. Raises NoObjective, also for files that the
        program has closed to the server, and OSError."""
        paths = self.base.settings.paths.job(exec_row.id, exec_row.creator)

        def curves(names: Sequence[str]) -> Sequence[Mapping[str, Any]]:
            answer = self.curve_answers.of(paths.opened(paths.curves), "", names)
            found: list[dict[str, Any]] = json.loads(answer)["curves"]
            return found

        if not ended:
            return objective.found_in(definition, objective.of_curves(definition, curves))
        try:
            return objective.find(definition, lambda: paths.opened(paths.objective),
                                  paths.objective.is_symlink() or paths.objective.exists(), curves)
        except PermissionError:
            raise NoObjective(f"the server is not permitted to read {objective.FILE} in RESULT_DIR") from None

    def wake(self) -> None:
        """Let the supervisor look at the execs now."""
        self.base.wake()

    def _earlier(self, search: SearchRow) -> list[Known]:
        """Return the experiments of the search that this one has begun with."""
        text = self.base.database.read(lambda c: searches.earlier(c, search.number))
        return [Known(number, parameters, "done", value=value, metrics=metrics, told=told)
                for number, parameters, value, metrics, told in json.loads(text or "[]")]
