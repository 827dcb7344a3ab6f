"""The metrics of an exec, as its processes wrote them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from live_server import Live
from test_server_swapped_logs import FILES, FOLDERS, SECRET

from dlicmd.contract import states
from local_backend.elastic.api.emetrics import FILE, EMetrics
from local_backend.forward.source import LONGEST

DIST = "--exec-start distPyTorch --numWorker 2 --model-main main.py"


@pytest.fixture
def running(live: Live) -> str:
    exec_id = live.submitted(DIST)
    live.run_on(exec_id, "cpu-0", "cpu-1")
    return exec_id


def file_of(live: Live, exec_id: str, worker: int = 1) -> Path:
    folder = live.paths(exec_id).log_dir(f"task12n-{worker}")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / FILE


def asked(live: Live, exec_id: str) -> str:
    answer = live.call("GET", f"/execs/{exec_id}/metrics")
    assert answer.status == 200 and answer.headers["content-type"] == "text/plain; charset=utf-8"
    return answer.text


def test_the_answer_contains_the_lines_of_the_file(live: Live, running: str) -> None:
    assert asked(live, running) == ""
    path = file_of(live, running)
    with EMetrics(f=str(path)) as metrics:
        metrics.record("train", 1, {"loss": 0.5})
        metrics.record("test", None, {"loss": 0.25, "note": "ä"})
    assert asked(live, running) == path.read_text() and len(path.read_text().splitlines()) == 2


def test_files_are_separated_by_an_empty_line(live: Live, running: str) -> None:
    for worker in (1, 2):
        file_of(live, running, worker).write_text(f'{{"worker": {worker}}}\n')
    inner = file_of(live, running).with_name("sub") / FILE
    inner.parent.mkdir()
    inner.write_text('{"worker": 3}\n')
    found = [json.loads(part)["worker"] for part in asked(live, running).split("\n\n")]
    assert sorted(found) == [1, 2, 3]


def test_invalid_lines_are_omitted(live: Live, running: str) -> None:
    path = file_of(live, running)
    path.write_bytes(b'\n[1]\nnoise\r\n{"a": 1}\r\n' + b"x" * (LONGEST + 9) + b'\n\xff\n{"b": 2}\n{"c":')
    assert asked(live, running) == '{"a": 1}\n{"b": 2}\n'
    with path.open("a") as file:
        file.write(" 3}")
    assert asked(live, running) == '{"a": 1}\n{"b": 2}\n', "the last line may be incomplete while the exec runs"
    live.move(running, states.FINISHED)
    assert asked(live, running) == '{"a": 1}\n{"b": 2}\n{"c": 3}\n'


def test_a_file_longer_than_one_piece_is_read_completely(live: Live, running: str) -> None:
    lines = "".join(f'{{"n": {number}, "more": "{"x" * 1000}"}}\n' for number in range(2500))
    file_of(live, running).write_text(lines)
    assert asked(live, running) == lines


@pytest.mark.parametrize("deed", [*FILES, *FOLDERS])
def test_a_special_file_in_place_of_metrics_is_not_read(live: Live, running: str, tmp_path: Path, deed: str) -> None:
    secret = tmp_path / "of-the-server" / "secret"
    secret.parent.mkdir()
    secret.write_text(json.dumps({"of": SECRET}))
    live.move(running, states.FINISHED)
    path = file_of(live, running)
    path.write_text('{"its": "own"}')
    assert "own" in asked(live, running)
    if deed in FOLDERS:
        FOLDERS[deed]([path], secret)
        for found in secret.parent.rglob(FILE):
            found.write_text(json.dumps({"of": SECRET}))
    else:
        path.unlink()
        FILES[deed](path, secret)
    assert SECRET not in asked(live, running)


def test_the_metrics_of_an_unknown_exec_are_refused(live: Live) -> None:
    answer = live.call("GET", "/execs/local-99/metrics")
    assert answer.error == (400, "exec.not_found") and "local-99" in answer.text
