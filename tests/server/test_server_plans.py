"""Resource plans over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest
from live_server import Answer, Live

from dlicmd import Plan
from dlicmd.contract import wire
from local_backend.scheduler.model import Reason

TREE = "/resplans/resplantree"
WRITTEN = {"plans": [{"name": "research", "weight": 2, "plans": [{"name": "vision", "max": 3}]}, {"name": "training"}]}


def put(live: Live, path: str, document: Any) -> Answer:
    return live.call("PUT", path, json.dumps(document).encode(), {"Content-Type": "application/json"})


def test_the_plan_tree_is_one_object_as_in_the_contract(live: Live) -> None:
    assert live.call("GET", TREE).json() == {
        "id": "local", "pid": "",
        "childTreeDto": [{"id": "training", "pid": "local"}, {"id": "inference", "pid": "local"}],
    }


def test_plans_are_replaced_changed_and_removed(live: Live) -> None:
    answer = put(live, TREE, WRITTEN)
    assert answer.status == 200
    assert answer.json() == live.call("GET", TREE).json() == {
        "id": "local", "pid": "", "childTreeDto": [
            {"id": "research", "pid": "local", "weight": 2.0, "childTreeDto": [
                {"id": "vision", "pid": "research", "max": 3},
            ]},
            {"id": "training", "pid": "local"},
        ],
    }
    assert live.supervisor.woken == 1
    assert live.call("GET", "/resplans/resplan/vision").json() == {
        "path": "/local/research/vision", "name": "vision", "max": 3,
    }
    research, tree = Plan(live.call("GET", "/resplans/resplan/research").json()), Plan(answer.json())
    assert (research.id, research.path) == (tree.children[0].id, "/local/research") == ("research", "/local/research")
    assert [child.id for child in research.children] == [child.id for child in tree.children[0].children] == ["vision"]
    assert put(live, "/resplans/resplan/research/vision", {"max": 5}).json()["max"] == 5
    assert put(live, "/resplans/resplan/training/night", {"weight": 0.5}).json()["path"] == "/local/training/night"
    assert live.call("DELETE", "/resplans/resplan/research").status == 204
    gone = live.call("GET", "/resplans/resplan/vision")
    assert gone.error == (404, "plan.not_found") and "'vision'" in gone.text
    assert live.supervisor.woken == 4


@pytest.mark.parametrize(
    ("method", "path", "document", "error", "named"),
    [
        ("PUT", TREE, [], (400, "plan.invalid"), '"plans"'),
        ("PUT", TREE, {"plans": [{"name": "a", "wait": 1}]}, (400, "plan.invalid"), "local/a: unknown key 'wait'"),
        ("PUT", "/resplans/resplan/nowhere/x", {}, (400, "plan.invalid"), "/local/nowhere"),
        ("PUT", "/resplans/resplan/training", 3, (400, "plan.invalid"), "JSON object"),
        ("DELETE", "/resplans/resplan/nowhere", None, (404, "plan.not_found"), "'nowhere'"),
        ("DELETE", "/resplans/resplan/local", None, (400, "plan.invalid"), "outermost"),
    ],
)
def test_an_invalid_plan_is_refused_and_changes_nothing(  # noqa: PLR0917
    live: Live, method: str, path: str, document: Any, error: tuple[int, str], named: str
) -> None:
    before = live.call("GET", TREE).json()
    answer = put(live, path, document) if method == "PUT" else live.call(method, path)
    assert answer.error == error and named in answer.text and answer.text.count("\n") == 1, answer
    assert live.call("GET", TREE).json() == before
    assert live.supervisor.woken == 0


def test_a_job_shows_its_plan_and_its_priority(live: Live) -> None:
    put(live, TREE, WRITTEN)
    words = "--exec-start PyTorch --model-main main.py --msd-priority 7000"
    ids = [live.submitted(f"{words} --consumer {name}") for name in ("research/vision", "/other/cluster/training")]
    shown = {one["id"]: one for one in live.call("GET", "/scheduler/engine/applications").json()}
    assert [shown[name]["consumer"] for name in ids] == ["/local/research/vision", "/local/training"]
    assert shown[ids[0]]["tag"] == f"/local/research/vision/{shown[ids[0]]['submit_user']}"
    assert shown[ids[0]]["priority"] == 7000
    job = live.call("GET", f"/scheduler/kubernetesobjects?type=paralleljob&name={ids[0]}").json()
    assert job["metadata"]["annotations"]["lsf.ibm.com/consumer"] == "/local/research/vision"


def test_plan_paths_are_those_of_the_contract() -> None:
    assert wire.PLAN_TREE.endswith("/resplans/resplantree")
    assert wire.plan_path("/local/a b").endswith("/resplans/resplan/local/a%20b")


def test_a_waiting_exec_shows_its_reason_and_the_holders_of_slots(live: Live) -> None:
    words = "--exec-start PyTorch --model-main main.py"
    holder, waiting = live.submitted(f"{words} --msd-priority 6000"), live.submitted(words)
    live.run_on(holder, "cpu-0", "cpu-1")
    sentence = "waiting for 1 CPU slot; 0 of 2 CPU slots are free"
    starts = "when running jobs release 1 more slot"
    live.supervisor.reasons[waiting] = Reason("SLOTS", sentence, 1, 7200.0, starts=starts)
    text = "waiting for 1 CPU slot; 0 of 2 CPU slots are free; position 1 in the queue, not before 1970-01-01T02:00:00Z"
    told = {"message": text, "reason": "SLOTS", "queuePosition": 1, "expectedStart": "1970-01-01T02:00:00Z"}
    shown = live.call("GET", f"/execs/{waiting}").json()
    assert {name: shown[name] for name in told} == told
    assert live.call("GET", f"/execs/{waiting}/why").json() == {
        "id": waiting, "state": "SUBMITTED", **told, "advice": "wait",
        "starts": starts,
        "holders": [
            {"id": holder, "slots": 2, "elastic": False, "gives": 0, "shares": False, "priority": 6000, "model": None},
        ],
    }
    job = live.call("GET", f"/scheduler/kubernetesobjects?type=paralleljob&name={waiting}").json()
    assert job["status"]["jobPendingReason"] == text
    assert live.call("GET", f"/execs/{holder}/why").json() == {"id": holder, "state": "RUNNING"}
    assert live.call("GET", "/execs/local-99/why").status == 400
