"""The verbs as a user types them: jobs by name and number, several jobs at once, and the question before that."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
from client_desk import DEADLINE, Desk
from fake_server import BASE, FakeServer, Reply, Seen, exec_object

DDP = "import os\nprint(os.environ['RANK'])\n"


def give(local: FakeServer, *names: str, **more: str) -> None:
    local.execs.update({name: exec_object(name, appName=f"job of {name}", **more) for name in names})


@pytest.mark.parametrize(("word", "found"), [
    ("local-7", "local-7"), ("7", "local-7"), ("last", "local-17"), ("job of local-7", "local-7"), ("w-3", "w-3"),
    ("17", "local-17"),
])
def test_a_job_is_named_by_id_number_or_name(desk: Desk, local: FakeServer, word: str, found: str) -> None:
    give(local, "local-7", "local-17", "w-3")
    local.execs["local-17"]["createTime"] = "2024-01-01T00:00:00Z"
    done = desk.run("get", word, "-o", "json")
    assert done.code == 0 and json.loads(done.out)["id"] == found
    assert (found in done.err) == (word in ("last", "job of local-7"))


def test_a_name_of_several_jobs_names_none(desk: Desk, local: FakeServer) -> None:
    give(local, "local-1", "local-2")
    local.execs["local-2"]["appName"] = "job of local-1"
    done = desk.run("rm", "job of local-1", "-o", "json")
    assert (done.code, done.error) == (2, "client.usage") and "local-2, local-1" in done.err
    assert desk.run("get", "nonsense", "-o", "json").error == "exec.not_found"
    assert desk.run("get", "nonsense").err == (
        "dlicmd: there is no job and no search 'nonsense'; dlicmd ls lists your jobs, dlicmd search your searches\n")
    assert desk.run("--exec-get", "1", "-o", "json").error == "exec.not_found"  # long options take ids alone
    assert not local.requests("DELETE")


def test_a_number_never_means_the_name_of_a_job(desk: Desk, local: FakeServer) -> None:
    give(local, "local-7", "local-8", "local-9")
    local.execs["local-8"]["appName"], local.execs["local-9"]["appName"] = "7", "last"
    assert desk.run("rm", "7").out == "local-7 deleted\n"
    assert desk.run("rm", "7", "-o", "json").error == "exec.not_found" and list(local.execs) == ["local-8", "local-9"]
    local.execs["local-8"]["createTime"] = "2024-01-01T00:00:00Z"
    assert desk.run("rm", "last").out == "local-8 deleted\n"


@pytest.mark.parametrize("word", ["", ".", "..", "%2e", "8/..", "1-3", "*", "-8", "local-", "?", "last "])
def test_odd_words_delete_no_job(desk: Desk, local: FakeServer, word: str) -> None:
    give(local, "local-8", "local-9")
    local.execs["local-8"]["appName"] = ""
    assert desk.run("rm", word, "-o", "json").code in (2, 6) and len(local.execs) == 2


def test_several_jobs_are_stopped_or_deleted(desk: Desk, local: FakeServer) -> None:
    give(local, "local-1", "local-2", "local-3")
    local.execs["local-3"]["state"] = "FINISHED"
    assert desk.run("stop", "1").out == "local-1 stopped\n"
    assert local.execs["local-1"]["state"] == "KILLED"
    refused = desk.run("stop", "--all", "--state", "RUNNING,PENDING")
    assert refused.code == 0 and refused.out == "local-2 stopped\n"  # one job needs no --yes
    refused = desk.run("rm", "1", "2", "-o", "json")
    assert (refused.code, refused.error) == (2, "client.usage") and "--yes" in refused.err and len(local.execs) == 3
    done = desk.run("rm", "1", "nonsense", "--yes", "-o", "json")
    assert done.code == 6 and [one["ok"] for one in json.loads(done.out)] == [True, False]
    done = desk.run("rm", "--all", "--yes")
    assert done.code == 0 and done.out.split() == ["local-2", "deleted", "local-3", "deleted"] and not local.execs
    assert desk.run("rm", "--all").code == 0
    assert desk.run("stop", "--all", "--state", "BUSY", "-o", "json").error == "client.usage"


def test_a_long_option_asks_nothing_without_a_terminal(desk: Desk, local: FakeServer) -> None:
    give(local, "local-1", "local-2")
    assert desk.run("--exec-delete-all").code == 0 and not local.execs
    assert not local.requests("GET", "/execs/")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
@pytest.mark.parametrize(("words", "answer", "left"), [
    (["rm", "--all"], b"n\n", 2), (["rm", "--all"], b"\n", 2), (["rm", "--all"], b"yes\n", 0),
    (["--exec-delete-all"], b"n\n", 2), (["--exec-delete-all"], b"y\n", 0), (["--exec-delete-all", "--yes"], b"", 0),
])
def test_a_terminal_is_asked_before_jobs_are_deleted(
    desk: Desk, local: FakeServer, words: list[str], answer: bytes, left: int,
) -> None:
    give(local, "local-1", "local-2")
    local.execs["local-2"]["state"] = "FINISHED"
    master, terminal = os.openpty()
    try:
        os.write(master, answer)
        process = desk.start(*words, stdin=terminal, stdout=subprocess.PIPE, stderr=terminal)
        process.communicate(timeout=DEADLINE)
        shown = ""
        while answer and select.select([master], [], [], 0)[0]:  # one read returns a part of what is there
            shown += os.read(master, 1 << 16).decode()
    finally:
        os.close(master)
        os.close(terminal)
    assert len(local.execs) == left and (process.returncode != 0) == (left > 0)
    assert not answer or "2 jobs, 1 of them running?" in shown


def submitted(server: FakeServer) -> str:
    [seen] = server.requests("POST")
    return seen.query["args"][0]


def test_a_server_gets_the_long_command_of_run(desk: Desk, local: FakeServer) -> None:
    desk.model(train=DDP)
    done = desk.run("run", "model/train.py", "--workers", "3", "--env", "A=1", "--", "--epochs", "2")
    assert done.code == 0 and done.out == "wmla-1\n"  # the id alone, for scripts
    sent = submitted(local)
    assert sent.startswith("--exec-start distPyTorch --model-dir model --appName train --model-main train.py")
    assert "--numWorker 3" in sent and "--msd-env A=1" in sent and sent.endswith(" -- --epochs 2")
    assert "--workers" not in sent and done.err.count("distributed training with 3 processes") == 1


def test_words_that_are_a_command_lead_to_the_line_that_runs_it(desk: Desk, local: FakeServer) -> None:
    desk.model(train="print(1)\n")
    said = desk.run("run", "model", "--no-follow", "--", "ls", "-l").err
    assert "dlicmd run model --no-follow --as command -- ls -l" in said
    for words in (["--lr", "1"], ["no-such-command"]):
        assert "--as command" not in desk.run("run", "model", "--no-follow", "--", *words).err


def test_a_server_with_1_slot_gets_1_worker(desk: Desk, local: FakeServer) -> None:
    desk.model(train=DDP)
    local.conf["DLICMD_EXTENSIONS"] += ",slot-view"
    local.replies["GET", f"{BASE}/scheduler/slots"] = Reply(200, b'{"slots": [{"id": "cpu0"}]}')
    assert desk.run("run", "model/train.py").code == 0 and "--numWorker 1" in submitted(local)


@pytest.mark.parametrize(("words", "code"), [
    (["run", "model/train.py", "--workers", "2"], 2), (["run", "model/trian.py"], 2), (["run", "model"], 2),
    (["run", "model/train.py", "--follow", "--no-follow"], 2), (["run", "model/train.py", "--epochs", "3"], 2),
    (["run", "--as", "command"], 2), (["run", "model/bad.py"], 2), (["run", "model/data.bin"], 2),
])
def test_a_wrong_run_sends_nothing(desk: Desk, local: FakeServer, words: list[str], code: int) -> None:
    desk.model(train="print(1)\n", bad="def\n")
    (desk.folder / "model" / "train.py").rename(desk.folder / "model" / "a.py")
    (desk.folder / "model" / "train.py").write_text("print(1)\n")
    if words == ["run", "model"]:
        (desk.folder / "model" / "train.py").unlink()  # 2 other programs are left
    (desk.folder / "model" / "data.bin").write_bytes(b"\0")
    done = desk.run(*words, "-o", "json")
    assert (done.code, done.error) == (code, "client.usage") and not local.requests("POST")


def test_a_home_folder_is_packed_only_if_it_is_named(desk: Desk, local: FakeServer) -> None:
    (desk.home / "train.py").write_text("print(1)\n")
    assert desk.run("run", str(desk.home / "train.py"), "-o", "json").error == "client.usage"
    assert desk.run("run", str(desk.home), "--model-main", "train.py").code == 0
    assert "--model-dir home" in submitted(local)


def test_run_takes_a_folder_a_command_and_a_job_file(desk: Desk, local: FakeServer) -> None:
    folder = desk.model(main="print(1)\n", other="print(2)\n")
    (folder / "job.yaml").write_text("framework: PyTorch\nmodel-main: other.py\nmodel-dir: .\nargs: [--epochs, 3]\n")
    (folder / "job.sh").write_text("echo hello\n")
    runs = (
        (["run", "model"], "PyTorch --model-dir model --appName main --model-main main.py"),
        (["run", "model/job.sh", "--gpus", "2", "--", "x"], "--user-cmd --workerDeviceType gpu --workerDeviceNum 2"),
        (["run", "-f", "model/job.yaml"], "--model-main other.py"),
        (["run", "--", "nvidia-smi", "-L"], "--user-cmd -- nvidia-smi -L"),
    )
    for words, sent in runs:
        local.seen.clear()
        done = desk.run(*words)
        assert done.code == 0 and sent in submitted(local), done


def test_an_unknown_option_of_a_long_command_is_reported_once(desk: Desk, local: FakeServer) -> None:
    desk.model()
    words = ["--exec-start", "PyTorch", "--model-dir", "model", "--model-main", "train.py", "--lr", "-3", "--lr=2", "x"]
    done = desk.run(*words)
    assert done.code == 0 and done.err.count("--lr") == 1 and "-3" not in done.err
    assert submitted(local).endswith("--lr -3 --lr=2 x ") or submitted(local).endswith("--lr -3 --lr=2 x")
    assert "--lr" not in desk.run(*words[:6], "--", "--lr", "-3").err


def test_slots_are_changed(desk: Desk, local: FakeServer) -> None:
    local.conf["DLICMD_EXTENSIONS"] += ",slots"
    give(local, "local-7")

    def resized(seen: Seen) -> Reply:
        wanted = json.loads(seen.body)["slots"]
        return Reply(200, json.dumps({"id": "local-7", "before": 2, "slots": wanted or 3}).encode())

    local.replies["PUT", f"{BASE}/execs/local-7/slots"] = resized
    assert json.loads(desk.run("resize", "7", "4", "-o", "json").out) == {"id": "local-7", "before": 2, "slots": 4}
    assert "3" in desk.run("--exec-resize", "local-7", "auto").out
    assert [json.loads(seen.body) for seen in local.requests("PUT")] == [{"slots": 4}, {"slots": None}]
    assert desk.run("resize", "7", "many", "-o", "json").error == "client.usage"


def test_the_folder_of_a_job_is_printed(desk: Desk, local: FakeServer, tmp_path: Path) -> None:
    folder = tmp_path / "work" / "local-7"
    folder.mkdir(parents=True)
    give(local, "local-7", workDir=f"{folder}/_submitted_code/model")
    assert desk.run("open").out == f"{folder}\n"
    assert json.loads(desk.run("open", "7", "-o", "json").out) == {"id": "local-7", "path": str(folder)}


def test_a_demo_can_be_submitted_without_being_followed(desk: Desk, local: FakeServer) -> None:
    done = desk.run("demo", "--no-follow")
    assert done.code == 0 and done.out.split() == [next(iter(local.execs))], done.err
    assert not local.requests("GET", "/follow")
    assert desk.run("demo", "--no-follow", "--follow", "-o", "json").error == "client.usage"
