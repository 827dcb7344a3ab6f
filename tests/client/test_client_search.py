"""Searches without a definition in a file: their start, their end, and what people read of them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import signal
import tarfile
from pathlib import Path
from typing import Any

import pytest
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply, Seen, exec_object
from screen_desk import Screen
from support import eventually
from test_client_searches import answer, parts

PATH = f"{BASE}/hypersearch"
ONE = f"{PATH}/s-1"
SHORT = ["--hpo-param", "lr=log:1e-4..1e-1", "--hpo-param", "batch=32,64", "--hpo-metric", "accuracy:maximize"]
#: Contract of searches, A2: the values of a parameter are texts.
TYPES = {float: "double", int: "int", str: "str"}


def experiment(number: int, state: str = "FINISHED", value: float | None = None, **parameters: Any) -> dict[str, Any]:
    known = [{"name": name, "dataType": TYPES[type(one)], "userDefined": False, "fixedVal": str(one)}
             for name, one in parameters.items()]
    found = {"id": number, "state": state, "hyperParams": known, "appId": f"local-{number + 1}",
             "startTime": "2020-11-17 19:59:48"}
    return found if value is None else found | {"metricVal": value}


def search(state: str = "RUNNING", *experiments: dict[str, Any], **more: Any) -> dict[str, Any]:
    done = [one for one in experiments if one["state"] == "FINISHED"]
    best = max(done, key=lambda one: one["metricVal"], default=None)
    ended = sum(one["state"] in ("FINISHED", "FAILED", "KILLED") for one in experiments)
    return {"hpoName": "s-1", "state": state, "running": len(experiments) - ended, "complete": ended, "failed": 0,
            "progress": f"{ended}/4", "createtime": "2020-11-17 19:59:46", "creator": "ada", "duration": "00:02:55",
            "experiments": list(experiments), "metric": "accuracy", "objective": "maximize", "algorithm": "TPE",
            **({"best": best} if best else {}), **more}


FIRST = experiment(0, "RUNNING", lr=0.01, batch=32)
DONE = [experiment(0, value=0.5, lr=0.01, batch=32), experiment(1, value=0.9, lr=0.02, batch=64),
        experiment(2, value=0.7, lr=0.03, batch=64),
        experiment(3, "FAILED", -9999.99, lr=0.04, batch=32) | {"message": "val_dict_list.json has no accuracy"}]


@pytest.fixture
def served(local: FakeServer) -> FakeServer:
    """A server that starts the search s-1, which ends after two answers."""
    answers = [search("SUBMITTED"), search("RUNNING", FIRST), search("FINISHED", *DONE)]
    local.replies["POST", PATH] = answer({"uid": "s-1", "href": "/h"})
    local.replies["GET", ONE] = lambda _: answer(answers.pop(0) if len(answers) > 1 else answers[0])
    return local


def sent(local: FakeServer) -> tuple[dict[str, Any], bytes | None]:
    """Return the definition and the file of the started search."""
    found = parts(local.requests("POST", "/hypersearch")[-1])
    return json.loads(found["data"][1]), found["file"][1] if "file" in found else None


# Starts


def test_a_search_starts_without_a_file(desk: Desk, served: FakeServer) -> None:
    desk.model(train="import json\nprint('{lr}')\n", other="")
    done = desk.run("--hpo-start", "--model-dir", "model", "--model-main", "train.py", *SHORT, "--hpo-trials", "40",
                    "--hpo-parallel", "2", "--hpo-seed", "7", "--hpo-name", "mine", "--msd-env", "A=b c",
                    "--", "--epochs", "5", "--learning-rate", "{lr}")
    assert done.code == 0 and done.out.splitlines()[-1] == 'Start hypersearch with id: {"uid": "s-1", "href": "/h"}'
    assert len(done.err.splitlines()) == 1 and "train.py runs as 1 process" in done.err
    definition, model = sent(served)
    assert definition["modelSpec"]["args"] == (
        "--exec-start PyTorch --model-dir model --model-main train.py --msd-env 'A=b c' -- --epochs 5 --learning-rate "
        "{lr}")
    assert definition["hpoName"] == "mine" and [one["name"] for one in definition["hyperParams"]] == ["lr", "batch"]
    assert definition["algoDef"] == {
        "algorithm": "Tpe", "maxRunTime": -1, "maxJobNum": 40, "maxParalleJobNum": 2, "objectiveMetric": "accuracy",
        "objective": "maximize", "algoParams": [{"name": "RandomSeed", "value": "7"}]}
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(model or b""))) as archive:
        assert archive.getnames() == ["model", "model/other.py", "model/train.py"]


def test_the_program_decides_how_it_runs(desk: Desk, served: FakeServer) -> None:
    desk.model(train="import os\nprint(os.environ['RANK'])\n")
    assert desk.run("search", "model/train.py", "--param", "lr=0.1,0.2", "--metric", "loss", "--workers", "3").code == 0
    args = sent(served)[0]["modelSpec"]["args"].split()
    assert args[:2] == ["--exec-start", "distPyTorch"] and args[args.index("--numWorker") + 1] == "3"


def test_a_single_file_is_a_model(desk: Desk, served: FakeServer) -> None:
    (desk.folder / "train.py").write_text("print(1)\n")
    assert desk.run("--hpo-start", "--model-main", "train.py", *SHORT).code == 0
    definition, model = sent(served)
    assert definition["modelSpec"]["args"] == "--exec-start PyTorch --model-main train.py" and model == b"print(1)\n"
    (desk.folder / "s.json").write_text("{}")
    assert desk.run("--hpo-start", "s.json", "--model-main", "train.py").code == 0 and sent(served) == ({}, model)


@pytest.mark.parametrize(("words", "spec"), [
    (["--job", "local-7"], {"exec": "local-7"}),
    (["--job", "local-7", "--", "--lr", "{lr}"], {"exec": "local-7", "args": "--lr {lr}"}),
    (["--job", "local-7", "--"], {"exec": "local-7", "args": ""}),
    (["--definition", "digits", "--of-version", "2", "--workers", "3"],
     {"definition": "digits", "version": 2, "numWorker": 3}),
])
def test_stored_code_needs_no_program(desk: Desk, served: FakeServer, words: list[str], spec: dict[str, Any]) -> None:
    done = desk.run("search", "--param", "lr=0.1,0.2", "--metric", "loss", *words)
    assert done.code == 0, done.err
    definition, model = sent(served)
    assert definition["modelSpec"] == spec and definition["algoDef"]["objectiveMetric"] == "loss" and model is None


@pytest.mark.parametrize("words", [
    ["--job", "local-7", "--definition", "digits"], ["--of-version", "2"], ["--job", "local-7", "--of-version", "2"],
    ["--job", "local-7", "--workers", "2"], ["train.py", "--job", "local-7"], ["--job", "local-7", "--env", "A=b"],
    ["--definition", "digits", "--as", "ddp"], ["--definition", "digits", "--data", "x"],
])
def test_stored_code_is_run_as_it_is_stored(desk: Desk, served: FakeServer, words: list[str]) -> None:
    (desk.folder / "train.py").write_text("print(1)\n")
    done = desk.run("search", *words, "--param", "lr=0.1,0.2", "--metric", "loss")
    assert done.code == 2 and not served.requests("POST", "/hypersearch")


def test_a_definition_in_yaml_is_the_same(desk: Desk, served: FakeServer) -> None:
    desk.model()
    (desk.folder / "s.yaml").write_text(
        "modelSpec:\n  args: >\n    --exec-start PyTorch\n    --model-main train.py\nalgoDef: {algorithm: Random}\n"
        "hyperParams:\n- {name: lr, type: Range, dataType: DOUBLE, minDbVal: 1e-4, maxDbVal: 0.1, log: true}\n"
        "- {name: m, type: Discrete, dataType: STR, discreateStrVal: ['1e-4', a]}\n")
    assert desk.run("--hpo-start", "s.yaml", "--model-dir", "model").code == 0
    definition = sent(served)[0]
    assert definition["modelSpec"]["args"].split() == ["--exec-start", "PyTorch", "--model-main", "train.py"]
    assert definition["hyperParams"][0]["minDbVal"] == 1e-4 and definition["hyperParams"][0]["log"] is True
    assert definition["hyperParams"][1]["discreateStrVal"] == ["1e-4", "a"]


@pytest.mark.parametrize(("words", "said"), [
    ([], "--hpo-start FILE"), (["--model-dir", "model"], "--hpo-start FILE"),
    ([*SHORT], "--model-dir DIR"), (["s.json", "--model-dir", "model", *SHORT[:2]], "leave out --hpo-param"),
    (["s.json", "--model-dir", "model", "--", "x"], "leave out"), (["--model-dir", "model", *SHORT, "extra"], "extra"),
    (["--model-dir", "model", "--hpo-param", "lr", "--hpo-metric", "loss"], "NAME=VALUES"),
    (["--model-dir", "model", "--hpo-param", "lr=2..1", "--hpo-metric", "loss"], "LOW must be below HIGH"),
    (["--model-dir", "model", "--hpo-param", "lr=1..2"], "--hpo-metric"),
    (["--model-dir", "model", "--hpo-metric", "loss"], "--hpo-param"),
    (["--model-dir", "model", *SHORT, "--hpo-resume"], "--hpo-resource"),
    (["--model-dir", "model", *SHORT, "--hpo-algorithm", "asha"], "--hpo-resource"),
    (["--model-dir", "model", *SHORT, "--hpo-trials", "0"], "--hpo-trials"),
    (["--model-dir", "model", *SHORT, "--data-source", '[{"type": "fs", "location": {"paths": "m"}}]'], "data"),
    (["s.yaml", "--model-dir", "model"], "line 1"),
])
def test_a_wrong_search_is_refused_before_it_is_sent(
    desk: Desk, served: FakeServer, words: list[str], said: str,
) -> None:
    desk.model()
    (desk.folder / "s.json").write_text("{}")
    (desk.folder / "s.yaml").write_text("a: &x 1\nb: *x\n") if said != "line 1" else (
        desk.folder / "s.yaml").write_text("a: b: c\n")
    done = desk.run("--hpo-start", *words)
    assert (done.code, done.out) == (2, "") and said in done.err and not served.requests("POST")


def test_a_dry_run_shows_the_request(desk: Desk, served: FakeServer) -> None:
    desk.model()
    words = ["--hpo-start", "--model-dir", "model", *SHORT, "--cs-rmq-meta", "amqps://u:secret@h/v", "--dry-run"]
    found = json.loads(desk.run(*words, "-o", "json").out)
    assert (found["method"], found["path"]) == ("POST", PATH)
    assert "secret" not in json.dumps(found) and found["data"]["algoDef"]["algorithm"] == "Tpe"
    assert [one["path"] for one in found["folder"]["files"]] == ["train.py"] and found["parts"][0]["name"] == "file"
    text = desk.run(*words).out
    assert text.startswith(f"POST {PATH}\n") and "train.py" in text
    (desk.folder / "s.json").write_text("{}")
    assert json.loads(desk.run("--hpo-start", "s.json", "--model-dir", "model", "--dry-run", "-o", "json").out)[
        "data"] == {}
    assert not served.requests("POST")


# The verb


def test_the_verb_starts_a_search(desk: Desk, served: FakeServer) -> None:
    desk.model(train="import fabric_model\n")
    done = desk.run("search", "model", "--param", "lr=0.1..0.2", "--metric", "loss", "--trials", "3", "--name", "n",
                    "--resource", "epochs:9", "--resume", "--env", "A=1", "--", "-x", "{epochs}", "{lr}")
    assert (done.code, done.out) == (0, "s-1\n") and "packed" in done.err and "{" not in done.err
    definition = sent(served)[0]
    assert definition["hpoName"] == "n" and definition["algoDef"]["algorithm"] == "ASHA"
    assert definition["algoDef"]["resume"] is True and "--msd-env A=1" in definition["modelSpec"]["args"]
    assert definition["modelSpec"]["args"].endswith("--msd-env A=1 --numWorker 2 -- -x {epochs} {lr}")
    done = desk.run("search", "model", "--param", "lr=0.1..0.2", "--metric", "loss", "--", "--lr", "{rl}")
    assert done.code == 0 and "no parameter rl; its parameters are lr" in done.err
    count = len(served.requests("POST"))
    done = desk.run("search", "model", "--param", "rate=0.1..0.2", "--metric", "loss", "--", "--rate", "{Rates}")
    assert done.code == 2 and "{rate}" in done.err and len(served.requests("POST")) == count


def test_the_verb_alone_lists_searches(desk: Desk, served: FakeServer) -> None:
    served.replies["GET", PATH] = answer([search("FINISHED", *DONE)])
    assert json.loads(desk.run("search", "-o", "json").out) == [search("FINISHED", *DONE)]
    lines = desk.on_a_terminal("search", NO_COLOR="1").splitlines()
    assert len(lines) == 2 and lines[1].split()[:5] == ["s-1", "FINISHED", "4/4", "accuracy", "0.9"]
    assert "s-1" in desk.run("search").out and not served.requests("POST")
    assert desk.run("search", "--metric", "loss").code == 2


def test_verbs_about_jobs_take_the_name_of_a_search(desk: Desk, served: FakeServer) -> None:
    served.replies["PUT", ONE] = served.replies["DELETE", ONE] = Reply(204)
    served.replies["GET", ONE] = answer(search("FINISHED", *DONE))
    page = desk.run("get", "s-1").out
    assert "accuracy 0.9" in page and "lr=0.02 batch=64" in page
    assert json.loads(desk.run("get", "s-1", "-o", "json").out) == search("FINISHED", *DONE)
    assert desk.run("follow", "s-1").code == desk.run("wait", "s-1").code == desk.run("--wait", "s-1").code == 0
    assert desk.run("stop", "s-1").out == "s-1 stopped\n" and desk.run("rm", "s-1").out == "s-1 deleted\n"
    assert [row["best"] for row in json.loads(desk.run("plot", "s-1", "-o", "json").out)] == [0.5, 0.9, 0.9]
    assert desk.run("plot", "s-1", "--export", "x.csv").code == 0 and (desk.folder / "x.csv").exists()
    assert "dlicmd get s-1" in desk.run("logs", "s-1").err and desk.run("result", "s-1").code == 2
    for verb in ("get", "plot", "why", "follow", "wait"):
        said = desk.run(verb, "other").err
        assert said == "dlicmd: there is no job and no search 'other'; dlicmd ls lists your jobs, dlicmd search your " \
                       "searches\n"
    for verb in ("stop", "rm"):
        said = desk.run(verb, "other", "s-1", "--yes").err
        assert "there is no job and no search 'other'; dlicmd ls lists your jobs, dlicmd search your searches" in said
        assert "there is no job 's-1'; a search has this name: dlicmd get s-1" in said
        assert desk.run(verb, "local-9").err == "dlicmd: there is no job 'local-9'; dlicmd ls lists your jobs\n"
    assert desk.run("get", "local-9").err == "dlicmd: there is no job 'local-9'; dlicmd ls lists your jobs\n"
    assert desk.run("rm", "other", "-o", "json").error == "exec.not_found"


def test_a_search_says_why_it_failed(desk: Desk, served: FakeServer) -> None:
    broken = experiment(0, "FAILED", lr=0.1) | {"message": "no accuracy was found"}
    served.replies["GET", ONE] = answer(search("FAILED", broken, message="no experiment has delivered accuracy"))
    said = desk.run("why", "s-1")
    assert said.code == 0 and said.out.splitlines()[:2] == [
        "s-1 FAILED: no experiment has delivered accuracy", "  experiment 0 FAILED: no accuracy was found"]
    assert json.loads(desk.run("why", "s-1", "-o", "json").out) == {
        "id": "s-1", "state": "FAILED", "message": "no experiment has delivered accuracy"}
    served.replies["PUT", ONE] = Reply(400, b"is already stopped", {"X-DLI-Error-Code": "search.ended"})
    stopped = desk.run("stop", "s-1")
    assert stopped.code == 1 and "s-1 had already ended: FAILED" in stopped.err


def test_a_result_is_named_only_if_there_is_one(desk: Desk, served: FakeServer) -> None:
    served.replies["GET", ONE] = answer(search("FINISHED", *DONE))
    best = str(search("FINISHED", *DONE)["best"]["appId"])
    for there in (True, False):
        served.execs[best] = exec_object(best, state="FINISHED") | {"hasResult": there}
        assert (f"dlicmd result {best}" in desk.run("get", "s-1").out) is there
        assert (f"dlicmd result {best}" in desk.run("follow", "s-1").err) is there


def test_an_export_into_a_folder_with_programs_is_pointed_out(desk: Desk, served: FakeServer) -> None:
    served.replies["GET", ONE] = answer(search("FINISHED", *DONE))
    (desk.folder / "train.py").touch()
    assert ".dlicmdignore" in desk.run("--hpo-export", "s-1", "x.csv").err
    (desk.folder / ".dlicmdignore").write_text("*.csv\n", encoding="utf-8")
    assert desk.run("--hpo-export", "s-1", "x.csv").err == ""


def test_a_job_comes_before_a_search_of_its_name(desk: Desk, served: FakeServer) -> None:
    served.execs["s-1"] = exec_object("s-1", state="FINISHED")
    assert json.loads(desk.run("get", "s-1", "-o", "json").out)["id"] == "s-1" and not served.requests("GET", "/s-1/x")
    assert desk.run("rm", "s-1").out == "s-1 deleted\n" and not served.execs and not served.requests("DELETE", ONE)


def test_experiments_are_selected_by_their_search(desk: Desk, local: FakeServer) -> None:
    local.execs |= {"local-1": exec_object("local-1", search="s 1", experiment=3), "local-2": exec_object("local-2")}
    assert [one["id"] for one in json.loads(desk.run("ls", "--search", "s 1", "-o", "json").out)] == ["local-1"]
    assert [one["id"] for one in json.loads(desk.run("--exec-get-all", "--search", "s 1", "-o", "json").out)] == [
        "local-1"]
    assert all(seen.query.get("search") == ["s 1"] for seen in local.requests("GET", "/execs") if seen.query)
    assert "s 1, experiment 3" in desk.run("get", "1").out


# The end


@pytest.mark.parametrize(("state", "code"), [("FINISHED", 0), ("FAILED", 3), ("STOPPED", 4), ("ODD", 3)])
def test_the_end_of_a_search_is_the_exit_code(desk: Desk, served: FakeServer, state: str, code: int) -> None:
    desk.model()
    served.replies["GET", ONE] = answer(search(state, *DONE))
    words = ["--hpo-start", "--model-dir", "model", *SHORT]
    assert desk.run(*words, "--wait").code == desk.run("--hpo-get", "s-1", "--follow").code == code
    done = desk.run(*words, "--wait", "-o", "json")
    assert done.code == code and json.loads(done.out)["state"] == state
    served.replies["PUT", f"{ONE}/restart"] = Reply(200)
    done = desk.run("--hpo-restart", "s-1", "--wait", "-o", "json")
    assert done.code == code and json.loads(done.out)["state"] == state


def test_a_followed_search_prints_a_line_for_each_change(desk: Desk, served: FakeServer) -> None:
    done = desk.run("--hpo-get", "s-1", "--follow")
    assert done.code == 0
    assert done.out.splitlines() == [
        "search s-1 SUBMITTED", "search s-1 RUNNING", "experiment 0 RUNNING; lr=0.01 batch=32",
        "experiment 0 FINISHED; accuracy 0.5; best so far 0.5 (experiment 0); lr=0.01 batch=32",
        "experiment 1 FINISHED; accuracy 0.9; best so far 0.9 (experiment 1); lr=0.02 batch=64",
        "experiment 2 FINISHED; accuracy 0.7; best so far 0.9 (experiment 1); lr=0.03 batch=64",
        "experiment 3 FAILED; lr=0.04 batch=32; val_dict_list.json has no accuracy", "search s-1 FINISHED",
    ]
    assert "best accuracy 0.9 of experiment 1 (lr=0.02 batch=64)" in done.err


def test_of_a_large_search_only_what_changes_is_asked_for(desk: Desk, local: FakeServer) -> None:
    many = [experiment(number, value=0.5, lr=0.01) for number in range(300)]
    now = [*many, experiment(300, value=0.75, lr=0.02), experiment(301, "RUNNING", lr=0.03)]
    states = ["RUNNING", "FINISHED"]
    whole = [search("RUNNING", *many), search("FINISHED", *now[:301], experiment(301, value=0.25, lr=0.03))]

    def one(seen: Seen) -> Reply:
        if not seen.query:
            return answer(whole.pop(0))
        assert seen.query == {"experiments": ["none"]}
        return answer({key: value for key, value in search(states.pop(0), *now).items() if key != "experiments"})

    def page(seen: Seen) -> Reply:
        wanted = seen.query["state"][0].split(",")
        rows = [row for row in reversed(now) if row["state"] in wanted]
        return answer(rows[int(seen.query["offset"][0]):][:int(seen.query["limit"][0])])

    local.replies["GET", ONE], local.replies["GET", f"{ONE}/experiments"] = one, page
    done = desk.run("--hpo-get", "s-1", "--follow")
    assert done.code == 0 and not whole
    assert [line.partition(";")[0] for line in done.out.splitlines()[-4:]] == [
        "experiment 300 FINISHED", "experiment 301 RUNNING", "experiment 301 FINISHED", "search s-1 FINISHED"]
    assert len(local.requests("GET", "/experiments")) == 2


def test_an_interrupt_leaves_the_search(desk: Desk, local: FakeServer) -> None:
    local.replies["GET", ONE] = answer(search("RUNNING", FIRST))
    with desk.start("--hpo-get", "s-1", "--wait") as process:
        eventually(lambda: len(local.requests("GET", "/s-1")) > 1, "dlicmd asks for the search several times")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and b"s-1 continues" in err and b"dlicmd --follow s-1" in err
    assert not local.requests("PUT")


def test_a_wait_has_a_limit(desk: Desk, local: FakeServer) -> None:
    local.replies["GET", ONE] = answer(search("RUNNING", FIRST))
    done = desk.run("--hpo-get", "s-1", "--wait", "--wait-timeout", "1", "-o", "json")
    assert (done.code, done.error) == (7, "exec.wait_timeout") and json.loads(done.out)["state"] == "RUNNING"
    assert desk.run("--hpo-get", "s-1", "--wait", "--junit", "j.xml").code == 2


def test_a_failed_search_leads_to_the_output_of_a_job(desk: Desk, local: FakeServer) -> None:
    local.replies["GET", ONE] = answer(search("FAILED", DONE[3]))
    done = desk.run("follow", "s-1")
    assert done.code == 3 and "next: dlicmd logs local-4" in done.err
    local.replies["GET", ONE] = answer(search("FINISHED", *DONE))
    assert "dlicmd plot s-1" in desk.run("follow", "s-1").err


def test_a_live_table_shows_the_best_so_far(desk: Desk, local: FakeServer) -> None:
    goes_on = {"running": True}
    local.replies["GET", ONE] = lambda _: answer(search("RUNNING", *DONE[:2], experiment(2, "RUNNING", lr=0.03))
                                                 if goes_on["running"] else search("FINISHED", *DONE))
    screen = Screen(desk, "follow", "s-1")
    screen.until("best accuracy 0.9 of experiment 1")
    screen.until("Ctrl-C detaches")
    assert any(line.split()[:2] == ["2", "RUNNING"] for line in screen.lines)
    goes_on["running"] = False
    assert screen.ended() == 0 and any(line.split()[:3] == ["1", "FINISHED", "0.9"] for line in screen.lines)


# What people read


def test_a_page_on_a_terminal_and_json_in_a_pipe(desk: Desk, local: FakeServer) -> None:
    found = search("FINISHED", *DONE, message="all experiments have ended")
    local.replies["GET", ONE] = answer(found)
    local.replies["GET", f"{ONE}/importances"] = answer({"importances": {"lr": 0.75, "batch": 0.25}})
    assert json.loads(desk.run("--hpo-get", "s-1").out) == found
    shown = desk.on_a_terminal("--hpo-get", "s-1", NO_COLOR="1")
    assert all(text in shown for text in (
        "maximize accuracy", "TPE", "accuracy 0.9, experiment 1, job local-2", "lr=0.02 batch=64", "75.0%", "25.0%",
        "all experiments have ended", "val_dict_list.json has no accuracy", "dlicmd --hpo-plot s-1"))
    rows = [line.split()[0] for line in shown.splitlines() if line[:1].isdigit()]
    assert rows == ["1", "2", "0", "3"]  # best first, failed last
    del local.replies["GET", f"{ONE}/importances"]
    assert "importance" not in desk.on_a_terminal("--hpo-get", "s-1", NO_COLOR="1")


def test_a_page_is_short(desk: Desk, local: FakeServer) -> None:
    many = [experiment(number, value=number / 100, lr=0.1, text="\x1b[31mx") for number in range(100)]
    local.replies["GET", ONE] = answer(search("FINISHED", *many))
    shown = desk.on_a_terminal("--hpo-get", "s-1", NO_COLOR="1")
    assert "and 80 more" in shown and "\x1b" not in shown and len(shown.splitlines()) < 40


def test_the_best_value_is_drawn(desk: Desk, local: FakeServer) -> None:
    local.replies["GET", ONE] = answer(search("FINISHED", *DONE))
    shown = desk.run("--hpo-plot", "s-1")
    assert shown.code == 0 and "best accuracy of s-1" in shown.out
    assert shown.out.splitlines()[-2].split() == ["0", "experiment", "2"]
    rows = json.loads(desk.run("--hpo-plot", "s-1", "-o", "json").out)
    assert rows == [{"experiment": 0, "value": 0.5, "best": 0.5}, {"experiment": 1, "value": 0.9, "best": 0.9},
                    {"experiment": 2, "value": 0.7, "best": 0.9}]
    local.replies["GET", ONE] = answer(search("FINISHED", *DONE, objective="minimize"))
    assert [row["best"] for row in json.loads(desk.run("--hpo-plot", "s-1", "-o", "json").out)] == [0.5, 0.5, 0.5]
    local.replies["GET", ONE] = answer(search("RUNNING", FIRST))
    assert desk.run("--hpo-plot", "s-1").code == 1
    assert desk.run("--hpo-plot", "other").code == 6


def test_experiments_are_written_to_a_file(desk: Desk, local: FakeServer) -> None:
    odd = experiment(4, value=0.1, id=5, lr="word") | {"metrics": [{"name": "loss", "min": 1, "max": 2, "latest": 1.5}]}
    local.replies["GET", ONE] = answer(search("FINISHED", *DONE, odd))
    done = desk.run("--hpo-export", "s-1", "x.csv", "-o", "json")
    assert json.loads(done.out) == {"path": "x.csv", "rows": 5}
    rows = list(csv.DictReader((desk.folder / "x.csv").read_text().splitlines()))
    assert list(rows[0]) == ["id", "state", "value", "lr", "batch", "param id", "loss min", "loss max", "loss latest",
                             "exec", "startTime", "endTime", "message"]
    assert [row["value"] for row in rows] == ["0.5", "0.9", "0.7", "", "0.1"]
    assert rows[4]["param id"] == "5" and rows[4]["loss latest"] == "1.5" and rows[3]["exec"] == "local-4"
    assert desk.run("--hpo-export", "s-1", "x.txt").code == desk.run("--hpo-export", "s-1").code == 2


# Stops and algorithms


def test_a_search_is_stopped_at_once(desk: Desk, local: FakeServer) -> None:
    local.replies["PUT", f"{ONE}/force"] = Reply(204)
    assert desk.run("--hpo-stop", "s-1", "--force").out == "Stop hpo s-1 succeed. HTTP:204 \n"
    assert [seen.path for seen in local.requests("PUT")] == [f"{ONE}/force"]


def installed(seen: Seen) -> tuple[dict[str, Any], list[str]]:
    found = parts(seen)
    with tarfile.open(fileobj=io.BytesIO(found["file"][1]), mode="r:gz") as archive:
        return json.loads(found["data"][1]), archive.getnames()


def test_an_algorithm_is_installed(desk: Desk, local: FakeServer, tmp_path: Path) -> None:
    local.replies["POST", f"{PATH}/algorithm/install"] = Reply(200)
    folder = desk.model("halving", optimizer="class PluginOptimizer: pass\n", helper="")
    (folder / "inner").mkdir()
    done = desk.run("--hpo-algorithm-install", "halving", "--conda-env-name", "e", "--log-level", "DEBUG")
    assert done.code == 0 and "halving" in done.out
    data, names = installed(local.seen[-1])
    assert data == {"name": "halving", "condaEnv": "e", "logLevel": "DEBUG"} and names == ["helper.py", "optimizer.py"]
    assert desk.run("--hpo-algorithm-install", "halving/optimizer.py", "--name", "mine").code == 0
    assert installed(local.seen[-1]) == ({"name": "mine"}, ["optimizer.py"])
    (desk.folder / "packed.tar").write_bytes(b"anything")
    assert desk.run("--hpo-algorithm-install", "packed.tar").code == 0
    assert parts(local.seen[-1])["file"] == ("packed.tar", b"anything")
    os.remove(folder / "optimizer.py")
    assert desk.run("--hpo-algorithm-install", "halving").code == desk.run("--hpo-algorithm-install", "no").code == 2
    local.replies["POST", f"{PATH}/algorithm/install"] = Reply(400, b"Error 400: the name is taken.\n")
    done = desk.run("--hpo-algorithm-install", "packed.tar")
    assert done.code == 2 and "the name is taken" in done.err
