"""`dlicmd logs`: selection of lines, by the server where it can."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import parse_qs

import pytest
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply, Seen, exec_object

from dlicmd.contract import wire

LINES = f"{BASE}/execs/local-1/lines"
STAMPED = b"2026-11-23T20:10:01.500Z task12n-2 stderr a  b\n2026-11-23T20:10:02.000Z task0 stdout \n"


@pytest.fixture
def shop(desk: Desk) -> Iterator[FakeServer]:
    """A local backend that selects lines."""
    with FakeServer("log-lines,follow") as server:
        server.execs["local-1"] = exec_object("local-1", state="FINISHED")
        server.replies["GET", LINES] = Reply(200, b"one\ntwo 12\n")
        desk.embed(server)
        yield server


@pytest.fixture
def old(local: FakeServer) -> FakeServer:
    """A server that gives its whole log."""
    local.execs["local-1"] = exec_object("local-1", state="FINISHED")
    local.logs["local-1"] = "one\ntwo 12\nthree\n"
    return local


def asked(shop: FakeServer) -> dict[str, list[str]]:
    return shop.requests("GET", "/lines")[-1].query


@pytest.mark.parametrize(("words", "query"), [
    ([], {}), (["--tail", "3"], {"tail": ["3"]}), (["--worker", "2"], {"worker": ["2"]}),
    (["--grep", "loss|val error"], {"grep": ["loss", "val error"]}),
    (["--since", "2026-11-23T20:00:00Z"], {"since": ["1795464000.0"]}),
])
def test_the_server_selects_lines(desk: Desk, shop: FakeServer, words: list[str], query: dict[str, list[str]]) -> None:
    done = desk.run("logs", "1", *words)
    assert (done.code, done.out) == (0, "one\ntwo 12\n") and asked(shop) == query


def test_a_pattern_is_matched_by_the_client_before_the_tail(desk: Desk, shop: FakeServer) -> None:
    shop.replies["GET", LINES] = Reply(200, b"a1\nb\na22\na333\nb")
    assert desk.run("logs", "1", "--grep", "a[0-9]+$", "--tail", "2").out == "a22\na333\n"
    assert asked(shop) == {}
    refused = desk.run("logs", "1", "--grep", "(")
    assert refused.code == 2 and "--grep" in refused.err


def test_times_are_local_and_name_worker_and_stream(desk: Desk, shop: FakeServer) -> None:
    shop.replies["GET", LINES] = Reply(200, STAMPED)
    desk.environment["TZ"] = "UTC-2"
    done = desk.run("logs", "1", "--timestamps")
    assert asked(shop) == {"timestamps": ["true"]}
    assert done.out == ("2026-11-23 22:10:01.5 UTC worker 2 stderr: a  b\n2026-11-23 22:10:02.0 UTC driver: \n")


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_lines_are_objects_for_programs(desk: Desk, shop: FakeServer, form: str) -> None:
    shop.replies["GET", LINES] = Reply(200, STAMPED)
    out = desk.run("logs", "1", "-o", form).out
    found = json.loads(out) if form == "json" else [json.loads(line) for line in out.splitlines()]
    assert found[0] == {"time": "2026-11-23T20:10:01.500Z", "task": "task12n-2", "stream": "stderr", "text": "a  b"}
    assert [one["task"] for one in found] == ["task12n-2", "task0"]


@pytest.mark.parametrize("words", [["--since", "soon"], ["--tail", "-1"], ["--worker", "x"], ["-f", "-o", "json"]])
def test_wrong_values_are_usage_errors(desk: Desk, shop: FakeServer, words: list[str]) -> None:
    assert desk.run("logs", "1", *words).code == 2


def test_new_lines_are_printed_until_the_job_ends(desk: Desk, shop: FakeServer) -> None:
    shop.execs["local-1"]["state"] = "RUNNING"
    pieces = [b"one\n", b"", b"two\n", b""]

    def answer(seen: Seen) -> Reply:
        number = int((seen.query["cursor"][0] or "0").removeprefix("c"))
        assert ("tail" in seen.query) == (number == 0)
        if number == 2:
            shop.execs["local-1"]["state"] = "FINISHED"
        return Reply(200, pieces[number], {wire.CURSOR_HEADER: f"c{number + 1}"})

    shop.replies["GET", LINES] = answer
    done = desk.run("logs", "1", "-f", "--tail", "1")
    assert (done.code, done.out) == (0, "one\ntwo\n")
    assert [parse_qs(seen.target.partition("?")[2], keep_blank_values=True)["cursor"]
            for seen in shop.requests("GET", "/lines")] == [[""], ["c1"], ["c2"], ["c3"]]


@pytest.mark.parametrize(("words", "out"), [
    ([], "one\ntwo 12\nthree\n"), (["--tail", "1"], "three\n"), (["--grep", "one|thr"], "one\nthree\n"),
    (["--grep", "[0-9]"], "two 12\n"), (["--grep", "t", "--tail", "1"], "three\n"),
])
def test_lines_of_another_server_are_selected_by_the_client(
    desk: Desk, old: FakeServer, words: list[str], out: str,
) -> None:
    done = desk.run("logs", "1", *words)
    assert (done.code, done.out) == (0, out)


@pytest.mark.parametrize("words", [["--since", "10m"], ["--worker", "1"], ["--timestamps"]])
def test_what_another_server_does_not_know_is_refused(desk: Desk, old: FakeServer, words: list[str]) -> None:
    refused = desk.run("logs", "1", *words)
    assert refused.code == 1 and "log-lines" in refused.err and words[0] in refused.err


def test_output_of_another_server_is_followed(desk: Desk, old: FakeServer) -> None:
    over = {"exec": exec_object("local-1", state="FINISHED"), "cursor": "2", "lines": []}
    old.news = [{"exec": exec_object("local-1"), "cursor": "1", "lines": [
        {"task": "task12n-1", "stream": "stdout", "text": text} for text in ("a", "b1", "b2")]}, over]
    assert desk.run("logs", "1", "-f", "--grep", "b", "--tail", "1").out == "b2\n"


def test_the_long_option_prints_the_whole_log(desk: Desk, shop: FakeServer) -> None:
    shop.logs["local-1"] = "whole\n"
    assert desk.run("--exec-trainlogs", "local-1").out == "whole\n" and not shop.requests("GET", "/lines")
