"""GET /console/runs/{id}: one run, with its curves, settings and relations."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

from fastapi import Request
from starlette.responses import Response

from dlicmd.contract import wire
from dlicmd.contract.argv import ArgvError, join_args, split_args
from dlicmd.contract.dlim import usual_name
from dlicmd.contract.secret import masked_arguments
from dlicmd.contract.submission_values import PROGRAM
from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.showing import show
from local_backend.console import places
from local_backend.console.rendering import page
from local_backend.console.route import router as pages
from local_backend.console.run_labels import labels_of
from local_backend.console.run_remedies import remedy_of
from local_backend.curves.groups import grouped
from local_backend.services.access import Caller
from local_backend.services.load import READING
from local_backend.services.services import Services
from local_backend.store.execs import ExecRow

router = pages()
#: Path after the path of a run → title of the tab.
TABS = {"": "Curves", "/logs": "Logs", "/settings": "Settings", "/code": "Code", "/results": "Results",
        "/lineage": "Lineage"}
#: Metrics in the head of a run without loss and accuracy.
_METRICS = 3


def about(request: Request, services: Services, caller: Caller, run: str, tab: str = "") -> dict[str, Any]:
    """Return what every tab of a run shows. Raises NotFound (`exec.not_found`)."""
    view = services.execs.view(services.execs.find(caller, run))
    row = view.row
    words = masked_arguments(services.submissions.arguments(row))
    return {
        "row": row, "shown": show(view, str(request.base_url)), "tab": tab, "tabs": TABS,
        "place": f"{places.RUNS}/{row.id}", "done": _done(view.progress, row), "words": join_args(words),
        "experiment": services.experiments.of_exec(caller, row.id), "remedy": remedy_of(row),
        "labels": labels_of(services, caller, run), "owned": row.creator == caller.name, "has_result": view.has_result,
        "model_name": usual_name(row.app_name), "plan": view.consumer, "metrics": first_metrics(view.progress),
        "lost": {name: one[wire.LEFT] for name, one in view.main_metrics.items() if wire.LEFT in one},
    }


def first_metrics(progress: Any) -> dict[str, Any]:
    """Return the last values that stand for a run: loss and accuracy, or else those of the first metrics."""
    known = {name: progress[name] for name in (wire.LOSS, wire.ACCURACY) if progress.get(name) is not None}
    last = progress.get(wire.LAST_METRICS) or {}
    return known or {name: one[wire.VALUE] for name, one in islice(last.items(), _METRICS)}


def _done(progress: Any, row: ExecRow) -> float | None:
    """Return the part of the training that is done, from 0 to 1; None if it is unknown."""
    if row.state == "FINISHED":
        return 1.0
    for at, most in ((wire.STEP, wire.STEPS), (wire.EPOCH, wire.EPOCHS)):
        now, end = progress.get(at), progress.get(most)
        if isinstance(now, int | float) and isinstance(end, int | float) and end > 0:
            return min(1.0, max(0.0, now / end))
    return None


@router.get(places.RUNS + "/{run}")
@bulk(READING, stream=False)
def run_page(request: Request, services: TheServices, caller: TheCaller, run: str) -> Response:
    """Show the curves."""
    found = about(request, services, caller, run)
    return page(request, "run.html", **found, **_charts(services, found["row"]))


@router.get(places.RUNS + "/{run}/parts/head")
def head(request: Request, services: TheServices, caller: TheCaller, run: str) -> Response:
    """Show the head, which changes while the run is running."""
    return page(request, "run_head.html", **about(request, services, caller, run))


@router.get(places.RUNS + "/{run}/parts/charts")
@bulk(READING, stream=False)
def charts(request: Request, services: TheServices, caller: TheCaller, run: str) -> Response:
    """Show the charts: a run may get more of them while it is running."""
    found = about(request, services, caller, run)
    return page(request, "run_charts.html", **found, **_charts(services, found["row"]))


@router.get(places.RUNS + "/{run}/settings")
def settings(request: Request, services: TheServices, caller: TheCaller, run: str) -> Response:
    """Show options, environment and data sources."""
    found = about(request, services, caller, run, "/settings")
    row: ExecRow = found["row"]
    sources = json.loads(row.data_source) if row.data_source else []
    parameters = services.comparisons.values([row]).parameters
    return page(request, "run_settings.html", **found, spec=row.workload, command=_command(row.args),
                parameters=[_parameter(name.removeprefix(f"{PROGRAM} "), value)
                            for name, [value] in parameters.items()],
                sources=[json.dumps(source, indent=2, ensure_ascii=False) for source in sources])


def _command(args: str) -> str:
    """Return the words of a submission with the secrets of its program masked. Those of its options are masked where it
    is stored."""
    try:
        return join_args(masked_arguments(split_args(args)))
    except ArgvError:
        return args.strip()


def _parameter(name: str, value: Any) -> tuple[str, str]:
    """Return a parameter as the page shows it, with a secret masked."""
    return name, "yes" if value is True else masked_arguments([name, str(value)])[1]


@router.get(places.RUNS + "/{run}/lineage")
def lineage(request: Request, services: TheServices, caller: TheCaller, run: str) -> Response:
    """Show the origin of the run, and the models of its result."""
    return page(request, "run_lineage.html", **about(request, services, caller, run, "/lineage"),
                lineage=services.lineage.of(caller, run))


def _charts(services: Services, row: ExecRow) -> dict[str, Any]:
    return {"groups": grouped(services.curves.names(row)), "resources": services.curves.resource_kinds(row)}
