"""A recovering exec is RUNNING for every client: recorded scripts take any state that they do not know for the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from live_server import Live, route_table, settings_for

from dlicmd.contract import states, wire
from local_backend.api.objects import INSTANCE_ID
from local_backend.store.states import MOVES

ELASTIC = "--exec-start edtPyTorch --numWorker 2 --model-main main.py"
#: The states on which recorded scripts continue to poll, and the final states of the contract (3.1).
KNOWN = {"SUBMITTED", "PENDING_CRD_SCHEDULER", "RUNNING", "FINISHED", "KILLED", "ERROR"}
#: Metrics for operators, which no client of the contract reads, and the description itself.
OWN = {wire.METRICS, "/openapi.json"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, dict[str, str]]]:
    """A server with one elastic exec in every state, each in a pack of its own."""
    live = Live(settings_for(tmp_path_factory.mktemp("recovering") / "home"))
    ids = {state: live.submitted(f"{ELASTIC} --msd-pack-id {state.lower()}") for state in sorted(MOVES)}
    for state, exec_id in ids.items():
        if state == states.PENDING:
            live.move(exec_id, state)
        elif state != states.SUBMITTED:
            live.run_on(exec_id, "cpu-0")
            live.say(exec_id, {"step": 7}, workers=(1,))
            captures = live.paths(exec_id).captures
            captures.mkdir(parents=True, exist_ok=True)
            live.paths(exec_id).capture("task12n-1", "stdout", True).write_text("x\n")
        if state not in {states.SUBMITTED, states.PENDING, states.RUNNING}:
            live.move(exec_id, state)
    yield live, ids
    live.close()


def stated(value: Any) -> set[str]:
    """Return every value of a key `state` in a JSON value."""
    if isinstance(value, dict):
        here = {value["state"]} if isinstance(value.get("state"), str) else set()
        return here.union(*map(stated, value.values()))
    return set().union(*map(stated, value)) if isinstance(value, list) else set()


def test_no_other_state_leaves_the_server(world: tuple[Live, dict[str, str]]) -> None:
    live, ids = world
    places = {"{exec_id}": "", "{app_id}": "", "{number}": "1", "{log}": "stdout", "{instance}": INSTANCE_ID,
              "{name}": "none", "{name:path}": "training", "{rest:path}": "x"}
    seen: dict[str, set[str]] = {}
    for path, methods in route_table(live).items():
        for exec_id in ids.values() if "GET" in methods and path not in OWN else ():
            named = path
            for part, value in places.items():
                named = named.replace(part, value or exec_id)
            answer = live.call("GET", named, base="")
            assert b"RECOVERING" not in answer.body, (path, answer)
            if answer.headers.get("content-type", "").startswith("application/json"):
                seen.setdefault(path, set()).update(stated(answer.json()))
    assert set().union(*seen.values()) - {"STARTED", "used", "free"} == KNOWN
    lists = (wire.EXECS, wire.ENGINE_APPLICATIONS, wire.APPLICATIONS,
             "/platform/rest/conductor/v1/instances/{instance}/applications", wire.EXECS + "/{exec_id}")
    assert all(seen[path] == KNOWN for path in lists), seen
    assert live.call("GET", "/status").json()["jobs"] == {**dict.fromkeys(KNOWN, 1), "RUNNING": 2}


def test_a_recovering_exec_says_so_beside_its_state(world: tuple[Live, dict[str, str]]) -> None:
    live, ids = world
    runs, recovers = ids[states.RUNNING], ids[states.RECOVERING]
    plain, shown = (live.call("GET", f"/execs/{exec_id}").json() for exec_id in (runs, recovers))
    assert "recovering" not in plain and "message" not in plain
    assert (shown["state"], shown["recovering"], shown["message"], shown["slots"]) == ("RUNNING", True, "recovering", 1)
    live.say(recovers, {"message": "restarting the driver"})
    assert live.call("GET", f"/execs/{recovers}").json()["message"] == "restarting the driver"
    assert live.call("GET", f"/execs/{recovers}/why").json()["message"] == "restarting the driver"
    (application,) = live.call("GET", f"/scheduler/engine/applications/{recovers}").json()
    assert (application["state"], application["message"]) == ("RUNNING", "restarting the driver")
    running = {one["id"]: one for one in live.call("GET", "/scheduler/slots").json()["running"]}
    assert running[recovers]["recovering"] is True and running[recovers]["message"] == "restarting the driver"
    assert "recovering" not in running[runs]
    job = live.call("GET", f"/scheduler/kubernetesobjects?type=paralleljob&name={recovers}").json()
    assert job["status"]["jobStatus"] == "Running"


def test_the_state_running_selects_recovering_execs(world: tuple[Live, dict[str, str]]) -> None:
    live, ids = world
    both = {ids[states.RUNNING], ids[states.RECOVERING]}
    sig = f"/platform/rest/conductor/v1/instances/{INSTANCE_ID}/applications"
    for path in (wire.EXECS, wire.ENGINE_APPLICATIONS, wire.APPLICATIONS, sig):
        found = live.call("GET", f"{path}?state=RUNNING", base="").json()
        assert {one["id"] for one in found} - {one["id"] for one in found if one.get("is_packing")} == both, path
        assert live.call("GET", f"{path}?state=RECOVERING", base="").json() == [], path
        named = live.call("GET", f"{path}?state=PENDING_CRD_SCHEDULER,running,RECOVERING", base="").json()
        assert {one["state"] for one in named} == {"RUNNING", "PENDING_CRD_SCHEDULER"}, path
    (one,) = live.call("GET", f"/scheduler/applications?applicationid={ids[states.RECOVERING]}&state=RUNNING").json()
    assert one["driver"]["state"] == "RUNNING"


@pytest.mark.parametrize("direction", ["asc", "desc"])
def test_execs_are_sorted_by_the_state_that_is_shown(world: tuple[Live, dict[str, str]], direction: str) -> None:
    live, _ = world
    found = live.call("GET", f"/execs?sort_by=state:{direction}").json()
    order = [one["state"] for one in found]
    assert order == sorted(order, reverse=direction == "desc")
    numbers = [int(one["id"].rpartition("-")[2]) for one in found if one["state"] == "RUNNING"]
    assert numbers == sorted(numbers)


def test_events_show_the_recovery_as_running(world: tuple[Live, dict[str, str]]) -> None:
    live, ids = world
    events = live.call("GET", f"/execs/{ids[states.RECOVERING]}/follow").json()["events"]
    moves = [(one["state"], one.get("recovering", False)) for one in events if one["kind"] == "state"]
    assert moves[-2:] == [("RUNNING", False), ("RUNNING", True)]
    assert {state for state, _ in moves} <= KNOWN


def test_a_recovering_exec_can_be_stopped(world: tuple[Live, dict[str, str]]) -> None:
    live, ids = world
    recovers = ids[states.RECOVERING]
    stopped = live.call("POST", "/scheduler/applications/stop", json.dumps({"ids": [recovers]}).encode(),
                        {"Content-Type": "application/json"})
    assert [(one["id"], one["stopped"], one["state"]) for one in stopped.json()] == [(recovers, True, "RUNNING")]
    assert live.call("PUT", f"/scheduler/applications/{recovers}/stop").status == 200
    assert live.call("POST", f"/execs/{recovers}/stop").status == 204
