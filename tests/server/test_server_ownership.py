"""Users see and change only their own execs. The tests cover every route of the application."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from live_server import Answer, Live, quoted, route_table, settings_for
from modelling import Modelling
from planning import Planning
from searching import Searching, definition

from dlicmd.contract import dlim, wire
from local_backend.api.guard import OPEN_PATHS
from local_backend.api.objects import INSTANCE_ID
from local_backend.runtime.occupancy import Holder, SlotPlace
from local_backend.scheduler.model import Reason
from local_backend.scheduler.slots import cpu_slots
from local_backend.store import connections, execs

UNKNOWN = "local-987"
NAME = "the-secret-name-of-bobs-job"
ARGS = f"--exec-start edtPyTorch --model-main main.py --appName {NAME} --msd-pack-id bobs-pack"
#: Calls without the id of an exec that change state, with the status that a user without the role admin gets.
CHANGES = {
    ("POST", wire.EXECS): 400,  # without a command line
    ("POST", wire.CHECK): 400,  # without a command line
    ("DELETE", wire.EXECS): 204,
    ("POST", wire.LOGOFF): 200,
    ("POST", wire.LINK): 200,
    ("POST", wire.LABELS): 400,  # without a body
    ("POST", wire.VIEWS): 400,  # without a body
    ("DELETE", wire.VIEWS + "/{name:path}"): 404,
    ("PUT", wire.PLAN_TREE): 403,
    ("POST", wire.PLAN_PREVIEW): 403,
    ("PUT", wire.PLAN + "/{name:path}"): 403,
    ("DELETE", wire.PLAN + "/{name:path}"): 403,
    ("POST", wire.USERS): 403,
    ("DELETE", wire.USERS + "/{name}"): 403,
    ("PUT", wire.USERS + "/{name}/password"): 403,
    ("PUT", wire.USERS + "/{name}/role"): 403,
    ("POST", wire.STOP_MANY): 400,  # without a body
    ("POST", wire.CONNECTIONS): 400,  # without a body
    ("POST", wire.DATA_PREVIEW): 400,  # without a source
    ("POST", wire.DATA_FILES): 400,  # without a file
    ("DELETE", wire.CONNECTIONS + "/{name:path}"): 404,
    ("PUT", wire.CONNECTIONS + "/{name:path}"): 400,  # without a body
    ("POST", wire.SEARCHES): 400,  # without a definition
    ("POST", wire.MODELS + "/{m}/hypersearch"): 400,  # without a definition
    ("DELETE", wire.SEARCHES): 204,
    ("POST", wire.ALGORITHM_INSTALL): 400,  # without a description
    ("DELETE", wire.ALGORITHMS + "/{name}"): 404,
    ("POST", wire.CONNECTIONS + "/{name:path}/test"): 404,
    ("PUT", wire.USERS + "/{name}/subject"): 403,
    ("POST", wire.TOKENS): 400,  # without a body
    ("DELETE", wire.TOKENS + "/{name}"): 404,
    ("POST", dlim.DEPLOYMENT): 400,  # without an archive
    ("POST", dlim.MODELS): 400,  # without an archive
    ("POST", dlim.RUNTIMES): 400,  # without a description
    ("PUT", dlim.RUNTIMES + "/{r}"): 400,  # without a description
    ("DELETE", dlim.RUNTIMES + "/{r}"): 404,
    ("POST", dlim.STORE): 400,  # without a name
    ("DELETE", dlim.STORE + "/{name}"): 404,
    ("PUT", dlim.STORE + "/{name}/promote"): 400,  # without a space
    ("POST", dlim.STORE + "/{name}/deploy"): 404,
    ("POST", wire.DEFINITIONS): 400,  # without a definition
    ("POST", wire.HARDWARE): 400,  # without a specification
    ("POST", wire.PLANS_OF_EXPERIMENTS): 400,  # without an experiment
    ("POST", wire.PLANS_OF_EXPERIMENTS + "/check"): 400,  # without an experiment
    ("POST", wire.EDI_MODELS + "/new"): 400,  # without a name
}
#: Calls that read what their query or their path names, and their statuses without it.
NAMING = {wire.DATA_FILE: 400, dlim.STORE + "/{name}/deploy": 404}
#: Calls that only administrators may make.
PRIVATE = {("GET", wire.USERS), ("GET", wire.AUDIT), ("GET", wire.DOCTOR)}


class Team:
    """A server with bob, who has a running exec, a waiting exec and a connection, and carol, who has none."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.bob, self.carol = live.add_user("bob"), live.add_user("carol")
        self.admin = live.add_user("root", "admin")
        self.running = live.submitted(ARGS, token=self.bob)
        self.waiting = live.submitted(ARGS, token=self.bob)
        live.database.write(lambda c: connections.add(c, "bob", "bob", "s3", {"endpoint_url": NAME}, None, []))
        answer = Searching(live).post(definition("bobs-search"), token=self.bob)
        assert answer.status == 200, answer.text
        self.search = str(answer.json()["uid"])
        self.model = str(Modelling(live).deploy("bobs-model", token=self.bob)["name"])
        self.shared = "bob/the-secret-of-bob"
        bob, name = Planning(live, self.bob), self.shared.partition("/")[2]
        bob.defined(name)
        bob.plan(name, [{"definition": name}])
        bob.post("/hardware", {"name": name, "hardwareSpec": {}})
        live.run_on(self.running, "cpu-0")
        live.supervisor.held = [SlotPlace(cpu_slots(1)[0], (Holder(self.running, share=0.5),))]
        live.supervisor.reasons[self.waiting] = Reason("SLOTS", "waiting", 1, None, "wait", "when some come free")
        paths = live.settings.paths.job(self.running, "bob")
        paths.model.joinpath("weights").write_text("x")

    def call(self, method: str, path: str, token: str, name: str = "") -> Answer:
        """Call a route, with `name` as the id if the route takes one."""
        of_store = path.startswith(dlim.STORE)
        for part, value in (("{exec_id}", name), ("{app_id}", name), ("{number}", "1"), ("{log}", "launcherlog"),
                            ("{name:path}", name if is_of_team(path) else "training"),
                            ("{name}", "digits" if of_store else "bob"), ("{instance}", INSTANCE_ID),
                            ("{n}", name), ("{t}", name), ("{m}", name if is_of_model(path) else "m"),
                            ("{r}", "python"), ("{new}", "m"), ("{experiment}", "0"), ("{run}", "1")):
            path = path.replace(part, quoted(value))
        return self.live.call(method, path, token=token, base="")


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    live = Live(settings_for(tmp_path_factory.mktemp("team") / "home", embedded=False))
    yield Team(live)
    live.close()


