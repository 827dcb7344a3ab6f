"""`dlicmd.log` in a program, and the module that stands in for the package in a foreign Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from local_backend.curves.records import LogReader
from local_backend.runtime.user_python import write_modules


def run(tmp_path: Path, program: str, **env: str) -> tuple[list[dict[str, Any]], str]:
    """Return the lines that a program has logged, and its standard error."""
    values = {**os.environ, "LOG_DIR": str(tmp_path), "DLI_EXECID": "local-1", **env}
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], env=values, capture_output=True, text=True,
                          check=True)
    path = tmp_path / "dlicmd-log.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines], done.stderr


def test_values_with_steps_epochs_and_counts(tmp_path: Path) -> None:
    lines, errors = run(tmp_path, "import dlicmd\ndlicmd.log(loss=0.5, step=3)\ndlicmd.log({'val/loss': 1}, epoch=1)\n"
                                  "dlicmd.log(acc=1)\ndlicmd.log(acc=2)")
    assert [(line["v"], line["s"], line["u"]) for line in lines] == [
        ({"loss": 0.5}, 3, "step"), ({"val/loss": 1}, 1, "epoch"), ({"acc": 1}, 0, "step"), ({"acc": 2}, 1, "step")]
    assert errors == ""


def test_the_log_needs_no_module_of_the_client(tmp_path: Path) -> None:
    run(tmp_path, "import dlicmd, sys; dlicmd.log(loss=1)\nassert not {'dlicmd.sdk', 'requests'} & set(sys.modules)")


def test_values_that_are_no_numbers_warn_once_and_never_raise(tmp_path: Path) -> None:
    program = ("import dlicmd\nclass Tensor:\n  item = lambda self: 0.5\n"
               "class Pair:\n  def item(self): raise ValueError\n"
               "for step in range(3): dlicmd.log(a='x', b=None, c=Tensor(), d=Pair(), step=step)\n"
               "dlicmd.log(5)\ndlicmd.log(loss=1, step='x')")
    lines, errors = run(tmp_path, program)
    assert [line["v"] for line in lines] == [{"c": 0.5}] * 3
    assert len(errors.splitlines()) == 5


def test_nothing_is_written_outside_of_a_job_and_by_other_ranks(tmp_path: Path) -> None:
    program = "import dlicmd; dlicmd.log(loss=1)"
    assert run(tmp_path, program, DLI_EXECID="") == ([], "")
    assert run(tmp_path, program, RANK="1") == ([], "")
    assert run(tmp_path, program, NODE_RANK="1") == ([], "")
    assert len(run(tmp_path, program, RANK="0", NODE_RANK="1")[0]) == 1


def test_a_missing_folder_and_a_closed_standard_error_do_no_harm(tmp_path: Path) -> None:
    program = "import dlicmd, os, sys; sys.stderr.close(); dlicmd.log(loss=1); dlicmd.log(loss='x')"
    assert run(tmp_path, program, LOG_DIR=str(tmp_path / "missing")) == ([], "")


def test_a_forked_process_writes_its_own_lines(tmp_path: Path) -> None:
    program = ("import dlicmd, os\ndlicmd.log(loss=1, step=1)\nif os.fork() == 0:\n  dlicmd.log(loss=2, step=2)\n"
               "  os._exit(0)\nos.wait()")
    assert [line["s"] for line in run(tmp_path, program)[0]] == [1, 2]


def test_of_very_many_calls_every_tenth_is_written(tmp_path: Path) -> None:
    lines, _ = run(tmp_path, "import dlicmd\nfor step in range(120_000): dlicmd.log(loss=step)")
    assert len(lines) == 100_000 + 2_000
    assert LogReader().feed((tmp_path / "dlicmd-log.jsonl").read_bytes(), final=True)[1][-1].step == 119_990


@pytest.mark.parametrize("options", [("-S",), ("-I", "-S")])
def test_a_python_without_the_package_has_the_log(tmp_path: Path, options: tuple[str, ...]) -> None:
    """-S leaves out the installed packages."""
    modules = tmp_path / "modules"
    write_modules(modules)
    program = f"import sys; sys.path.append({str(modules)!r}); import dlicmd; dlicmd.log(loss=0.5, step=3)"
    env = {"PATH": os.environ["PATH"], "LOG_DIR": str(tmp_path), "DLI_EXECID": "local-1"}
    subprocess.run([sys.executable, *options, "-c", program], env=env, check=True, cwd=tmp_path)
    assert json.loads((tmp_path / "dlicmd-log.jsonl").read_text())["v"] == {"loss": 0.5}


def test_the_stand_in_gives_way_to_the_package(tmp_path: Path) -> None:
    write_modules(tmp_path / "modules")
    program = "import dlicmd; dlicmd.log(loss=1); dlicmd.Client; import dlicmd.contract.wire; print(dlicmd.__path__)"
    assert len(run(tmp_path, program, PYTHONPATH=str(tmp_path / "modules"))[0]) == 1
