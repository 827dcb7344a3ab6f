"""Each option of the original client in each manner: what arrives at the server, the output and the exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fake_server import BASE, TOKEN, Reply
from manner_desk import MannerDesk, ScriptedServer, Variant, address, as_json, store_token
from manner_rows import IDS, LISTED, RUNNING, get
from manner_rules import CHANGED_OPTIONS, CLIENT_OPTIONS, DEPLOY_OPTIONS, OPTIONS, SENT_OPTIONS, pretty

START = ["--exec-start", "PyTorch", "--model-main", "main.py"]
PRINTED = re.compile(r"Copying files and directories \.\.\.\nContent size: [0-9.]+K?\n" + re.escape(IDS))
SOURCES = [{"type": "fs", "location": {"paths": "mnist"}}]


@pytest.fixture
def user(tmp_path: Path) -> MannerDesk:
    user = MannerDesk(tmp_path)
    store_token(user)
    for name in ("main.py", "env.yaml", "package.tar"):
        (user.folder / name).write_text("a: 1\n")
    user.model("some/model", main="print(1)\n")
    return user


def submitted(user: MannerDesk, server: ScriptedServer, variant: Variant, words: list[str]) -> str:
    """Submit, check the output, and return the `args` that arrived. Only the original client is silent about options
    for the program."""
    server.clear()
    done = user.call(variant, *words)
    told = variant is not Variant.ORIGINAL and any(word.startswith("--epochs") for word in words)
    assert done.code == 0 and PRINTED.fullmatch(done.out), (variant, done)
    assert (done.err.count("\n") == 1 and "--epochs" in done.err) if told else not done.err, (variant, done)
    return server.requests("POST", "/execs/")[-1].query["args"][0]


@pytest.mark.parametrize("name", SENT_OPTIONS)
def test_an_option_for_the_server_arrives_as_typed(user: MannerDesk, server: ScriptedServer, name: str) -> None:
    value = SENT_OPTIONS[name]
    option = [name, *([] if value is None else [value])]
    option += ["--pbmodel-cmd", "train"] if name == "--pbmodel-name" else []
    program = ["--", "hostname", "-o", "x"] if name == "--user-cmd" else []
    for variant in Variant:
        args = submitted(user, server, variant, [*START, *option, *address(server), *program])
        assert args == " ".join([*START, *option, *program]), variant
    if name in ("--conda-env-yaml", "--conda-package"):
        assert f'filename="{value}"'.encode() in server.requests("POST", "/execs/")[-1].body


@pytest.mark.parametrize("variant", Variant)
def test_an_option_and_its_value_in_one_word(user: MannerDesk, server: ScriptedServer, variant: Variant) -> None:
    words = ["--exec-start=PyTorch", *START[2:], "--numWorker=2", "--epochs=3"]
    args = submitted(user, server, variant, [*words, "--password=secret", *address(server)])
    assert args == " ".join([*START, *words[-2:]])


@pytest.mark.parametrize("variant", Variant)
def test_repeated_options_arrive_in_order(user: MannerDesk, server: ScriptedServer, variant: Variant) -> None:
    more = ["--msd-env", "A=1", "--msd-env", "B=2", "--msd-attr", "c=3", "--epochs", "3"]
    assert submitted(user, server, variant, [*START, *more, *address(server)]) == " ".join([*START, *more])


@pytest.mark.parametrize("variant", Variant)
def test_options_of_the_client_do_not_arrive(user: MannerDesk, server: ScriptedServer, variant: Variant) -> None:
    named = {"--rest-host": "--master-host", "--rest-port": "--dli-rest-port"}
    older = [named.get(word, word) for word in address(server)]
    own = ["--username", "alice", "--password", "secret", "--jwt-token", TOKEN, "--query-args", "limit=1",
           "--app-search-start", "0", "--app-search-length", "9"]
    assert submitted(user, server, variant, [*START, *own, *older]) == " ".join(START)
    seen = server.requests("POST", "/execs/")[-1]
    assert seen.headers["authorization"] == f"Bearer {TOKEN}" and b"secret" not in seen.body


def test_output_options_do_not_arrive(user: MannerDesk, server: ScriptedServer) -> None:
    for option in (["-o", "json"], ["--output", "json"], ["-ojson"]):
        assert submitted(user, server, Variant.ORIGINAL, [*START, *option, *address(server)]) == " ".join(START)
        done = user.call(Variant.PIPED, *START, *option, *address(server))
        assert (done.code, done.out) == (0, IDS.replace("wmla-1", "wmla-2")) and "Copying" in done.err


@pytest.mark.parametrize("variant", Variant)
def test_the_model_folder(user: MannerDesk, server: ScriptedServer, variant: Variant) -> None:
    words = ["--exec-start", "PyTorch", "--model-dir", "some/model//", "--model-main", "main.py"]
    args = submitted(user, server, variant, [*words, *address(server)])
    assert args == "--exec-start PyTorch --model-dir model --model-main main.py"
    assert re.search(rb'name="file"; filename="[^"]+\.modelDir\.tar"', server.requests("POST", "/execs/")[-1].body)


@pytest.mark.parametrize("variant", Variant)
def test_data_sources_travel_as_data(user: MannerDesk, server: ScriptedServer, variant: Variant) -> None:
    for option in (["--data-source", json.dumps(SOURCES)], [f"--data-source={json.dumps(SOURCES)}"]):
        assert submitted(user, server, variant, [*START, *option, *address(server)]) == " ".join(START)
        body = server.requests("POST", "/execs/")[-1].body
        sent = body.split(b'name="data"\r\n\r\n')[1].split(b"\r\n")[0]
        assert json.loads(sent) == {"dataSource": SOURCES}


@pytest.mark.parametrize("wrong", [
    ["--numWorker", "two"], ["--workerDeviceType", "tpu"], ["--msd-priority", "0"], ["--debug-level", "loud"],
    ["--msd-image-pull-policy", "sometimes"], ["--rest-port", "x"], ["--numWorker"],
])
def test_a_wrong_value(user: MannerDesk, server: ScriptedServer, wrong: list[str]) -> None:
    for variant in Variant:
        done = user.call(variant, *START, *address(server), *wrong)
        told, silent = (done.out, done.err) if variant is Variant.ORIGINAL else (done.err, done.out)
        assert done.code == 2 and wrong[0] in told and not silent and not server.seen, (variant, done)


@pytest.mark.parametrize(("short", "whole"), [
    ("--numW", "--numWorker"), ("--cons", "--consumer"), ("--msd-prio", "--msd-priority"),
    ("--workerDeviceN", "--workerDeviceNum"), ("--appN", "--appName"),
])
def test_only_the_original_abbreviates(user: MannerDesk, server: ScriptedServer, short: str, whole: str) -> None:
    args = submitted(user, server, Variant.ORIGINAL, [*START, short, "7", *address(server)])
    assert args == " ".join([*START, whole, "7"])
    done = user.call(Variant.PIPED, *START, short, "7", *address(server))
    assert done.code == 0 and server.requests("POST", "/execs/")[-1].query["args"][0].endswith(f"{short} 7")


def test_a_short_name_of_the_server(user: MannerDesk, server: ScriptedServer) -> None:
    words = ["--rest" if word == "--rest-host" else word for word in address(server)]
    assert submitted(user, server, Variant.ORIGINAL, [*START, *words]) == " ".join(START)


@pytest.mark.parametrize("short", ["--model", "--num", "--worker", "--driver", "--msd", "--user"])
def test_the_beginning_of_several_options_is_refused(user: MannerDesk, server: ScriptedServer, short: str) -> None:
    done = user.call(Variant.ORIGINAL, *START, short, "x", *address(server))
    assert (done.code, done.err) == (2, "") and f"ambiguous option: {short} " in done.out and not server.seen


@pytest.mark.parametrize("word", ["--epochs", "--lr", "--batch-size", "--data", "--name", "--device"])
def test_words_of_programs_are_no_abbreviations(user: MannerDesk, server: ScriptedServer, word: str) -> None:
    assert submitted(user, server, Variant.ORIGINAL, [*START, word, "3", *address(server)]).endswith(f"{word} 3")


def test_words_after_two_dashes_are_not_touched(user: MannerDesk, server: ScriptedServer) -> None:
    program = ["--", "gcc", "-o", "x", "--num", "3", "--username", "u", "--wait"]
    for variant in Variant:
        args = submitted(user, server, variant, [*START, "--user-cmd", *address(server), *program])
        assert args == " ".join([*START, "--user-cmd", *program])


@pytest.mark.parametrize("variant", Variant)
def test_queries_arrive_as_typed(user: MannerDesk, server: ScriptedServer, variant: Variant) -> None:
    server.replies |= {("GET", f"{BASE}/hypersearch"): as_json([])}
    for command, path in (("--exec-get-all", f"{BASE}/execs/"), ("--hpo-get-all", f"{BASE}/hypersearch")):
        query = "limit=10&state=FINISHED&sort_by=id:desc"
        done = user.call(variant, command, "--query-args", query, *address(server))
        assert (done.code, done.err) == (0, "") and server.seen[-1].target == f"{path}?{query}"
    short = user.call(variant, "--exec-get-all", "--query", "limit=3", *address(server))
    assert short.code == (0 if variant is Variant.ORIGINAL else 2)


@pytest.mark.parametrize("variant", Variant)
def test_the_part_of_a_long_list(user: MannerDesk, server: ScriptedServer, variant: Variant) -> None:
    server.replies |= get(LISTED, [RUNNING])
    for command in ("--app-get-all", "--app-history-get-all"):
        for more, start, length in (([], "0", "10000"),
                                    (["--app-search-start", "5", "--app-search-length", "7"], "5", "7")):
            done = user.call(variant, command, *more, *address(server))
            query = server.requests("GET", LISTED)[-1].query
            assert (done.code, query["start"], query["length"], query["sort"]) == (0, [start], [length],
                                                                                 ["-submit_time"])


@pytest.mark.parametrize("variant", Variant)
def test_the_options_of_a_deployment(user: MannerDesk, server: ScriptedServer, variant: Variant) -> None:
    server.replies |= {("POST", f"{BASE}/execs/w-1/deploy"): Reply(200, b"{}")}
    done = user.call(variant, "--exec-deploy", "w-1", "--name", "n", "--runtime", "r", "--kernel", "k", "--weight", "w",
                     "--tag", "t", "--attributes", "a=1,b=2", "--envs", "X=1", *address(server))
    body = {"name": "n", "runtime": "r", "kernel": "k", "weight": "w", "tag": "t",
            "attributes": {"a": "1", "b": "2"}, "environments": {"X": "1"}}
    assert json.loads(server.requests("POST", "/deploy")[-1].body) == body
    assert (done.code, done.err) == (0, "")
    assert done.out == (f"{body}\nw-1\n" if variant is Variant.ORIGINAL else "") + pretty({})


@pytest.mark.parametrize("variant", Variant)
def test_user_and_password(user: MannerDesk, server: ScriptedServer, variant: Variant) -> None:
    done = user.call(variant, "--logon", "--username", "alice", "--password", "pw", *address(server))
    assert done.code == 0 and server.seen[-1].headers["authorization"] == "Basic YWxpY2U6cHc="
    assert user.token.read_text() == TOKEN


@pytest.mark.parametrize("variant", Variant)
def test_messages_for_debugging(user: MannerDesk, server: ScriptedServer, variant: Variant) -> None:
    done = user.call(variant, "--status", "--debug-level", "debug", *address(server))
    assert (done.code, done.out) == (0, pretty({"status": "OK"})) and "[Debug]: GET" in done.err


def test_the_tests_are_about_all_options_of_the_original() -> None:
    assert SENT_OPTIONS.keys() | CLIENT_OPTIONS | DEPLOY_OPTIONS | CHANGED_OPTIONS == OPTIONS


@pytest.mark.parametrize(("variant", "has_port"), [(Variant.ORIGINAL, True), (Variant.PIPED, False)])
def test_the_original_client_uses_another_port_inside_a_pod(user: MannerDesk, variant: Variant, has_port: bool) -> None:
    """Layout, 1: 'Default port inside a pod of the platform: 9243; through a route: none'."""
    user.environment["KUBERNETES_SERVICE_HOST"] = "10.0.0.1"
    done = user.call(variant, "--exec-get-all", "--rest-host", "127.0.0.1")
    assert done.code != 0 and ("127.0.0.1:9243" in done.out + done.err) is has_port
    user.environment.pop("KUBERNETES_SERVICE_HOST")
    assert "9243" not in user.call(variant, "--exec-get-all", "--rest-host", "127.0.0.1").out
