"""The REST contract, with the effects of calls on disk and database. Tests of a client's view: tests/contract."""

from __future__ import annotations

import math

import pytest
from live_server import Live, multipart, quoted, tar
from support import eventually

from dlicmd.contract import states, wire
from local_backend.api.app import application

SINGLE = "--exec-start PyTorch --model-main main.py"


def test_point_2_conf_is_a_flat_map_of_strings(live: Live) -> None:
    conf = live.call("GET", "/conf").json()
    assert conf["MSD_ENABLED"].lower() == "true"
    assert all(isinstance(value, str) for value in conf.values())
    assert conf["DLICMD_EXTENSIONS"].split(",") == [
        "argv", "follow", "slots", "why", "slot-view", "holdings", "idempotency-key", "connections",
        "data-preview", "data-upload", "stop-many", "metrics", "curves", "resources", "code", "files", "log-lines",
        "verify", "again",
        "create-data-path", "searches", "models", "labels", "views", "experiments",
        "allow-cpu",
        "check", "local-paths", "staged-folder",
    ]


def test_point_2_a_shared_server_does_not_offer_local_paths(start) -> None:
    live = start(embedded=False)
    offered = live.call("GET", "/conf").json()["DLICMD_EXTENSIONS"]
    assert offered == ("argv,follow,slots,why,slot-view,holdings,idempotency-key,connections,data-preview,"
                       "data-upload,stop-many,"
                       "metrics,curves,resources,code,files,log-lines,verify,again,create-data-path,searches,models,labels,views,"
                       "experiments,"
                       "allow-cpu,check")


def test_point_4_a_submission_returns_id_and_app_id(live: Live) -> None:
    answer = live.submit(SINGLE, {"main.py": b"print(1)"})
    assert answer.status == 200
    assert answer.json()["id"] == answer.json()["appId"] == answer.json()["submissionId"]
    assert live.supervisor.woken == 1


def test_point_4_first_generation_clients_find_their_fields(live: Live) -> None:
    """Contract, section 0: 'G1 notebooks also index `sigId` and `submissionId`'; all values are scalars (2.1)."""
    body, kind = multipart([("file", "main.py", b"1")])
    path = f"/execs?sigName=dli-edt&args={quoted(SINGLE)}"
    submitted = live.call("POST", path, body, {"Content-Type": kind}).json()
    assert submitted["sigName"] == "dli-edt" and submitted["userName"] == "alice" and submitted["submissionId"]
    assert {"masterURL", "executionUserName"} <= set(submitted)
    assert submitted["sigId"] == live.call("GET", "/scheduler/instances").json()[0]["uuid"]
    shown = live.call("GET", f"/execs/{submitted['id']}").json()
    assert shown == submitted and not any(isinstance(value, dict | list) for value in shown.values())
    (detail,) = live.call("GET", f"/scheduler/applications?applicationid={submitted['id']}").json()
    assert detail["type"] == "BATCH" and detail["applicationid"] == submitted["id"] and len(detail["task12n"]) == 1


def test_point_8_kubernetes_objects_describe_job_and_pods(live: Live) -> None:
    exec_id = live.submitted("--exec-start edtPyTorch --model-main main.py --numWorker 2 --workerMemory 8g")
    for kind in ("paralleljob", "pod", "anything"):
        assert isinstance(live.call("GET", f"/scheduler/kubernetesobjects?type={kind}").json()["items"], list)
    job = live.call("GET", f"/scheduler/kubernetesobjects?type=paralleljob&name={exec_id}").json()
    assert job["status"]["jobStatus"] == "Pending" and job["status"]["creationTimestamp"].endswith("Z")
    assert [group["metadata"]["name"] for group in job["spec"]["taskGroups"]] == ["task0", "task12n"]
    container = job["spec"]["taskGroups"][1]["spec"]["template"]["spec"]["containers"][0]
    assert container["name"] == "msdtask" and container["resources"]["limits"]["memory"] == "8192.000000Mi"
    assert job["spec"]["taskGroups"][1]["spec"]["replica"] == 2
    live.move(exec_id, states.PENDING, states.RUNNING)
    live.say(exec_id, {}, workers=(7, 12))
    pods = live.call("GET", "/scheduler/kubernetesobjects?type=pod").json()["items"]
    assert {pod["metadata"]["labels"]["controller-uid"] for pod in pods} == {job["metadata"]["uid"]}
    assert len({pod["metadata"]["name"] for pod in pods}) == 3
    assert all(pod["status"]["podIP"] and pod["spec"]["nodeName"] for pod in pods)


def test_point_10_only_three_states_end_an_exec() -> None:
    assert sorted(states.TERMINAL) == ["ERROR", "FINISHED", "KILLED"]


