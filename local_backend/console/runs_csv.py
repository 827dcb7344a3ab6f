"""GET /console/runs.csv: the runs of a table with all their parameters and metrics, as a file."""

from __future__ import annotations

from dataclasses import replace

from starlette.responses import Response

from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.objects import iso
from local_backend.console import places
from local_backend.console.csv_files import csv_file
from local_backend.console.rendering import now
from local_backend.console.route import router as pages
from local_backend.console.runs_query import TheQuery
from local_backend.run_values import METRIC, PARAMETER, ValueName
from local_backend.services.load import READING
from local_backend.services.views import ExecView, wanted_slots
from local_backend.store.labels import Labels

router = pages()
CSV = f"{places.RUNS}.csv"
#: Maximum number of runs of a file.
MOST = 10_000
_FACTS = ("id", "name", "user", "state", "started", "ended", "duration_s", "slots", "tags", "note")
_NONE = Labels()


@router.get(CSV)
@bulk(READING, stream=False)
def download(services: TheServices, caller: TheCaller, query: TheQuery) -> Response:
    """Return the runs that match the search and the filters, in the order of the table, on all pages."""
    rows, _ = services.execs.list(caller, replace(query.selection(), most=MOST, offset=0))
    labels = services.labels.of(caller, rows)
    views = services.execs.views(rows)
    values = [_values(view) for view in views]
    names = list(dict.fromkeys(name for one in values for name in one))
    names.sort(key=lambda name: name.kind != PARAMETER)  # parameters first, each kind in the order of the runs
    lines = ([*_facts(view, labels.get(view.row.id, _NONE)), *(one.get(name, "") for name in names)]
             for view, one in zip(views, values, strict=True))
    return csv_file("runs.csv", [[*_FACTS, *map(str, names)], *lines])


def _values(view: ExecView) -> dict[ValueName, object]:
    return {ValueName(kind, name): value for kind, found in ((PARAMETER, view.parameters), (METRIC, view.metrics))
            for name, value in found.items()}


def _facts(view: ExecView, labels: Labels) -> list[object]:
    row = view.row
    times = [iso(at) if at is not None else "" for at in (row.start_time, row.end_time)]
    return [row.id, row.app_name, row.creator, row.shown_state, *times, row.seconds(now()), wanted_slots(row),
            " ".join(labels.tags), labels.note]
