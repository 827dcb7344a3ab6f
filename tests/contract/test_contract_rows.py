"""Every row of the endpoint tables: the request of the row, and the response that it promises. Rows are quoted."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from contract_world import SINGLE, World, make_world
from raw_http import Answer

Check = Callable[[Answer, World], object]


class Row(NamedTuple):
    """A row, as a request. `{waiting}` and similar names in `target` become ids."""

    quote: str
    method: str
    target: str
    status: int
    check: Check | None = None
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes | None = None


def strings(answer: Answer, _: World) -> bool:
    found = answer.json()
    return isinstance(found, dict) and all(type(value) is str for pair in found.items() for value in pair)


def listed(answer: Answer, _: World) -> bool:
    found = answer.json()
    return isinstance(found, list) and bool(found) and all(isinstance(item, dict) for item in found)


def words(answer: Answer, _: World) -> bool:
    found = answer.json()
    return bool(found) and all(type(word) is str for word in found)


def an_object(answer: Answer, _: World) -> bool:
    return isinstance(answer.json(), dict)


def exec_of(name: str) -> Check:
    return lambda answer, world: answer.json()["id"] == getattr(world, name)


def empty(answer: Answer, _: World) -> bool:
    return answer.body == b""


def details(answer: Answer, _: World) -> bool:
    keys = {"name": str, "home": str, "backend": str, "accelerator": str, "psNum": str, "commIPNetwork": str}
    return bool(answer.json()) and all(
        {key: type(value) for key, value in found.items()} == keys and found["accelerator"] in ("Native", "Elastic")
        and found["backend"].lower() == "pytorch" for found in answer.json()
    )


def lines(*expected: str) -> Check:
    return lambda answer, _: answer.text.splitlines() == list(expected)


def refused(answer: Answer, _: World) -> bool:
    return answer.is_plain_error


def archived(answer: Answer, _: World) -> bool:
    return zipfile.ZipFile(io.BytesIO(answer.body)).read("model/final.pth") == b"weights"


def one(key: str, name: str) -> Check:
    return lambda answer, world: [found[key] for found in answer.json()] == [getattr(world, name)]


def instance(answer: Answer, _: World) -> bool:
    keys = {"uuid", "name", "version", "masterUrl", "executionUser", "state", "historyServerUrl"}
    return all(set(found) == keys for found in answer.json()) and len(answer.json()) > 0


def states_a_user(answer: Answer, world: World) -> bool:
    keys = {"username": str, "role": str, "permissions": list, "groups": list, "sub": str, "iss": str, "aud": str,
            "uid": str, "authenticator": str, "accessToken": str, "messageCode": str, "message": str}
    found = answer.json()
    return all(type(found[key]) is kind for key, kind in keys.items()) and found["username"] == world.user and \
        (found["iss"], found["aud"], found["message"], found["messageCode"]) == ("KNOXSSO", "DSX", "success", "success")


TEXT, JSON = {"Accept": "text/plain"}, {"Accept": "application/json"}
ROWS = [
    # §8 Auth
    Row("§8: 'GET /v1/preauth/validateAuth answers username, role, permissions[], groups[], sub, ...'", "GET",
        "/v1/preauth/validateAuth", 200, states_a_user),
    # 1.2 Configuration, status, frameworks
    Row("GET /conf: '200, flat JSON map string→string'", "GET", "/conf", 200, strings),
    Row("GET /status: '200, shape unknown, printed raw'", "GET", "/status", 200, an_object),
    Row("GET /execs/frameworks: '200, array of framework objects'", "GET", "/execs/frameworks", 200, listed),
    Row("GET /frameworks?backend=: '200, array of FrameworkDetail'", "GET", "/frameworks?backend=PyTorch", 200,
        details),
    Row("GET /frameworks/all: '200, array of strings (training engine names)'", "GET", "/frameworks/all", 200, words),
    # 1.3 Execs
    Row("GET /execs: '200, array of exec objects'", "GET", "/execs", 200, listed),
    Row("GET /execs/: 'query is passed through verbatim'", "GET",
        "/execs/?limit=10&state=FINISHED&sort_by=id:desc", 200, one("id", "finished")),
    Row("GET /execs: a query that was left empty says nothing", "GET", "/execs?limit=&state=FINISHED&sort_by=", 200,
        one("id", "finished")),
    Row("GET /execs/{execId}/log: 'absent = default', and so is empty", "GET", "/execs/{finished}/log?logType=", 200),
    Row("GET .../executor/{n}/logs/stdout: 'lastlines=N', left empty", "GET",
        "/scheduler/applications/{finished}/executor/1/logs/stdout?lastlines=", 200),
    Row("GET /execs/{execId}: '200 exec object'", "GET", "/execs/{finished}", 200, exec_of("finished")),
    Row("GET /execs/{execId}: '**400** unknown id (not 404)'", "GET", "/execs/wmla-398", 400, refused),
    Row("DELETE /execs/{execId}: '400 unknown'", "DELETE", "/execs/wmla-398", 400, refused),
    Row("POST /execs/{execId}/stop: '400 unknown'", "POST", "/execs/wmla-398/stop", 400, refused),
    Row("GET /execs/{execId}/log: 'absent = default ... the stdout-type content'", "GET", "/execs/{running}/log", 200,
        lines(*(f"task12n-{rank} stdout {n}" for rank in (1, 2) for n in range(1, 13))), TEXT),
    Row("GET /execs/{execId}/log: 'logType = outlog'; 'args = noise from the CLI, ignore'", "GET",
        "/execs/{finished}/log?logType=outlog&args=--exec-trainoutlogs%20x", 200,
        lines(*(f"task12n-1 stdout {n}" for n in range(1, 13))), TEXT),
    Row("GET /execs/{execId}/log: 'logType = errlog'", "GET", "/execs/{finished}/log?logType=errlog", 200,
        lines(*(f"task12n-1 stderr {n}" for n in range(1, 13))), TEXT),
    Row("GET /execs/{execId}/log: 'logType = outerrlog'", "GET", "/execs/{finished}/log?logType=outerrlog", 200,
        lines(*(f"task12n-1 {stream} {n}" for stream in ("stdout", "stderr") for n in range(1, 13))), TEXT),
    Row("GET /execs/{execId}/log: '200 text or JSON string by Accept'", "GET", "/execs/{finished}/log", 200,
        lambda answer, _: type(answer.json()) is str, JSON),
    Row("GET /execs/{execId}/log: '400 unknown'", "GET", "/execs/wmla-398/log", 400, refused),
    *(Row("GET /execs/{execId}/result: 'Accept seen: ... do not refuse on Accept'", "GET",
          "/execs/{finished}/result?args=x", 200, archived, {"Accept": kind})
      for kind in ("text/plain", "application/octet-stream", "application/json", "image/png", "*/*")),
    Row("GET /execs/{execId}/result: '400 unknown'", "GET", "/execs/wmla-398/result", 400, refused),
    Row("§7: 'an empty model dir is an error for /result'", "GET", "/execs/{waiting}/result", 400, refused),
    Row("POST /execs/{execId}/deploy: 'non-2xx printed, exit 1'", "POST",
        "/execs/{finished}/deploy", 400, refused, {"Content-Type": "application/json"}, b'{"kernel": "k"}'),
    Row("POST /execs/{execId}/deploy: unknown exec", "POST", "/execs/wmla-398/deploy", 400, refused),
    # 1.5 Scheduler
    Row("GET /scheduler/engine/applications: 'start ... length ... sort ... state'", "GET",
        "/scheduler/engine/applications?start=0&length=10000&sort=-submit_time&state=FINISHED,KILLED,ERROR", 200,
        lambda answer, w: [a["id"] for a in answer.json()] == [w.failed, w.killed, w.finished]),
    Row("GET /scheduler/engine/applications: 'state ... (absent for --app-analyze)'", "GET",
        "/scheduler/engine/applications?sort=submit_time&start=1&length=1", 200, one("id", "running")),
    Row("GET /scheduler/engine/applications: all eight active states of §3.1 are known", "GET",
        "/scheduler/engine/applications?state=NEW,SUBMITTED,PENDING_JOB_SCHEDULER,PENDING_CRD_SCHEDULER,LAUNCHING,"
        "RUNNING,RECOVERING,UNKNOWN", 200, lambda answer, w: len(answer.json()) == 3),
    Row("GET /scheduler/engine/applications/{appId}: '200 JSON **array** with 0 or 1 element'", "GET",
        "/scheduler/engine/applications/{running}", 200, one("id", "running")),
    Row("GET /scheduler/engine/applications/{appId}: '0 ... element'", "GET",
        "/scheduler/engine/applications/wmla-398", 200, lambda answer, _: answer.json() == []),
    Row("GET /scheduler/applications: 'applicationid'", "GET", "/scheduler/applications?applicationid={elastic}", 200,
        one("applicationid", "elastic")),
    Row("GET /scheduler/applications: 'SDK adds applicationname, driverid, search, sort, order, start, length, state'",
        "GET", "/scheduler/applications?applicationname=SingleNodePytorchTrain&search=alice&sort=submit_time&order=desc"
        "&start=0&length=1&state=ERROR&sigId=", 200, one("applicationid", "failed")),
    Row("GET /scheduler/applications: 'all strings', so one that is empty says nothing", "GET",
        "/scheduler/applications?applicationid={elastic}&search=&sort=&order=&start=&length=&state=", 200,
        one("applicationid", "elastic")),
    Row("GET /scheduler/applications: '**416** (index out of range)'", "GET", "/scheduler/applications?start=99", 416,
        refused),
    *(Row(f"GET .../driver/logs/{log}: 'query lastlines=N (seen 10 and 1000)'", "GET",
          f"/scheduler/applications/{{elastic}}/driver/logs/{log}?lastlines=10", 200,
          lines(*(f"task0 {log} {n}" for n in range(3, 13))), TEXT) for log in ("stdout", "stderr")),
    Row("GET .../driver/logs/launcherlog", "GET",
        "/scheduler/applications/{running}/driver/logs/launcherlog?lastlines=1000", 200,
        lines(*(f"launcher line {n}" for n in range(1, 13))), TEXT),
    *(Row(f"GET .../executor/{n}/logs/stdout: 'n is **1-based**'; §7: lines are prefixed `*Task <1> SubProcess*: ` "
          "(angle brackets literal, 1 = executor number)", "GET",
          f"/scheduler/applications/{{running}}/executor/{n}/logs/stdout?lastlines=1", 200,
          lines(f"*Task <{n}> SubProcess*: task12n-{n} stdout 12"), TEXT) for n in (1, 2)),
    Row("§7: 'EDT G2 lines are not [prefixed]'", "GET",
        "/scheduler/applications/{elastic}/executor/2/logs/stderr?lastlines=1", 200,
        lines("task12n-2 stderr 12"), TEXT),
    Row("GET .../executor/{n}: 'n is **1-based**'", "GET",
        "/scheduler/applications/{running}/executor/0/logs/stdout", 400, refused, TEXT),
    Row("GET /scheduler/kubernetesobjects: 'list form {items:[…]}'", "GET",
        "/scheduler/kubernetesobjects?type=paralleljob", 200, lambda answer, _: len(answer.json()["items"]) == 6),
    Row("GET /scheduler/kubernetesobjects: 'or anything the user types'", "GET",
        "/scheduler/kubernetesobjects?type=nodes", 200, lambda answer, _: answer.json()["items"] == []),
    Row("GET /scheduler/kubernetesobjects: 'named form the object'", "GET",
        "/scheduler/kubernetesobjects?type=paralleljob&name={running}", 200,
        lambda answer, w: answer.json()["metadata"]["labels"]["msd/job"] == w.running),
    Row("GET /scheduler/instances (G1): 'array of {uuid, name, version, ...}'", "GET",
        "/scheduler/instances", 200, instance),
    # 1.6 Resource plans
    Row("GET /resplans/resplantree: '200, **one** tree object (§2.5), not a list'", "GET",
        "/resplans/resplantree", 200, lambda answer, _: {type(answer.json()[key]) for key in ("id", "pid")} == {str}),
    Row("GET /resplans/resplan/{name}: '200 JSON'; 'Name is put into the path unescaped'", "GET",
        "/resplans/resplan/local/training", 200, an_object),
    # 1.7 Hypersearch
    Row("GET /hypersearch: '200 list'", "GET", "/hypersearch", 200, lambda answer, _: answer.json() == []),
    Row("GET /hypersearch: with a query", "GET", "/hypersearch?limit=1", 200, lambda answer, _: answer.json() == []),
    Row("DELETE /hypersearch: '204'", "DELETE", "/hypersearch", 204),
    Row("GET /hypersearch/algorithm: Random comes first", "GET", "/hypersearch/algorithm", 200,
        lambda answer, _: answer.json()[0] == {"name": "Random", "type": "BUILD_IN", "remoteExec": False}),
    Row("GET /hypersearch/algorithm/N: an unknown name is '200 with empty body'", "GET", "/hypersearch/algorithm/x",
        200, lambda answer, _: not answer.json()),
    *(Row("1.7: a refusal is one line, not a page", method, path, status, refused) for method, path, status in (
        ("POST", "/hypersearch", 400), ("GET", "/hypersearch/a-1", 404), ("PUT", "/hypersearch/a-1", 404),
        ("PUT", "/hypersearch/a-1/force", 404), ("PUT", "/hypersearch/a-1/restart", 404),
        ("DELETE", "/hypersearch/a-1", 404))),
]


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.method} {row.target}" for row in ROWS])
def test_a_row_of_the_contract_is_answered_as_promised(world: World, row: Row) -> None:
    target = row.target.format(**world.ids)
    answer = world.wire.ask(row.method, target, dict(row.headers), row.body)
    assert answer.status == row.status, (row.quote, answer)
    assert row.check is None or row.check(answer, world), (row.quote, answer)


def credentials(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.parametrize("path", ["/auth/v1/logon", "/platform/rest/conductor/v1/auth/logon"])
@pytest.mark.parametrize("body", [None, b'{"username": "alice", "password": "x"}'])
def test_a_user_logs_on_and_off(world: World, path: str, body: bytes | None) -> None:
    """1.1: 'HTTP Basic; ... One notebook also sends a JSON body on the GET; ignorable' | 'JSON with accessToken';
    'POST /auth/v1/logoff | Bearer; no body | any 2xx'."""
    sent = credentials(world.user, world.password) | {"Accept": "application/json"}
    answer = world.wire.ask("GET", path, sent, body, authorised=False)
    assert answer.status == 200 and type(answer.json()["accessToken"]) is str
    assert states_a_user(answer, world)
    bearer = {"Authorization": f"Bearer {answer.json()['accessToken']}"}
    assert world.wire.ask("GET", "/conf", bearer, authorised=False).status == 200
    assert 200 <= world.wire.ask("POST", "/auth/v1/logoff", bearer, authorised=False).status < 300
    assert world.wire.ask("GET", "/conf", bearer, authorised=False).status == 401


def test_a_g1_session_is_kept_in_a_cookie(world: World) -> None:
    """1.1: 'GET /platform/rest/conductor/v1/auth/logon (G1) | HTTP Basic | 200 + session cookies'."""
    path = "/platform/rest/conductor/v1/auth/logon"
    answer = world.wire.ask("GET", path, credentials(world.user, world.password), authorised=False)
    assert answer.status == 200
    cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
    assert world.wire.ask("GET", "/execs", cookie, authorised=False).status == 200
    assert world.wire.ask("POST", "/auth/v1/logoff", cookie, authorised=False).status == 200
    assert world.wire.ask("GET", "/execs", cookie, authorised=False).status == 401


def test_the_client_file_is_served_without_credentials(world: World) -> None:
    """1.1: 'GET /ui/tools/dlicmd.py | none | the client file itself (scripts fetch it with wget)'."""
    answer = world.wire.ask("GET", "/ui/tools/dlicmd.py", {"User-Agent": "Wget/1.21"}, authorised=False)
    assert answer.status == 200 and answer.body.startswith(b"#!/usr/bin/env python3\n")
    assert zipfile.ZipFile(io.BytesIO(answer.body)).testzip() is None


def test_an_exec_is_submitted_stopped_and_deleted(world: World) -> None:
    """1.3: 'POST /execs | 200 with exec object (`id`, `appId` needed)'; 'POST .../stop | no body | 204';
    'DELETE /execs/{execId} | 204'."""
    submitted = world.wire.upload(SINGLE)
    assert submitted.status == 200 and submitted.headers["content-type"] == "application/json"
    exec_id = submitted.json()["id"]
    stopped = world.wire.ask("POST", f"/execs/{exec_id}/stop")
    assert stopped.status == 204 and stopped.body == b""
    deleted = world.wire.ask("DELETE", f"/execs/{exec_id}")
    assert deleted.status == 204 and deleted.body == b""
    assert world.wire.ask("GET", f"/execs/{exec_id}").status == 400


def test_an_application_is_stopped(world: World) -> None:
    """1.5: 'PUT /scheduler/applications/{appId}/stop | no body | 2xx; body shown'."""
    exec_id = world.wire.upload(SINGLE).json()["appId"]
    assert 200 <= world.wire.ask("PUT", f"/scheduler/applications/{exec_id}/stop").status < 300
    world.wire.ask("DELETE", f"/execs/{exec_id}")
    assert world.wire.ask("PUT", "/scheduler/applications/wmla-398/stop").status == 400


def test_a_plan_is_removed(world: World) -> None:
    """1.6: 'DELETE /resplans/resplan/{name} | 2xx, body printed if any'."""
    kind = {"Content-Type": "application/json"}
    made = world.wire.ask("PUT", "/resplans/resplan/local/passing", kind, b"{}")
    assert made.status == 200, made
    assert "passing" in json.dumps(world.wire.ask("GET", "/resplans/resplantree").json())
    assert world.wire.ask("DELETE", "/resplans/resplan/local/passing").status == 204
    assert "passing" not in json.dumps(world.wire.ask("GET", "/resplans/resplantree").json())


def test_all_execs_are_deleted(tmp_path: Path) -> None:
    """1.3: 'DELETE /execs | 204 (all execs of the current user)'."""
    own = make_world(tmp_path / "home")
    try:
        answer = own.wire.ask("DELETE", "/execs")
        assert answer.status == 204 and answer.body == b""
        assert own.wire.ask("GET", "/execs/").json() == []
    finally:
        own.live.close()


@pytest.mark.parametrize("wrong", [{}, {"Authorization": "Bearer x"}, {"X-Auth-Token": "x"}, credentials("alice", "")])
def test_every_row_answers_401_without_a_valid_token(world: World, wrong: dict[str, Any]) -> None:
    """1.2, 1.3: errors '401'."""
    asked = {(row.method, row.target) for row in ROWS}
    some = sorted(asked)[:: 1 if not wrong else 6] if "Basic" not in str(wrong) else [("GET", "/conf")]
    for method, target in some:
        answer = world.wire.ask(method, target.replace("{", "").replace("}", ""), wrong, authorised=False)
        assert answer.status == 401 and answer.is_plain_error, (method, target, answer)
