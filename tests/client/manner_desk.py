"""A client user who calls dlicmd in each of its three manners. The commands run in this process, so that the many rows
of the tests take little time."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import sys
import threading
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TextIO
from unittest import mock

from client_desk import Desk, Done
from fake_server import BASE, TOKEN, FakeServer, Reply, Seen

from dlicmd.cli import console, main
from dlicmd.sdk import messages

CONF = f"{BASE}/conf"


class Variant(Enum):
    """How dlicmd is called; the value is the name of its file."""

    ORIGINAL = "dlicmd.py"
    PIPED = "dlicmd"
    TERMINAL = "dlicmd on a terminal"


class ScriptedServer(FakeServer):
    """A server with one answer for all calls but `GET /conf`, if `every` is set."""

    every: Reply | None = None

    def clear(self) -> None:
        """Forget requests, execs and answers."""
        self.every = None
        self.seen.clear()
        self.execs.clear()
        self.replies.clear()

    def answer(self, seen: Seen) -> Reply:
        if self.every is not None and (seen.path != CONF or self.every.status == 401):
            return self.every
        return super().answer(seen)


def as_json(value: object, status: int = 200) -> Reply:
    """Return an answer in JSON."""
    return Reply(status, json.dumps(value).encode(), {"Content-Type": "application/json"})


class MannerDesk(Desk):
    """A client user with the stored token of a server."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.environment["DLICMD_RETRIES"] = "0"
        self.token = self.home / ".dlicmd"

    def call(self, variant: Variant, *words: str, on_terminal: bool = False) -> Done:
        """Run dlicmd in this process, and return its output as bytes."""
        terminal = on_terminal or variant is Variant.TERMINAL
        err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        before = os.getcwd()
        os.chdir(self.folder)
        try:
            with mock.patch.dict(os.environ, self.environment, clear=True), _output(terminal) as (out, data), \
                 mock.patch.multiple(sys, stdout=out, stderr=err, stdin=io.StringIO(), argv=[f"/bin/{variant.value}"]):
                code = main(words)
                out.flush()
        finally:
            os.chdir(before)
            messages.set_level("info")
            console.set_errors(shown=True)
            console.set_json_errors(False)
        return Done(int(code), bytes(data).replace(b"\r\n", b"\n"), err.buffer.getvalue())  # type: ignore[attr-defined]


@contextlib.contextmanager
def _output(terminal: bool) -> Iterator[tuple[TextIO, bytearray]]:
    """Yield a standard output, and the bytes written to it, which are complete after the context. It is a terminal or a
    pipe."""
    data = bytearray()
    reader, writer = pty.openpty() if terminal else os.pipe()

    def read() -> None:
        with contextlib.suppress(OSError):  # the terminal is closed
            while chunk := os.read(reader, 1 << 16):
                data.extend(chunk)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        with open(writer, "w", encoding="utf-8", newline="") as out:
            yield out, data
    finally:
        thread.join()
        os.close(reader)


def address(server: FakeServer) -> list[str]:
    """Return the options that name a server."""
    return ["--rest-host", "127.0.0.1", "--rest-port", str(server.port), "--http"]


def store_token(desk: MannerDesk, token: str = TOKEN) -> None:
    """Store a token as `--logon` does."""
    desk.token.write_text(token)
    desk.token.chmod(0o600)
