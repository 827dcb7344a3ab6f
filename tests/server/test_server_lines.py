"""Lines of the output: selected by number, time, worker and text, merged by time."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
from live_server import Answer, Live, quoted

from dlicmd.contract import states
from local_backend.runtime import output, output_times
from local_backend.runtime.output_times import Times, TimesWriter
from local_backend.runtime.paths import DRIVER, worker_task

DIST = "--exec-start distPyTorch --numWorker 2 --model-main main.py"
ELASTIC = "--exec-start edtPyTorch --numWorker 2 --model-main main.py"


class Job:
    """A job whose program and runner are played by the test: `say` writes output at a time."""

    def __init__(self, live: Live, patch: pytest.MonkeyPatch, args: str = DIST) -> None:
        self.live, self.id = live, live.submitted(args)
        self.paths, self.elastic = live.paths(self.id), args == ELASTIC
        self.clock = SimpleNamespace(time=lambda: self.now, monotonic=lambda: self.now)
        self.now = 1000.0
        patch.setattr(output_times, "time", self.clock)
        self.writer = TimesWriter(self.paths)
        live.run_on(self.id, "cpu-0", "cpu-1")

    def file(self, task: str | int, stream: str = "stdout") -> Path:
        name = worker_task(task) if isinstance(task, int) else task
        return self.paths.capture(name, stream, self.elastic)

    def say(self, at: float, text: str, task: str | int = 1, stream: str = "stdout") -> None:
        self.now = at
        file = self.file(task, stream)
        file.parent.mkdir(parents=True, exist_ok=True)
        self.writer.watch(worker_task(task) if isinstance(task, int) else task, [(stream, file)])
        with file.open("a", newline="") as opened:
            opened.write(text)
        self.writer.leave([file])

    def ask(self, query: str = "") -> Answer:
        return self.live.call("GET", f"/execs/{self.id}/lines{query and '?'}{query}")

    def lines(self, query: str = "") -> list[str]:
        answer = self.ask(query)
        assert answer.status == 200, answer.text
        return answer.text.splitlines()


@pytest.fixture
def job(live: Live, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job with two workers, one line per second from 1000 on."""
    found = Job(live, monkeypatch)
    found.say(1000, "a0\n")
    found.say(1001, "b1\n", 2)
    found.say(1002, "a2\nerror a2\n", 1)
    found.say(1003, "error b3\n", 2, "stderr")
    found.say(1004, "b4\n", 2)
    return found


def test_lines_of_all_workers_are_merged_by_time(job: Job) -> None:
    assert job.lines() == ["a0", "b1", "a2", "error a2", "error b3", "b4"]
    assert job.ask().headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(("query", "expected"), [
    ("tail=0", []), ("tail=1", ["b4"]), ("tail=4", ["a2", "error a2", "error b3", "b4"]), ("tail=3", [
        "error a2", "error b3", "b4"]), ("tail=99", ["a0", "b1", "a2", "error a2", "error b3", "b4"]),
    ("since=1003", ["error b3", "b4"]), ("since=1970-01-01T00:16:43Z", ["error b3", "b4"]), ("since=1005", []),
    ("since=1001&tail=2", ["error b3", "b4"]), ("since=1004&tail=5", ["b4"]),
    ("worker=1", ["a0", "a2", "error a2"]), ("worker=2&tail=2", ["error b3", "b4"]),
    ("grep=error", ["error a2", "error b3"]), ("grep=error&tail=1", ["error b3"]), ("grep=b1&grep=a2&tail=2", [
        "a2", "error a2"]), ("grep=.*", []), ("grep=", ["a0", "b1", "a2", "error a2", "error b3", "b4"]),
])
def test_lines_are_selected(job: Job, query: str, expected: list[str]) -> None:
    assert job.lines(query) == expected


def test_each_line_may_begin_with_its_time_task_and_stream(job: Job) -> None:
    assert job.lines("timestamps=true&tail=3") == [
        "1970-01-01T00:16:42.000Z task12n-1 stdout error a2", "1970-01-01T00:16:43.000Z task12n-2 stderr error b3",
        "1970-01-01T00:16:44.000Z task12n-2 stdout b4"]


def test_a_last_line_without_a_newline_has_the_time_of_its_last_byte(job: Job) -> None:
    job.say(1010, "begun")
    assert job.lines("since=1010") == ["begun"] and job.lines("since=1011") == []
    job.say(1012, ", ended")
    assert job.lines("since=1011") == ["begun, ended"] and job.lines("since=1013") == []


