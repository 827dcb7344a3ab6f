"""A fake server that runs uploaded functions: each job is a process, as on a real server, but without a backend."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from fake_server import FakeServer, Reply, Seen, exec_object


class FunctionServer(FakeServer):
    """A fake server that runs the program of each submission before it answers. `python` runs the jobs."""

    def __init__(self, folder: Path) -> None:
        super().__init__("files")
        self.folder = folder
        self.python = [sys.executable]
        self.more: dict[str, str] = {}
        self.replies["POST", "/platform/rest/deeplearning/v1/execs/"] = self._run

    def _run(self, seen: Seen) -> Reply:
        name = f"w-{len(self.execs) + 1}"
        place = self.folder / name
        packed = seen.body[seen.body.index(b"\x1f\x8b"):]
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
            archive.extractall(place, filter="data")
        results = place / "results"
        results.mkdir()
        environment = {"PATH": os.environ["PATH"], "RESULT_DIR": str(results), **self.more}
        done = subprocess.run([*self.python, "dlicmd_function.py"], cwd=place / "function", env=environment, text=True,
                              capture_output=True, timeout=120, check=False)
        self.logs[name] = done.stdout + done.stderr
        self.files[name] = {path.name: path.read_bytes() for path in results.iterdir()}
        state = "ERROR" if done.returncode else "FINISHED"
        self.execs[name] = exec_object(name, state=state, exitCode=done.returncode, submitted=seen.query["args"][0])
        return Reply(200, json.dumps(self.execs[name]).encode())
