"""The Python client of inference."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from dlim_desk import PASSWORD, SERVICE_TOKEN, USER, ModelServer, failed, kernel_object
from fake_server import TOKEN, Reply

import dlicmd
from dlicmd.sdk.deployment import model_folder, usual_name


@pytest.fixture
def client(server: ModelServer) -> dlicmd.Client:
    return dlicmd.Client("127.0.0.1", server.port, http=True, token=TOKEN, retries=0)


def write_folder(folder: Path) -> Path:
    """Write a folder with a model, and return it."""
    folder.mkdir()
    (folder / "model.json").write_text('{"name": "digits", "tag": "t", "weight_path": "./", "runtime": "python", '
                                       '"kernel_path": "src/kernel.py", "schema_version": "1"}')
    (folder / "README.md").write_text("# Digits\n")
    (folder / "src").mkdir()
    (folder / "src" / "kernel.py").write_text("pass\n")
    return folder


def test_a_model_lives_from_deployment_to_deletion(
    client: dlicmd.Client, server: ModelServer, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "work")
    model = client.deploy_model(folder)
    assert (model.name, model.creator, model.is_started) == ("digits", USER, False)
    assert set(server.uploads[0]) == {"model.json", "README.md", "src/kernel.py"}
    client.start_model("digits")
    assert client.wait_model("digits", timeout=60).kernels[0].status == "IDLE"
    assert client.model("digits").is_started and client.serving("digits").state == "Started"
    assert client.invoke("digits", {"seq": 1}) == b'<{"seq": 1}>'
    assert b"".join(client.invoke_stream("digits", "text")) == b"<text>"
    assert client.redeploy_model(folder).name == "digits"
    client.stop_model("digits")
    assert client.serving("digits").status == "disabled"
    client.undeploy_model("digits")
    with pytest.raises(dlicmd.NoSuchModel) as problem:
        client.model("digits")
    assert (problem.value.code, problem.value.name) == ("model.not_found", "digits")
    with pytest.raises(dlicmd.NoSuchModel):
        client.redeploy_model(folder)


def test_objects_read_the_keys_of_the_server(client: dlicmd.Client, server: ModelServer) -> None:
    server.add("digits", started=True, shared=["bob"], revisions=[
        {"number": 3, "state": "serving", "weight": 90, "execId": "local-9", "kernels": 2}])
    server.kernels["digits"] = [kernel_object(1), kernel_object(2, "BUSY")]
    [model] = client.models()
    assert (model.attributes, model.shared_with, model.revisions[0].weight) == ({"a": "b"}, ["bob"], 90)
    [replica] = client.serving("digits").replicas
    assert (replica.pending, replica.requests_per_second, replica.gpu_mode) == (4, 1.5, "exclusive")
    assert [kernel.status for kernel in replica.kernels] == ["IDLE", "BUSY"]
    assert client.model_readme("digits") == "# Ping\n" and client.model_why("digits").advice == "wait"
    assert [runtime.name for runtime in client.runtimes()] == ["dlipy3"]
    assert client.saved_models()[0].exec_id == "local-7"


@pytest.fixture
def gateway() -> Iterator[ModelServer]:
    with ModelServer() as found:
        found.add("digits", started=True)
        yield found


def test_later_requests_go_to_the_address_of_the_model(
    client: dlicmd.Client, server: ModelServer, gateway: ModelServer
) -> None:
    server.add("digits", started=True)["service_uri"] = f"{gateway.url}/dlim/v1/inference/digits"
    assert [client.invoke("digits", str(number)) for number in range(3)] == [b"<0>", b"<1>", b"<2>"]
    assert [seen.body for seen in server.requests("POST")] == [b"0"]
    assert [seen.body for seen in gateway.requests("POST")] == [b"1", b"2"]
    assert b"".join(client.invoke_stream("digits", "3")) == b"<3>" and len(gateway.requests("POST")) == 3


def test_the_server_is_asked_if_the_address_does_not_help(
    client: dlicmd.Client, server: ModelServer, gateway: ModelServer
) -> None:
    model = server.add("digits", started=True)
    model["service_uri"] = f"{gateway.url}/dlim/v1/inference/digits"
    gateway.tokens = {"another"}
    assert [client.invoke("digits", "1") for _ in range(2)] == [b"<1>", b"<1>"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        model["service_uri"] = f"http://127.0.0.1:{free.getsockname()[1]}/dlim/v1/inference/digits"
        assert client.invoke("digits", "2") == b"<2>"
    assert [seen.body for seen in server.requests("POST")] == [b"1", b"1", b"2"]


@pytest.mark.parametrize("url", [
    "http://localhost:1/x", "https://127.0.0.1:1/x", "http://127.0.0.2:1/x", "ftp://127.0.0.1/x", "http://[::1", "x"])
def test_a_token_goes_to_no_other_host(client: dlicmd.Client, server: ModelServer, url: str) -> None:
    server.add("digits", started=True)["service_uri"] = url
    assert [client.invoke("digits", "1") for _ in range(3)] == [b"<1>"] * 3
    assert len(server.requests("POST")) == 3


def test_the_local_backend_gives_a_token_for_its_gateway(
    server: ModelServer, gateway: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"url": server.url, "pid": os.getpid(), "token": TOKEN}
    (tmp_path / "backend.json").write_text(json.dumps(found))
    monkeypatch.setenv("DLICMD_HOME", str(tmp_path))
    server.add("digits", started=True)["service_uri"] = f"{gateway.url}/dlim/v1/inference/digits"
    gateway.tokens = {SERVICE_TOKEN}
    with dlicmd.Client() as client:
        assert [client.invoke("digits", str(number)) for number in range(3)] == [b"<0>", b"<1>", b"<2>"]
    assert [seen.body for seen in gateway.requests("POST")] == [b"1", b"2"]
    assert len(server.requests("POST", "token/inference")) == 1


def test_a_log_is_read_in_parts(client: dlicmd.Client, server: ModelServer) -> None:
    server.add("digits")
    server.logs["digits"] = "one\n"
    part = client.model_log("digits")
    server.logs["digits"] += "two\n"
    assert (part, client.model_log("digits", start=part.end)) == (("one\n", 4), ("two\n", 8))
    assert "".join(client.follow_model_log("digits")) == "one\ntwo\n"


def test_a_model_that_scales_to_zero_is_ready_without_a_kernel(client: dlicmd.Client, server: ModelServer) -> None:
    server.add("digits", started=True)
    server.kernels["digits"] = []
    server.profiles["digits"]["policy"]["kernel_min"] = 0
    assert client.wait_model("digits", timeout=60).kernels == []
    server.profiles["digits"]["policy"]["kernel_min"] = 1
    with pytest.raises(dlicmd.WaitTimeout):
        client.wait_model("digits", timeout=0)


def test_a_wait_is_for_the_newest_revision(client: dlicmd.Client, server: ModelServer) -> None:
    model = server.add("digits", started=True, revisions=[
        {"number": 1, "state": "serving"}, {"number": 2, "state": "starting"}])
    with pytest.raises(dlicmd.WaitTimeout):
        client.wait_model("digits", timeout=0)
    model["revisions"][1] |= {"state": "failed", "message": "no module named x"}
    with pytest.raises(dlicmd.ModelFailed, match="no module named x"):
        client.wait_model("digits")
    model["revisions"][1]["state"] = "serving"
    assert client.wait_model("digits").status == "enabled"


@pytest.mark.parametrize("state", ["Failed", "Stopped"])
def test_a_model_that_cannot_start_ends_the_wait(client: dlicmd.Client, server: ModelServer, state: str) -> None:
    server.add("digits", state=state, message="no module named x")
    with pytest.raises(dlicmd.ModelFailed, match="no module named x") as problem:
        client.wait_model("digits")
    assert pickle.loads(pickle.dumps(problem.value)).state == state


def test_tokens(client: dlicmd.Client, server: ModelServer) -> None:
    assert client.service_tokens(USER, PASSWORD) == (TOKEN, SERVICE_TOKEN)
    assert client.service_tokens().service == SERVICE_TOKEN
    with pytest.raises(dlicmd.Denied):
        client.service_tokens(USER, "wrong")
    server.replies["POST", "/dlim/v1/auth/token"] = Reply(200, b'{"access_token": "t", "service_token": "s"}')
    assert client.service_tokens(USER, PASSWORD) == ("t", "s")


@pytest.mark.parametrize(("status", "kind"), [(400, dlicmd.SubmissionRefused), (409, dlicmd.ServerError),
                                              (403, dlicmd.Denied), (500, dlicmd.ServerError)])
def test_a_refused_deployment_has_code_and_sentence_of_the_server(
    client: dlicmd.Client, server: ModelServer, tmp_path: Path, status: int, kind: type[dlicmd.ServerError]
) -> None:
    server.replies["POST", "/dlim/v1/deployment/model"] = failed(status, "model.runtime", "no runtime python")
    with pytest.raises(kind, match="no runtime python") as problem:
        client.deploy_model(write_folder(tmp_path / "work"))
    assert (problem.value.code, problem.value.status) == ("model.runtime", status)


def test_a_text_in_place_of_an_object_is_a_success(
    client: dlicmd.Client, server: ModelServer, tmp_path: Path
) -> None:
    server.replies["POST", "/dlim/v1/deployment/model"] = Reply(200, b"done")
    assert client.deploy_model(write_folder(tmp_path / "work")).name == "digits"


def test_a_required_file_that_a_rule_leaves_out_is_an_error(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "work")
    (folder / ".dlicmdignore").write_text("src/\n")
    with pytest.raises(dlicmd.PackageError, match=r"kernel\.py"):
        model_folder(str(folder))


@pytest.mark.parametrize(("name", "expected"), [("My Net", "my-net"), ("a_b.c", "a-b-c"), ("--x--", "x"), ("ß", "")])
def test_the_name_of_a_folder_becomes_that_of_a_model(tmp_path: Path, name: str, expected: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    assert usual_name(folder) == expected
    if not expected:
        with pytest.raises(dlicmd.UsageProblem):
            model_folder(str(folder), "onnx")


def test_the_asynchronous_client_has_the_same_calls(server: ModelServer) -> None:
    server.add("digits", started=True)
    server.logs["digits"] = "one\n"

    async def calls() -> None:
        async with dlicmd.AsyncClient("127.0.0.1", server.port, http=True, token=TOKEN) as client:
            assert [model.name for model in await client.models()] == ["digits"]
            answers = await asyncio.gather(*(client.invoke("digits", str(number)) for number in range(8)))
            assert answers == [f"<{number}>".encode() for number in range(8)]
            assert b"".join([piece async for piece in client.invoke_stream("digits", b"x")]) == b"<x>"
            await client.stop_model("digits")
            assert [text async for text in client.follow_model_log("digits")] == ["one\n"]

    asyncio.run(calls())
