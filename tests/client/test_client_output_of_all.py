"""`-o json`: every command prints 1 JSON document; `-o jsonl` prints 1 object per line."""

from __future__ import annotations

import io
import json
import zipfile

import pytest
import yaml
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply, exec_object

from dlicmd.cli.commands.table import COMMANDS
from dlicmd.contract import wire

TEXT = {name for name in COMMANDS if "logs" in name} | {"--completion"}
#: Commands that have tests of their own.
ELSEWHERE = {"--demo", "--hpo-start", "--logon", "--open"}
OPERANDS = {
    "--exec-start": ["PyTorch", "--model-dir", "model", "--model-main", "train.py"],
    **{name: ["w-1", "w-2"] for name in ("--exec-diff", "--app-stop", "--hpo-stop", "--hpo-delete")},
    "--k8s-obj-get-all": ["pod"], "--k8s-obj-get": ["pod", "p"],
    "--exec-resize": ["w-1", "2"], "--server": ["ls"],
    "--hpo-algorithm-install": ["algorithm"], "--hpo-export": ["w-1", "experiments.csv"],
    "--rp-apply": ["plans.yaml"], "--exec-deploy": ["w-1", "--kernel", "k.py"], "--data-preview": ["train"],
    "--definition-save": ["definition.json", "--model-dir", "model"], "--hardware-save": ["hardware.json"],
    "--experiment-save": ["experiment.yaml"],
}
ALONE = {
    "--version", "--logoff", "--status", "--config-show", "--dl-frameworks", "--exec-get-all", "--exec-delete-all",
    "--app-get-all", "--app-history-get-all", "--app-stop-all", "--app-analyze", "--top", "--rp-get-all", "--rp-usage",
    "--pj-get-all", "--hpo-get-all", "--hpo-delete-all", "--hpo-algorithm-get-all", "--whoami",
    "--console", "--definition-get-all", "--hardware-get-all", "--experiment-get-all",
}
LISTED = f"{BASE}/scheduler/engine/applications"
APP = {"id": "w-1", "state": "FINISHED", "name": "n", "createTime": "2026-01-01T00:00:00Z"}
SEARCH = {"hpoName": "w-1", "state": "RUNNING", "experiments": []}
TREE = f"{BASE}/resplans/resplantree"
SEARCHES = f"{BASE}/hypersearch"
RUN = {"run": 1, "experiment": "ann/w-1", "version": 1, "creator": "ann", "created": "2026-01-01T00:00:00.000000Z",
       "complete": True, "parts": [{"definition": "ann/net", "version": 1, "execId": "w-1", "state": "FINISHED"}]}
#: The objects of teams, by the paths of their lists.
OF_TEAMS = {
    wire.DEFINITIONS: {
        "name": "w-1", "owner": "ann", "version": 1, "versions": 1, "description": "", "framework": "PyTorch",
        "command": "train.py", "environment": {}, "bytes": 9, "sharedWith": ["bea"]},
    wire.HARDWARE: {
        "name": "w-1", "owner": "ann", "version": 1, "versions": 1, "predefined": False, "description": "",
        "hardwareSpec": {"nodes": {"cpu": {"units": "2"}}}, "usable": False, "message": "no GPU", "sharedWith": []},
    wire.PLANS_OF_EXPERIMENTS: {
        "name": "w-1", "owner": "ann", "version": 1, "versions": 1, "description": "", "dataSource": [],
        "createDataPath": False, "command": "", "sharedWith": "everybody", "lastRun": RUN,
        "definitions": [{"definition": "ann/net", "version": 1, "nodes": "single", "numWorker": 1, "device": "cpu"}]},
}
#: Answers in JSON.
JSON = {
    ("GET", LISTED): [APP | {"state": "RUNNING"}], ("GET", f"{LISTED}/w-1"): [APP],
    ("GET", f"{BASE}/scheduler/slots"): {"slots": []},
    ("GET", f"{BASE}/scheduler/holdings"): {"rows": []}, ("GET", f"{BASE}/execs/w-1/why"): {"id": "w-1"},
    ("GET", TREE): {"id": "local"}, ("PUT", TREE): {"id": "local"}, ("GET", wire.plan_path("w-1")): {"id": "w-1"},
    ("GET", SEARCHES): [SEARCH], ("GET", f"{SEARCHES}/w-1"): SEARCH, ("GET", f"{SEARCHES}/algorithm"): [{"name": "a"}],
    ("GET", f"{SEARCHES}/algorithm/w-1"): {"name": "w-1"},
    ("POST", f"{SEARCHES}/algorithm/install"): {"name": "algorithm"},
    ("POST", f"{BASE}/data/preview"): [{"name": "d", "ok": True}],
    ("POST", f"{BASE}/execs/w-1/verify"): {"id": "w-2", "appId": "w-2"},
    ("POST", wire.LINK): {"url": "http://127.0.0.1:1/console/link/x", "seconds": 60},
    **{("GET", top): [value] for top, value in OF_TEAMS.items()},
    **{("POST", top): value for top, value in OF_TEAMS.items()},
    **{("GET", f"{top}/w-1"): value for top, value in OF_TEAMS.items()},
    ("POST", f"{wire.PLANS_OF_EXPERIMENTS}/w-1/run"): RUN, ("GET", f"{wire.PLANS_OF_EXPERIMENTS}/w-1/runs"): [RUN],
}
#: Calls that answer with plain text.
WORDS = [
    ("PUT", f"{BASE}/scheduler/applications/w-1/stop"), ("PUT", f"{BASE}/scheduler/applications/w-2/stop"),
    ("DELETE", wire.plan_path("w-1")), ("PUT", f"{SEARCHES}/w-1"), ("PUT", f"{SEARCHES}/w-2"),
    ("DELETE", f"{SEARCHES}/w-1"), ("DELETE", f"{SEARCHES}/w-2"), ("DELETE", SEARCHES),
    ("PUT", f"{SEARCHES}/w-1/restart"), ("DELETE", f"{SEARCHES}/algorithm/w-1"), ("POST", f"{BASE}/execs/w-1/deploy"),
]


