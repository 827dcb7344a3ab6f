"""The commands of the original dlim: whole lines, first and last lines, as automation compares them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dlim_desk import DlimDesk, ModelServer, failed, kernel_object

STARTED = 'Starting model "pingpong", run "dlim model view pingpong -s" to ensure startup.'
STOPPED = 'Stopping model "pingpong", run "dlim model view pingpong -s" to ensure stop.'
DEPLOYED = "Model <pingpong> is deployed successfully"
QUESTION = "Model <pingpong> already exists on inference service, do you want to update it? (y|n):"


def test_list_prints_two_columns(desk: DlimDesk, local: ModelServer) -> None:
    local.add("pingpong", started=True)
    local.add("a-longer-name")
    assert desk.run("model", "list").out == (
        f"NAME           REST URI\npingpong       {local.url}/dlim/v1/inference/pingpong\na-longer-name  -\n")


def test_an_empty_list_prints_the_heads(desk: DlimDesk, local: ModelServer) -> None:
    done = desk.run("model", "list")
    assert (done.code, done.out, done.err) == (0, "NAME  REST URI\n", "")


def test_deploy_prints_each_file_and_ends_with_the_sentence(desk: DlimDesk, local: ModelServer) -> None:
    folder = desk.pingpong()
    done = desk.run("model", "deploy", "-p", "pingpong", "-f")
    assert (done.code, done.err) == (0, "")
    first, *files, registering, last = done.out.splitlines()
    assert (first, registering, last) == ("Uploading...", "Registering...", DEPLOYED)
    assert sorted(files) == [f"<{folder / name}> uploaded to server." for name in ("README.md", "kernel.py",
                                                                                  "model.json")]
    assert set(local.uploads[0]) == {"README.md", "kernel.py", "model.json"}
    assert [seen.path for seen in local.requests("POST")] == ["/dlim/v1/deployment/model"]


def test_a_model_that_exists_is_updated_with_f(desk: DlimDesk, local: ModelServer) -> None:
    local.add("pingpong")
    desk.pingpong()
    done = desk.run("model", "deploy", "-p", "pingpong", "-f")
    assert done.out.splitlines()[-1] == DEPLOYED
    assert [seen.path for seen in local.requests("POST")] == ["/dlim/v1/deployment/model/pingpong"]


@pytest.mark.parametrize(("answer", "code"), [(b"", 1), (b"n\n", 1), (b"y\n", 0)])
def test_a_model_that_exists_is_updated_after_a_question(
    desk: DlimDesk, local: ModelServer, answer: bytes, code: int
) -> None:
    local.add("pingpong")
    desk.pingpong()
    done = desk.run("model", "deploy", "-p", "pingpong", given=answer)
    assert done.code == code and done.out.startswith(QUESTION)
    assert len(local.requests("POST")) == (code == 0)


def test_start_and_stop_print_the_sentence_first(desk: DlimDesk, local: ModelServer) -> None:
    local.add("pingpong")
    started = desk.run("model", "start", "pingpong", "-f")
    assert (started.code, started.out, started.err) == (0, f"{STARTED}\n", "")
    stopped = desk.run("model", "stop", "pingpong", "-f")
    assert (stopped.code, stopped.out, stopped.err) == (0, f"{STOPPED}\n", "")


def test_a_server_by_its_url_adds_no_line(desk: DlimDesk, server: ModelServer) -> None:
    server.add("pingpong")
    done = desk.run("model", "start", "pingpong", "--rest-server", server.address, "--jwt-token", "fake-token-1")
    assert (done.code, done.out, done.err) == (0, f"{STARTED}\n", "")


def test_undeploy_removes_a_stopped_model_alone(desk: DlimDesk, local: ModelServer) -> None:
    local.add("pingpong", started=True)
    refused = desk.run("model", "undeploy", "pingpong", "-f")
    assert (refused.code, refused.err) == (1, "The model cannot be removed if it's started.\n")
    desk.run("model", "stop", "pingpong", "-f")
    done = desk.run("model", "undeploy", "pingpong", "-f")
    assert done.code == 0 and not local.models
    missing = desk.run("model", "undeploy", "pingpong", "-f")
    assert (missing.code, missing.out, missing.err) == (1, "", "Model <pingpong> doesn't exist.\n")


@pytest.mark.parametrize("command", ["start", "stop", "view", "viewprofile"])
def test_a_missing_model_is_reported_with_the_sentence(desk: DlimDesk, local: ModelServer, command: str) -> None:
    done = desk.run("model", command, "gone")
    assert (done.code, done.out, done.err) == (6, "", "Model <gone> doesn't exist.\n")
    assert desk.run("model", command, "gone", "-o", "json").error == "model.not_found"


def test_view_s_begins_values_at_recorded_columns(desk: DlimDesk, local: ModelServer) -> None:
    local.add("pingpong", started=True)
    assert desk.run("model", "view", "pingpong", "-s").out.splitlines() == [
        "Name:             pingpong",
        "State:            Started",
        "Serving replica:  1",
        "=" * 60,
        "Serving service ID:   5b2c0f2e-0001",
        "Service JobID:        edi-pingpong-7",
        "GPU Mode:             exclusive",
        "Served clients:       2",
        "Pending requests:     4",
        "Requests per second:  1.50",
        "Data per second:      0.00",
        "Kernel started:       1",
    ]


@pytest.mark.parametrize("flags", [("-s", "-a"), ("-sa",), ("--status", "--all")])
def test_view_s_a_has_a_status_line_for_each_kernel(
    desk: DlimDesk, local: ModelServer, flags: tuple[str, ...]
) -> None:
    local.add("pingpong", started=True)
    local.kernels["pingpong"] = [kernel_object(1), kernel_object(2, "BUSY")]
    lines = desk.run("model", "view", "pingpong", *flags).out.splitlines()
    assert [line for line in lines if line.startswith("Status")] == ["Status: IDLE", "Status: BUSY"]
    assert all(not line.startswith(" ") for line in lines)


def test_view_s_of_a_stopped_model(desk: DlimDesk, local: ModelServer) -> None:
    local.add("pingpong")
    assert desk.run("model", "view", "pingpong", "-s").out.splitlines() == [
        "Name:             pingpong", "State:            Stopped", "Serving replica:  0"]


def test_a_profile_is_viewed_changed_and_replaced(desk: DlimDesk, local: ModelServer) -> None:
    local.add("pingpong")
    shown = desk.run("model", "viewprofile", "pingpong", "-j")
    profile = json.loads(shown.out)
    profile["policy"]["kernel_min"] = 2
    (desk.folder / "profile.json").write_text(json.dumps(profile))
    done = desk.run("model", "updateprofile", "pingpong", "-f", "profile.json")
    assert (done.code, done.out, done.err) == (0, "Model is updated successfully\n", "")
    assert local.profiles["pingpong"]["policy"]["kernel_min"] == 2


def test_a_refused_profile_is_reported(desk: DlimDesk, local: ModelServer) -> None:
    local.add("pingpong")
    local.replies["PUT", "/dlim/v1/model/pingpong/appprofile"] = failed(400, "profile.value", "kernel_min: -2 is wrong")
    (desk.folder / "p.yaml").write_text("policy: {kernel_min: -2}\n")
    done = desk.run("model", "updateprofile", "pingpong", "-f", "p.yaml", "-o", "json")
    assert (done.code, done.error) == (2, "profile.value") and "kernel_min: -2 is wrong" in done.err


@pytest.mark.parametrize("text", [
    b"", b"3", b"[1]", b"{", b"a: [", b"\xff\xfe\x00", b"a: 2022-08-10", b"a: .nan", b"a: &x [*x]",
    b"a: !!python/none x"])
def test_a_file_that_is_no_profile_is_refused(desk: DlimDesk, local: ModelServer, text: bytes) -> None:
    local.add("pingpong")
    (desk.folder / "p.yaml").write_bytes(text)
    done = desk.run("model", "updateprofile", "pingpong", "-f", "p.yaml", "-o", "json")
    assert (done.code, done.error) == (2, "client.usage") and not local.requests("PUT")
    assert desk.run("model", "updateprofile", "pingpong", "-f", "gone.yaml").code == 2


def test_runtimes(desk: DlimDesk, local: ModelServer) -> None:
    assert desk.run("runtime", "list").out == "NAME    DESCRIPTION\ndlipy3  Python 3\n"
    (desk.folder / "r.json").write_text('{"type": "mine", "conda_env_name": "env1"}')
    assert desk.run("runtime", "create", "-f", "r.json").code == 0
    assert json.loads(desk.run("runtime", "view", "mine").out) == {"type": "mine", "conda_env_name": "env1"}
    (desk.folder / "r.json").write_text('{"type": "mine", "conda_env_name": "env2"}')
    assert desk.run("runtime", "update", "mine", "-f", "r.json").code == 0
    assert local.runtimes["mine"]["conda_env_name"] == "env2"
    assert desk.run("runtime", "delete", "mine", "-f").code == 0 and "mine" not in local.runtimes
    missing = desk.run("runtime", "view", "mine")
    assert (missing.code, missing.err) == (6, "dlim: Runtime <mine> does not exist.\n")


@pytest.mark.parametrize("missing", ["model.json", "README.md", "kernel.py"])
def test_a_missing_file_is_reported_before_anything_is_sent(
    desk: DlimDesk, local: ModelServer, missing: str
) -> None:
    (desk.pingpong() / missing).unlink()
    done = desk.run("model", "deploy", "-p", "pingpong", "-f", "-o", "json")
    assert (done.code, done.error) == (1, "package.failed") and missing in done.err
    assert not local.requests("POST")


@pytest.mark.parametrize(("changed", "said"), [
    ({"name": "Bad_Name"}, "'name'"), ({"tag": None}, "'tag'"), ({"runtime": 3}, "'runtime'"),
    ({"kernel_path": "../up.py"}, "'kernel_path'"), ({"schema_version": ""}, "'schema_version'"),
])
def test_a_wrong_model_json_is_reported(
    desk: DlimDesk, local: ModelServer, changed: dict[str, object], said: str
) -> None:
    desk.pingpong(**changed)
    done = desk.run("model", "deploy", "-p", "pingpong", "-f")
    assert done.code == 1 and said in done.err and not local.requests("POST")


@pytest.mark.parametrize("changed", [
    {"tag": ""}, {"schema_version": 1}, {"readme": "model.json"}, {"kernel_type": "onnx", "kernel_path": None},
    {"framework": "torch"}])
def test_a_model_json_that_the_server_accepts_is_sent(
    desk: DlimDesk, local: ModelServer, changed: dict[str, object]
) -> None:
    folder = desk.pingpong(**changed)
    if not changed.keys().isdisjoint({"readme", "kernel_type"}):
        (folder / "README.md").unlink()
    done = desk.run("model", "deploy", "-p", "pingpong", "-f")
    assert done.code == 0, done.err


@pytest.mark.parametrize("text", ["{", "[1]", "\xff", '{"name": "a"'])
def test_a_model_json_that_is_no_object_is_reported(desk: DlimDesk, local: ModelServer, text: str) -> None:
    folder: Path = desk.pingpong()
    (folder / "model.json").write_bytes(text.encode("latin-1"))
    done = desk.run("model", "deploy", "-p", "pingpong", "-f", "-o", "json")
    assert (done.code, done.error) == (1, "package.failed")


def test_a_ready_made_kernel_needs_only_the_model(desk: DlimDesk, local: ModelServer) -> None:
    folder = desk.folder / "My Net"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"onnx")
    done = desk.run("model", "deploy", "-p", "My Net", "--kernel-type", "onnx")
    assert done.out.splitlines()[-1] == "Model <my-net> is deployed successfully"
    [sent] = local.requests("POST")
    assert sent.query == {"kernel_type": ["onnx"], "name": ["my-net"]}
    assert desk.run("model", "deploy", "-p", "My Net", "--kernel-type", "onx").code == 2
