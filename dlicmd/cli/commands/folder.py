"""`--open`: show the folder with the files of a job of the local backend."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import PurePath

from dlicmd.cli.config.servers import LOCAL
from dlicmd.cli.render import emit, emit_value
from dlicmd.cli.session import Session
from dlicmd.contract import wire
from dlicmd.contract.exits import Exit
from dlicmd.sdk import hints
from dlicmd.sdk.errors import DlicmdError, UsageProblem
from dlicmd.sdk.messages import inert


def open_folder(session: Session) -> int:
    """Print the folder with the files of a job, and show it on a desktop. Raises UsageProblem for another server."""
    if session.server_name != LOCAL:
        raise UsageProblem(f"the files of {inert(session.operand)} are on {inert(session.server_name)}; fetch them: "
                           f"{hints.command('--exec-trainresult', session.operand)}")
    found = session.client.exec(session.operand)
    inner = PurePath(str(found.get(wire.WORK_FOLDER) or ""))
    folder = next((str(path) for path in (inner, *inner.parents) if path.name == session.operand), str(inner))
    if not os.path.isdir(folder):
        raise DlicmdError(f"{inert(session.operand)} has no folder yet; try again in a moment")
    if session.output.is_data:
        emit_value({wire.ID: session.operand, "path": folder}, session.output)
        return Exit.DONE
    emit(folder)
    if sys.stdout.isatty() and (opener := desktop_opener()):
        show_on_desktop(opener, folder)
    return Exit.DONE


def show_on_desktop(opener: str, path: str) -> None:
    """Show a folder or a page without waiting for its window."""
    subprocess.Popen([opener, path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                     start_new_session=True)


def desktop_opener() -> str | None:
    """Return the program that shows a folder or a page on this desktop, or None without a desktop."""
    if sys.platform == "darwin":
        return shutil.which("open")
    return shutil.which("xdg-open") if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") else None
