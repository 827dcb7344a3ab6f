"""The commands that the original dlim lacks, and the formats and errors of all commands."""

from __future__ import annotations

import json
import signal
import sys

import pytest
from dlim_desk import DlimDesk, ModelServer, failed
from fake_server import Reply
from support import eventually

from dlicmd.contract.dlim_commands import COMMANDS


def test_invoke_sends_the_body_unchanged(desk: DlimDesk, local: ModelServer) -> None:
    local.add("pingpong", started=True)
    (desk.folder / "input.json").write_bytes(b'{"seq": 1}')
    for words, given in ((["-d", '{"seq": 1}'], None), (["input.json"], None), (["-"], b'{"seq": 1}'),
                         (["-d", "@input.json"], None), ([], b'{"seq": 1}')):
        done = desk.run("invoke", "pingpong", *words, given=given)
        assert (done.code, done.out) == (0, '<{"seq": 1}>\n')
    assert {seen.headers["content-type"] for seen in local.requests("POST")} == {"application/json"}


def test_invoke_passes_bytes_and_deadlines_on(desk: DlimDesk, local: ModelServer) -> None:
    local.add("pingpong", started=True)
    done = desk.run("invoke", "pingpong", "-", "--timeout", "7", "--content-type", "image/png", given=b"\x00\xff")
    assert done.raw_out == b"<\x00\xff>\n"
    headers = local.requests("POST")[-1].headers
    assert (headers["request-timeout"], headers["content-type"]) == ("7", "image/png")


@pytest.mark.parametrize(("status", "code"), [(429, "queue.full"), (503, "model.stopped"), (504, "request.timeout")])
def test_a_failed_request_is_reported(desk: DlimDesk, local: ModelServer, status: int, code: str) -> None:
    local.add("pingpong", started=True)
    local.replies["POST", "/dlim/v1/inference/pingpong"] = failed(status, code, "no kernel is free")
    done = desk.run("invoke", "pingpong", "-d", "1", "-o", "json")
    assert (done.code, done.out, done.error) == (1, "", code) and "no kernel is free" in done.err


def test_invoke_of_a_missing_model_or_file(desk: DlimDesk, local: ModelServer) -> None:
    assert desk.run("invoke", "gone", "-d", "1").code == 6
    assert desk.run("invoke", "gone", "no-such-file").code == 2
    assert desk.run("invoke", "gone", "file", "-d", "1").code == 2


def test_logs_show_the_last_lines(desk: DlimDesk, local: ModelServer) -> None:
    local.add("pingpong", started=True)
    local.logs["pingpong"] = "one\ntwo\nthree\n"
    assert desk.run("logs", "pingpong").out == "one\ntwo\nthree\n"
    assert desk.run("logs", "pingpong", "--tail", "2", "--stream", "stdout", "--kernel", "3").out == "two\nthree\n"
    query = local.seen[-1].query
    assert (query["stream"], query["kernel"], query["from"]) == (["stdout"], ["3"], ["0"])
    assert json.loads(desk.run("logs", "pingpong", "-o", "json").out)["end"] == 14


def test_logs_f_ends_when_the_model_stops(desk: DlimDesk, local: ModelServer) -> None:
    local.add("pingpong")
    local.logs["pingpong"] = "one\n"
    done = desk.run("logs", "pingpong", "-f")
    assert (done.code, done.out) == (0, "one\n")


def test_why_says_reason_and_advice(desk: DlimDesk, local: ModelServer) -> None:
    local.add("pingpong", started=True)
    assert desk.run("why", "pingpong").out.splitlines() == [
        "state:      Starting", "why:        0 of 1 slots are free", "what to do: wait"]
    assert json.loads(desk.run("why", "pingpong", "-o", "json").out)["advice"] == "wait"


def test_top_prints_the_models_once_without_a_terminal(desk: DlimDesk, local: ModelServer) -> None:
    local.add("pingpong", started=True)
    local.add("idle")
    head, _, columns, first, second = desk.run("top").out.splitlines()
    assert head == "2 models: 1 started; 1 kernel; waiting requests: 4; 1.5 requests/s"
    assert columns.split()[:3] == ["model", "state", "kernels"]
    assert first.split()[:2] == ["pingpong", "Started"] and second.split()[:2] == ["idle", "Stopped"]


