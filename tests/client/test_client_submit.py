"""The bytes that a submission sends."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import signal
import tarfile
import threading
from email import message_from_bytes
from urllib.parse import parse_qs

import pytest
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply, Seen

from dlicmd.cli.commands.submissions import demo_words
from dlicmd.cli.mistyped import mistyped
from dlicmd.contract.argv import parse_argv
from dlicmd.sdk.paths import samples_dir


def parts(seen: Seen) -> dict[str, list[tuple[str | None, bytes]]]:
    """Return the parts of a multipart body: name → [(file name, bytes)], parsed by the standard library."""
    message = message_from_bytes(
        b"Content-Type: " + seen.headers["content-type"].encode() + b"\r\n\r\n" + seen.body
    )
    assert message.is_multipart()
    found: dict[str, list[tuple[str | None, bytes]]] = {}
    for part in message.get_payload():
        name = part.get_param("name", header="content-disposition")
        found.setdefault(str(name), []).append((part.get_filename(), part.get_payload(decode=True)))
    return found


def post(server: FakeServer) -> Seen:
    [seen] = server.requests("POST", "/execs/")
    return seen


def args(seen: Seen) -> str:
    [value] = seen.query["args"]
    return value


def test_a_folder_is_sent_to_a_remote_server(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    folder = desk.model("my model", train="print('ü')\n")
    done = desk.run("--exec-start", "PyTorch", "--model-dir", f"{folder}/", "--model-main", "train.py", *remote,
                    "-o", "json", "--debug-level", "info", "--lr", "0.1", "--", "--name", "DDP Tutorial", "-o", "x#&+%")
    assert done.code == 0, done
    assert json.loads(done.out) == {"execId": "wmla-1", "appId": "wmla-1"}
    assert "Copying files and directories ..." in done.err
    seen = post(fake)
    assert seen.target.startswith(f"{BASE}/execs/?args=--exec-start%20PyTorch%20--model-dir%20%27my%20model%27%20")
    assert args(seen) == ("--exec-start PyTorch --model-dir 'my model' --model-main train.py --debug-level info "
                          "--lr 0.1 -- --name 'DDP Tutorial' -o x#&+%")
    assert seen.headers["content-length"] == str(len(seen.body))
    assert seen.headers["authorization"] == "Bearer fake-token-1"
    assert "transfer-encoding" not in seen.headers
    found = parts(seen)
    assert set(found) == {"file"}
    [(name, content)] = found["file"]
    assert re.fullmatch(r"tmp\w+\.modelDir\.tar", name)
    assert content[:2] == b"\x1f\x8b"
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(content)), mode="r:") as archive:
        assert archive.getnames() == ["my model", "my model/train.py"]
        assert archive.extractfile("my model/train.py").read() == "print('ü')\n".encode()


def test_the_output_lines_agree_with_the_contract(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    desk.model()
    done = desk.run("--exec-start", "PyTorch", "--model-dir", "model", "--model-main", "train.py", *remote)
    lines = done.out.splitlines()
    assert lines[0] == "Copying files and directories ..."
    assert re.fullmatch(r"Content size: [0-9]+", lines[1])
    assert "\n".join(lines[2:]) == '{\n  "execId": "wmla-1",\n  "appId": "wmla-1"\n}'
    assert done.err == ""


def test_words_are_sent_as_argv_if_the_server_supports_it(desk: Desk, local: FakeServer) -> None:
    desk.model()
    words = ["--q", "it's \"so\"", "a  b", "", "ü"]
    done = desk.run("--exec-start", "PyTorch", "--model-dir", "./model", "--model-main=train.py", *words)
    assert done.code == 0, done
    found = parts(post(local))
    [(name, data)] = found["data"]
    assert name is None
    assert json.loads(data) == {
        "argv": ["--exec-start", "PyTorch", "--model-dir", "model", "--model-main=train.py", *words]}


def test_a_single_file_and_extra_files_are_sent(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    (desk.folder / "sub").mkdir()
    (desk.folder / "sub" / 'ma"in.py').write_bytes(b"print(1)\r\n")
    (desk.folder / "env.yaml").write_text("name: x\n")
    done = desk.run("--exec-start", "PyTorch", "--model-main", 'sub/ma"in.py', "--conda-env-yaml", "env.yaml", *remote)
    assert done.code == 0, done
    seen = post(fake)
    assert "--model-main 'sub/ma\"in.py'" in args(seen)
    assert b'filename="ma%22in.py"' in seen.body
    assert [content for _, content in parts(seen)["file"]] == [b"print(1)\r\n", b"name: x\n"]


def test_a_command_without_files_uploads_nothing(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    done = desk.run("--exec-start", "PyTorch", "--user-cmd", *remote, "--", "echo", "a b")
    assert done.code == 0, done
    seen = post(fake)
    assert seen.body == b"" and seen.headers["content-length"] == "0" and "content-type" not in seen.headers
    assert args(seen) == "--exec-start PyTorch --user-cmd -- echo 'a b'"
    assert done.out.startswith("Copying files and directories ...\nContent size: 0\n{")


def test_data_sources_are_sent_without_files(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    first, second = '[{"type":"fs","location":{"paths":"mnist"}}]', '[{"type":"fs","location":{"volume":"v"}}]'
    done = desk.run("--exec-start", "PyTorch", "--user-cmd", "--data-source", first, f"--data-source={second}",
                    *remote, "--", "true")
    assert done.code == 0, done
    seen = post(fake)
    assert seen.headers["content-type"] == "application/x-www-form-urlencoded"
    [data] = parse_qs(seen.body.decode())["data"]
    assert json.loads(data) == {"dataSource": json.loads(first) + json.loads(second)}
    assert args(seen) == "--exec-start PyTorch --user-cmd -- true"


@pytest.mark.parametrize("text", ["{", "[1]", '{"type": "fs"}', "[" * 10_000, ""])
def test_invalid_data_sources_are_refused(desk: Desk, local: FakeServer, text: str) -> None:
    done = desk.run("--exec-start", "PyTorch", "--user-cmd", "--data-source", text, "--", "true")
    assert done.code == 2 and len(done.err.splitlines()) == 1 and "--data-source" in done.err
    assert not local.seen


def test_local_paths_become_absolute_for_the_local_backend(desk: Desk, local: FakeServer) -> None:
    (desk.folder / "data").mkdir()
    source = '[{"type":"fs","location":{"paths":"./data"}},{"type":"fs","location":{"path":["mnist","~"]},"x":1}]'
    done = desk.run("--exec-start", "PyTorch", "--user-cmd", "--cs-datastore-meta", "type=fs,data_path=./data",
                    "--data-source", source, "--", "x", "--cs-datastore-meta", "data_path=./data")
    assert done.code == 0, done
    data = json.loads(parse_qs(post(local).body.decode())["data"][0])
    absolute = str(desk.folder / "data")
    assert data["argv"][3:5] == ["--cs-datastore-meta", f"type=fs,data_path={absolute}"]
    assert data["argv"][-1] == "data_path=./data", "words of the program must not change"
    assert data["dataSource"] == [
        {"type": "fs", "location": {"paths": absolute}},
        {"type": "fs", "location": {"path": ["mnist", str(desk.home)]}, "x": 1},
    ]


def test_paths_are_not_changed_for_a_remote_server(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    done = desk.run("--exec-start", "PyTorch", "--user-cmd", "--cs-datastore-meta", "type=fs,data_path=./data", *remote,
                    "--", "x")
    assert "data_path=./data" in args(post(fake))
    assert "data path ./data" in done.err


def test_a_missing_data_path_is_reported(desk: Desk, local: FakeServer) -> None:
    meta = "--cs-datastore-meta=type=fs,data_path=./no/way"
    done = desk.run("--exec-start", "PyTorch", "--user-cmd", meta, "--", "x")
    assert done.code == 2 and "/no/way" in done.err
    assert not local.requests("POST")


def test_secrets_of_the_client_are_not_sent_in_args(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    desk.run("--exec-start", "PyTorch", "--user-cmd", f"--password={'s3cret'}", "--username", "bob",
             f"--jwt-token={remote[-1]}", *remote[:-2], "--", "x")
    assert "s3cret" not in post(fake).target and remote[-1] not in post(fake).target


def test_options_that_the_local_backend_ignores_are_reported_once(desk: Desk, local: FakeServer) -> None:
    done = desk.run("--exec-start", "PyTorch", "--user-cmd", "--msd-label", "5", "--lsf-gpu-syntax=a", "--", "x")
    assert done.code == 0
    assert done.err.count("\n") == 1 and "--msd-label, --lsf-gpu-syntax" in done.err


def test_prebuilt_models_are_only_for_remote_servers(
    desk: Desk, local: FakeServer, fake: FakeServer, remote: list[str]
) -> None:
    prebuilt = ("--pbmodel-name", "VGG16", "--pbmodel-cmd", "train")
    (desk.folder / "own.py").write_text("")
    for more in ((), ("--model-main", "own.py")):
        done = desk.run("--exec-start", "PyTorch", *prebuilt, *more)
        assert done.code == 1 and "prebuilt" in done.err and not local.requests("POST")
    assert desk.run("--exec-start", "PyTorch", "--pbmodel-name", "VGG16", *remote).code == 0
    assert args(post(fake)).endswith("--pbmodel-name VGG16")


def test_only_scripts_of_the_original_client_get_the_recorded_answers(desk: Desk, local: FakeServer) -> None:
    words = ("--exec-start", "PyTorch", "--user-cmd", "--", "x")
    assert desk.run(*words).code == 0
    assert post(local).headers["prefer"] == "handling=strict"
    local.seen.clear()
    desk.environment["DLICMD_COMPAT"] = "wmla"
    assert desk.run(*words).code == 0
    assert "prefer" not in post(local).headers
    local.seen.clear()
    assert desk.run("--exec-start", "PyTorch", "--pbmodel-name", "VGG16", "--pbmodel-cmd", "train").code == 0
    assert args(post(local)).endswith("--pbmodel-name VGG16 --pbmodel-cmd train")


def test_the_client_asks_only_servers_that_create_data_paths_for_one(
    desk: Desk, local: FakeServer, remote: list[str]
) -> None:
    words = ("--exec-start", "PyTorch", "--user-cmd", "--cs-datastore-meta", "type=fs,data_path=new",
             "--create-data-path")
    done = desk.run(*words, *remote, "--", "x")
    assert done.code == 1 and "--create-data-path" in done.err
    assert desk.run(*words, "--", "x").code == 1 and not local.requests("POST")
    local.conf["DLICMD_EXTENSIONS"] += ",create-data-path"
    assert desk.run(*words, "--", "x").code == 0
    assert "--create-data-path" in json.loads(parse_qs(post(local).body.decode())["data"][0])["argv"]


def test_the_server_may_refuse_before_anything_is_packed(desk: Desk, local: FakeServer) -> None:
    local.conf["DLICMD_EXTENSIONS"] += ",check,allow-cpu"
    code = {"X-DLI-Error-Code": "submission.never_schedulable"}
    local.replies["POST", f"{BASE}/execs/check"] = Reply(400, b"Error 400: the server has no GPU slots\n", code)
    (desk.model() / "unreadable").symlink_to("/nowhere")
    words = ("--exec-start", "PyTorch", "--model-dir", "model", "--model-main", "train.py")
    done = desk.run(*words, "--workerDeviceType", "gpu", "-o", "json")
    assert (done.code, done.error, done.out) == (10, "submission.never_schedulable", "")
    assert not local.requests("POST", "/execs/") and "skipping" not in done.err, "nothing may be packed or sent"
    local.replies["POST", f"{BASE}/execs/check"] = Reply(204)
    assert desk.run(*words, "--allow-cpu").code == 0
    (asked,) = (seen for seen in local.requests("POST", "/check")[1:])
    assert "--allow-cpu" in asked.query["args"][0] and asked.headers["prefer"] == "handling=strict"


def test_a_refusal_names_the_options_of_the_verb(desk: Desk, local: FakeServer) -> None:
    local.conf["DLICMD_EXTENSIONS"] += ",check"
    refused = Reply(400, b"Error 400: use a smaller --numWorker\n")
    local.replies["POST", f"{BASE}/execs/check"] = refused
    desk.model()
    done = desk.run("run", "model", "--as", "ddp", "--workers", "999")
    assert done.code == 2 and "a smaller --workers" in done.err and "--numWorker" not in done.err
    words = ("--exec-start", "distPyTorch", "--model-dir", "model", "--model-main", "train.py", "--numWorker", "999")
    assert "a smaller --numWorker" in desk.run(*words).err


def test_a_verb_prints_the_id_of_the_job_by_one_name(desk: Desk, local: FakeServer) -> None:
    desk.model()
    done = desk.run("run", "model", "--no-follow", "-o", "json")
    assert json.loads(done.out) == {"id": "wmla-1", "appId": "wmla-1"}
    local.execs["wmla-1"]["state"] = "FINISHED"
    assert json.loads(desk.run("wait", "wmla-1", "-o", "json").out)["id"] == "wmla-1"


def test_allow_cpu_needs_a_server_that_knows_it(desk: Desk, local: FakeServer) -> None:
    done = desk.run("--exec-start", "PyTorch", "--user-cmd", "--allow-cpu", "--", "x")
    assert done.code == 1 and "--allow-cpu" in done.err and not local.requests("POST")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--model-main"),
        (["--user-cmd"], "after --"),
        (["--user-cmd", "--"], "after --"),
        (["--model-dir", "missing"], "'missing'"),
        (["--model-dir", "file"], "'file'"),
        (["--model-dir", "empty"], "empty"),
        (["--model-dir", "model", "--model-main", "other.py"], "'other.py'"),
        (["--model-dir", "model", "--model-main", "file"], "'file'"),
        (["--model-dir", ""], "empty"),
        (["--model-dir", "/"], "no name"),
        (["--model-main", "nothing.py"], "'nothing.py'"),
        (["--model-main", "model"], "'model'"),
        (["--model-main", "file", "--conda-package", "gone"], "--conda-package: 'gone'"),
        (["--model-main", "file", "--numWorker", "0"], "--numWorker"),
        (["--model-main", "file", "--workerMemory", "lots"], "--workerMemory"),
    ],
)
def test_mistakes_are_reported_before_anything_is_sent(
    desk: Desk, local: FakeServer, words: list[str], said: str
) -> None:
    desk.model()
    (desk.folder / "file").write_text("x")
    (desk.folder / "empty" / "__pycache__").mkdir(parents=True)
    done = desk.run("--exec-start", "PyTorch", *words)
    assert done.code == 2, done
    assert done.out == "" and len(done.err.splitlines()) == 1 and said in done.err
    assert not local.requests("POST")


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"id": "x"}', b"<html>", b"\xff", b'{"id": 1, "appId": 2}'])
def test_an_answer_without_ids_is_reported(desk: Desk, local: FakeServer, body: bytes) -> None:
    local.replies["POST", f"{BASE}/execs/"] = Reply(200, body)
    done = desk.run("--exec-start", "PyTorch", "--user-cmd", "--", "x")
    assert done.code == 1 and len(done.err.splitlines()) == 1 and "Traceback" not in done.err


def test_a_warning_of_the_server_is_printed(desk: Desk, local: FakeServer) -> None:
    answer = {"id": "w-1", "appId": "w-1", "warning": "credentials were \x1bwritten"}
    local.replies["POST", f"{BASE}/execs/"] = Reply(200, json.dumps(answer).encode())
    done = desk.run("--exec-start", "PyTorch", "--user-cmd", "--", "x")
    assert done.code == 0 and "credentials were" in done.err and "\x1b" not in done.err and "w-1" in done.out


def test_a_refusal_is_reported_in_the_words_of_the_server(desk: Desk, local: FakeServer) -> None:
    local.replies["POST", f"{BASE}/execs/"] = Reply(400, b"Error 400: Framework x is not known.\n")
    done = desk.run("--exec-start", "x", "--user-cmd", "-o", "json", "--", "x")
    assert (done.code, done.error) == (2, "submission.refused") and "Framework x is not known." in done.err


def test_a_connection_lost_during_the_upload_is_reported(desk: Desk, local: FakeServer) -> None:
    def hang_up(_seen: Seen) -> Reply:
        raise ConnectionResetError

    local.replies["POST", f"{BASE}/execs/"] = hang_up
    desk.model()
    done = desk.run("--exec-start", "PyTorch", "--model-dir", "model", "--model-main", "train.py")
    assert done.code == 8 and "--exec-get-all" in done.err
    assert len(local.requests("POST")) == 1, "a submission must not be repeated"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_client_killed_during_the_upload_leaves_no_files_and_no_exec(
    desk: Desk, local: FakeServer, number: signal.Signals
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def receive() -> None:
        begun.set()
        go_on.wait(60)

    local.receiving = receive
    folder, place = desk.model(), desk.folder.parent / "tmp"
    place.mkdir()
    desk.environment["TMPDIR"] = str(place)
    (folder / "noise").write_bytes(os.urandom(30 * 2**20))
    with desk.start("--exec-start", "PyTorch", "--model-dir", "model") as process:
        assert begun.wait(60)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    go_on.set()
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert b"Traceback" not in err
    if number == signal.SIGINT:
        assert b"--exec-get-all" in err
    assert not local.requests("POST") and not local.execs
    assert os.listdir(place) == []


@pytest.mark.parametrize(
    ("words", "more", "program"),
    [
        (["--demo"], [], ["--epochs", "10"]),
        (["--demo", "--"], [], ["--epochs", "10"]),
        (["--demo", "--", "--epochs", "2"], [], ["--epochs", "2"]),
        (["--demo", "--epochs", "2"], ["--epochs", "2"], []),
        (["--demo", "--numWorker=3", "--wait", "-o", "json"], ["--numWorker=3", "--wait", "-o", "json"],
         ["--epochs", "10"]),
    ],
)
def test_demo_is_a_submission_of_the_digits_sample(words: list[str], more: list[str], program: list[str]) -> None:
    stands_for = demo_words(words, parse_argv(words))
    line = parse_argv(stands_for)
    assert (line.command, line.operand) == ("--exec-start", "edtPyTorch")
    assert line.text("--model-main") == "train.py" and line.text("--model-dir") == str(samples_dir() / "digits")
    assert line.text("--cs-datastore-meta") == f"type=fs,data_path={samples_dir() / 'digits' / 'data'}"
    assert line.text("--appName") == "demo"
    assert line.number("--numWorker") == (3 if "--numWorker=3" in more else 2)
    assert line.flag("--follow") != line.flag("--wait")
    own = stands_for[: stands_for.index("--")] if "--" in stands_for else stands_for
    assert own[len(own) - len(more):] == more and (line.after_dashes or []) == program
    assert sum(word.startswith("--numWorker") for word in stands_for) == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--folow", "3"], [("--folow", "--follow")]),
        (["--model-mian=train.py", "x"], [("--model-mian", "--model-main")]),
        (["--numWorkers", "2", "--workermemory", "8g"], [("--numWorkers", "--numWorker"),
                                                        ("--workermemory", "--workerMemory")]),
        (["--model_dir", "d"], [("--model_dir", "--model-dir")]),
        (["--model-dir", "d", "--model_dir", "d"], []),
        (["--", "--folow", "3"], []),
    ],
)
def test_a_mistyped_option_is_detected(words: list[str], expected: list[tuple[str, str]]) -> None:
    assert mistyped(parse_argv(["--exec-start", "PyTorch", *words])) == expected


def test_common_options_of_programs_are_not_taken_for_mistyped_options() -> None:
    own = ("lr epochs num model name user device debug output-dir data-dir num-workers num_workers workers batch-size "
           "log-dir log-level save-model data dataset seed gpus gpu port host accelerator resume checkpoint-dir val "
           "model-name model-path out weights weight-decay momentum config verbose dry-run no-cuda test tag labels "
           "world-size rank local-rank backend dist-url arch pretrained env priority-queue timeout password-file "
           "steps max-steps max_epochs train-file output_dir data_path input num-proc memory cpu options queue t f")
    words = [f"--{name}" for name in own.split()] + ["-lr", "-", "--x=--folow", "folow"]
    assert mistyped(parse_argv(["--exec-start", "PyTorch", *words])) == []


def test_a_mistyped_option_is_passed_to_the_program_and_reported(desk: Desk, local: FakeServer) -> None:
    done = desk.run("--exec-start", "PyTorch", "--user-cmd", "--folow", "3", "--", "x")
    assert done.code == 0 and "--folow" in done.err and "--follow" in done.err and done.err.count("\n") == 1
    assert local.requests("POST")[0].query["args"] == ["--exec-start PyTorch --user-cmd --folow 3 -- x"]


def test_a_mistyped_option_is_reported_before_missing_words(desk: Desk) -> None:
    done = desk.run("--exec-start", "PyTorch", "--model-man", "train.py", "-o", "json")
    assert (done.code, done.error) == (2, "client.usage") and "--model-main?" in done.err.splitlines()[0]


@pytest.mark.parametrize(("word", "meant"), [
    ("--wiat", "--wait"), ("--app-name", "--appName"), ("--num-worker", "--numWorker"),
    ("--model_main", "--model-main"), ("--folow", "--follow"),
    ("--num-workers", None), ("--output-dir", None), ("--epochs", None), ("--tail", None),
])
def test_a_mistyped_option_of_dlicmd_is_recognized(word: str, meant: str | None) -> None:
    line = parse_argv(["--exec-start", "PyTorch", "--user-cmd", word, "--", "true"])
    assert mistyped(line) == ([(word, meant)] if meant else [])
