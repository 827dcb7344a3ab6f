"""Searches, experiments and algorithms as the contract shows them. Pure."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence

from local_backend.api.models.common import present
from local_backend.api.models.searches import ExperimentObject, SearchObject
from local_backend.hypersearch import space
from local_backend.hypersearch.definition import Definition
from local_backend.services.searches import SearchView
from local_backend.store import searches
from local_backend.store.searches import ExperimentRow


def local_time(seconds: float) -> str:
    """Return epoch seconds as `YYYY-MM-DD HH:MM:SS` in the time zone of the server."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def duration(seconds: float) -> str:
    """Return seconds as `HH:MM:SS`, rounded up."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest:02d}"


def experiment_object(row: ExperimentRow, definition: Definition) -> ExperimentObject:
    """Return an experiment. Unknown values are absent."""
    several = len(definition.wanted) > 1 and row.measured is not None
    shown: ExperimentObject = {
        "id": row.id,
        "hyperParams": space.listing(definition, row.values, row.resource, row.id),  # type: ignore[typeddict-item]
        "state": row.state,
        "metricVal": row.metric,
        "metrics": json.loads(row.metrics) if row.metrics else None,
        "objectives": json.loads(str(row.measured)) if several else None,
        "appId": row.exec_id,
        "startTime": None if row.start_time is None else local_time(row.start_time),
        "endTime": None if row.end_time is None else local_time(row.end_time),
        "message": row.message,
        "resource": row.resource,
        "rung": None if row.resource is None else row.rung,
        "bracket": None if row.resource is None else row.bracket,
    }
    return present(shown)


def search_object(view: SearchView) -> SearchObject:
    """Return a search with its experiments. Unknown values are absent."""
    row, definition, counts = view.row, view.definition, view.counts
    total, several = counts.all, len(definition.objectives) > 1
    if row.state != searches.FINISHED:
        total = max(total, definition.max_experiments or 0, len(definition.given))
    shown: SearchObject = {
        "hpoName": row.name,
        "state": row.state,
        "running": counts.running,
        "complete": counts.complete,
        "failed": counts.failed,
        "progress": f"{counts.complete}/{total}",
        "createtime": local_time(row.create_time),
        "creator": row.creator,
        "duration": duration(row.seconds(time.time())),
        "experiments": (
            None if view.experiments is None else [experiment_object(one, definition) for one in view.experiments]),
        "best": None if view.best is None else experiment_object(view.best, definition),
        "pareto": pareto(view.experiments, definition) if several and view.experiments is not None else None,
        "algoDef": definition.raw.get("algoDef"),
        "hyperParams": definition.raw.get("hyperParams"),
        "message": row.message,
        "metric": definition.metric,
        "objective": "maximize" if definition.maximize else "minimize",
        "algorithm": definition.algorithm,
    }
    return present(shown)


def pareto(rows: Sequence[ExperimentRow], definition: Definition) -> list[int]:
    """Return the ids of the finished experiments that no other one beats: none is as good in all objectives, and better
    in one."""
    signs = [(metric, -1 if maximize else 1) for metric, maximize in definition.objectives]
    points: dict[int, tuple[float, ...]] = {}
    for row in rows:
        if row.state == searches.FINISHED and row.measured:
            values = json.loads(row.measured)
            points[row.id] = tuple(sign * values[metric] for metric, sign in signs)
    front: list[tuple[float, ...]] = []
    # A point that beats another one is smaller in this order, so only the front so far can beat the next point.
    for point in sorted(set(points.values())):
        if not any(all(a <= b for a, b in zip(other, point, strict=True)) for other in front):
            front.append(point)
    kept = set(front)
    return [number for number, point in points.items() if point in kept]