def test_revisions_and_users(desk: DlimDesk, local: ModelServer) -> None:
    local.add("pingpong", started=True)
    for words, path, body in (
        (["traffic", "pingpong", "3=90", "4=10"], "traffic", {"3": 90, "4": 10}),
        (["share", "pingpong", "bob", "eve"], "shared", ["bob", "eve"]),
        (["share", "pingpong", "--all"], "shared", True), (["share", "pingpong"], "shared", []),
    ):
        assert desk.run("model", *words).code == 0
        sent = local.requests("PUT")[-1]
        assert (sent.path, json.loads(sent.body)) == (f"/dlim/v1/model/pingpong/{path}", body)
    assert desk.run("model", "promote", "pingpong", "--revision", "4").code == 0
    assert local.seen[-1].target == "/dlim/v1/model/pingpong/operation/promote?revision=4"
    assert desk.run("model", "rollback", "pingpong").code == 0
    assert local.seen[-1].path == "/dlim/v1/model/pingpong/operation/rollback"


@pytest.mark.parametrize("words", [
    ["traffic", "m", "3"], ["traffic", "m", "3=x"], ["traffic", "m", "0=1"], ["traffic", "m", "3=1", "3=2"],
    ["traffic", "m", "3=0"], ["traffic", "m"], ["promote", "m"], ["promote", "m", "--revision", "1", "--space", "s"],
    ["share", "m", "bob", "--all"], ["save", "local-1"], ["save", "local-1", "--name", "Bad Name"], ["view", "m", "-a"],
    ["deploy"], ["deploy", "-p", "d", "--kernel", "k.py"],
    ["deploy", "--saved", "d:x"], ["promote", "d:0x", "--space", "s"], ["updateprofile", "m"], ["start"],
    ["start", "a", "b"], ["start", "m", "--wait-timeout", "0"],
])
def test_a_wrong_command_line_sends_nothing(desk: DlimDesk, local: ModelServer, words: list[str]) -> None:
    done = desk.run("model", *words, "-o", "json")
    assert (done.code, done.out, done.error) == (2, "", "client.usage") and not local.seen


def test_the_model_store(desk: DlimDesk, local: ModelServer) -> None:
    done = desk.run("model", "save", "local-7", "--name", "digits", "--path", "best.pt")
    assert (done.code, done.out) == (0, "The result of local-7 is saved as model <digits> version 3\n")
    assert json.loads(local.seen[-1].body) == {"name": "digits", "exec": "local-7", "path": "best.pt"}
    assert desk.run("model", "saved").out.splitlines()[1].split() == ["digits", "2", "local-7", "-", "ada"]
    assert desk.run("model", "promote", "digits", "--space", "production").code == 0
    assert (local.seen[-1].path, json.loads(local.seen[-1].body)) == (
        "/dlim/v1/modelstore/digits/promote", {"space": "production"})
    done = desk.run("model", "deploy", "--saved", "digits:2", "--kernel-type", "torch", "--weight", "a.pth",
                    "--attribute", "class=net:Net", "--attribute", 'class_args={"n": 3}')
    assert done.out.splitlines()[-1] == "Model <digits> is deployed successfully"
    assert json.loads(local.seen[-1].body) == {
        "kernel_type": "torch", "weight": "a.pth", "version": 2,
        "attributes": {"class": "net:Net", "class_args": '{"n": 3}'}}


def test_a_saved_model_tells_what_a_deployment_uses(desk: DlimDesk, local: ModelServer) -> None:
    found = {"kernel": "torch", "weight": "net.pth", "modelClass": "", "kernels": ["torch"], "weights": ["net.pth"],
             "classes": [], "error": {"code": "model.class", "message": "no class"}}
    local.replies["GET", "/dlim/v1/modelstore/digits/deploy"] = Reply(200, json.dumps(found).encode())
    done = desk.run("model", "saved", "digits:2")
    assert done.code == 0 and "net.pth" in done.out and "no class" in done.out
    assert local.seen[-1].target == "/dlim/v1/modelstore/digits/deploy?version=2"
    assert json.loads(desk.run("model", "saved", "digits", "-o", "json").out) == found
    assert desk.run("model", "deploy", "--saved", "digits", "--attribute", "class").code == 2


def test_a_saved_model_is_deleted(desk: DlimDesk, local: ModelServer) -> None:
    assert desk.run("model", "unsave", "digits:2").code == 0
    assert (local.seen[-1].method, local.seen[-1].target) == ("DELETE", "/dlim/v1/modelstore/digits?version=2")
    local.replies["DELETE", "/dlim/v1/modelstore/gone"] = failed(404, "model.not_saved", "no saved model gone")
    assert desk.run("model", "unsave", "gone").code == 6