@pytest.fixture
def everything(local: FakeServer) -> FakeServer:
    """A server that has an answer for every command."""
    extensions = {value for name, value in vars(wire).items() if name.startswith("EXT_")}
    local.conf["DLICMD_EXTENSIONS"] = ",".join(extensions - {wire.EXT_STOP_MANY, wire.EXT_FOLLOW})
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("model.pt", b"1")
    local.curves["w-1"] = [{"name": "loss", "points": [[1, 0.5]]}]
    local.results["w-1"] = Reply(200, packed.getvalue(), {"Content-Type": "application/zip"})
    local.replies |= {call: Reply(200, json.dumps(value).encode()) for call, value in JSON.items()}
    local.replies |= dict.fromkeys(WORDS, Reply(200, b"so be it\n"))
    local.replies |= {("DELETE", f"{top}/w-1"): Reply(204) for top in OF_TEAMS}
    local.replies["POST", f"{BASE}/execs/check"] = Reply(204)
    local.replies["GET", wire.VALIDATE] = Reply(200, b'{"username": "ann", "role": "User"}')
    labels = b'[{"id": "w-1", "tags": [], "note": "", "favorite": true}]'
    local.replies["POST", f"{BASE}/execs/labels"] = Reply(200, labels)
    local.replies["PUT", f"{BASE}/execs/w-1/slots"] = Reply(200, b'{"id": "w-1", "before": 1, "slots": 2}')
    return local


#: Commands whose YAML is compared, too: a list, an object, an object of the client itself.
YAML = {"--exec-get-all", "--exec-get", "--exec-trainresult"}


@pytest.mark.integration
@pytest.mark.parametrize("name", sorted({*COMMANDS} - TEXT - ELSEWHERE))
def test_standard_output_is_only_json(desk: Desk, everything: FakeServer, name: str) -> None:
    desk.model()
    (desk.folder / "k.py").write_text("")
    (desk.folder / "algorithm").mkdir()
    (desk.folder / "algorithm" / "optimizer.py").write_text("")
    (desk.folder / "plans.yaml").write_text("plans: []\n")
    (desk.folder / "definition.json").write_text('{"name": "w-1", "framework": "PyTorch"}')
    (desk.folder / "hardware.json").write_text('{"name": "w-1", "hardwareSpec": {"nodes": {"cpu": {"units": "2"}}}}')
    (desk.folder / "experiment.yaml").write_text("name: w-1\ndefinitions: [{definition: net}]\n")
    words = [name, *OPERANDS.get(name, [] if name in ALONE else ["w-1"])]
    found = {}
    for form in ("json", "jsonl") if name not in YAML else ("json", "yaml", "jsonl"):
        everything.execs |= {one: exec_object(one, state="FINISHED") for one in ("w-1", "w-2")}
        everything.logs["w-1"] = "Train, Iteration 1, loss 0.5\nIteration 1: tag train_loss, simple_value 0.5\n"
        for file in ("dlpd-model-w-1-result.zip", "experiments.csv"):
            (desk.folder / file).unlink(missing_ok=True)
        done = desk.run(*words, "-o", form)
        assert done.code == 0, done
        found[form] = done.out
    said = json.loads(found["json"])
    lines = [json.loads(line) for line in found["jsonl"].splitlines()]
    if name not in ("--exec-start", "--config-show"):  # another id, another form
        assert "yaml" not in found or said == yaml.safe_load(found["yaml"])
        assert lines == (said if isinstance(said, list) else [said])
    assert all(isinstance(line, dict) for line in lines)


def test_failures_are_reported_as_json_too(desk: Desk, everything: FakeServer) -> None:
    everything.execs["w-1"] = exec_object("w-1", state="FINISHED")
    everything.replies["POST", f"{BASE}/execs/w-1/stop"] = Reply(400, b"Error 400: Exec w-1 has ended.\n")
    everything.replies["PUT", WORDS[1][1]] = Reply(404, b"Error 404: Unknown.\n")
    everything.replies["GET", f"{LISTED}/w-2"] = Reply(200, b"[]")
    done = desk.run("--exec-stop", "w-1", "-o", "json")
    assert (done.code, done.error) == (1, "server.refused") and "w-1" in done.err
    told = json.loads(done.out)
    assert (told["id"], told["ok"], told["status"]) == ("w-1", False, 400) and "has ended" in told["message"]
    done = desk.run("--app-stop", "w-1", "w-2", "-o", "json")
    assert (done.code, done.error) == (6, "application.not_found") and "w-2" in done.err
    assert [(one["id"], one["ok"]) for one in json.loads(done.out)] == [("w-1", True), ("w-2", False)]


@pytest.mark.parametrize("form", [["-o", "json"], ["-ojson"], ["--output=jsonl"], ["--output", "jsonl"]])
def test_a_wrong_command_line_is_reported_as_json_too(desk: Desk, form: list[str]) -> None:
    for wrong in (["--exec-get", "w-1", "--no-such-option"], ["--exec-get"], ["--profile", "absent", "--status"]):
        done = desk.run(*wrong, *form)
        assert (done.code, done.error, done.out) == (2, "client.usage", ""), wrong
    assert not desk.run("--exec-get", "--", *form).err.startswith("{"), "words of the program select no output"
