"""Experiments on the command line: from a folder to a finished job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from user import User

pytestmark = pytest.mark.integration

DEFINITION = """
name: hello
command: say.py --loud
environment: {WHOM: world}
"""
EXPERIMENT = {
    "name": "greeting",
    "definitions": [{"definition": "hello", "hardware": "XS"}, {"definition": "hello", "command": "python -c pass"}],
}


def test_a_folder_becomes_a_definition_an_experiment_and_jobs(warm: User, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "say.py").write_text("import os, sys\nprint('hello', os.environ['WHOM'], sys.argv[1:])\n")
    (tmp_path / "hello.yaml").write_text(DEFINITION)
    (tmp_path / "greeting.json").write_text(json.dumps(EXPERIMENT))

    saved = warm.run("--definition-save", str(tmp_path / "hello.yaml"), "--model-dir", str(code), "-o", "json")
    assert saved.code == 0, saved.err
    assert (json.loads(saved.out)["version"], json.loads(saved.out)["command"]) == (1, "say.py --loud")
    run = warm.run("--experiment-save", str(tmp_path / "greeting.json"), "--run", "-o", "json")
    assert run.code == 0, run.err
    first, second = (part["execId"] for part in json.loads(run.out)["parts"])
    assert [warm.run("--wait", one).code for one in (first, second)] == [0, 0]
    assert "hello world ['--loud']" in warm.run("--exec-trainoutlogs", first).out
    listed = json.loads(warm.run("--experiment-get-all", "-o", "json").out)
    assert [part["state"] for part in listed[0]["lastRun"]["parts"]] == ["FINISHED", "FINISHED"]
    assert "FINISHED, FINISHED" in warm.run("--experiment-get-all", "-o", "table").out

    again = tmp_path / "again.yaml"
    again.write_text(warm.run("--experiment-get", "greeting", "-o", "yaml").out)
    assert json.loads(warm.run("--experiment-save", str(again), "-o", "json").out)["version"] == 1, "the same"
    assert len(json.loads(warm.run("--experiment-runs", "greeting", "-o", "json").out)) == 1
    assert warm.run("--definition-delete", "hello").code != 0
    assert warm.run("--experiment-delete", "greeting").code == 0
    assert warm.run("--definition-delete", "hello").code == 0
