"""The objects of the contract: every field that clients read, with its type, in every state of an exec."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from contract_world import SINGLE, World

#: Contract, 2.1: 'Key order in recorded G2 output', with the types of its table.
EXEC = {
    "id": str, "args": str, "submissionId": str, "creator": str, "state": str, "appId": str, "schedulerUrl": str,
    "modelFileOwnerName": str, "workDir": str, "appName": str, "createTime": str, "elastic": bool, "nameSpace": str,
    "numWorker": int, "framework": str,
}
FIRST_GENERATION = {"userName": str, "sigName": str, "sigId": str, "masterURL": str, "executionUserName": str}
#: Contract, 2.2.
APPLICATION = {
    "id": str, "state": str, "type": str, "tag": str, "consumer": str, "submit_user": str, "name": str,
    "priority": int, "submit_time": int, "start_time": int, "end_time": int, "task12n_resreq": str,
    "task12n_num": int, "task12n": list, "kernels": list, "is_packing": bool,
}
NUMBERS = ("used_gpu", "used_mem", "used_cpu")
#: Contract, 2.4: the fields that every framework has, and the fields that some have.
FRAMEWORK = {
    "name": str, "description": str, "desc": list, "deployMode": str, "hasTask0": str, "execMode": str,
    "appName": str, "frameworkCmdGenerator": str, "backend": str, "frameworkVersion": str,
}
SOME = {
    "numWorkers": int, "maxWorkers": int, "maxGPUPerWorker": int, "workerMemory": str,
    "prebuiltModelMain": str, "prebuiltModelDir": str, "exports": dict, "distributeStrategy": str, "numPs": int,
}
WHO = ("waiting", "running", "elastic", "finished", "killed", "failed")


def types(found: dict[str, Any], names: dict[str, type]) -> dict[str, type]:
    return {name: type(found[name]) for name in names}


def at(found: Any, path: str) -> Any:
    """Return the value at a path of keys and indexes, separated by spaces."""
    for word in path.split(" "):
        found = found[int(word)] if word.isdigit() else found[word]
    return found


@pytest.mark.parametrize("who", WHO)
def test_an_exec_has_the_fields_of_the_contract(world: World, who: str) -> None:
    """2.1, and 9, question 14: 'omit rather than null'; 'All values must be scalars'."""
    found = world.wire.ask("GET", f"/execs/{world.ids[who]}").json()
    assert list(found)[:len(EXEC)] == list(EXEC) and types(found, EXEC) == EXEC
    assert all(isinstance(value, str | int | float) for value in found.values())
    assert found["args"].endswith("--epochs 1 ") and not found["args"].endswith("  ")
    assert found["creator"] == world.user and found["id"] == found["appId"] == found["submissionId"]
    assert found["elastic"] is (who == "elastic") and found["numWorker"] == (2 if who in ("running", "elastic") else 1)
    assert f"/{world.user}/batchworkdir/{found['id']}/_submitted_code" in found["workDir"]
    assert found in world.wire.ask("GET", "/execs").json()


def test_an_exec_with_sig_name_has_the_g1_fields(world: World) -> None:
    """2.1: '`userName`, `sigName`, `sigId`, `masterURL`, `executionUserName` | string | G1'."""
    answer = world.wire.ask("POST", "/execs?sigName=dli-edt&args=--exec-start%20PyTorch%20--user-cmd%20--%20ls")
    assert types(answer.json(), FIRST_GENERATION) == FIRST_GENERATION
    world.wire.ask("DELETE", f"/execs/{answer.json()['id']}")


@pytest.mark.parametrize("who", WHO)
def test_an_application_has_the_fields_of_the_contract(world: World, who: str) -> None:
    """2.2: 'every field the client reads, with the type the client's arithmetic demands'."""
    [found] = world.wire.ask("GET", f"/scheduler/engine/applications/{world.ids[who]}").json()
    assert types(found, APPLICATION) == APPLICATION
    assert all(float(found[name]) >= 0 for name in NUMBERS)
    assert found["tag"] and found["consumer"].startswith("/")
    requests = [found[key] for key in ("task0_resreq", "task12n_resreq") if key in found]
    assert len(requests) == (2 if who == "elastic" else 1)
    for request in requests:
        pairs = dict(item.split("=") for item in request.split(","))
        assert set(pairs) <= {"ncpus", "ngpus", "mem"} and all(float(value) >= 0 for value in pairs.values())
    assert bool(found.get("task0")) is (who == "elastic")
    assert all(type(kernel["ip"]) is str for kernel in found["kernels"])


def test_a_spark_application_has_the_fields_of_the_contract(world: World) -> None:
    """1.5: 'CLI reads only `task0` and `task12n` of each; SDK G1 model = SparkApplicationDetail (§2.3)'."""
    for found in world.wire.ask("GET", "/scheduler/applications").json():
        assert found["type"] in ("BATCH", "NOTEBOOK") and type(found["apprunduration"]) in (int, float)
        texts = ("sparkinstancegroupid", "applicationid", "applicationname", "state", "username", "submittedtime")
        assert all(type(found[name]) is str for name in texts) and type(found["task12n"]) is list
        assert {type(found["driver"][name]) for name in ("id", "state", "host")} == {str}
        assert type(found["slots"]) is int
        assert len(found["executors"]) == len(found["task12n"])
        for executor in found["executors"]:
            log = f"/scheduler/applications/{found['applicationid']}/executor/{executor['id']}/logs/stdout"
            assert world.wire.ask("GET", log).status == 200, "logs are not found by the id of the executor"


