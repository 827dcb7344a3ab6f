"""Model definitions, hardware specifications and experiments: versions, sharing, checks and runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from live_server import Live, multipart, tar
from planning import CODE, Planning, accepted, zipped

from dlicmd.contract.states import KILLED, PENDING
from local_backend.services import team as services_team
from local_backend.settings import Quotas
from local_backend.store import execs
from local_backend.store.execs import ExecRow


@pytest.fixture
def mine(live: Live) -> Planning:
    return Planning(live)


@pytest.fixture
def team(start: Callable[..., Live]) -> Planning:
    return Planning(start(embedded=False))


def row_of(live: Live, exec_id: str) -> ExecRow:
    found = live.database.read(lambda c: execs.get(c, exec_id))
    assert found is not None
    return found


def test_a_saved_definition_is_found_with_its_code(mine: Planning) -> None:
    made = mine.defined(description="MNIST in small", environment={"LAYERS": "3"})
    assert (made["owner"], made["version"], made["framework"]) == ("alice", 1, "PyTorch")
    assert mine.get("/definitions").json() == [made] == [mine.get("/definitions/alice/digits").json()]
    code = mine.get("/definitions/digits/code").json()
    assert {file["path"]: file["text"] for file in code["files"]} == {
        "digits/lib/net.py": "LAYERS = 3\n", "digits/train.py": "print('trains')\n"}


def test_a_zip_file_is_code(mine: Planning) -> None:
    assert mine.defined(archive=zipped(CODE), file="code.zip")["bytes"] > 0
    assert len(mine.get("/definitions/digits/code").json()["files"]) == 2


def test_each_changed_save_makes_a_version_and_old_versions_stay(mine: Planning) -> None:
    mine.defined()
    assert mine.defined()["version"] == 1, "the same again"
    assert mine.defined(archive=b"", command="train.py --epochs 9")["version"] == 2, "new command, same code"
    mine.defined(archive=tar({"digits/train.py": b"print('new')\n"}))
    first = mine.get("/definitions/digits?version=1").json()
    assert (first["command"], first["versions"]) == ("train.py --epochs 2", 3)
    assert [one["version"] for one in mine.get("/definitions/digits/versions").json()] == [3, 2, 1]
    assert len(mine.get("/definitions/digits/code?version=1").json()["files"]) == 2
    assert mine.get("/definitions/digits?version=4").error == (404, "definition.not_found")


@pytest.mark.parametrize(("more", "code"), [
    ({"name": "a b"}, "definition.invalid"),
    ({"name": "code"}, "definition.invalid"),
    ({"archive": b""}, "definition.invalid"),
    ({"command": "other.py"}, "submission.no_program"),
    ({"framework": "tensorflow"}, "submission.framework"),
    ({"framework": "PyTroch"}, "submission.framework"),
    ({"environment": {"API_TOKEN": "x"}}, "definition.invalid"),
    ({"condaEnv": "no-such-env"}, "submission.environment"),
    ({"description": "x" * 3000}, "definition.invalid"),
    ({"archive": b"PK\x03\x04 no zip", "file": "x.zip"}, "submission.archive"),
    ({"archive": zipped({"../../evil.py": b"x"}), "file": "x.zip"}, "submission.archive"),
    ({"command": 3}, "body.value"),
    ({"sharedWith": ["no such/user"]}, "body.value"),
])
def test_wrong_definitions_are_refused_and_leave_nothing(mine: Planning, more: dict[str, object], code: str) -> None:
    assert mine.define(**more).error == (400, code)  # type: ignore[arg-type]
    assert mine.get("/definitions").json() == [] and mine.live.nothing_left()


def test_a_command_may_be_any_program(mine: Planning) -> None:
    mine.defined(command="torchrun --nproc-per-node 2 digits/train.py")
    mine.plan()
    exec_id = mine.run()["parts"][0]["execId"]
    command = row_of(mine.live, exec_id).workload.program.user_cmd
    assert command == ("torchrun", "--nproc-per-node", "2", "digits/train.py")


def test_a_private_definition_cannot_be_seen_or_used_by_others(team: Planning) -> None:
    bob, carol = team.as_user("bob"), team.as_user("carol")
    bob.defined("secret")
    assert carol.get("/definitions").json() == []
    for answer in (carol.get("/definitions/bob/secret"), carol.get("/definitions/bob/secret/code"),
                   carol.delete("/definitions/bob/secret"), carol.plan(definitions=[{"definition": "bob/secret"}])):
        assert answer.error == (404, "definition.not_found")
        assert answer.text.replace("bob/secret", "bob/unknown") == answer.text.replace("secret", "unknown")
    assert carol.define("bob/secret").error == (404, "definition.not_found")


def test_a_shared_definition_is_used_and_not_changed_by_others(team: Planning) -> None:
    bob, carol, dan = (team.as_user(name) for name in ("bob", "carol", "dan"))
    bob.defined(sharedWith=["carol"])
    assert [one["owner"] for one in carol.get("/definitions").json()] == ["bob"]
    assert dan.get("/definitions").json() == []
    assert carol.define("bob/digits").error == (403, "definition.of_another_user")
    assert carol.delete("/definitions/digits").error == (403, "definition.of_another_user")
    made = accepted(carol.plan(definitions=[{"definition": "digits"}]))
    assert made["definitions"][0]["definition"] == "bob/digits"
    exec_id = carol.run()["parts"][0]["execId"]
    assert row_of(team.live, exec_id).creator == "carol"
    assert bob.delete("/definitions/digits").error == (409, "definition.in_use")
    bob.defined(sharedWith=[])
    assert bob.get("/definitions/digits").json()["version"] == 1, "sharing is no new version"
    refused = carol.run()["parts"][0]
    assert (refused["code"], "execId" in refused) == ("definition.not_found", False)
    assert carol.defined()["owner"] == "carol", "a name of one's own"
    bob.defined(sharedWith="everybody")
    assert [one["owner"] for one in dan.get("/definitions").json()] == ["bob"]


def test_a_refusal_names_no_private_experiment_and_lasts_while_it_is_shared(team: Planning) -> None:
    bob, carol = team.as_user("bob"), team.as_user("carol")
    small = {"name": "tiny", "hardwareSpec": {"nodes": {"num_nodes": 1, "mem": {"size": "1g"}}}}
    bob.defined(sharedWith=["carol"])
    accepted(bob.post("/hardware", {**small, "sharedWith": ["carol"]}))
    accepted(carol.plan("merger", [{"definition": "digits", "hardware": "tiny"}]))
    for path, code in (("/definitions/digits", "definition.in_use"), ("/hardware/tiny", "hardware.in_use")):
        refused = bob.delete(path)
        assert refused.error == (409, code) and "merger" not in refused.text and "1 of other users" in refused.text
        assert "carol/merger" in team.delete(path.replace("/digits", "/bob/digits").replace("/tiny", "/bob/tiny")).text
    bob.defined(sharedWith=[])
    accepted(bob.post("/hardware", {**small, "sharedWith": []}))
    assert bob.delete("/definitions/digits").status == 204 and bob.delete("/hardware/tiny").status == 204
    assert carol.run("merger")["parts"][0]["code"] == "definition.not_found"
    assert carol.get("/experiments/merger").status == 200 and carol.delete("/experiments/merger").status == 204


def test_the_texts_of_a_user_are_bounded(mine: Planning, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services_team, "MOST_CHARACTERS", 30_000)
    mine.defined("a", environment={"LONG": "x" * 40_000})
    assert mine.defined("a", environment={"LONG": "x" * 40_000})["version"] == 1
    assert mine.define("b").error == (507, "quota.team_objects")
    assert mine.delete("/definitions/a").status == 204
    mine.defined("b")


def test_predefined_hardware_says_what_this_machine_lacks(mine: Planning) -> None:
    found = {one["name"]: one for one in mine.get("/hardware").json()}
    assert found["XS"]["usable"] and found["XS"]["predefined"]
    assert not found["GPU-4"]["usable"] and "GPU" in found["GPU-4"]["message"]
    assert mine.post("/hardware", {"name": "XS", "hardwareSpec": {}}).error == (409, "hardware.predefined")
    assert mine.delete("/hardware/XS").error == (409, "hardware.predefined")


def test_own_hardware_has_versions_and_is_fixed_in_experiments(mine: Planning) -> None:
    small = {"nodes": {"num_nodes": 1, "mem": {"size": "1g"}, "gpu": {"num_gpu": 0}}}
    large = {"nodes": {"num_nodes": 1, "mem": {"size": "2g"}, "gpu": {"num_gpu": 0}}}
    accepted(mine.post("/hardware", {"name": "tiny", "hardwareSpec": small}))
    mine.defined()
    accepted(mine.plan(definitions=[{"definition": "digits", "hardware": "tiny"}]))
    assert accepted(mine.post("/hardware", {"name": "tiny", "hardwareSpec": large}))["version"] == 2
    assert [one["version"] for one in mine.get("/hardware/tiny/versions").json()] == [2, 1]
    assert mine.get("/hardware/tiny?version=1").json()["hardwareSpec"] == small
    assert row_of(mine.live, mine.run()["parts"][0]["execId"]).workload.resources.memory == 1 << 30
    assert mine.delete("/hardware/tiny").error == (409, "hardware.in_use")
    assert mine.delete("/experiments/first").status == 204
    assert mine.delete("/hardware/tiny").status == 204


@pytest.mark.parametrize(("spec", "code"), [
    ({"nodes": 3}, "submission.hardware"), ({"nodes": {"mem": {"size": "much"}}}, "submission.hardware"),
    ({"nodes": {"gpu": {"num_gpu": "x"}}}, "submission.hardware"),
    ({"nodes": {"gpu": {"num_gpus": 1}}}, "submission.hardware"),
    ({"nodes": {"num_drivers": -1}}, "submission.hardware"), ([], "body.value"),
    ({"nodes": {"num_nodes": 1}, "gpu": {"num_gpu": 1}}, "submission.hardware"),
    ({"name": "XS"}, "hardware.invalid"), ({"id": "7"}, "hardware.invalid"),
])
def test_wrong_hardware_is_refused(mine: Planning, spec: object, code: str) -> None:
    assert mine.post("/hardware", {"name": "x", "hardwareSpec": spec}).error == (400, code)


def test_an_experiment_runs_one_exec_for_each_definition(mine: Planning) -> None:
    mine.defined()
    mine.defined("elastic", framework="edtPyTorch")
    (mine.live.settings.data_fs / "mnist").mkdir(parents=True)
    made = accepted(mine.plan(definitions=[
        {"definition": "digits", "device": "cpu", "hardware": "XS"},
        {"definition": "elastic", "numWorker": 2, "minWorkers": 1, "command": "train.py --epochs 7"},
        {"definition": "digits", "nodes": "multi", "numWorker": 2},
    ], command="train.py --all", dataSource=[{"type": "fs", "location": {"paths": "mnist"}}]))
    assert made["definitions"][1] == {"definition": "alice/elastic", "version": 1, "numWorker": 2, "minWorkers": 1,
                                      "command": "train.py --epochs 7"}
    run = mine.run()
    rows = [row_of(mine.live, part["execId"]) for part in run["parts"]]
    assert [row.framework for row in rows] == ["PyTorch", "edtPyTorch", "distPyTorch"]
    assert [row.workload.program.arguments for row in rows] == [("--all",), ("--epochs", "7"), ("--all",)]
    assert [row.app_name for row in rows] == ["first-digits", "first-elastic", "first-digits"]
    assert rows[1].workload.resources.min_workers == 1 and rows[0].workload.resources.memory == 2 << 30
    assert all(row.workload.data.data_dir.endswith("/mnist") for row in rows)
    assert run["complete"] and mine.get("/experiments/first/runs").json() == [run]
    assert mine.get("/experiments").json()[0]["lastRun"] == run


def test_a_new_version_of_a_definition_does_not_change_an_experiment(mine: Planning) -> None:
    mine.defined()
    mine.plan()
    mine.defined(archive=tar({"digits/train.py": b"print('new')\n"}))
    exec_id = mine.run()["parts"][0]["execId"]
    assert (mine.live.paths(exec_id).submitted / "digits/train.py").read_bytes() == CODE["digits/train.py"]
    assert accepted(mine.plan())["version"] == 2
    exec_id = mine.run()["parts"][0]["execId"]
    assert (mine.live.paths(exec_id).submitted / "digits/train.py").read_bytes() == b"print('new')\n"
    first = accepted(mine.post("/experiments/first/run?version=1"))
    assert first["version"] == 1 and first["parts"][0]["version"] == 1


def test_the_check_names_every_mistake_and_its_place(mine: Planning) -> None:
    mine.defined()
    found = accepted(mine.post("/experiments/check", {"name": "a b", "dataSource": [{"type": "fs", "location": {
        "paths": "../../etc"}}], "definitions": [{"definition": "none"}, {"definition": "digits"}]}))
    assert {one["field"]: one["code"] for one in found["problems"]} == {
        "name": "experiment.invalid", "dataSource": "submission.data_source",
        "definitions.0.definition": "definition.not_found"}
    found = accepted(mine.post("/experiments/check", {"name": "a", "definitions": [
        {"definition": "digits", "nodes": "elastic", "numWorker": 2, "minWorkers": 2},
        {"definition": "digits", "hardware": "GPU-4"}, {"definition": "digits", "nodes": "twisted"},
        {"definition": "digits", "command": "nothing.py"}, {"definition": "digits", "hardware": "unknown"}]}))
    assert found["definitions"] == ["elastic, 2 slots, PyTorch", None, None, None, None]
    assert [(one["field"], one["code"]) for one in found["problems"]] == [
        ("definitions.1.hardware", "submission.never_schedulable"), ("definitions.2.nodes", "experiment.invalid"),
        ("definitions.3.command", "submission.no_program"), ("definitions.4.hardware", "hardware.not_found")]


@pytest.mark.parametrize(("more", "error"), [
    ({"definitions": []}, (400, "experiment.invalid")),
    ({"definitions": [{"definition": "digits", "hardware": "GPU-1"}]}, (400, "submission.never_schedulable")),
    ({"definitions": [{"definition": "digits", "nodes": "multi", "numWorker": 9}]},
     (400, "submission.never_schedulable")),
    ({"definitions": [{"definition": "digits", "version": 2}]}, (404, "definition.not_found")),
    ({"definitions": [{"definition": "digits", "numWorker": 0}]}, (400, "body.value")),
    ({"dataSource": [{"type": "connection", "connection": {"name": "none"}}]}, (400, "submission.data_source")),
    ({"dataSource": [{"type": "s3", "connection": {"type": "s3", "secret_access_key": "x"}}]},
     (400, "experiment.invalid")),
    # A connection with a type is written out, even if it has a name.
    ({"dataSource": [{"type": "connection", "connection": {"type": "s3", "name": "lake", "secret_key": "x"}}]},
     (400, "experiment.invalid")),
    ({"definitions": [{"definition": "digits", "hardware": {"name": "XS"}}]}, (400, "hardware.invalid")),
    ({"name": "run"}, (400, "experiment.invalid")),
])
def test_what_can_never_run_is_not_saved(mine: Planning, more: dict[str, object], error: tuple[int, str]) -> None:
    mine.defined()
    assert mine.plan(**more).error == error  # type: ignore[arg-type]
    assert mine.get("/experiments").json() == []


def test_a_refused_definition_stops_no_other_and_a_retry_submits_only_what_is_missing(
    start: Callable[..., Live],
) -> None:
    live = start(embedded=False, quotas=Quotas(active_execs=1))
    bob = Planning(live).as_user("bob")
    bob.defined()
    bob.defined("second")
    bob.plan(definitions=[{"definition": "digits"}, {"definition": "second"}])
    first = bob.run(**{"Idempotency-Key": "k1"})
    assert [part.get("code") for part in first["parts"]] == [None, "quota.active"] and not first["complete"]
    assert bob.run(**{"Idempotency-Key": "k1"})["parts"][1]["code"] == "quota.active"
    live.move(first["parts"][0]["execId"], PENDING, KILLED)
    second = bob.run(**{"Idempotency-Key": "k1"})
    assert second["complete"] and second["run"] == first["run"]
    assert second["parts"][0]["execId"] == first["parts"][0]["execId"] and "code" not in second["parts"][1]
    assert len(live.database.read(execs.all_ids)) == 2
    assert bob.post(f"/experiments/first/runs/{first['run']}").error == (409, "experiment.complete")


def test_the_missing_execs_of_a_run_can_be_submitted_later(team: Planning) -> None:
    bob, carol = team.as_user("bob"), team.as_user("carol")
    bob.defined(sharedWith=["carol"])
    carol.plan(definitions=[{"definition": "digits"}])
    bob.defined(sharedWith=[])
    run = carol.run()
    assert not run["complete"]
    bob.defined(sharedWith="everybody")
    done = accepted(carol.post(f"/experiments/first/runs/{run['run']}"))
    assert done["complete"] and done["run"] == run["run"]
    assert bob.post(f"/experiments/carol/first/runs/{run['run']}").error == (404, "experiment.not_found")
    assert carol.post("/experiments/first/runs/99").error == (404, "experiment.run_not_found")


def test_code_stays_while_a_version_or_an_exec_names_it(mine: Planning) -> None:
    mine.defined()
    mine.plan()
    exec_id = mine.run()["parts"][0]["execId"]
    assert len(list(mine.live.settings.paths.bundles.iterdir())) == 1
    mine.delete("/experiments/first")
    assert mine.delete("/definitions/digits").status == 204
    assert len(list(mine.live.settings.paths.bundles.iterdir())) == 1
    mine.live.forget(exec_id)
    assert mine.live.nothing_left()


def test_lost_code_is_reported_for_its_definition(mine: Planning) -> None:
    mine.defined()
    mine.plan()
    for bundle in mine.live.settings.paths.bundles.iterdir():
        bundle.rename(bundle.parent.parent / "away")
    assert mine.run()["parts"][0]["code"] == "definition.code_gone"


def test_a_body_that_is_no_form_is_refused(mine: Planning) -> None:
    body, kind = multipart([("data", None, b"[1]")])
    assert mine.live.call("POST", "/definitions", body, {"Content-Type": kind}).error == (400, "body.value")
    body, kind = multipart([("data", None, b"{")])
    assert mine.live.call("POST", "/definitions", body, {"Content-Type": kind}).error == (400, "body.json")
