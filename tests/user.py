"""A user of the product, with their own DLICMD_HOME and the installed commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import commands
import isolation
import psutil

#: The maximum time in seconds for any command on a loaded machine.
DEADLINE = 150


@dataclass
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        """Return the JSON object on stdout, without the lines before it."""
        return json.loads(self.out[self.out.index("{"):])


class User:
    """Runs the commands as processes, as a user does.

    The backend has no nursery: most test programs end before a nursery has started. Call `warm` for tests that
    train.
    """

    def __init__(self, home: Path, desk: str = "desk") -> None:
        self.home = home
        self.folder = home.parent / desk
        self.folder.mkdir()
        self.environment = {
            name: value for name, value in os.environ.items()
            if not name.startswith(("DLI", "RANK", "WORLD_SIZE", "MASTER_"))
        }
        self.environment.update(DLICMD_HOME=str(home), DLI_SLOTS="2", HOME=str(self.folder), COLUMNS="120")
        self.environment |= isolation.environment() | {"DLI_NURSERY_IDLE": "0"}
        self._forks_nurseries = False

    def warm(self, *, forked: bool = True) -> User:
        """Use a nursery, the default of the server, from the next start of a server on. With `forked`, a process that
        has imported PyTorch forks it; otherwise it imports PyTorch, as for a user."""
        del self.environment["DLI_NURSERY_IDLE"]
        self._forks_nurseries = forked
        return self

    def start(self, *words: str, program: str = "dlicmd.cli", cwd: Path | None = None) -> subprocess.Popen[str]:
        """Start a command and return its process, for tests that interrupt or watch the command."""
        call = f"import sys; from {program} import main; sys.exit(main())"
        return subprocess.Popen(
            [sys.executable, "-c", call, *words], env=self.environment, cwd=cwd or self.folder, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )

    def serve(self, *words: str) -> commands.Started:
        """Start a server in the foreground, and return its process."""
        return commands.Started("local_backend.cli", ("serve", *words), self.environment, self.folder,
                                nurseries=self._forks_nurseries)

    def run(self, *words: str, program: str = "dlicmd.cli", cwd: Path | None = None) -> Done:
        """Run a command until it ends."""
        try:
            code, out, err = commands.run(program, words, self.environment, cwd or self.folder, DEADLINE, servers=True,
                                          nurseries=self._forks_nurseries)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{words} did not end") from None
        return Done(code, out.decode(), err.decode())

    def backend(self, *words: str) -> Done:
        """Run `local-backend`."""
        return self.run(*words, program="local_backend.cli")

    def submit(self, *words: str) -> str:
        """Submit a job and return its id."""
        done = self.run("--exec-start", *words)
        assert done.code == 0, done
        return str(done.json["execId"])

    def model(self, name: str, **files: str) -> Path:
        """Create a model folder with these files (the key `train` means train.py)."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        for stem, text in files.items():
            (folder / f"{stem}.py").write_text(text, encoding="utf-8")
        return folder

    @property
    def server_pid(self) -> int:
        """Return the process id of the running backend."""
        return int(json.loads((self.home / "backend.json").read_text())["pid"])

    def close(self) -> None:
        """Stop the backend and its jobs, and kill the processes that are left."""
        self.backend("stop", "--jobs")
        leftovers = self.processes()
        for process in leftovers:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(leftovers)

    def processes(self) -> list[psutil.Process]:
        """Return all processes of this home: by their environment, or by a working directory in the home."""
        marker = str(self.home)  # also the folder of a server that a command has started
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get("DLICMD_HOME") == marker or f"{process.cwd()}/".startswith(f"{marker}/")
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found

    def running(self, module: str) -> list[psutil.Process]:
        """Return the processes of this home that run a module."""
        found = []
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):  # it has just ended
                if any(module in word for word in process.cmdline()):
                    found.append(process)
        return found