def takes_id(path: str) -> bool:
    return any((
        "{exec_id}" in path, "{app_id}" in path, is_of_search(path), is_of_model(path), is_of_team(path)))


def is_of_team(path: str) -> bool:
    """Return whether a path is that of a model definition, a hardware specification or an experiment."""
    return "{name:path}" in path and path.startswith((wire.DEFINITIONS, wire.HARDWARE, wire.PLANS_OF_EXPERIMENTS))


def is_of_search(path: str) -> bool:
    return "{n}" in path or "{t}" in path


def is_of_model(path: str) -> bool:
    return "{m}" in path and "hypersearch" not in path


def names_of(team: Team, path: str) -> tuple[str, ...]:
    if is_of_model(path):
        return (team.model,)
    if is_of_team(path):
        return (team.shared,)
    return (team.search,) if is_of_search(path) else (team.running, team.waiting)


def calls(team: Team) -> list[tuple[str, str]]:
    return sorted((method, path) for path, methods in route_table(team.live).items() for method in methods - {"HEAD"})


def test_an_id_of_another_user_is_answered_like_an_unknown_id(team: Team) -> None:
    tried = 0
    for method, path in (call for call in calls(team) if takes_id(call[1])):
        for name in names_of(team, path):
            of_another = team.call(method, path, team.carol, name)
            unknown = team.call(method, path, team.carol, UNKNOWN)
            assert of_another.text.replace(name, UNKNOWN) == unknown.text, (method, path)
            assert of_another.status == unknown.status and of_another.headers.keys() == unknown.headers.keys()
            expected = 404 if is_of_search(path) or is_of_model(path) or is_of_team(path) else 400
            assert unknown.status == expected or unknown.json() == [], (method, path)
            tried += 1
    assert tried >= 2 * 12
    for name in (team.running, team.waiting):
        assert not (team.live.row(name).stop_requested or team.live.row(name).deleted)


