"""GET /execs/{id}/code: the submitted files of an exec, small ones with their text."""

from __future__ import annotations

from fastapi import APIRouter

from dlicmd.contract import wire
from local_backend.api.as_json import JsonAnswer
from local_backend.api.bulk import bulk
from local_backend.api.depends import TheCaller, TheServices
from local_backend.api.description import OWN_EXECS, about
from local_backend.api.models.execs import Code, CodeFile
from local_backend.api.route import Route
from local_backend.services.load import READING
from local_backend.services.submitted_code import ListedFile

router = APIRouter(tags=["execs"], route_class=Route)


@router.get(wire.EXECS + "/{exec_id}/code")
@about(OWN_EXECS, extension=wire.EXT_CODE, errors={400: "exec.not_found"})
@bulk(READING)
def code(services: TheServices, caller: TheCaller, exec_id: str) -> JsonAnswer[Code]:
    """Return the submitted files with their present content. Each of `files` has a `path` (relative to the folder
    that the program runs in), `bytes`, `sha256` (absent if the file is too large to read), and `text` if it is small
    and UTF-8. If `complete` is false, there are more files. Files that were removed since the submission are left
    out."""
    files, complete = services.code.listed(caller, exec_id)
    return JsonAnswer({"files": [code_file(file) for file in files], "complete": complete})


def code_file(file: ListedFile) -> CodeFile:
    """Return a file as answers show it."""
    shown: CodeFile = {"path": file.path, "bytes": file.size}
    if file.sha256 is not None:
        shown["sha256"] = file.sha256
    if file.text is not None:
        shown["text"] = file.text
    return shown
