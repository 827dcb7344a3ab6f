"""`dlim logs`: what the kernels of a model wrote."""

from __future__ import annotations

from dlicmd.cli.render import emit_chunks, emit_value
from dlicmd.cli.session import Session
from dlicmd.contract import dlim
from dlicmd.contract.exits import Exit
from dlicmd.sdk.errors import UsageProblem


def logs(session: Session) -> int:
    """Print the log; with -f, new lines, too, until the model stops. Ctrl-C ends the command."""
    line = session.line
    kernel, stream = line.number("--kernel"), line.text("--stream") or dlim.STDERR
    part = session.client.model_log(session.operand, kernel=kernel, stream=stream)
    text, tail = part.text, line.number("--tail")
    if tail is not None:
        text = "".join(text.splitlines(keepends=True)[-tail:]) if tail else ""
    if session.output.is_data:
        if line.flag("--follow"):
            raise UsageProblem("-f prints text only; leave -o out")
        emit_value({"text": text, "end": part.end}, session.output)
        return Exit.DONE
    if text:
        emit_chunks([text.encode()])
    if line.flag("--follow"):
        follow(session, session.operand, part.end, kernel, stream)
    return Exit.DONE


def follow(session: Session, name: str, start: int, kernel: int | None = None, stream: str = dlim.STDERR) -> None:
    """Print what the kernels write from `start` on, until the model stops."""
    for text in session.client.follow_model_log(name, kernel=kernel, stream=stream, start=start):
        emit_chunks([text.encode()])