def test_an_exec_object_contains_times_and_progress(live: Live) -> None:
    exec_id = live.submitted()
    live.say(exec_id, {"epoch": 2, "loss": math.nan, "accuracy": 0.5, "workers": 1, "note": "x"})
    live.move(exec_id, states.PENDING, states.RUNNING)
    shown = live.call("GET", f"/execs/{exec_id}").json()
    assert shown["epoch"] == 2 and shown["accuracy"] == 0.5 and shown["workers"] == 1
    assert "loss" not in shown and "note" not in shown and shown["startTime"].endswith("Z")
    live.move(exec_id, states.ERROR, message="it broke", reason=wire.PROGRAM_FAILED, exit_code=7)
    shown = live.call("GET", f"/execs/{exec_id}").json()
    assert (shown["message"], shown["reason"], shown["exitCode"]) == ("it broke", "PROGRAM_FAILED", 7)
    assert "workers" not in shown and shown["endTime"].endswith("Z")


def test_an_ended_exec_reports_whether_it_has_a_result(live: Live) -> None:
    with_model, without = live.submitted(), live.submitted()
    (live.paths(with_model).model / "final.pth").write_bytes(b"weights")
    assert "hasResult" not in live.call("GET", f"/execs/{with_model}").json()
    for exec_id, expected in ((with_model, True), (without, False)):
        live.move(exec_id, states.KILLED)
        assert live.call("GET", f"/execs/{exec_id}").json()["hasResult"] is expected


def test_the_list_is_filtered_sorted_and_limited(live: Live) -> None:
    ids = [live.submitted() for _ in range(3)]
    live.move(ids[1], states.KILLED)

    def listed(query: str) -> list[str]:
        return [item["id"] for item in live.call("GET", f"/execs?{query}").json()]

    assert listed("") == ids
    assert listed("limit=2&sort_by=id:desc") == ids[:0:-1]
    assert listed("state=KILLED") == [ids[1]]
    assert listed("state=SUBMITTED,KILLED&sort_by=state:asc&limit=1") == [ids[1]]
    assert listed("state=pending,PENDING_PJ") == [one for one in ids if one != ids[1]], "people see these names"
    for query, total in (("limit=1", len(ids)), ("limit=1&state=KILLED", 1), ("", len(ids)), ("limit=0", len(ids))):
        assert live.call("GET", f"/execs?{query}").headers["x-total-count"] == str(total), query
    assert listed("limit=0") == []


@pytest.mark.parametrize(
    ("query", "code"), [
        ("limit=-1", "query.number"), ("limit=x", "query.number"), ("limit=1.5", "query.number"),
        ("limit=%EF%BC%91", "query.number"), ("state=DONE", "query.state"), ("sort_by=args", "query.sort"),
        ("sort_by=id:up", "query.sort"),
    ]
)
def test_the_list_refuses_bad_filters(live: Live, query: str, code: str) -> None:
    answer = live.call("GET", f"/execs?{query}")
    assert answer.error == (400, code) and answer.text.startswith("Error 400: ") and answer.text.endswith(".\n")


@pytest.mark.parametrize("exec_id", ["local-99", "wmla-1", "..", "%2e%2e%2fx", "local-1%2Flog", "local-0", "x" * 300])
def test_an_unknown_id_is_refused_with_text(live: Live, exec_id: str) -> None:
    for method, action in (
        ("GET", ""), ("DELETE", ""), ("POST", "/stop"), ("GET", "/log"), ("GET", "/result"), ("GET", "/follow"),
        ("GET", "/files"), ("GET", "/files/content?path=a"), ("GET", "/lines"),
    ):
        answer = live.call(method, f"/execs/{exec_id}{action}")
        assert answer.error in {(400, "exec.not_found"), (404, "http.no_such_path"), (405, "http.method")}, answer
    assert live.call("GET", "/execs/local-99").text == "Error 400: Exec 'local-99' is not found.\n"


def test_an_exec_is_stopped_and_deleted(live: Live) -> None:
    first, second = live.submitted(), live.submitted()
    assert live.call("POST", f"/execs/{first}/stop").status == 204
    assert live.row(first).stop_requested and live.row(first).state == "SUBMITTED"
    live.move(first, states.KILLED)
    again = live.call("POST", f"/execs/{first}/stop")
    assert again.error == (400, "exec.ended") and "KILLED" in again.text
    assert live.call("PUT", f"/scheduler/applications/{second}/stop").status == 200
    assert live.row(second).stop_requested
    assert live.call("DELETE", f"/execs/{second}").status == 204
    assert live.row(second).deleted and live.call("GET", f"/execs/{second}").status == 400
    assert live.call("DELETE", f"/execs/{second}").status == 400