def test_lines_that_are_not_noted_yet_have_the_time_of_the_file(job: Job) -> None:
    with job.file(1).open("a") as file:
        file.write("new\n")
    found = job.lines("timestamps=true&tail=1&worker=1")
    assert re.fullmatch(r"20\d\d-.*Z task12n-1 stdout new", found[0])


def test_output_without_noted_times_is_returned(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(live, monkeypatch)
    for task in (1, 2):
        job.file(task).parent.mkdir(parents=True, exist_ok=True)
        job.file(task).write_text(f"{task}\n")
    assert job.lines() == ["1", "2"] and job.lines("since=1000") == ["1", "2"] and job.lines("since=4000000000") == []


def test_an_elastic_job_shows_its_driver_and_on_request_a_worker(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(live, monkeypatch, ELASTIC)
    job.say(1, "driver\n", DRIVER)
    job.say(2, "worker\n", 7, "stderr")
    job.file(7).touch()
    assert job.lines() == ["driver"] == job.lines("worker=0")
    assert job.lines("worker=7") == ["worker"]
    assert job.ask("worker=8").error == (400, "exec.no_executor")


def test_following_by_cursor_returns_each_whole_line_once(job: Job) -> None:
    first = job.ask("cursor=&tail=1")
    assert first.text == "b4\n"
    with job.file(1).open("a") as file:
        file.write("next\nnot compl")
    second = job.ask(f"cursor={quoted(first.headers['x-dli-cursor'])}")
    assert second.text == "next\n"
    job.live.move(job.id, states.FINISHED)
    third = job.ask(f"cursor={quoted(second.headers['x-dli-cursor'])}")
    assert third.text == "not compl\n"
    assert job.ask(f"cursor={quoted(third.headers['x-dli-cursor'])}").text == ""


@pytest.mark.parametrize(("query", "code"), [
    ("tail=x", "query.number"), ("tail=-1", "query.number"), ("worker=x", "query.number"), ("since=x", "query.time"),
    ("worker=3", "exec.no_executor"), ("worker=0", "exec.no_driver"), ("timestamps=1", "query.value"),
    ("cursor=x", "query.cursor"), ("grep=" + "x" * 10_001, "query.value"), ("grep=x&" * 101, "query.value"),
])
def test_wrong_values_are_refused(job: Job, query: str, code: str) -> None:
    assert job.ask(query).error == (400, code)


def test_long_output_is_cut_into_pieces_without_loss(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_CHUNK", 7)
    monkeypatch.setattr(output, "LARGEST", 30)
    job.say(1010, "x" * 100 + "\nend\n")
    assert "".join(job.lines("worker=1")) == "a0a2error a2" + "x" * 100 + "end"
    assert job.lines("worker=1&tail=1") == ["end"]


def test_the_notes_of_times_are_bounded(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_times, "MOST", 8)
    for number in range(100):
        job.say(2000 + number, f"{number}\n")
    times = job.paths.output_times(worker_task(1), "stdout")
    assert times.stat().st_size <= 8 * 16
    assert job.lines("since=2099") == ["99"] and job.lines("tail=2&worker=1") == ["98", "99"]
    noted = Times(job.paths, worker_task(1), "stdout")
    at, _ = noted.after(noted.first_since(2050.0), 0.0)
    assert 2000 <= at <= 2099


def test_replaced_output_gets_new_times(job: Job) -> None:
    job.now = 3000.0
    job.writer.watch(worker_task(1), [("stdout", job.file(1))])
    job.file(1).write_text("x\n")
    job.writer.leave([job.file(1)])
    assert job.lines("timestamps=true&worker=1") == ["1970-01-01T00:50:00.000Z task12n-1 stdout x"]


@pytest.mark.parametrize("moment", [float("nan"), float("inf"), -1e300, 1e300])
def test_a_time_that_the_program_wrote_itself_does_no_harm(job: Job, moment: float) -> None:
    times = job.paths.output_times(worker_task(1), "stdout")
    times.write_bytes(struct.pack("<dQ", moment, 1000))
    assert sorted(line.rpartition(" ")[2] for line in job.lines("timestamps=true&worker=1")) == ["a0", "a2", "a2"]