def test_a_call_without_an_id_shows_nothing_of_another_user(team: Team) -> None:
    marks = ("bob", NAME, f'"{team.running}"', f'"{team.waiting}"', team.search, team.model)
    without = [call for call in calls(team) if not takes_id(call[1]) and call[1] not in OPEN_PATHS]
    for number, (method, path) in enumerate(without):
        if method == "GET":
            answer = team.call(method, path, team.carol)
            expected = 403 if (method, path) in PRIVATE else NAMING.get(path, 200)
            assert answer.status == expected, (path, answer)
            told = answer.text.replace(team.carol, "")  # The token is random and could contain one of the marks.
            assert not [mark for mark in marks if mark in told], path
            continue
        assert (method, path) in CHANGES, f"{method} {path}: add the call and its status to CHANGES"
        token = team.live.add_user(f"u{number}")
        assert team.call(method, path, token).status == CHANGES[method, path], (method, path)
    assert team.call("DELETE", wire.EXECS, team.carol).status == 204
    assert team.call("DELETE", wire.EXECS, team.admin).status == 204, "an administrator must delete only own execs"
    assert not team.live.row(team.running).deleted


@pytest.mark.parametrize("kind", ["paralleljob", "pod"])
def test_kubernetes_objects_of_another_user_are_hidden(team: Team, kind: str) -> None:
    path = f"{wire.KUBERNETES_OBJECTS}?type={kind}"
    shown = team.live.call("GET", path, token=team.bob, base="").json()["items"]
    assert any(team.running in one["metadata"]["name"] for one in shown)
    assert team.live.call("GET", path, token=team.carol, base="").json() == {"items": []}


def test_the_kubernetes_object_of_another_user_is_hidden(team: Team) -> None:
    path = f"{wire.KUBERNETES_OBJECTS}?type=paralleljob&name={team.running}"
    assert team.live.call("GET", path, token=team.bob, base="").json()["metadata"]["name"] == team.running
    assert team.live.call("GET", path, token=team.carol, base="").status == 400


def test_a_pack_of_another_user_is_hidden(team: Team) -> None:
    assert team.live.call("GET", "/scheduler/engine/applications/pack-bob:bobs-pack", token=team.bob).json()
    assert team.live.call("GET", "/scheduler/engine/applications/pack-bob:bobs-pack", token=team.carol).json() == []
    assert team.live.call("PUT", "/scheduler/applications/pack-bob:bobs-pack/stop", token=team.carol).status == 400


