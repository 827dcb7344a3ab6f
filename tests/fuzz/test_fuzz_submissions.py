"""Random `args` and `data` parts of submissions are parsed, or refused with one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cases import counted, tried
from hypothesis import strategies as st

from dlicmd.contract.argv import ArgvError, CommandLine, join_args, parse_argv, split_args
from dlicmd.contract.options import BY_NAME
from local_backend.data.errors import DataError
from local_backend.data.kind import Connection
from local_backend.data.storage import DataRoots
from local_backend.errors import Invalid
from local_backend.submit.check import check
from local_backend.submit.data import data_of
from local_backend.submit.words import read

SPELLINGS = sorted(BY_NAME)
STARTS = ["--exec-start PyTorch", "--exec-start edtPyTorch --numWorker 2", "--exec-start distPyTorch", "--exec-start",
          "--exec-get"]
VALUES = ["", "-1", "0", "1", "2.5", "１", "NaN", "1e9", "8g", "8q", "a=b", "A=b", "mode=fast", "=", "{", '{"a": "b"}',
          "type=fs", "type=s3", "type=fs,data_path=../..", "../..", "/etc/passwd", "x" * 5000, "\0", "\x1b[2J",
          "\u202e", "\ud800", "'", '"', "\\", "a b", "$(id)", "`id`", "local\n", "cpu", "gpu"]
#: Options and values, alone and combined. A list, because drawing letter by letter takes ten times as long.
WORDS = st.sampled_from([
    *SPELLINGS, *VALUES, "--", "-", "-o", "-x", "--num",
    *(f"{name}={value}" for name in SPELLINGS for value in VALUES)])
#: Separators that make a malformed command line.
GLUE = st.sampled_from([" ", "  ", "\t", "\n", "\\\n", "'", '"', "\\", "", "\u00a0", "&"])
FIELDS = st.sampled_from(["args", "argv", "dataSource", "hardwareSpec", "nodes", "num_nodes", "mem", "size", "gpu",
                          "num_gpu", "mig_profile", "type", "location", "paths", "volume"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(VALUES) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4), max_leaves=12)
SPECS = st.fixed_dictionaries({}, optional={
    "hardwareSpec": st.fixed_dictionaries({"nodes": st.dictionaries(FIELDS, JSON, max_size=4)}) | JSON,
    "dataSource": st.lists(st.fixed_dictionaries({"type": st.just("fs"), "location": JSON}), max_size=3) | JSON,
    "argv": st.lists(WORDS, max_size=6) | JSON, "args": JSON,
})


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> DataRoots:
    folder = tmp_path_factory.mktemp("data")
    (folder / "data" / "a").mkdir(parents=True)
    return DataRoots(folder / "data", folder / "volumes", anywhere=False, area="users/alice", create=True)


def unknown_connection(_meant: Any) -> Connection:
    """Raise the error for an unknown connection."""
    raise DataError("there is no such connection")


def judge(args: str | None, data: str | None, roots: DataRoots) -> None:
    """Parse and check a submission: accepted data lies below the roots, and an error is printable text."""
    try:
        asked = read(args, data)
        found = data_of(asked, roots, unknown_connection)
        job = check(asked, "alice", found, lambda secret: f"sealed {len(secret)}", 2**34)
    except Invalid as problem:
        text = str(problem)
        assert text.strip() and "Traceback" not in text, (args, data, text)
        return
    assert all(Path(path).is_relative_to(roots.data_fs / roots.area) for path in found.new), (args, data)
    assert job.data.data_dir == "" or Path(job.data.data_dir).is_relative_to(roots.data_fs), (args, data)
    needs = job.resources
    assert needs.num_worker >= 1 and needs.device_num >= 1 and 0 < needs.device_share <= 1, (args, data)
    assert needs.memory is None or needs.memory > 0, (args, data)


@counted("words")
def test_any_words_are_parsed_or_refused_with_a_sentence(cases: int) -> None:
    @tried(cases, st.lists(WORDS, max_size=8))
    def _case(words: list[str]) -> None:
        try:
            line = parse_argv(words)
        except ArgvError as problem:
            assert str(problem).strip()
            return
        assert isinstance(line, CommandLine)
        assert len(line.own) + len(line.program) <= len(words)


@counted("args of submissions")
def test_any_args_are_parsed_or_refused_with_a_sentence(roots: DataRoots, cases: int) -> None:
    @tried(cases, st.sampled_from(STARTS), st.lists(WORDS, max_size=6), GLUE)
    def _case(start: str, words: list[str], glue: str) -> None:
        judge(glue.join([f"{start} ", *words]), None, roots)
        assert split_args(join_args(words)) == words


@counted("data parts of submissions")
def test_any_data_part_is_parsed_or_refused_with_a_sentence(roots: DataRoots, cases: int) -> None:
    @tried(cases, SPECS | JSON, st.booleans())
    def _case(value: Any, with_args: bool) -> None:
        judge("--exec-start PyTorch --model-main main.py" if with_args else None, json.dumps(value), roots)
