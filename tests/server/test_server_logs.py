"""Logs, following a log, and results."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import threading
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live_server import Answer, Live
from sqlalchemy import Connection
from support import eventually, examples

from dlicmd.contract import states
from local_backend.api import follow
from local_backend.api.follow import Cursor, new_lines
from local_backend.api.textlog import content, json_string, prefixed
from local_backend.runtime import output
from local_backend.runtime.paths import ExecPaths
from local_backend.scheduler.model import Reason
from local_backend.store import execs
from local_backend.store.holdings import SlotPart

ELASTIC = "--exec-start edtPyTorch --numWorker 2 --model-main main.py"
DIST = "--exec-start distPyTorch --numWorker 2 --model-main main.py"


def write(path: Path, text: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(text)


def beside(file: Path) -> ExecPaths:
    """Return the paths of an exec that has this file in its folder."""
    return ExecPaths(file.parent / "state", file.parent, "local-1")


def log(live: Live, exec_id: str, kind: str) -> str:
    return live.call("GET", f"/execs/{exec_id}/log?logType={kind}&args=noise", headers={"Accept": "text/plain"}).text


def test_logs_of_several_processes_are_joined_by_rank(live: Live) -> None:
    exec_id = live.submitted(DIST)
    paths = live.paths(exec_id)
    for rank in (1, 2):
        for stream in ("stdout", "stderr"):
            write(paths.capture(f"task12n-{rank}", stream, False), f"{stream} {rank}\n".encode())
    assert log(live, exec_id, "outlog") == "stdout 1\nstdout 2\n"
    assert log(live, exec_id, "errlog") == "stderr 1\nstderr 2\n"
    assert log(live, exec_id, "outerrlog") == "stdout 1\nstdout 2\nstderr 1\nstderr 2\n"
    assert live.call("GET", f"/execs/{exec_id}/log").text == "stdout 1\nstdout 2\n"
    assert live.call("GET", f"/execs/{exec_id}/log?logType=all").status == 400


def test_the_log_of_an_elastic_exec_is_that_of_its_driver_and_workers(live: Live) -> None:
    exec_id = live.submitted(ELASTIC)
    paths = live.paths(exec_id)
    assert log(live, exec_id, "outerrlog") == ""
    write(paths.capture("task0", "stdout", True), b"printed\n")
    write(paths.capture("task0", "stderr", True), b"warned\n")
    write(paths.capture("task12n-2", "stderr", True), b"Traceback\n")
    assert log(live, exec_id, "outlog") == "printed\n"
    write(paths.log_dir("task0") / "stdout", b"[2026-01-01 00:00:00] Train,\t...\n")
    assert log(live, exec_id, "outlog").startswith("[2026-01-01")
    assert log(live, exec_id, "errlog") == "warned\nTraceback\n"


def test_scheduler_logs_are_those_of_single_tasks(live: Live) -> None:
    elastic, dist = live.submitted(ELASTIC), live.submitted(DIST)
    write(live.paths(elastic).capture("task0", "stdout", True), b"a\nb\nc\n")
    write(live.paths(elastic).capture("task12n-1", "stdout", True), b"batches :1 0.5\n")
    write(live.paths(elastic).launcher_log, b"launched\n")
    write(live.paths(dist).capture("task12n-2", "stdout", False), b"x\ny\nz")

    def task_log(exec_id: str, task: str, query: str = "") -> tuple[int, str]:
        answer = live.call("GET", f"/scheduler/applications/{exec_id}/{task}{query}", headers={"Accept": "text/plain"})
        return answer.status, answer.error[1] or answer.text

    assert task_log(elastic, "driver/logs/stdout", "?lastlines=2") == (200, "b\nc\n")
    assert task_log(elastic, "driver/logs/launcherlog") == (200, "launched\n")
    assert task_log(elastic, "executor/1/logs/stdout") == (200, "batches :1 0.5\n")
    assert task_log(elastic, "executor/2/logs/stderr") == (400, "exec.no_executor")
    assert task_log(dist, "executor/1/logs/stderr") == (200, "")
    assert task_log(elastic, "executor/1/logs/launcherlog") == (200, "launched\n")
    assert task_log(dist, "executor/2/logs/stdout", "?lastlines=2") == (
        200, "*Task <2> SubProcess*: y\n*Task <2> SubProcess*: z",
    )
    for task in ("executor/3/logs/stdout", "executor/0/logs/stdout", "executor/x/logs/stdout", "driver/logs/stdout",
                 "executor/1/logs/passwd", "executor/1/logs/..%2f..%2fjob.json"):
        assert task_log(dist, task)[0] in {400, 404}, task
    assert task_log(dist, "executor/1/logs/stdout", "?lastlines=-1")[0] == 400


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize(("accept", "read"), [("text/plain", lambda answer: answer.text),
                                              ("application/json", lambda answer: answer.json())])
def test_lines_of_an_executor_begin_with_its_task_unless_it_is_elastic(
    live: Live, stream: str, accept: str, read: Callable[[Answer], str]
) -> None:
    single, elastic = live.submitted(), live.submitted(ELASTIC)
    for exec_id, is_elastic in ((single, False), (elastic, True)):
        for name in ("stdout", "stderr"):
            write(live.paths(exec_id).capture("task12n-1", name, is_elastic), b"a\n\nb")
        write(live.paths(exec_id).launcher_log, b"launched\n")

    def text(path: str) -> str:
        return read(live.call("GET", path, headers={"Accept": accept}))

    begin = "*Task <1> SubProcess*: "
    lines = f"{begin}a\n{begin}\n{begin}b"
    assert text(f"/scheduler/applications/{single}/executor/1/logs/{stream}") == lines
    assert text(f"/scheduler/applications/{single}/executor/1/logs/{stream}?lastlines=2") == f"{begin}\n{begin}b"
    assert text(f"/scheduler/applications/{elastic}/executor/1/logs/{stream}") == "a\n\nb"
    for exec_id in (single, elastic):
        assert text(f"/scheduler/applications/{exec_id}/executor/1/logs/launcherlog").endswith("launched\n")
        assert begin not in text(f"/scheduler/applications/{exec_id}/executor/1/logs/launcherlog")
    kind = {"stdout": "outlog", "stderr": "errlog"}[stream]
    assert text(f"/execs/{single}/log?logType={kind}") == "a\n\nb", "the log of the program has only its own output"


@given(text=st.text(alphabet="ab\n\r\u00fc", max_size=60).map(str.encode), lines=st.integers(0, 9),
       chunk=st.integers(1, 7))
@settings(deadline=None, max_examples=examples(200))
def test_last_lines_are_those_of_a_split(text: bytes, lines: int, chunk: int) -> None:
    before, output._CHUNK = output._CHUNK, chunk
    try:
        start = output.last_lines_start(io.BytesIO(text), lines, len(text))
    finally:
        output._CHUNK = before
    pieces = [piece + b"\n" for piece in text.split(b"\n")]
    pieces = pieces[:-1] if text.endswith(b"\n") or not text else [*pieces[:-1], pieces[-1][:-1]]
    assert text[start:] == (b"".join(pieces[-lines:]) if lines else b"")


@given(text=st.text(max_size=80), cuts=st.lists(st.integers(0, 200), max_size=5))
def test_json_string_and_prefix_do_not_depend_on_chunks(text: str, cuts: list[int]) -> None:
    data = text.encode("utf-8", "replace")
    at = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    chunks = [data[a:b] for a, b in pairwise(at)]
    assert json.loads(b"".join(json_string(chunks))) == data.decode()
    whole = b"".join(b"> " + line for line in data.split(b"\n") for line in [line + b"\n"])[:-1]
    expected = whole.removesuffix(b"> ") if data.endswith(b"\n") or not data else whole
    assert b"".join(prefixed(chunks, b"> ")) == expected


def follow_call(live: Live, exec_id: str, cursor: str = "", wait: int = 0) -> dict:
    answer = live.call("GET", f"/execs/{exec_id}/follow?cursor={cursor}&wait={wait}")
    assert answer.status == 200, answer.text
    return answer.json()


def test_follow_delivers_every_line_once_and_in_order(live: Live) -> None:
    exec_id = live.submitted(DIST)
    out = live.paths(exec_id).capture("task12n-1", "stdout", False)
    first = follow_call(live, exec_id)
    assert first["exec"]["id"] == exec_id and first["lines"] == []
    write(out, "eins\r\nzwei ü\nhal".encode())
    write(live.paths(exec_id).capture("task12n-2", "stderr", False), b"oops\n")
    second = follow_call(live, exec_id, first["cursor"], 30)
    assert second["lines"] == [
        {"task": "task12n-1", "stream": "stdout", "text": "eins"},
        {"task": "task12n-1", "stream": "stdout", "text": "zwei ü"},
        {"task": "task12n-2", "stream": "stderr", "text": "oops"},
    ]
    assert follow_call(live, exec_id, second["cursor"])["lines"] == []
    live.move(exec_id, states.PENDING, states.RUNNING, states.FINISHED)
    third = follow_call(live, exec_id, second["cursor"], 30)
    assert third["exec"]["state"] == "FINISHED" and [line["text"] for line in third["lines"]] == ["hal"]
    last = follow_call(live, exec_id, third["cursor"], 30)
    assert last["lines"] == [] and last["exec"]["state"] == "FINISHED"
    again = follow_call(live, exec_id)
    assert [line["text"] for line in again["lines"]] == ["eins", "zwei ü", "hal", "oops"]


def test_follow_of_an_elastic_exec_shows_the_driver(live: Live) -> None:
    exec_id = live.submitted(ELASTIC)
    write(live.paths(exec_id).capture("task0", "stdout", True), b"epoch 1\n")
    write(live.paths(exec_id).capture("task12n-1", "stdout", True), b"worker\n")
    assert [line["task"] for line in follow_call(live, exec_id)["lines"]] == ["task0"]


def test_follow_waits_for_a_change_of_state_progress_or_log(live: Live) -> None:
    exec_id = live.submitted(DIST)
    cursor = follow_call(live, exec_id)["cursor"]
    for change in (
        lambda: live.move(exec_id, states.PENDING),
        lambda: live.move(exec_id, states.RUNNING),
        lambda: live.say(exec_id, {"step": 5}),
        lambda: write(live.paths(exec_id).capture("task12n-1", "stdout", False), b"line\n"),
    ):
        answers: list[dict] = []
        waiting = threading.Thread(target=lambda c=cursor, a=answers: a.append(follow_call(live, exec_id, c, 30)))
        waiting.start()
        change()
        waiting.join()
        assert answers[0]["cursor"] != cursor
        cursor = answers[0]["cursor"]
    assert answers[0]["exec"]["step"] == 5 and answers[0]["lines"][0]["text"] == "line"


def test_follow_delivers_every_event_once_and_in_order(live: Live) -> None:
    exec_id, other = live.submitted(ELASTIC), live.submitted(DIST)
    first = follow_call(live, exec_id)
    assert [(event["kind"], event["state"]) for event in first["events"]] == [("state", states.SUBMITTED)]
    live.run_on(exec_id, "cpu-0")
    live.move(other, states.PENDING)
    parts = [SlotPart("cpu-0", "cpu"), SlotPart("cpu-1", "cpu")]
    live.database.write(lambda c: execs.hold(c, exec_id, parts, "/local/training"))
    second = follow_call(live, exec_id, first["cursor"], 30)
    told = [{key: event[key] for key in event.keys() - {"id", "time"}} for event in second["events"]]
    assert told == [
        {"kind": "state", "state": states.PENDING}, {"kind": "state", "state": states.RUNNING, "slots": 1},
        {"kind": "resize", "before": 1, "slots": 2},
    ]
    assert [event["id"] for event in second["events"]] == sorted({event["id"] for event in second["events"]})
    live.move(exec_id, states.FINISHED)
    last = follow_call(live, exec_id, second["cursor"], 30)
    assert [event["state"] for event in last["events"]] == [states.FINISHED]
    assert follow_call(live, exec_id, last["cursor"], 30)["events"] == []
    again = follow_call(live, exec_id)["events"]
    assert again == first["events"] + second["events"] + last["events"]


def test_the_last_answer_of_follow_has_all_events(live: Live) -> None:
    exec_id = live.submitted(ELASTIC)
    cursor = follow_call(live, exec_id)["cursor"]
    live.run_on(exec_id, "cpu-0")

    def change_often(connection: Connection) -> None:
        for _ in range(300):
            assert execs.transition(connection, exec_id, states.RECOVERING)
            assert execs.transition(connection, exec_id, states.RUNNING)

    live.database.write(change_often)
    live.move(exec_id, states.FINISHED)
    last = follow_call(live, exec_id, cursor)
    moves = [states.PENDING, states.RUNNING, *[states.RUNNING] * 600, states.FINISHED]
    assert last["exec"]["state"] == states.FINISHED and not last["lines"]
    assert [event["state"] for event in last["events"]] == moves


def test_follow_looks_at_files_in_threads(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that does not answer must not stop the event loop."""
    threads: dict[str, set[threading.Thread]] = {}

    def watched(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(path: Path, *args: Any, **more: Any) -> Any:
            if Path(path).is_relative_to(live.settings.home):
                threads.setdefault(name, set()).add(threading.current_thread())
            return real(path, *args, **more)

        monkeypatch.setattr(owner, name, call)

    exec_id = live.submitted(DIST)
    for owner, name in ((Path, "lstat"), (shutil, "disk_usage"), (shutil, "rmtree")):
        watched(owner, name)
    cursor = follow_call(live, exec_id)["cursor"]
    live.submitted(DIST)
    assert follow_call(live, exec_id, cursor, 1)["lines"] == []
    assert threads.keys() == {"lstat", "disk_usage", "rmtree"}
    assert all(live.thread not in found for found in threads.values()), threads


def test_follow_of_a_waiting_exec_notices_another_reason(live: Live) -> None:
    exec_id, other = live.submitted(DIST), live.submitted(DIST)
    live.move(exec_id, states.PENDING)
    cursor = follow_call(live, exec_id)["cursor"]
    answers: list[dict] = []
    waiting = threading.Thread(target=lambda: answers.append(follow_call(live, exec_id, cursor, 30)))
    waiting.start()
    live.supervisor.reasons[exec_id] = Reason("BUSY", "waiting for 1 CPU slot", 1)
    live.move(other, states.PENDING)
    waiting.join()
    assert answers[0]["exec"]["reason"] == "BUSY" and answers[0]["events"] == []


def test_a_follower_is_removed_after_its_response(live: Live) -> None:
    exec_id = live.submitted(DIST)
    follow_call(live, exec_id)
    eventually(lambda: live.database.bus.readers == 0, "the server removes the follower")


def test_follow_delivers_large_output_in_bounded_pieces(live: Live) -> None:
    exec_id = live.submitted(DIST)
    lines = [f"{n:06d} " + "x" * 90 for n in range(10_000)] + ["y" * (follow.MOST_BYTES * 2), "end"]
    write(live.paths(exec_id).capture("task12n-1", "stdout", False), "\n".join(lines).encode())
    live.move(exec_id, states.PENDING, states.RUNNING, states.FINISHED)
    cursor, got = "", ""
    while answer := follow_call(live, exec_id, cursor):
        size = sum(len(line["text"]) + 1 for line in answer["lines"])
        assert size <= follow.MOST_BYTES + 1
        if not answer["lines"]:
            break
        got += "\n".join(line["text"] for line in answer["lines"]) + "\n"
        cursor = answer["cursor"]
    assert got.replace("\n", "") == "".join(lines)
    assert got.split("\n")[:10_000] == lines[:10_000]


@pytest.mark.parametrize("cursor", [
    "x", "AAAA", "W10", "bnVsbA", "Wy0xLHsiYSI6LTF9LDBd", "Wy0xLHt9LC0xXQ", "Wy0xLHt9LDFlOTld", "%00", "W1tdLFtdXQ",
    "é",
])
def test_follow_refuses_a_bad_cursor(live: Live, cursor: str) -> None:
    from urllib.parse import quote

    exec_id = live.submitted()
    answer = live.call("GET", f"/execs/{exec_id}/follow?cursor={quote(cursor)}")
    assert answer.error == (400, "query.cursor")
    assert live.call("GET", f"/execs/{exec_id}/follow?wait=x").error == (400, "query.number")


@given(st.dictionaries(st.text(max_size=20), st.integers(0, 2**60), max_size=5), st.integers(-1, 2**32),
       st.integers(0, 2**60))
def test_a_cursor_is_decoded_as_it_was_encoded(offsets: dict[str, int], mark: int, event: int) -> None:
    cursor = Cursor(offsets, mark, event)
    assert Cursor.decode(cursor.encode()) == cursor and "=" not in cursor.encode()


@given(st.lists(st.text(alphabet="abü\n", max_size=12).map(str.encode), max_size=8))
@settings(deadline=None, max_examples=60)
def test_growing_output_is_delivered_whole(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("grow") / "stdout"
    offsets: dict[str, int] = {}
    got: list[str] = []
    for number, piece in enumerate([*pieces, b""]):
        write(path, piece)
        lines, offsets = new_lines(beside(path), [("t", "stdout", path)], offsets, over=number == len(pieces))
        got += [line["text"] for line in lines]
    data = b"".join(pieces)
    expected = data.removesuffix(b"\n").decode().split("\n") if data else []
    assert got == expected


def test_logs_are_not_read_into_memory(tmp_path: Path) -> None:
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(1 << 30)
    assert next(content(beside(big), [big])) == bytes(1 << 16)


def test_a_result_is_the_model_folder_with_a_checksum(live: Live, tmp_path: Path) -> None:
    exec_id = live.submitted()
    model = live.paths(exec_id).model
    (model / "train").mkdir()
    (model / "train" / "model_epoch_final.pth").write_bytes(os.urandom(300_000))
    (model / "trüb.txt").write_text("x")
    (tmp_path / "secret").write_text("s")
    (model / "link").symlink_to(tmp_path / "secret")
    (model / "dir").symlink_to(tmp_path)
    os.mkfifo(model / "pipe")
    answer = live.call("GET", f"/execs/{exec_id}/result")
    digest = base64.b64encode(hashlib.sha256(answer.body).digest()).decode()
    assert answer.headers["repr-digest"] == f"sha-256=:{digest}:"
    assert int(answer.headers["content-length"]) == len(answer.body)
    with zipfile.ZipFile(io.BytesIO(answer.body)) as archive:
        assert sorted(archive.namelist()) == ["model/train/model_epoch_final.pth", "model/trüb.txt"]
        assert archive.testzip() is None
    again = live.call("GET", f"/execs/{exec_id}/result")
    assert again.body == answer.body and again.headers["content-disposition"] == answer.headers["content-disposition"]
    assert list(live.settings.paths.incoming.iterdir()) == []


def test_an_empty_result_is_an_error(live: Live) -> None:
    exec_id = live.submitted()
    answer = live.call("GET", f"/execs/{exec_id}/result", headers={"Accept": "application/octet-stream"})
    assert answer.error == (400, "exec.no_result") and "SUBMITTED" in answer.text
