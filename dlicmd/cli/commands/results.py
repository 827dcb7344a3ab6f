"""`--exec-trainresult`: fetch the trained model."""

from __future__ import annotations

from dlicmd.cli.render import emit, emit_value
from dlicmd.cli.session import Session
from dlicmd.cli.show.progress import bar
from dlicmd.contract import wire
from dlicmd.contract.exits import Exit
from dlicmd.sdk.results import check_folder, fetch
from dlicmd.sdk.unpack import fetch_unpacked


def trainresult(session: Session) -> int:
    """Fetch the trained model as a zip, or unpacked."""
    folder = check_folder(session.line.text("--to"))
    force = session.line.flag("--force") or session.output.is_original
    if session.line.flag("--unpack"):
        count = fetch_unpacked(session.client, session.operand, folder, force, bar)
        said = f"Train result is unpacked to {folder} ({count} file{'' if count == 1 else 's'})"
        found = {wire.ID: session.operand, "path": str(folder), "files": count}
    else:
        saved = fetch(session.client, session.operand, folder, force, bar)
        said, found = f"Train result is saved to {saved}", {wire.ID: session.operand, "path": str(saved)}
    if session.output.is_data:
        emit_value(found, session.output)
    else:
        emit(said)
    return Exit.DONE
