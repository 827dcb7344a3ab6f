"""Fixtures of the fuzz tests; they reuse the servers of the server tests and of the client tests."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

for folder in ("server", "client", "fuzz"):
    sys.path.insert(0, str(Path(__file__).parent.parent / folder))

from fake_server import TOKEN, FakeServer, exec_object  # noqa: E402


@pytest.fixture(scope="module")
def standing_in() -> Iterator[FakeServer]:
    """A stand-in for the local backend, with one exec."""
    with FakeServer("argv,follow,local-paths,metrics,code") as server:
        server.execs["w-1"] = exec_object("w-1", state="FINISHED")
        yield server


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, standing_in: FakeServer) -> Iterator[Path]:
    """A working folder with a model, and a local backend that answers."""
    root = tmp_path_factory.mktemp("client")
    folder = root / "in" / "desk"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "train.py").write_text("print(1)\n")
    (root / "state").mkdir()
    (root / "state" / "backend.json").write_text(
        json.dumps({"url": standing_in.url, "pid": os.getpid(), "token": TOKEN}))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DLI", "XDG_"))}
    ours = kept | {"HOME": str(folder), "DLICMD_HOME": str(root / "state"), "COLUMNS": "100"}
    before = Path.cwd()
    os.chdir(folder)
    with patch.dict(os.environ, ours, clear=True):
        yield folder
    os.chdir(before)
