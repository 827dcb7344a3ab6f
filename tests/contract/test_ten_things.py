"""Ten rules of the server that the original clients rely on. Each test handles the response as the clients do."""

from __future__ import annotations

import base64
import json
import time
from urllib.parse import quote

from contract_world import SINGLE, World

TERMINAL = {"FINISHED", "KILLED", "ERROR"}
#: Contract, 3.1: the states on the wire.
STATES = TERMINAL | {"NEW", "SUBMITTED", "PENDING_JOB_SCHEDULER", "PENDING_CRD_SCHEDULER", "LAUNCHING", "RUNNING",
                     "RECOVERING", "UNKNOWN", ""}


def test_1_paths_with_and_without_a_slash_are_answered_directly(world: World) -> None:
    """'Paths with and without a trailing slash are both used on the same resource ... A redirect would turn the POST
    into a GET.'"""
    for path in ("/execs", "/conf", "/status", "/execs/frameworks", f"/execs/{world.finished}", "/resplans/resplantree",
                 "/scheduler/applications", "/scheduler/engine/applications", f"/execs/{world.finished}/log",
                 "/frameworks/all", "/scheduler/instances", f"/execs/{world.finished}/result"):
        for spelling in (path, path + "/"):
            assert world.wire.ask("GET", spelling).status == 200, spelling
    for path in ("/execs", "/execs/"):
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = world.wire.ask("POST", f"{path}?args=--exec-start%20PyTorch%20--user-cmd%20--%20ls", kind, b"")
        assert answer.status == 200
        assert world.wire.ask("DELETE", f"/execs/{answer.json()['id']}/").status == 204
    # Covers a base address that ends with a slash and a path that begins with one.
    for doubled in ("//execs", f"/execs//{world.finished}//", "//execs///frameworks"):
        assert world.wire.ask("GET", doubled).status == 200, doubled


def test_2_conf_accepts_a_valid_token_and_refuses_others(world: World) -> None:
    """'`GET /conf` with the bearer token; any non-2xx ends the program.' The client compares MSD_ENABLED."""
    answer = world.wire.ask("GET", "/conf")
    assert answer.status == 200 and answer.json()["MSD_ENABLED"].lower() == "true"
    refused = world.wire.ask("GET", "/conf", {"Authorization": "Bearer x.y.z"}, authorised=False)
    assert refused.status == 401 and refused.is_plain_error


def test_3_credentials_are_accepted_in_three_forms(world: World) -> None:
    """'`Authorization: Bearer …` (CLI) **or** `X-Auth-Token: …` (notebooks, G2) **or** HTTP Basic (G1 notebooks)'."""
    pair = "Basic " + base64.b64encode(f"{world.user}:{world.password}".encode()).decode()
    logged_on = world.wire.ask("GET", "/auth/v1/logon", {"Authorization": pair}, authorised=False)
    token = logged_on.json()["accessToken"]
    for headers in ({"Authorization": f"Bearer {token}"}, {"X-Auth-Token": token}, {"Authorization": pair}):
        assert world.wire.ask("GET", "/execs", headers, authorised=False).status == 200, headers


def test_4_a_submission_is_answered_with_its_ids(world: World) -> None:
    """'`POST /execs` must answer a JSON object holding at least `id` and `appId`'."""
    found = world.wire.upload(SINGLE).json()
    assert type(found["id"]) is type(found["appId"]) is type(found["submissionId"]) is str and found["id"]
    world.wire.ask("DELETE", f"/execs/{found['id']}")


def test_5_the_name_of_the_result_fits_the_parsers_of_the_clients(world: World) -> None:
    """'the file name segment directly after a semicolon, **no space and no quotes** ... `size=` must come last
    (notebooks do `split('size=')[1]` → int). Scripts expect the name to begin with `dlpd-model`'."""
    answer = world.wire.ask("GET", f"/execs/{world.finished}/result", {"Accept": "text/plain"})
    header = answer.headers["content-disposition"]
    assert int(header.split("size=")[1]) == len(answer.body) == int(answer.headers["content-length"])
    name = header.split(";")[1].split("filename=")[1]
    assert name.startswith("dlpd-model-") and name.endswith(f"{world.finished}-result.zip")
    numbers = name.removeprefix("dlpd-model-").removesuffix(f"{world.finished}-result.zip").split("-")
    assert len(numbers) == 2 and all(number.isdigit() for number in numbers)
    assert " " not in header and '"' not in header and "'" not in header


