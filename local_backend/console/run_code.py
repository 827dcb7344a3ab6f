"""GET /console/runs/{id}/code: the submitted files, with highlighting."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.console import places
from local_backend.console.highlighting import highlighted
from local_backend.console.rendering import in_order, page
from local_backend.console.route import router as pages
from local_backend.console.run import about
from local_backend.services.load import READING
from local_backend.store.execs import ExecRow

router = pages()


@router.get(places.RUNS + "/{run}/code")
@bulk(READING, stream=False)
def code(request: Request, services: TheServices, caller: TheCaller, run: str, file: str = "") -> Response:
    """Show one file, by default the program."""
    found = about(request, services, caller, run, "/code")
    names, complete = services.code.names(caller, run)
    chosen = services.code.file(caller, run, file or _main(found["row"], names)) if names else None
    text = None if chosen is None or chosen.text is None else highlighted(chosen.path, in_order(chosen.text))
    return page(request, "run_code.html", **found, names=names, complete=complete, chosen=chosen, text=text)


def _main(row: ExecRow, names: list[str]) -> str:
    """Return the path of the program; of a run without one, the first Python file or the first file."""
    program = row.workload.program
    main = "/".join(filter(None, (program.model_dir, program.main)))
    return main if main in names else next((name for name in names if name.endswith(".py")), names[0])