@pytest.mark.parametrize(("words", "path", "refusal", "exit_code"), [
    (["promote", "pingpong", "--revision", "9"], "model/pingpong/operation/promote", (404, "model.no_revision"), 6),
    (["rollback", "pingpong"], "model/pingpong/operation/rollback", (409, "model.no_earlier_revision"), 1),
    (["share", "pingpong", "x"], "model/pingpong/shared", (400, "model.shared"), 2),
    (["save", "local-9", "--name", "digits"], "modelstore", (400, "exec.not_found"), 6),
    (["save", "local-9", "--name", "digits"], "modelstore", (409, "exec.not_finished"), 1),
    (["start", "pingpong"], "model/pingpong/operation/start", (403, "model.of_another_user"), 9),
    (["rollback", "pingpong"], "model/pingpong/operation/rollback", (404, "http.no_such_path"), 1),
])
def test_a_refusal_keeps_its_code(  # noqa: PLR0917
    desk: DlimDesk, local: ModelServer, words: list[str], path: str, refusal: tuple[int, str], exit_code: int,
) -> None:
    local.add("pingpong")
    status, code = refusal
    for method in ("PUT", "POST"):
        local.replies[method, f"/dlim/v1/{path}"] = failed(status, code, "a sentence of the server")
    done = desk.run("model", *words, "-o", "json")
    assert (done.code, done.error) == (exit_code, code) and (
        "a sentence of the server" in done.err or code == "exec.not_found")


def test_start_waits_for_a_kernel(desk: DlimDesk, local: ModelServer) -> None:
    local.add("pingpong")
    assert desk.run("model", "start", "pingpong", "--wait").code == 0
    local.kernels["pingpong"][0]["container_status"] = "STARTING"
    done = desk.run("model", "start", "pingpong", "--wait", "--wait-timeout", "60")
    assert done.code == 0
    local.replies["PUT", "/dlim/v1/model/pingpong/operation/start"] = failed(200, "", "")
    local.kernels["pingpong"] = []
    assert desk.run("model", "start", "pingpong", "--wait", "--wait-timeout", "1", "-o", "json").error == (
        "exec.wait_timeout")
    local.models["pingpong"] |= {"state": "Failed", "message": "kernel.py: line 3: no module named x"}
    done = desk.run("model", "start", "pingpong", "--wait", "-o", "json")
    assert (done.code, done.error) == (3, "model.failed") and "no module named x" in done.err


def test_run_deploys_starts_and_says_how_to_call(desk: DlimDesk, local: ModelServer) -> None:
    folder = desk.pingpong()
    (folder / "input.json").write_text('{"seq": 1}')
    done = desk.run("run", "pingpong")
    assert done.code == 0
    assert f"pingpong answers at {local.url}/dlim/v1/inference/pingpong" in done.out
    assert '-H "Authorization: Bearer $(dlim config -s)" -d @pingpong/input.json' in done.out
    assert "fake-token-1" not in done.out + done.err and "dlim model stop pingpong" in done.err
    (folder / "example.json").write_text('{"seq": 2}')  # it comes before input.json, as in the console
    assert "-d @pingpong/example.json" in desk.run("run", "pingpong").out
    assert desk.run("run", "pingpong").code == 0  # the next revision of a started model
    assert len(local.requests("PUT", "operation/start")) == 1


def test_an_interrupted_run_leaves_the_model_running(desk: DlimDesk, local: ModelServer) -> None:
    desk.pingpong()
    local.replies["PUT", "/dlim/v1/model/pingpong/operation/start"] = failed(200, "", "")
    with desk.start("run", "pingpong") as process:
        eventually(lambda: local.requests("GET", "instance"), "the wait for the model")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and b"to stop it: dlim model stop pingpong" in said
    assert not local.requests("PUT", "operation/stop")


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_o_prints_data_alone(desk: DlimDesk, local: ModelServer, form: str) -> None:
    import yaml

    local.add("pingpong")
    desk.pingpong()
    for words, key in (
        (["model", "view", "pingpong"], "uid"), (["model", "view", "pingpong", "-s"], "state"),
        (["model", "start", "pingpong"], "service_uri"), (["model", "deploy", "-p", "pingpong", "-f"], "uid"),
        (["model", "viewprofile", "pingpong"], "policy"), (["runtime", "view", "dlipy3"], "type"),
        (["model", "readme", "pingpong"], "readme"), (["run", "pingpong"], "service_uri"),
    ):
        done = desk.run(*words, "-o", form)
        found = json.loads(done.out) if form == "json" else yaml.safe_load(done.out)
        assert done.code == 0 and key in found, words


