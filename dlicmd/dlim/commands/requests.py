"""`dlim invoke`: one request to a model."""

from __future__ import annotations

import sys

from dlicmd.cli.render import emit_chunks
from dlicmd.cli.session import Session
from dlicmd.contract.argv import ArgvError
from dlicmd.contract.exits import Exit
from dlicmd.sdk.errors import UsageProblem
from dlicmd.sdk.messages import inert

_STDIN = "-"
#: The most bytes of a request that the client reads.
_LARGEST = 2**30


def invoke(session: Session) -> int:
    """Send a request, and print the answer as it arrives."""
    line = session.line
    seconds = line.number("--timeout")
    pieces = session.client.invoke_stream(
        session.operand, body_of(session), timeout=None if seconds is None else float(seconds),
        content_type=line.text("--content-type"))
    emit_chunks(pieces)
    return Exit.DONE


def body_of(session: Session) -> bytes:
    """Return the body: of -d, of a file, or of standard input. Raises UsageProblem, ArgvError."""
    data, file = session.line.text("--data"), session.operands[1] if len(session.operands) > 1 else None
    if data is not None and file is not None:
        raise ArgvError("give -d DATA or a file, not both")
    if data is not None:
        return _content(data[1:]) if data.startswith("@") else data.encode("utf-8", "surrogateescape")
    if file is None and sys.stdin is not None and sys.stdin.isatty():
        raise ArgvError("dlim invoke needs a body: -d DATA, a file, or - for standard input")
    return _content(file or _STDIN)


def _content(name: str) -> bytes:
    try:
        if name == _STDIN:
            content = sys.stdin.buffer.read(_LARGEST + 1) if sys.stdin is not None else b""
        else:
            with open(name, "rb") as file:
                content = file.read(_LARGEST + 1)
    except OSError as problem:
        raise UsageProblem(f"cannot read {inert(name)}: {problem.strerror}") from None
    if len(content) > _LARGEST:
        raise UsageProblem(f"{inert(name)} is larger than {_LARGEST >> 30} GiB")
    return content