def test_6_an_application_is_a_list_of_one(world: World) -> None:
    """'`GET /scheduler/engine/applications/{id}` answers a JSON **list** (client takes element 0)'."""
    found = world.wire.ask("GET", f"/scheduler/engine/applications/{world.elastic}").json()
    assert type(found) is list and found[0]["id"] == world.elastic


def test_7_times_are_whole_seconds_or_iso(world: World) -> None:
    """'integer epoch seconds; `createTime` in exec objects is an ISO-8601 string ending in Z. A float there crashes
    the client.'"""
    for exec_id in world.ids.values():
        [application] = world.wire.ask("GET", f"/scheduler/engine/applications/{exec_id}").json()
        assert [type(application[key]) for key in ("submit_time", "start_time", "end_time")] == [int, int, int]
        time.gmtime(application["submit_time"])
        time.strptime(world.wire.ask("GET", f"/execs/{exec_id}").json()["createTime"], "%Y-%m-%dT%H:%M:%SZ")


def test_8_kubernetes_objects_are_a_list_or_one_bare_object(world: World) -> None:
    """'an object with an `items` list; with `&name=N` it answers the bare object'."""
    for kind in ("paralleljob", "pod", "x"):
        assert type(world.wire.ask("GET", f"/scheduler/kubernetesobjects?type={kind}").json()["items"]) is list
    bare = world.wire.ask("GET", f"/scheduler/kubernetesobjects?type=paralleljob&name={world.waiting}").json()
    assert "items" not in bare and bare["metadata"]["uid"]
    pods = world.wire.ask("GET", "/scheduler/kubernetesobjects?type=pod").json()["items"]
    one = world.wire.ask("GET", f"/scheduler/kubernetesobjects?type=pod&name={quote(pods[0]['metadata']['name'])}")
    assert one.json() == pods[0]


def test_9_a_log_is_text_or_one_json_string(world: World) -> None:
    """'`Accept: text/plain` → raw text; `Accept: application/json` → one JSON **string**'."""
    file = world.live.paths(world.failed).capture("task12n-1", "stdout", False)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes('grüße "x"\\\n\x07bad \n'.encode() + b"\xff\n")
    text = world.wire.ask("GET", f"/execs/{world.failed}/log", {"Accept": "text/plain"})
    assert text.headers["content-type"].startswith("text/plain") and text.body == file.read_bytes()
    quoted = world.wire.ask("GET", f"/execs/{world.failed}/log", {"Accept": "application/json"})
    assert quoted.headers["content-type"].startswith("application/json")
    assert json.loads(quoted.body) == file.read_bytes().decode("utf-8", "replace")
    bare = world.wire.ask("GET", f"/execs/{world.failed}/log")
    assert bare.headers["content-type"].startswith("text/plain")
    # A session of the notebooks' library sends this header by default.
    anything = world.wire.ask("GET", f"/execs/{world.failed}/log", {"Accept": "*/*"})
    assert anything.body == file.read_bytes()


def test_10_an_exec_ends_in_one_of_three_final_states(world: World) -> None:
    """'Terminal states on the wire are only `FINISHED`, `KILLED`, `ERROR`.'"""
    assert {found["state"] for found in world.wire.ask("GET", "/execs").json()} <= STATES
    for state, exec_id in world.states().items():
        assert world.wire.ask("GET", f"/execs/{exec_id}").json()["state"] == state
        [application] = world.wire.ask("GET", f"/scheduler/engine/applications/{exec_id}").json()
        assert application["state"] == state
        stopped = world.wire.ask("POST", f"/execs/{exec_id}/stop").status
        assert stopped == (400 if state in TERMINAL else 204), state
