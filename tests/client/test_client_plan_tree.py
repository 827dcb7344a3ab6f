"""Resource plans with their jobs, parallel jobs, and other objects of the cluster."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from client_desk import Desk
from fake_server import BASE, PARALLEL_JOB, FakeServer, Reply, Seen

ENGINE = f"{BASE}/scheduler/engine/applications"
OBJECTS = f"{BASE}/scheduler/kubernetesobjects"
TREE = f"{BASE}/resplans/resplantree"
#: Contract, 2.5: `{id: string, pid: string (parent id), childTreeDto: [node…] | absent}`.
PLANS: dict[str, Any] = {"id": "cpd", "pid": "", "weight": 1.0, "childTreeDto": [
    {"id": "training", "pid": "cpd", "max": 8, "childTreeDto": [{"id": "bob", "pid": "training"}]},
    {"id": "inference", "pid": "cpd", "childTreeDto": None}]}
JOBS = [
    {"id": "j-1", "name": "digits", "state": "RUNNING", "tag": "/cpd/training/alice", "consumer": "/cpd/training",
     "submit_user": "alice", "task12n_num": 4, "task12n": [{}, {}], "used_gpu": 2, "kernels": [{"ip": "10.0.0.1"}]},
    {"id": "j-2", "name": "resnet", "state": "PENDING_CRD_SCHEDULER", "consumer": "/cpd/training",
     "submit_user": "bob", "message": "lacks 2 slots", "task12n": [], "task12n_num": "3"},
    {"id": "j-3", "name": "direct", "state": "SUBMITTED", "consumer": "/cpd/inference"},
    {"id": "j-4", "name": "astray", "state": "RUNNING", "tag": "/elsewhere", "consumer": "/cpd/training",
     "submit_user": "carol"},
    {"id": "j-5", "name": "nobody", "state": "UNKNOWN"},
    {"id": "j-6", "state": "RUNNING", "submit_user": "dora"},
    {"id": "j-0", "name": "over", "state": "FINISHED", "consumer": "/cpd/training", "submit_user": "alice"},
]
POD = {"metadata": {"labels": {"controller-uid": "u-1"}, "ownerReferences": [{"uid": "u-9"}]},
       "spec": {"nodeName": "node-1"}, "status": {"podIP": "10.0.0.1"}}


def value(found: Any) -> Reply:
    """Return a JSON answer."""
    return Reply(200, json.dumps(found).encode())


def objects(**lists: list[Any]) -> Any:
    """Return an answer with the objects of the requested type."""
    return lambda seen: value({"items": lists.get(seen.query["type"][0], [])})


@pytest.fixture
def planned(local: FakeServer) -> FakeServer:
    local.replies["GET", TREE] = value(PLANS)
    local.replies["GET", ENGINE] = value(JOBS)
    local.replies["GET", OBJECTS] = objects(pod=[POD])
    return local


def test_the_tree_shows_jobs_under_their_plans(desk: Desk, planned: FakeServer) -> None:
    """Contract, 2.5: 'field `tag`, else `consumer/submit_user`, else `consumer`, else `submit_user`'."""
    done = desk.run("--rp-get-all", "-o", "table")
    assert done.code == 0 and done.err == ""
    assert done.out == """\
cpd  weight=1
  training  max=8
    alice
      j-1  digits  RUNNING  2/4 workers  gpu=2  on node-1
    carol
    bob
      j-2  resnet  PENDING  0/3 workers  (lacks 2 slots)
  inference
    j-3  direct  SUBMITTED  1 worker
Unknown
  n/a
    j-5  nobody  UNKNOWN  1 worker
  /elsewhere
    j-4  astray  RUNNING  1 worker
  dora
    j-6  n/a  RUNNING  1 worker
