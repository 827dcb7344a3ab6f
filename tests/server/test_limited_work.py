"""Functions on untrusted input run in processes of their own: a hostile input ends one of these, and nothing else."""

from __future__ import annotations

import threading
from pathlib import Path

import psutil
import pytest
from support import PATIENCE

from dlicmd.contract.left_out import own_lines
from local_backend import limited_work
from local_backend.limited_work import LimitExceeded, WorkLimits
from local_backend.submit.kinds import framework_of
from local_backend.workload import Program

LIMITS = WorkLimits(seconds=20, memory=256 << 20)


def test_a_result_of_any_size_comes_back() -> None:
    text = "\ud800 \u00fc\n" * 300_000
    assert limited_work.call("builtins:str", [text], LIMITS) == text
    assert limited_work.call("builtins:str", ["short"], LIMITS) == "short"


@pytest.mark.parametrize(("function", "arguments"), [
    ("re:match", ["(a*)*b", "a" * 60]),  # hours
    ("builtins:bytearray", [1 << 40]),
    ("builtins:int", ["x"]),
    ("builtins:nothing", []),
    ("no_such_module:f", []),
    ("os:abort", []),
])
def test_work_without_a_result_is_reported(function: str, arguments: list[object]) -> None:
    with pytest.raises(LimitExceeded):
        limited_work.call(function, arguments, WorkLimits(seconds=1, memory=256 << 20))
    assert limited_work.call("builtins:len", [[1, 2]], LIMITS) == 2


def test_long_work_delays_no_other(tmp_path: Path) -> None:
    ended = threading.Event()

    def long() -> None:
        with pytest.raises(LimitExceeded):
            limited_work.call("re:match", ["(a*)*b", "a" * 60], WorkLimits(seconds=30, memory=256 << 20))
        ended.set()

    thread = threading.Thread(target=long, daemon=True)
    thread.start()
    assert limited_work.call("builtins:len", ["abc"], LIMITS) == 3
    assert not ended.is_set(), "the lock of the interpreter was free meanwhile"
    process = limited_work._host._process
    assert process is not None
    for one in psutil.Process(process.pid).children(recursive=True):  # the long work, which would go on for 30 s
        one.kill()
    process.kill()
    thread.join(PATIENCE)
    assert ended.is_set()


@pytest.mark.parametrize("source", [
    "init_process_group\n" + "a." * 900 + "spawn\n", "x = " + "-" * 500_000 + "1\n", "x = " + "(" * 150 + ")" * 150,
    "[" * 100_000, "a = b" + ".c" * 200_000, "\0", "x = '\\N{" + "a" * 1000,
])
def test_a_source_that_cannot_be_read_runs_as_one_process(tmp_path: Path, source: str) -> None:
    (tmp_path / "main.py").write_text(source)
    assert framework_of(Program("PyTorch", main="main.py"), tmp_path) == "PyTorch"


def test_an_ignore_file_cannot_include_itself() -> None:
    with pytest.raises(ValueError, match="includes"):
        list(own_lines(lambda _: "#!include:.dlicmdignore\n"))
    assert list(own_lines(lambda name: {".dlicmdignore": "a\n#!include: x\n", "x": "#!include:x"}[name])) == [
        ("a", ".dlicmdignore"), ("#!include:x", "x")]