def test_the_catalog_lists_all_frameworks(live: Live) -> None:
    catalogue = {item["name"]: item for item in live.call("GET", "/execs/frameworks").json()}
    assert list(catalogue) == ["PyTorch", "distPyTorch", "disttensorflow", "edtPyTorch", "edtTensorflow", "tensorflow"]
    assert catalogue["PyTorch"]["maxWorkers"] == 1 and catalogue["distPyTorch"]["hasTask0"] == "false"
    assert all(item["description"] == "" and item["desc"] for item in catalogue.values())
    assert all(isinstance(line, str) for item in catalogue.values() for line in item["desc"])
    names = live.call("GET", "/frameworks/all").json()
    assert set(names) == set(catalogue)
    assert [item["name"] for item in live.call("GET", "/frameworks?backend=PyTorch").json()] == [
        "PyTorch", "distPyTorch", "edtPyTorch",
    ]


def test_status_and_instances_are_reported(live: Live) -> None:
    live.submitted()
    status = live.call("GET", "/status").json()
    assert status["slots"] == {"total": 2, "held": 0} and status["uptime"] >= 0 and status["jobs"] == {"SUBMITTED": 1}
    assert live.call("GET", "/scheduler/instances").json()[0]["state"] == "STARTED"


def test_applications_are_listed(live: Live) -> None:
    first = live.submitted("--exec-start edtPyTorch --numWorker 3 --model-main main.py --appName first")
    second = live.submitted()
    (found,) = live.call("GET", f"/scheduler/applications?applicationid={first}").json()
    assert found["task0"] and found["task12n"] == [] and found["applicationname"] == "first"
    listed = live.call("GET", "/scheduler/engine/applications?sort=-submit_time&state=SUBMITTED,RUNNING").json()
    assert {item["id"] for item in listed} == {first, second}
    assert live.call("GET", "/scheduler/engine/applications?start=1&length=1").json()[0]["id"] == second
    assert live.call("GET", "/scheduler/engine/applications?sort=nothing").status == 400
    assert live.call("GET", "/scheduler/applications?start=3").status == 416
    assert live.call("GET", "/scheduler/applications?applicationid=x").json() == []


def test_a_server_error_is_text_without_traceback(
    live: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> dict[str, object]:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(live.supervisor, "status", broken)
    answer = live.call("GET", "/status")
    assert answer.error == (500, "server.failed") and "secret" not in answer.text
    eventually(lambda: "RuntimeError: secret detail" in caplog.text, "the traceback is in the log")


def test_only_the_result_of_a_finished_exec_is_deployed(live: Live) -> None:
    answer = live.call("POST", f"/execs/{live.submitted()}/deploy", b"{}")
    assert answer.error == (409, "exec.not_finished")
    assert live.call("POST", "/execs/local-99/deploy").error == (400, "exec.not_found")


def test_an_unknown_path_or_method_is_refused(live: Live) -> None:
    assert live.call("GET", "/nothing").error == (404, "http.no_such_path")
    assert live.call("PATCH", "/execs").error == (405, "http.method")


def test_applications_derive_no_route_again() -> None:
    """To derive all of them takes longer than a hundred calls."""
    one, other = (set(map(id, application().router.routes)) for _ in range(2))
    assert len(one & other) >= len(one) - 1 > 150, "/openapi.json belongs to one application"


def test_openapi_describes_every_path(live: Live) -> None:
    described = live.call("GET", "/openapi.json", base="").json()["paths"]
    assert wire.EXECS + "/{exec_id}/follow" in described


def test_an_archive_submission_is_stored_on_disk(live: Live) -> None:
    content = tar({"digits/": b"", "digits/train.py": b"code", "digits/._train.py": b"x", "digits/.DS_Store": b"x"})
    args = "--exec-start edtPyTorch --model-dir digits --model-main samples/digits/train.py --numWorker 2 -- --epochs 1"
    answer = live.submit(args, {"tmpab12.modelDir.tar": content})
    assert answer.status == 200, answer.text
    exec_id = answer.json()["id"]
    paths, spec = live.paths(exec_id), live.row(exec_id).workload
    program = spec.program
    assert (program.model_dir, program.main, program.arguments) == ("digits", "train.py", ("--epochs", "1"))
    assert sorted(path.name for path in paths.code(spec).iterdir()) == ["train.py"]
    assert answer.json()["workDir"] == str(paths.code(spec)) and answer.json()["elastic"] is True
    assert paths.model.is_dir() and paths.logs.is_dir() and paths.checkpoint.is_dir()
    assert paths.root.stat().st_mode & 0o777 == 0o700
    assert paths.spec.stat().st_mode & 0o777 == 0o600
