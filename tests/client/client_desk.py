"""A client user with an environment of their own: dlicmd runs as a process."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import commands
from fake_server import TOKEN, FakeServer

DEADLINE = 90


@dataclass
class Done:
    """A finished command with its output as bytes."""

    code: int
    raw_out: bytes
    raw_err: bytes

    @property
    def out(self) -> str:
        return self.raw_out.decode()

    @property
    def err(self) -> str:
        return self.raw_err.decode()

    @property
    def error(self) -> str:
        """The stable code of the error that a command with `-o json` printed in its last line."""
        return str(json.loads(self.raw_err.splitlines()[-1])["error"]["code"])


class Desk:
    """A client user: runs dlicmd as a process with its own environment, home and DLICMD_HOME."""

    #: The module with the `main` of the program.
    program = "dlicmd.cli"

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "desk"
        self.home = folder / "home"
        self.state = folder / "state"
        for path in (self.folder, self.home, self.state):
            path.mkdir()
        self.environment = {
            name: value for name, value in os.environ.items()
            if not name.startswith(("DLI", "XDG_", "REQUESTS_", "CURL_", "PYTHONUNBUFFERED"))
            and not name.lower().endswith("_proxy")
        } | {"HOME": str(self.home), "DLICMD_HOME": str(self.state), "COLUMNS": "100"}

    def embed(self, server: FakeServer, **more: str) -> None:
        """Make `server` the local backend of this user, and add the fields `more` to `backend.json`."""
        found = {"url": server.url, "pid": os.getpid(), "token": TOKEN, **more}
        (self.state / "backend.json").write_text(json.dumps(found))

    def start(self, *words: str | bytes, **more: object) -> subprocess.Popen[bytes]:
        """Start dlicmd and return its process."""
        options = {
            "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": self.environment,
        } | more
        # Handle SIGINT as a foreground process of a shell does; a background test runner may ignore SIGINT.
        call = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); " \
               f"from {self.program} import main; sys.exit(main())"
        return subprocess.Popen([sys.executable, "-c", call, *words], cwd=self.folder, **options)

    def on_a_terminal(self, *words: str, may_fail: bool = False, **environment: str) -> str:
        """Return what dlicmd prints on a terminal of 80 columns and 24 lines, with \\n as line ends.

        With `may_fail`, its errors are on the terminal, too. Otherwise the command must succeed.
        """
        size = {"COLUMNS": "80", "LINES": "24", "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
        ours, theirs = pty.openpty()
        streams = {"stdout": theirs, **({"stderr": theirs} if may_fail else {})}
        with self.start(*words, **streams, env=self.environment | size | environment) as process:
            os.close(theirs)
            shown = b""
            with contextlib.suppress(OSError):  # the last program has closed the terminal
                while chunk := os.read(ours, 1 << 16):
                    shown += chunk
            assert process.wait() == 0 or may_fail, process.stderr and process.stderr.read()
        os.close(ours)
        return shown.decode().replace("\r\n", "\n")

    def run(self, *words: str | bytes, given: bytes | None = None) -> Done:
        """Run dlicmd until it ends, with `given` as its standard input."""
        return Done(*commands.run(self.program, words, self.environment, self.folder, DEADLINE, given))

    def model(self, name: str = "model", **files: str) -> Path:
        """Create a model folder with these files (`train` means train.py) and return its path."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        for stem, text in (files or {"train": "print(1)\n"}).items():
            (folder / f"{stem}.py").write_text(text, encoding="utf-8")
        return folder
