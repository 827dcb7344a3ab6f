"""Deploy the model of an exec."""

from __future__ import annotations

import json

import pytest
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply, exec_object

PATH = f"{BASE}/execs/w-1/deploy"


@pytest.fixture
def server(local: FakeServer) -> FakeServer:
    local.execs["w-1"] = exec_object("w-1", state="FINISHED")
    local.replies["POST", PATH] = Reply(200, b'{"model": "m-1", "tags": ["a"]}')
    return local


def test_exec_deploy_sends_all_options_and_prints_the_answer(desk: Desk, server: FakeServer) -> None:
    done = desk.run("--exec-deploy", "w-1", "--name", "m", "--runtime", "dli", "--kernel", "k.py", "--weight", "w.pth",
                    "--tag", "t", "--attributes", "a=1,b=", "--envs", "URL=http://h?x=y,")
    assert (done.code, done.err) == (0, "") and json.loads(done.out) == {"model": "m-1", "tags": ["a"]}
    sent, = server.requests("POST")
    assert sent.path == PATH and sent.headers["content-type"] == "application/json"
    assert json.loads(sent.body) == {
        "name": "m", "runtime": "dli", "kernel": "k.py", "weight": "w.pth", "tag": "t",
        "attributes": {"a": "1", "b": ""}, "environments": {"URL": "http://h?x=y"}}


def test_exec_deploy_sends_only_the_given_options(desk: Desk, server: FakeServer) -> None:
    assert desk.run("--exec-deploy", "last", "--kernel=k.py", "-o", "yaml").out == "model: m-1\ntags:\n- a\n"
    assert json.loads(server.requests("POST")[0].body) == {"kernel": "k.py"}


@pytest.mark.parametrize(("body", "said"), [(b"done \x1b[31mit\n", "done it\n"), (b"", "Deploy exec w-1 succeed.\n")])
def test_an_answer_that_is_not_json_is_printed_as_text(desk: Desk, server: FakeServer, body: bytes, said: str) -> None:
    server.replies["POST", PATH] = Reply(200, body)
    done = desk.run("--exec-deploy", "w-1", "--kernel", "k.py")
    assert (done.code, done.out) == (0, said)


@pytest.mark.parametrize(
    ("words", "said"),
    [([], "--kernel FILE"), (["--kernel", ""], "--kernel FILE"), (["--kernel"], "--kernel"),
     (["--kernel", "k", "--envs", "a=1,b"], "--envs: 'b'"),
     (["--kernel", "k", "--attributes", "=1"], "--attributes: '=1'"), (["--kernel", "k", "more"], "'more'")])
def test_usage_errors_are_reported(desk: Desk, server: FakeServer, words: list[str], said: str) -> None:
    done = desk.run("--exec-deploy", "w-1", *words)
    assert (done.code, done.out) == (2, "") and said in done.err and not server.seen


def test_a_refused_deployment_is_reported(desk: Desk, server: FakeServer) -> None:
    server.replies["POST", PATH] = Reply(501, b"Error 501: This server does not deploy models.\n")
    done = desk.run("--exec-deploy", "w-1", "--kernel", "k", "-o", "json")
    assert (done.code, done.out, done.error) == (1, "", "server.refused")
    assert all(text in done.err for text in ("w-1", "HTTP 501", "This server does not deploy models."))
    assert desk.run("--exec-deploy", "w-2", "--kernel", "k").code == 6