def test_a_hidden_environment_is_not_shown(desk: DlimDesk, local: ModelServer) -> None:
    local.add("pingpong")
    done = desk.run("model", "view", "pingpong")
    assert "SECRET" in done.out and "hidden-value" not in done.out


@pytest.mark.parametrize(("words", "meant"), [
    (["model", "lst"], "dlim model list"), (["model", "undelpoy", "x"], "dlim model undeploy"),
    (["deploy"], "dlim model"), (["moddel"], "dlim model"), (["login"], "dlim config"),
    (["model", "view", "m", "--statsu"], "--status"),
    (["runtime", "rm"], "dlim runtime delete"), (["predict", "m"], "dlim invoke"), (["model"], "deploy"),
])
def test_a_mistyped_command_line_gets_a_suggestion(desk: DlimDesk, words: list[str], meant: str) -> None:
    done = desk.run(*words)
    assert done.code == 2 and meant in done.err


def test_a_suggestion_is_the_corrected_line_without_secrets(desk: DlimDesk) -> None:
    said = desk.run("modle", "view", "my model", "-s").err
    assert "did you mean: dlim model view 'my model' -s" in said
    said = desk.run("model", "viw", "m", "--jwt-token", "secret-1").err
    assert "dlim model view NAME" in said and "secret-1" not in said


def test_a_slip_never_leads_to_a_command_that_destroys(desk: DlimDesk) -> None:
    for word in ("undeplay", "stp", "stap"):
        said = desk.run("model", word, "x").err
        assert "model undeploy" not in said and "model stop" not in said


def test_help_is_complete(desk: DlimDesk) -> None:
    whole = desk.run("--help").out
    for command in COMMANDS:
        assert command.name in whole
        done = desk.run("help", *command.name.split())
        assert done.code == 0 and command.examples[0][0] in done.out
        assert all(option.name in done.out for option in command.options)
    assert desk.run().code == 2
    assert "--rest-server" in desk.run("help", "options").out
    assert desk.run("--version").out.startswith("dlim ")


def test_completion_knows_commands_options_and_models(desk: DlimDesk, local: ModelServer) -> None:
    local.add("pingpong")
    desk.environment["_DLIM_COMPLETE"] = "bash_complete"
    for line, expected in (("dlim mo", "model"), ("dlim model vi", "view"), ("dlim model view p", "pingpong"),
                           ("dlim model view m --st", "--status"), ("dlim model deploy --kernel-type o", "onnx")):
        words = line.split()
        desk.environment |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        with desk.start() as process:
            out, _ = process.communicate(timeout=60)
        assert f"plain,{expected}" in out.decode().splitlines(), line


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_dlim(desk: DlimDesk, shell: str) -> None:
    done = desk.run("completion", shell)
    assert done.code == 0 and "_DLIM_COMPLETE" in done.out
    assert desk.run("completion", "tcsh").code == 2


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"model_list": 3}', b"\xff\xfe"])
def test_an_answer_of_another_server_is_an_error(desk: DlimDesk, local: ModelServer, body: bytes) -> None:
    local.replies["GET", "/dlim/v1/model"] = Reply(200, body)
    done = desk.run("model", "list", "-o", "json")
    assert done.code == (0 if body == b"[]" else 1) and b"Traceback" not in done.raw_err


@pytest.mark.parametrize("name", ["..", "a/b", "a\nb", "\x1b[31m", "-", "ü"])
def test_a_strange_name_is_a_missing_model(desk: DlimDesk, local: ModelServer, name: str) -> None:
    done = desk.run("model", "view", "--", name)
    assert done.code == 6 and "\x1b" not in done.err


@pytest.mark.skipif(sys.platform == "win32", reason="processes of Unix")
def test_debug_needs_the_folder_and_its_input(desk: DlimDesk) -> None:
    desk.pingpong()
    assert desk.run("debug", "gone").code == 2
    assert desk.run("debug", "pingpong").code == 2
    assert desk.run("debug", "pingpong", "--input", "gone.json").code == 2
