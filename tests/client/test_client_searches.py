"""The commands about searches for hyperparameters."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from email.parser import BytesParser

import pytest
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply, Seen

PATH = f"{BASE}/hypersearch"
#: Contract of searches, A2: the keys of a task and of an experiment.
SEARCH = {
    "hpoName": "admin-hpo-1", "state": "RUNNING", "running": 1, "progress": "1/2", "creator": "admin",
    "createtime": "2020-11-17 19:59:46", "duration": "00:02:55", "complete": 1, "failed": 0, "experiments": [
        {"id": 0, "appId": "w-605", "state": "FINISHED", "metricVal": 0.0652, "startTime": "2020-11-17 19:59:48",
         "endTime": "2020-11-17 20:00:48", "hyperParams": []},
        {"id": 1, "state": "SUBMITTED"}],
}
COMMANDS = (["--hpo-get", "x"], ["--hpo-stop", "x"], ["--hpo-restart", "x"], ["--hpo-delete", "x"])
#: As recorded: 'Built-ins are `{name, type:"BUILD_IN", remoteExec:false}`'.
ALGORITHMS = [{"name": "Random", "type": "BUILD_IN", "remoteExec": False},
              {"name": "my\x1b[31mown", "type": "USER_PLUGIN", "remoteExec": True}]


def answer(value: object, status: int = 200) -> Reply:
    return Reply(status, json.dumps(value).encode())


def parts(seen: Seen) -> dict[str, tuple[str | None, bytes]]:
    """Return the parts of a multipart body: the name mapped to file name and content."""
    head = f"Content-Type: {seen.headers['content-type']}\r\n\r\n".encode()
    message = BytesParser().parsebytes(head + seen.body)
    return {str(part.get_param("name", header="content-disposition")): (
        part.get_filename(), part.get_payload(decode=True)) for part in message.get_payload()}


def test_hpo_start_sends_the_definition_and_the_model_folder(desk: Desk, local: FakeServer) -> None:
    desk.model(train="print(1)\n")
    definition = {"modelSpec": {"args": "--exec-start PyTorch"}, "algoDef": {"algorithm": "Random"}, "ü": 1.5}
    (desk.folder / "search.json").write_text(json.dumps(definition, indent=3))
    local.replies["POST", PATH] = Reply(200, b'{"uid": "admin-hpo-1", "href": "/h"}\n\x1b[2J')
    done = desk.run("--hpo-start", "search.json", "--model-dir", "model")
    assert (done.code, done.err) == (0, "")
    copied, size, started = done.out.splitlines()
    assert copied == "Copying files and directories ..." and re.fullmatch(r"Content size: \S+", size)
    assert started == 'Start hypersearch with id: {"uid": "admin-hpo-1", "href": "/h"}'
    sent = parts(local.requests("POST")[0])
    assert json.loads(sent["data"][1]) == definition and sent["data"][0] is None
    assert str(sent["file"][0]).endswith(".modelDir.tar")
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(sent["file"][1]))) as archive:
        assert archive.getnames() == ["model", "model/train.py"]
    local.replies["POST", PATH] = answer("Admin-hpo-1")
    done = desk.run("--hpo-start", "search.json", "--model-dir", "model", "-o", "json")
    assert json.loads(done.out) == "Admin-hpo-1" and "Content size" in done.err


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (None, ["--model-dir", "model"], "--hpo-start s.json"), ("{\n]", ["--model-dir", "model"], "line 2"),
        ("[" * 10**5, ["--model-dir", "model"], "JSON"), ("\udcff", ["--model-dir", "model"], "JSON"),
        ("[]", ["--model-dir", "model"], "JSON object"), ("{}", [], "--model-dir DIR"),
        ("{}", ["--model-dir", "none"], "--model-dir: 'none'"), ("{}", ["--model-dir", "model", "more"], "'more'"),
    ],
)
def test_an_invalid_search_is_refused_before_it_is_sent(
    desk: Desk, local: FakeServer, text: str | None, words: list[str], said: str
) -> None:
    desk.model()
    if text is not None:
        (desk.folder / "s.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    done = desk.run("--hpo-start", "s.json", *words)
    assert (done.code, done.out) == (2, "") and said in done.err and len(done.err.splitlines()) == 1
    assert not local.seen


def test_scripts_of_the_original_get_its_refusals_and_its_requests(desk: Desk, local: FakeServer) -> None:
    desk.environment["DLICMD_COMPAT"] = "wmla"
    desk.model()
    wrong = "[Error]: Invalid parameter for --"
    done = desk.run("--hpo-start", "s.json", "--model-dir", "model")
    assert (done.code, done.out) == (
        1, f"{wrong}hpo-start, a file in json format with search definition is required\n")
    (desk.folder / "s.json").write_text("{}")
    for words in (["--model-dir", "none"], []):
        done = desk.run("--hpo-start", "s.json", *words)
        assert (done.code, done.out) == (1, f"{wrong}model-dir, a directory with model files in it is required\n")
    local.replies["POST", PATH] = answer("Admin-hpo-1")
    for compatible in ("wmla", ""):
        desk.environment["DLICMD_COMPAT"] = compatible
        assert desk.run("--hpo-start", "s.json", "--model-dir", "model").code == 0
        assert ("prefer" in local.requests("POST")[-1].headers) is not bool(compatible)


@pytest.mark.parametrize(("status", "code"), [(400, 2), (401, 9), (409, 1), (500, 1)])
def test_a_search_refused_by_the_server_is_reported(desk: Desk, local: FakeServer, status: int, code: int) -> None:
    desk.model()
    (desk.folder / "s.json").write_text("{}")
    local.replies["POST", PATH] = Reply(status, b"Error %d: hpoName x is there.\n" % status)
    done = desk.run("--hpo-start", "s.json", "--model-dir", "model")
    assert done.code == code and "hpoName x is there" in done.err and "Start hypersearch" not in done.out


def test_searches_are_listed_with_their_experiments(desk: Desk, local: FakeServer) -> None:
    local.replies["GET", PATH] = answer([])
    assert desk.run("--hpo-get-all").out == "No result found\n"
    odd = {"hpoName": "b\x1b[31m\u2028c", "experiments": ["x", None]}
    local.replies["GET", PATH] = answer([SEARCH, odd, {}])
    done = desk.run("--hpo-get-all", "--query-args", "limit=3", "-o", "table")
    rows = [re.split(r"  +", line) for line in done.out.rstrip("\n").split("\n")]
    missing = ["n/a"] * 8
    assert rows == [
        ["name", "state", "running", "progress", "creator", "createtime", "duration", "complete", "failed"],
        ["admin-hpo-1", "RUNNING", "1", "1/2", "admin", "2020-11-17 19:59:46", "00:02:55", "1", "0"],
        ["", "0", "w-605", "FINISHED", "0.0652", "2020-11-17 19:59:48", "2020-11-17 20:00:48"],
        ["", "1", "n/a", "SUBMITTED", "n/a", "n/a", "n/a"],
        ["bc", *missing], ["n/a", *missing],
    ]
    assert local.seen[-1].target == f"{PATH}?limit=3"
    assert json.loads(desk.run("--hpo-get-all", "-o", "json").out) == [SEARCH, odd, {}]
    assert desk.run("--hpo-get-all", "-o", "custom-columns=name,progress").out.split()[:4] == [
        "name", "progress", "admin-hpo-1", "1/2"]


def test_one_search_is_printed(desk: Desk, local: FakeServer) -> None:
    local.replies["GET", f"{PATH}/admin-hpo-1"] = answer(SEARCH)
    assert json.loads(desk.run("--hpo-get", "admin-hpo-1").out) == SEARCH
    assert len(desk.run("--hpo-get", "admin-hpo-1", "-o", "table").out.splitlines()) == 4


def test_searches_are_stopped_and_deleted(desk: Desk, local: FakeServer) -> None:
    for name in ("a", "b"):
        local.replies["PUT", f"{PATH}/{name}"] = local.replies["DELETE", f"{PATH}/{name}"] = Reply(204)
    local.replies["DELETE", PATH] = Reply(204)
    assert desk.run("--hpo-stop", "a", "b").out == "Stop hpo a succeed. HTTP:204 \nStop hpo b succeed. HTTP:204 \n"
    assert desk.run("--hpo-delete", "a").out == "Delete hpo a succeed. HTTP:204 \n"
    assert desk.run("--hpo-delete-all").out == "Searches are deleted\n"
    desk.environment["DLICMD_COMPAT"] = "wmla"
    assert desk.run("--hpo-delete-all").out == ""
    del desk.environment["DLICMD_COMPAT"]
    local.seen.pop()
    assert [(seen.method, seen.path) for seen in local.seen] == [
        ("PUT", f"{PATH}/a"), ("PUT", f"{PATH}/b"), ("DELETE", f"{PATH}/a"), ("DELETE", PATH)]
    assert local.seen[0].headers["content-length"] == "0"
    local.replies["PUT", f"{PATH}/a"] = Reply(400, b"Error 400: Model tuning a is already stopped.\n")
    local.replies["GET", f"{PATH}/a"] = answer(SEARCH)
    done = desk.run("--hpo-stop", "a", "b")
    assert done.code == 1 and "already stopped" in done.err
    assert done.out == "Stop hpo a failed. HTTP:400 \nStop hpo b succeed. HTTP:204 \n"


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_an_unknown_search_is_reported(desk: Desk, local: FakeServer, words: list[str]) -> None:
    done = desk.run(*words)
    assert done.code == 6 and "'x'" in done.err and "dlicmd --hpo-get-all" in done.err
    for name in (".", "..", "\x1b[31m"):
        local.seen.clear()
        done = desk.run(words[0], name)
        assert done.code == 6 and "\x1b" not in done.err + done.out and not local.seen
    desk.run(words[0], "a/../../execs?x")
    assert all(seen.target.removesuffix("/restart") == f"{PATH}/a%2F..%2F..%2Fexecs%3Fx" for seen in local.seen)


def test_a_search_is_restarted(desk: Desk, local: FakeServer) -> None:
    """Contract, 1.7: 'PUT `/hypersearch/ID/restart`'; the body of the answer is printed."""
    for body, shown in ((b"", "Search a continues\n"), (b"on it\x1b[2J\n", "on it\n"),
                        (b'{"hpoName": "a"}', '{\n  "hpoName": "a"\n}\n')):
        local.replies["PUT", f"{PATH}/a/restart"] = Reply(200, body)
        done = desk.run("--hpo-restart", "a")
        assert (done.code, done.out, done.err) == (0, shown, "")
    assert {seen.target for seen in local.seen} == {f"{PATH}/a/restart"}
    assert local.seen[-1].headers["content-length"] == "0" and local.seen[-1].body == b""
    local.replies["PUT", f"{PATH}/a/restart"] = Reply(400, b"Error 400: Model tuning a is running.\n")
    local.replies["GET", f"{PATH}/a"] = answer(SEARCH)
    done = desk.run("--hpo-restart", "a")
    assert done.code == 1 and "Model tuning a is running" in done.err


def test_algorithms_are_listed_read_and_deleted(desk: Desk, local: FakeServer) -> None:
    """1.7: 'GET `/hypersearch/algorithm`, GET/DELETE `/hypersearch/algorithm/N` | columns name, type, remoteExec'."""
    local.replies["GET", f"{PATH}/algorithm"] = answer(ALGORITHMS)
    assert [re.split(r"  +", line) for line in desk.run("--hpo-algorithm-get-all", "-o", "table").out.splitlines()] == [
        ["name", "type", "remoteExec"], ["Random", "BUILD_IN", "false"], ["myown", "USER_PLUGIN", "true"]]
    assert json.loads(desk.run("--hpo-algorithm-get-all", "-o", "json").out) == ALGORITHMS
    local.replies["GET", f"{PATH}/algorithm/Random"] = answer(ALGORITHMS[0])
    assert json.loads(desk.run("--hpo-algorithm-get", "Random").out) == ALGORITHMS[0]
    local.replies["DELETE", f"{PATH}/algorithm/own"] = Reply(204)
    done = desk.run("--hpo-algorithm-delete", "own")
    assert (done.code, done.out) == (0, "Algorithm own is deleted\n") and local.seen[-1].method == "DELETE"
    local.replies["DELETE", f"{PATH}/algorithm/own"] = Reply(409, b"Error 409: own is in use.\n")
    done = desk.run("--hpo-algorithm-delete", "own")
    assert done.code == 1 and "own is in use" in done.err
    local.seen.clear()
    for command in ("--hpo-algorithm-get", "--hpo-algorithm-delete"):
        assert desk.run(command, "..").code == 6 and not local.seen
    done = desk.run("--hpo-algorithm-get", "a/../b")
    assert done.code == 6 and local.seen[-1].target == f"{PATH}/algorithm/a%2F..%2Fb"


def test_a_server_without_searches_is_reported(desk: Desk, local: FakeServer) -> None:
    for command in ("--hpo-get-all", "--hpo-delete-all"):
        done = desk.run(command, "-o", "json")
        assert (done.code, done.out, done.error) == (1, "", "server.refused")


def test_searches_are_not_in_the_help(desk: Desk) -> None:
    assert "--hpo" not in desk.run("help", "options").out
