"""`result` and `--exec-trainresult`: fetch the trained model, or files that the program wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dlicmd.cli.render import emit, emit_value, show_rows
from dlicmd.cli.session import Session
from dlicmd.cli.show.progress import bar
from dlicmd.cli.show.times import short
from dlicmd.contract import states, wire
from dlicmd.contract.exits import Exit
from dlicmd.contract.reading import number, words
from dlicmd.contract.sizes import show_size
from dlicmd.sdk import hints
from dlicmd.sdk.errors import DlicmdError, ResultError, ServerError, UsageProblem
from dlicmd.sdk.messages import file_count, info
from dlicmd.sdk.objects import File
from dlicmd.sdk.paths import safe_name
from dlicmd.sdk.results import Wanted, check_folder, fetch

_NO_MODEL = "exec.no_result"
_LACK = "gives the trained model only: dlicmd result ID"


def trainresult(session: Session) -> int:
    """Fetch the trained model as a zip or unpacked; as a verb also files that the program wrote."""
    line = session.line
    paths, everything = session.operands[1:], line.flag("--all")
    if line.flag("--list"):
        if paths or everything:
            raise UsageProblem("--list shows all files of the job, and fetches none; leave the other words out")
        return _list(session)
    if paths and everything:
        raise UsageProblem("give paths, or --all, not both")
    if paths or everything:
        if line.flag("--unpack"):
            raise UsageProblem("--unpack is for the trained model; files are always fetched as they are")
        return _fetch_files(session, paths)
    try:
        return _fetch_model(session)
    except ServerError as problem:
        if line.verb is None or problem.code != _NO_MODEL or wire.EXT_FILES not in session.client.extensions():
            raise
        raise _no_model(session, problem) from None


def _fetch_model(session: Session) -> int:
    exec_id = session.operand
    folder = check_folder(session.line.text("--to"))
    force = session.line.flag("--force") or session.output.is_original
    if session.line.flag("--unpack"):
        from dlicmd.sdk.unpack import fetch_unpacked  # zip takes time to import

        count = fetch_unpacked(session.client, exec_id, folder, force, bar)
        said = f"Train result is unpacked to {folder} ({file_count(count)})"
        found = {wire.ID: exec_id, "path": str(folder), "files": count}
    else:
        name = "" if session.line.verb is None else f"{safe_name(exec_id) or 'result'}.zip"
        saved = fetch(session.client, Wanted(exec_id, name=name), folder, force, bar)
        said, found = f"Train result is saved to {saved}", {wire.ID: exec_id, "path": str(saved)}
    if session.output.is_data:
        emit_value(found, session.output)
    else:
        emit(said)
    return Exit.DONE


def _no_model(session: Session, problem: ServerError) -> DlicmdError:
    """Return the error about a job without a model. If the job has ended, print its files for people, and say how to
    fetch them."""
    exec_id = session.operand
    if not (job := session.client.exec(exec_id)).is_over:
        then = f"{hints.command('wait', exec_id)}; {hints.command('result', exec_id, '--list')}"
        return ResultError(f"{exec_id} is {states.plain(job.state)} and has no result yet; wait for it, or list the "
                           f"files that it has written so far: {then}")
    files = session.client.files(exec_id).files
    if session.output.is_data:
        return problem
    if not files:
        output = hints.command("logs", exec_id)
        return ResultError(f"the program of {exec_id} has written no files; its output: {output}")
    _show(session, files)
    command = hints.command("result", exec_id, "--all")
    return ResultError(f"{exec_id} stored no model in SAVED_MODEL_DIR; fetch the files above with: {command}")


def _list(session: Session) -> int:
    session.need(wire.EXT_FILES, _LACK)
    exec_id = session.operand
    found = session.client.files(exec_id)
    if not found.files and not session.output.form:
        is_over = session.client.exec(exec_id).is_over
        info(f"the program of {exec_id} has written no files{'' if is_over else ' yet'}")
        return Exit.DONE
    _show(session, found.files)
    if found.files and not session.output.is_data:
        total = sum(file.bytes or 0 for file in found.files)
        command = hints.command("result", exec_id, found.files[0].path if len(found.files) == 1 else "--all")
        info(f"{file_count(len(found.files))}, {show_size(total)}; fetch with: {command}")
    if not found.complete:
        info("the list is not complete: some names cannot be shown, the server is not permitted to read a "
             "folder, or there are more files")
    return Exit.DONE


def _show(session: Session, files: Sequence[File]) -> None:
    show_rows(files, session.output, (wire.PATH, wire.BYTES, wire.MODIFIED), _cell)


def _cell(file: Mapping[str, Any], name: str) -> str:
    if name == wire.BYTES:
        return show_size(number(file.get(name)) or 0)
    return short(file.get(name)) if name == wire.MODIFIED else words(file.get(name))


def _fetch_files(session: Session, paths: Sequence[str]) -> int:
    from dlicmd.sdk.files import chosen, fetch_files  # only for files

    session.need(wire.EXT_FILES, _LACK)
    exec_id = session.operand
    folder = check_folder(session.line.text("--to") or (None if paths else safe_name(exec_id) or "result"))
    found = session.client.files(exec_id)
    choices = chosen(found.files, paths)
    if not choices:
        raise ResultError(f"the program of {exec_id} has written no files")
    saved = fetch_files(session.client, exec_id, choices, folder, force=session.line.flag("--force"), progress=bar)
    if session.output.is_data:
        emit_value({wire.ID: exec_id, "paths": [str(path) for path in saved]}, session.output)
    elif len(saved) == 1:
        emit(f"Saved {saved[0]}")
    else:
        emit(f"Saved {file_count(len(saved))} ({show_size(sum(choice.file.bytes or 0 for choice in choices))}) to "
             f"{_shown(folder)}")
    if not found.complete and not paths:
        info("the job has more files, which the server does not list")
    return Exit.DONE


def _shown(folder: Path) -> str:
    return "this folder" if folder == Path() else str(folder)