def test_users_see_their_own_execs_and_administrators_see_all(team: Team) -> None:
    live = team.live
    for token in (team.bob, team.admin, live.token):
        for path in ("/execs?all=true", "/scheduler/engine/applications", "/scheduler/applications"):
            assert team.running in live.call("GET", path, token=token).text, path
        assert live.call("GET", f"/execs/{team.running}", token=token).json()["creator"] == "bob"
        assert live.call("GET", f"/execs/{team.running}/result", token=token).status == 200
        view = live.call("GET", "/scheduler/slots", token=token).json()
        assert view["slots"][0]["holders"][0]["id"] == team.running
        assert [row["id"] for row in view["queue"]] == [team.waiting]
        assert live.call("GET", "/scheduler/holdings", token=token).json()["rows"]
        assert live.call("GET", "/status", token=token).json()["jobs"] == {"RUNNING": 1, "SUBMITTED": 1}
        holders = live.call("GET", f"/execs/{team.waiting}/why", token=token).json()["holders"]
        assert [holder["id"] for holder in holders] == [team.running]
    assert len(live.call("GET", "/execs", token=team.bob).json()) == 2


def test_a_list_has_the_callers_execs_and_all_only_for_administrators_that_say_so(team: Team) -> None:
    own = team.live.submitted(token=team.admin)

    def listed(token: str, query: str = "") -> list[str]:
        return [one["id"] for one in team.live.call("GET", f"/execs{query}", token=token).json()]

    for query in ("", "/", "?all=false", "?limit=10&state=SUBMITTED&sort_by=id:desc"):
        assert listed(team.admin, query) == [own], query
    assert listed(team.admin, "?all=true&sort_by=id:desc&limit=2") == [own, team.waiting]
    assert listed(team.admin, "?all=true&state=RUNNING") == [team.running]
    assert listed(team.bob, "?all=true") == [team.running, team.waiting]
    assert listed(team.carol, "?all=true") == []
    assert team.live.call("DELETE", "/execs?all=true", token=team.admin).status == 204
    assert team.live.row(own).deleted and not team.live.row(team.running).deleted
    assert listed(team.admin) == [] and listed(team.admin, "?all=true") == [team.running, team.waiting]
    team.live.forget(own)


def test_a_slot_of_another_user_shows_only_its_share(team: Team) -> None:
    view = team.live.call("GET", "/scheduler/slots", token=team.carol).json()
    assert view["slots"][0]["state"] == "used" and view["slots"][0]["holders"] == [{"share": 0.5}]
    assert view["running"] == view["queue"] == []
    assert team.live.call("GET", "/status", token=team.carol).json()["jobs"] == {}
    assert team.live.call("GET", "/scheduler/holdings?by=holding", token=team.carol).json()["slotSeconds"] == 0
    waits = team.live.submitted(token=team.carol)
    team.live.supervisor.reasons[waits] = Reason("SLOTS", "waiting", 2, None, "wait", "when some come free")
    assert team.live.call("GET", f"/execs/{waits}/why", token=team.carol).json()["holders"] == []
    team.live.forget(waits)


def test_only_administrators_submit_for_other_users(team: Team) -> None:
    live = team.live
    args = "--exec-start PyTorch --model-main main.py --submit-user "
    refused = live.submit(args + "bob", {"main.py": b""}, token=team.carol)
    assert refused.error == (403, "auth.admin_only") and "--submit-user" in refused.text
    for name, token in (("carol", team.carol), ("bob", team.admin)):
        answer = live.submit(args + name, {"main.py": b""}, token=token)
        assert answer.status == 200
        row = live.row(answer.json()["id"])
        assert row.user == name and row.creator == ("carol" if name == "carol" else "root")
        live.database.write(lambda c, done=row.id: execs.remove(c, done))


def test_only_administrators_change_plans(team: Team) -> None:
    body = json.dumps({"plans": [{"name": "night"}]}).encode()
    headers = {"Content-Type": "application/json"}
    before = team.live.call("GET", "/resplans/resplantree", token=team.carol).text
    assert team.live.call("PUT", "/resplans/resplantree", body, headers, token=team.carol).status == 403
    assert team.live.call("GET", "/resplans/resplantree", token=team.carol).text == before
    assert team.live.call("PUT", "/resplans/resplantree", body, headers, token=team.admin).status == 200
    assert "night" in team.live.call("GET", "/resplans/resplantree", token=team.carol).text
