"""Comparisons of execs: the values of their submissions and ends, their metrics, curves and code."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from dlicmd.contract import code_changes, curve_groups, metric_names, wire
from dlicmd.contract.curve_groups import SPREADS, GroupPoint
from dlicmd.contract.submission_values import PROGRAM, asked
from local_backend import limited_work
from local_backend.curves.columns import MOST_WIDTH
from local_backend.curves.file import Point
from local_backend.curves.model import OF_RUN
from local_backend.errors import Invalid
from local_backend.limited_work import LimitExceeded, WorkLimits
from local_backend.services.access import Caller
from local_backend.services.curves import CurveService, DrawnCurve, StepWindow
from local_backend.services.exec_groups import ExecGroup
from local_backend.services.execs import ExecService
from local_backend.services.submitted_code import MOST_READ, CodeReader, CodeService, ListedFile
from local_backend.store.execs import ExecRow

#: Maximum number of compared execs.
MOST = 50
#: Columns of a curve of a group, for each column of its chart: the mean needs more points than a picture.
_FINE = 4
#: Columns that keep the best and the last value of a curve.
_FEW = 1
_VARIABLE = "--msd-env"
#: The function that makes a diff, and limits of its process: some texts need minutes.
_UNIFIED, _LIMITS = f"{code_changes.__name__}:{code_changes.unified.__name__}", WorkLimits(seconds=5, memory=512 << 20)

#: Name of a value → the value of each exec, None for an exec without it.
Values = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class ComparedValues:
    """The values of execs by what they are about: name → the value of each exec, None for an exec without it."""

    parameters: Values
    options: Values
    environment: Values


@dataclass(frozen=True)
class ComparedMetric:
    """The last and the best point of a metric, of each exec; None for an exec without it. An exec may count epochs
    where another one counts steps: `step_units`. A metric whose name does not say which values are better has no `best`
    points and no `best_value`, which it has only if the best points differ. `left` values of each exec are not
    finite."""

    name: str
    step_units: Sequence[str | None]
    last: Sequence[Point | None]
    best: Sequence[Point | None]
    left: Sequence[int]
    best_value: float | None = None


@dataclass(frozen=True)
class ComparedFile:
    """A submitted file: which content each exec has, as a number from 0 in the order of the execs; None for an exec
    without the file. `certain` is false if a content was too large to compare."""

    path: str
    versions: Sequence[int | None]
    certain: bool = True

    @property
    def differs(self) -> bool:
        """Whether not all execs have the same file."""
        return len({*self.versions}) > 1


@dataclass(frozen=True)
class GroupCurve:
    """The mean of a metric of a group of execs, and the band around it. `count` of these execs have the metric; `left`
    of their values are not finite."""

    group: ExecGroup
    points: Sequence[GroupPoint]
    step_units: Sequence[str]
    count: int
    left: int


@dataclass(frozen=True)
class ComparisonService:
    """Compares execs."""

    execs: ExecService
    curves: CurveService
    code: CodeService

    def rows(self, caller: Caller, ids: Sequence[str]) -> list[ExecRow]:
        """Return the execs to compare, each once. Raises NotFound (`exec.not_found`), Invalid (`query.compare`)."""
        wanted = list(dict.fromkeys(ids))
        if not 1 < len(wanted) <= MOST:
            raise Invalid("query.compare", f"{len(wanted)} runs are selected; select 2 to {MOST} to compare them")
        return self.execs.find_each(caller, wanted)

    def values(self, rows: Sequence[ExecRow]) -> ComparedValues:
        """Return the values of the submissions."""
        parameters, options, environment = [], [], []
        for row in rows:
            found = asked(row.args)
            variables = dict(_pair(text) for text in _texts(found.pop(_VARIABLE, None)))
            program = {name: value for name, value in found.items() if name.startswith(PROGRAM)}
            parameters.append({**program, **(row.workload.program.parameters or {})})
            options.append({name: value for name, value in found.items() if name not in program}
                           | {wire.FRAMEWORK: row.framework, wire.NUM_WORKER: row.num_worker})
            environment.append(variables)
        return ComparedValues(*map(_side_by_side, (parameters, options, environment)))

    def metrics(self, rows: Sequence[ExecRow]) -> list[ComparedMetric]:
        """Return the metrics of the execs: first losses, then other results, then facts of the execution, such as
        workers. Raises StorageFailed."""
        found = [{curve.name: curve for curve in self.curves.drawn(row, (), StepWindow(_FEW))}
                 for row in rows]
        known = metric_names.losses_first(list(dict.fromkeys(name for one in found for name in one)))
        names = sorted(known, key=lambda name: (name in OF_RUN, not metric_names.has_direction(name)))
        return [_metric(name, [one.get(name) for one in found]) for name in names]

    def curve(self, rows: Sequence[ExecRow], metric: str, window: StepWindow) -> list[tuple[ExecRow, DrawnCurve]]:
        """Return the curve of a metric of each exec that has it. Raises Invalid, StorageFailed."""
        found = []
        for row in rows:
            curves = self.curves.drawn(row, [metric], window)
            found += [(row, curve) for curve in curves if curve.name == metric][:1]
        return found

    def group_curves(
        self, groups: Sequence[ExecGroup], metric: str, window: StepWindow, spread: str
    ) -> list[GroupCurve]:
        """Return the mean of a metric of each group that has it. Raises Invalid (`query.number`,
        `query.value`), StorageFailed."""
        if spread not in SPREADS:
            raise Invalid("query.value", f"spread: {spread[:40]!r} is none of {', '.join(SPREADS)}")
        fine = replace(window, width=min(window.width * _FINE, MOST_WIDTH)) if window.width > 0 else window
        found = []
        for group in groups:
            curves = [curve for _, curve in self.curve(group.rows, metric, fine)]
            lines = [[(place, value) for place, value, _ in curve.points] for curve in curves]
            points = curve_groups.combined(lines, window.width, spread)
            if curves:
                found.append(GroupCurve(group, points, [curve.step_unit for curve in curves], len(curves),
                                        sum(curve.left for curve in curves)))
        return found

    def files(self, caller: Caller, rows: Sequence[ExecRow]) -> list[ComparedFile]:
        """Return the submitted files of the execs. Raises NotFound."""
        listed = self._listed(caller, rows)
        return [_file(path, [one.get(path) for one in listed])
                for path in sorted(dict.fromkeys(path for one in listed for path in one))]

    def diff(self, caller: Caller, first: str, second: str, path: str) -> str | None:
        """Return the unified diff of a file of two execs, "" if it is the same; None if there cannot be one. Raises
        NotFound (`exec.not_found`)."""
        found = [next(iter(self.code.listed(caller, row.id, only=path)[0]), None)
                 for row in self.rows(caller, [first, second])]
        texts = ["" if one is None else one.text for one in found]
        with suppress(LimitExceeded, OSError):
            diff: str | None = limited_work.call(_UNIFIED, [path, *texts], _LIMITS)
            return diff
        return None

    def _listed(self, caller: Caller, rows: Sequence[ExecRow]) -> list[Mapping[str, ListedFile]]:
        """Return the files of each exec by path. Execs of the same code are read once. All together read as many bytes
        as an answer with the code of one exec, and each the same part of them: so each reads the same files."""
        keys = [row.bundle or row.id for row in rows]
        most = MOST_READ // len(set(keys))
        known: dict[str, Mapping[str, ListedFile]] = {}
        for row, key in zip(rows, keys, strict=True):
            if key not in known:
                files, _ = self.code.listed(caller, row.id, CodeReader(0, most))
                known[key] = {file.path: file for file in files}
        return [known[key] for key in keys]


def _side_by_side(found: Sequence[Mapping[str, Any]]) -> Values:
    names = dict.fromkeys(name for one in found for name in one)
    return {name: [one.get(name) for one in found] for name in names}


def _texts(value: Any) -> list[str]:
    return shlex.split(value) if isinstance(value, str) else []


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _metric(name: str, curves: Sequence[DrawnCurve | None]) -> ComparedMetric:
    units = [curve.step_unit if curve is not None else None for curve in curves]
    choose = min if metric_names.is_lower_better(name) else max
    last = [curve.points[-1] if curve is not None and curve.points else None for curve in curves]
    left = [curve.left if curve is not None else 0 for curve in curves]
    if name in OF_RUN or not metric_names.has_direction(name):
        return ComparedMetric(name, units, last, (), left)
    best = [choose(curve.points, key=_value) if curve is not None and curve.points else None for curve in curves]
    values = [point[1] for point in best if point is not None]
    return ComparedMetric(name, units, last, best, left, choose(values) if len(set(values)) > 1 else None)


def _value(point: Point) -> float:
    return point[1]


def _file(path: str, found: Sequence[ListedFile | None]) -> ComparedFile:
    contents: dict[tuple[int, str | None], int] = {}
    versions = [None if one is None else contents.setdefault((one.size, one.sha256), len(contents)) for one in found]
    return ComparedFile(path, versions, all(one is None or one.sha256 is not None for one in found))