def test_a_framework_has_the_fields_of_the_contract(world: World) -> None:
    """2.4: '`hasTask0` | string | `""` (single + EDT) or `"false"`', '`desc` | array of strings'."""
    catalogue = world.wire.ask("GET", "/execs/frameworks").json()
    assert {found["name"] for found in catalogue} >= {
        "PyTorch", "distPyTorch", "tensorflow", "disttensorflow", "edtPyTorch", "edtTensorflow"}
    for found in catalogue:
        assert types(found, FRAMEWORK) == FRAMEWORK and set(found) <= set(FRAMEWORK | SOME)
        assert all(type(found[name]) is kind for name, kind in SOME.items() if name in found)
        assert found["desc"] and all(type(line) is str for line in found["desc"])
        assert found["hasTask0"] == ("false" if found["name"].startswith("dist") else "")
        assert found["execMode"] in ("single", "distributed") and found["deployMode"] == "cluster"


def test_the_plan_tree_has_the_consumer_of_every_application(world: World) -> None:
    """2.5: '`{id: string, pid: string (parent id), childTreeDto: [node…] | absent}`'; an application's consumer is 'an
    absolute resource-plan path', and the tree has its node."""
    tags = set()

    def walk(node: dict[str, Any], parent: str, path: str) -> None:
        assert type(node["id"]) is str and type(node["pid"]) is str and node["pid"] == parent
        tags.add(f"{path}/{node['id']}")
        for child in node.get("childTreeDto", []):
            walk(child, node["id"], f"{path}/{node['id']}")

    tree = world.wire.ask("GET", "/resplans/resplantree").json()
    walk(tree, tree["pid"], "")
    for application in world.wire.ask("GET", "/scheduler/engine/applications").json():
        assert application["consumer"] in tags


TEXTS = (
    "metadata uid", "metadata namespace", "metadata creationTimestamp", "metadata labels msd/job",
    "metadata labels msd/job-type", "metadata annotations lsf.ibm.com/consumer",
    "metadata annotations lsf.ibm.com/submissionUser", "metadata annotations lsf.ibm.com/gpu", "status jobStatus",
    "status creationTimestamp", "spec taskGroups 0 metadata name",
    "spec taskGroups 0 metadata annotations lsf.ibm.com/gpu",
    "spec taskGroups 0 spec template spec containers 0 name",
    "spec taskGroups 0 spec template spec containers 0 resources requests cpu",
    "spec taskGroups 0 spec template spec containers 0 resources requests nvidia.com/gpu",
)


@pytest.mark.parametrize("who", WHO)
def test_a_parallel_job_has_the_fields_of_the_contract(world: World, who: str) -> None:
    """2.6: read paths of a ParallelJob."""
    found = world.wire.ask("GET", f"/scheduler/kubernetesobjects?type=paralleljob&name={world.ids[who]}").json()
    assert (found["apiVersion"], found["kind"]) == ("ibm.com/v1alpha1", "ParallelJob")
    for path in TEXTS:
        assert type(at(found, path)) is str, path
    assert found["status"]["jobStatus"] in ("Pending", "Running", "Succeeded", "Failed", "Unknown")
    assert found["status"]["creationTimestamp"].endswith("Z")
    assert ("jobStartTime" in found["status"]) is (who != "waiting")
    groups = found["spec"]["taskGroups"]
    assert [group["metadata"]["name"] for group in groups] == (["task0"] if who == "elastic" else []) + ["task12n"]
    assert all(type(group["spec"]["replica"]) is int for group in groups)
    if who == "elastic":
        resources = at(groups[1], "spec template spec containers 0 resources")
        assert resources["requests"]["memory"] == resources["limits"]["memory"] == "8192.000000Mi"


def test_a_pod_has_the_fields_of_the_contract(world: World) -> None:
    """2.6: read paths of a pod; its `controller-uid` is the uid of its job."""
    uids = {found["metadata"]["uid"] for found in
            world.wire.ask("GET", "/scheduler/kubernetesobjects?type=paralleljob").json()["items"]}
    pods = world.wire.ask("GET", "/scheduler/kubernetesobjects?type=pod").json()["items"]
    assert len(pods) >= 3 and len(uids) >= 6
    for pod in pods:
        for path in ("metadata name", "metadata labels controller-uid", "spec nodeName", "status podIP",
                     "status podIPs 0 ip"):
            assert type(at(pod, path)) is str, path
        assert pod["metadata"]["labels"]["controller-uid"] in uids


def test_a_logon_response_has_the_fields_of_the_platform(world: World) -> None:
    """8: 'CPD's sibling call ... answers username, role, permissions[], groups[], sub, iss, aud, uid, authenticator,
    accessToken, messageCode ("success"), message ("success")'; role `User`|`Admin`."""
    pair = "Basic " + base64.b64encode(f"{world.user}:{world.password}".encode()).decode()
    found = world.wire.ask("GET", "/auth/v1/logon", {"Authorization": pair}, authorised=False).json()
    names = ("username", "role", "sub", "iss", "aud", "uid", "authenticator", "accessToken", "messageCode", "message")
    assert all(type(found[name]) is str for name in names)
    assert type(found["permissions"]) is type(found["groups"]) is list and found["role"] in ("User", "Admin")
    assert found["username"] == world.user and found["messageCode"] == "success"


def test_args_are_shown_as_received_with_one_more_space(world: World) -> None:
    """1.4: 'the server keeps the string as given and appends one trailing space in the stored `args`'."""
    assert world.wire.ask("GET", f"/execs/{world.finished}").json()["args"] == \
        SINGLE.replace("%20", " ") + " --epochs 1 "