"""


def test_the_tree_in_json_is_that_of_the_server(desk: Desk, planned: FakeServer) -> None:
    assert json.loads(desk.run("--rp-get-all", "-o", "json").out) == PLANS
    assert yaml.safe_load(desk.run("--rp-get-all", "-o", "yaml").out) == PLANS
    assert not planned.requests("GET", "/applications")


def test_the_tree_is_shown_without_jobs_if_the_jobs_are_unavailable(desk: Desk, planned: FakeServer) -> None:
    """Contract, 4.2: 'tree →1; the rest best effort'."""
    planned.replies["GET", OBJECTS] = Reply(500, b"no cluster")
    assert "j-1  digits  RUNNING  2/4 workers  gpu=2\n" in desk.run("--rp-get-all", "-o", "table").out
    planned.replies["GET", ENGINE] = Reply(500, b"no scheduler")
    done = desk.run("--rp-get-all", "-o", "table")
    assert done.code == 0 and done.out == "cpd  weight=1\n  training  max=8\n    bob\n  inference\n"
    assert "no scheduler" in done.err
    planned.replies["GET", TREE] = Reply(500, b"no plans")
    assert desk.run("--rp-get-all", "-o", "table").code == 1


def test_members_of_a_pack_are_printed_below_it(desk: Desk, planned: FakeServer) -> None:
    common = {"consumer": "/cpd/training", "submit_user": "bob", "state": "SUBMITTED", "name": "n"}
    planned.replies["GET", ENGINE] = value([
        {"id": "c", "pack_id": "p", "submit_time": 1, **common}, {"id": "p", "is_packing": True, **common},
        {"id": "d", "submit_time": 2, **common}])
    found = re.findall(r"^( +)(\S+)  n ", desk.run("--rp-get-all", "-o", "table").out, re.MULTILINE)
    assert [(len(blanks), name) for blanks, name in found] == [(6, "p"), (8, "c"), (6, "d")]


def test_hostile_trees_are_printed_safely(desk: Desk, planned: FakeServer) -> None:
    deep = '{"id":"d","childTreeDto":[' * 300 + "]}" * 300
    planned.replies["GET", TREE] = Reply(200, deep.encode())
    done = desk.run("--rp-get-all", "-o", "table")
    assert done.code == 0 and done.out.count("d\n") >= 300
    planned.replies["GET", TREE] = value({"id": None, "x\x1b[31m": "\x1b]0;t\x07\n", "childTreeDto": [
        3, {"id": "same"}, {"id": "same"}, {"id": 5, "childTreeDto": {"id": "no"}}]})
    planned.replies["GET", ENGINE] = value([{"id": "j\x1b[2J\n", "name": "a\nb", "state": "\x1b[1mX", "message": [1]},
                                            {"id": "k", "state": "RUNNING", "tag": "//same"}])
    done = desk.run("--rp-get-all", "-o", "table")
    assert done.code == 0 and "\x1b" not in done.out and done.out.count("k  n/a  RUNNING") == 1


def test_colors_are_used_only_on_a_capable_terminal_without_no_color(desk: Desk, planned: FakeServer) -> None:
    assert "\x1b[32mRUNNING\x1b[0m" in desk.on_a_terminal("--rp-get-all")
    assert "\x1b" not in desk.on_a_terminal("--rp-get-all", NO_COLOR="1")
    assert "\x1b" not in desk.on_a_terminal("--rp-get-all", TERM="dumb")
    assert "\x1b" not in desk.run("--rp-get-all", "-o", "table").out


def parallel_job(uid: str | None, name: str, **more: Any) -> dict[str, Any]:
    """Return a parallel job with every path of the contract, 2.6."""
    return PARALLEL_JOB | {
        "metadata": {
            "uid": uid, "name": name, "namespace": "cpd", "creationTimestamp": "2023-10-27T16:27:30Z",
            "labels": {"msd/job": name, "msd/job-type": "Training"},
            "annotations": {"lsf.ibm.com/consumer": "/wmla/cpd/training", "lsf.ibm.com/submissionUser": "alice"},
        }} | more


def test_parallel_jobs_are_listed_with_their_nodes(desk: Desk, local: FakeServer) -> None:
    """Contract, 4.2: `table id, namespace, consumer, submit_user, type, state, res_req, nodes, create_time, age`."""
    other = {"metadata": {"labels": {}}, "spec": {"nodeName": "node-7"}}
    second = {"metadata": {"ownerReferences": [{"uid": "u-1"}]}, "spec": {"nodeName": "node-2"}}
    jobs = [parallel_job("u-1", "w-1"), parallel_job(None, "w-2", spec=None, status={"jobStatus": "Pending"}), {}, None]
    local.replies["GET", OBJECTS] = objects(paralleljob=jobs, pod=[POD, POD, other, second, None, {"metadata": 3}])
    done = desk.run("--pj-get-all", "-o", "table")
    assert done.code == 0 and done.err == ""
    found = [re.split(r"  +", line) for line in done.out.splitlines()]
    assert found[0] == ["id", "namespace", "consumer", "submit_user", "type", "state", "res_req", "nodes",
                        "create_time", "age"]
    assert found[1][:-1] == ["w-1", "cpd", "/wmla/cpd/training", "alice", "Training", "RUNNING",
                             "6*task12n(mem=8192Mi,cpu=1)", "node-1,node-2", "10-27 16:27"]
    # A job without a uid has no pods of its own; the original client listed the pods of all jobs for it.
    assert found[2][:9] == ["w-2", "cpd", "/wmla/cpd/training", "alice", "Training", "PENDING", "n/a", "n/a",
                            "10-27 16:27"]
    assert found[3] == ["n/a"] * 10
    assert json.loads(desk.run("--pj-get-all", "-o", "json").out) == jobs[:3]
    chosen = desk.run("--pj-get-all", "-o", "custom-columns=id,nodes").out.splitlines()
    assert chosen[1].split() == ["w-1", "node-1,node-2"]


def test_unavailable_parallel_jobs_are_reported(desk: Desk, local: FakeServer) -> None:
    local.replies["GET", OBJECTS] = value({"items": None})
    assert desk.run("--pj-get-all", "-o", "table").out == "No result found\n"
    local.replies["GET", OBJECTS] = Reply(500, b"no cluster")
    done = desk.run("--pj-get-all", "-o", "table")
    assert (done.code, done.out) == (1, "") and "no cluster" in done.err

    def without_pods(seen: Seen) -> Reply:
        return value({"items": [parallel_job("u-1", "w-1")]}) if "paralleljob" in seen.target else Reply(500)

    local.replies["GET", OBJECTS] = without_pods
    assert "w-1" in desk.run("--pj-get-all", "-o", "table").out


def test_objects_of_the_cluster_are_printed(desk: Desk, local: FakeServer) -> None:
    local.replies["GET", OBJECTS] = value({"items": [POD]})
    assert json.loads(desk.run("--k8s-obj-get-all", "a&b").out) == {"items": [POD]}
    assert local.seen[-1].query == {"type": ["a&b"]}
    local.replies["GET", OBJECTS] = value(POD)
    assert yaml.safe_load(desk.run("--k8s-obj-get", "pod", "p-1", "-o", "yaml").out) == POD
    assert local.seen[-1].query == {"type": ["pod"], "name": ["p-1"]}
    local.replies["GET", OBJECTS] = Reply(400, b"Error 400: There is no such object.\n")
    done = desk.run("--k8s-obj-get", "pod", "p-1", "-o", "json")
    assert (done.code, done.error) == (6, "object.not_found") and "p-1: There is no such object" in done.err
    wrong = desk.run("--k8s-obj-get", "pod")
    assert wrong.code == 2 and "TYPE NAME" in wrong.err


def test_an_unknown_plan_is_reported(desk: Desk, local: FakeServer) -> None:
    one = f"{BASE}/resplans/resplan/moon"
    for method in ("GET", "DELETE"):
        local.replies[method, one] = Reply(404, b"Error 404: There is no plan 'moon'.\n")
    for command in ("--rp-get", "--rp-delete"):
        done = desk.run(command, "moon", "-o", "json")
        assert (done.code, done.error) == (6, "object.not_found") and "moon: There is no plan 'moon'." in done.err
    local.replies["GET", one] = value({"name": "moon"})
    local.replies["DELETE", one] = Reply(400, b"Error 400: It is the outermost one.\n")
    done = desk.run("--rp-delete", "moon")
    assert done.code == 1 and "outermost" in done.err


def test_rp_apply_reports_removed_plans_and_excess_reservations(desk: Desk, planned: FakeServer) -> None:
    planned.conf["DLICMD_EXTENSIONS"] += ",slot-view"
    planned.replies["GET", f"{BASE}/scheduler/slots"] = value({"slots": [{"kind": "gpu"}] * 2 + [{"kind": "cpu"}] * 4})
    kept = {"id": "cpd", "reserved": 1, "childTreeDto": [
        {"id": "inference", "reserved": 2, "childTreeDto": [{"id": "a", "reserved": 1}, {"id": "b", "reserved": 2}]},
        {"id": "other", "reserved": 2}]}
    planned.replies["PUT", TREE] = value(kept)
    (desk.folder / "plans.yaml").write_text("plans: []")
    done = desk.run("--rp-apply", "plans.yaml")
    assert done.code == 0, done
    removed, excess = done.err.splitlines()
    assert "/cpd/training" in removed and "(j-1, j-2, j-4)" in removed and "5 " in excess and "4 " in excess
    planned.replies["PUT", TREE] = value(PLANS)
    assert desk.run("--rp-apply", "plans.yaml").err == ""


def test_a_dry_run_shows_who_would_get_which_slots(desk: Desk, planned: FakeServer) -> None:
    share = {"kind": "cpu", "plan": "/local/a", "user": "ann", "wanted": 4}
    forecast = {
        "tree": PLANS, "now": [share | {"due": 2, "used": 2}], "then": [share | {"due": 3, "used": 3}],
        "execs": [{"id": "local-1", "user": "ann", "planNow": "/local/a", "planThen": "/local/a", "slotsNow": 2,
                   "slotsThen": 3}],
    }
    planned.replies["POST", f"{BASE}/resplans/preview"] = value(forecast)
    (desk.folder / "plans.yaml").write_text("plans: [{name: a, weight: 3}]")
    done = desk.run("--rp-apply", "plans.yaml", "--dry-run")
    assert done.code == 0, done
    rows = [line.split() for line in done.out.splitlines() if line]
    assert ["cpu", "/local/a", "ann", "2", "3", "2", "3"] in rows
    assert ["local-1", "ann", "/local/a", "2", "3"] in rows
    assert not any(seen.method == "PUT" for seen in planned.seen)
    assert json.loads(desk.run("--rp-apply", "plans.yaml", "--dry-run", "-o", "json").out) == forecast
