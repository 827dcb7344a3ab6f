"""Connections over HTTP: their owners and users, and that the server never returns a secret."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from live_server import TOKEN, Answer, Live, settings_for
from lockbox_kind import put_lockbox

from dlicmd.contract.states import KILLED
from local_backend.data import registry
from local_backend.data.errors import DataError
from local_backend.serving.server import ServingError, serve
from local_backend.sources.connections import Connections
from local_backend.store import exec_secrets
from local_backend.store.connections import ConnectionExists

SECRET = "planted-password-of-a-lockbox"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server that knows the lockbox kind, also in its child processes."""
    folder = tmp_path_factory.mktemp("kinds")
    with pytest.MonkeyPatch.context() as patch:
        packages = put_lockbox(folder / "packages")
        patch.setenv("PYTHONPATH", packages)
        patch.syspath_prepend(packages)
        registry.clear()
        home = folder / "home"
        running = Live(replace(settings_for(home), embedded=False, stop_grace=1.0))
        yield running
        running.close()
    registry.clear()


def add(live: Live, name: str, token: str = TOKEN, **more: Any) -> Answer:
    values = {"folder": "/srv/box", "user": "reader", "password": SECRET}
    body = {"name": name, "type": "lockbox", "values": values, **more}
    return live.call("POST", "/connections", json.dumps(body).encode(), {"Content-Type": "application/json"},
                     token=token)


def names(live: Live, token: str) -> list[str]:
    return [item["name"] for item in live.call("GET", "/connections", token=token).json()]


def everything(home: Path) -> str:
    return "".join(path.read_bytes().decode("latin-1") for path in home.rglob("*") if path.is_file())


def test_a_connection_is_stored_and_its_secrets_are_hidden(live: Live) -> None:
    answer = add(live, "Ware house (1)")
    assert answer.status == 200, answer.text
    shown = answer.json()
    assert shown["values"] == {"folder": "/srv/box", "user": "reader"} and shown["owner"] == "alice"
    assert shown["secrets"]["password"] == "sealed" and shown["sharedWith"] == []
    connection = live.services.connections.known.find({"name": "Ware house (1)"}, "alice", True)
    assert connection.values == {"folder": "/srv/box", "user": "reader", "password": SECRET}
    assert SECRET not in repr(connection) + everything(live.settings.home) + live.call("GET", "/connections").text
    assert add(live, "Ware house (1)").status == 409
    again = add(live, "Ware house (1)", replace=True, values={"folder": "/x", "password": "p"}).json()
    assert again["id"] == shown["id"] and again["values"] == {"folder": "/x"}
    assert live.call("DELETE", f"/connections/{again['id']}").status == 204
    log = live.settings.paths.audit.read_text()
    assert "Ware house (1)" in log and SECRET not in log
    assert "connections" in live.call("GET", "/conf").json()["DLICMD_EXTENSIONS"].split(",")


@pytest.mark.parametrize(("change", "said"), [
    ({"name": "../x"}, "'../x'"),
    ({"name": ""}, "name ''"),
    ({"name": "ünï cödé"}, "'ünï cödé'"),
    ({"type": "lockbux"}, "'lockbox'"),
    ({"values": {"folder": "/x"}}, "'password'"),
    ({"values": {"folder": "/x", "password": ""}}, "'password'"),
    ({"values": {"folder": "/x", "password": [SECRET]}}, "'password'"),
    ({"values": {"folder": "/x", "password": {"env": 3}}}, "'password'"),
    ({"values": {"folder": {"env": "X"}, "password": "p"}}, "'folder'"),
    ({"values": {"folder": "/x", "password": "p", "colour": "red"}}, "'colour'"),
    ({"values": {"folder": "/x" * 40_000, "password": "p"}}, "65536"),
])
def test_an_invalid_connection_is_refused(live: Live, change: dict[str, Any], said: str) -> None:
    answer = add(live, **{"name": "new", **change})
    assert answer.error == (400, "connection.invalid") and said in answer.text, answer.text
    assert SECRET not in answer.text
    assert "new" not in names(live, TOKEN)


@pytest.mark.parametrize("change", [{"name": 3}, {"values": []}, {"sharedWith": "nobody"}, {"sharedWith": ["../x"]}])
def test_a_connection_with_a_value_of_the_wrong_type_is_refused(live: Live, change: dict[str, Any]) -> None:
    answer = add(live, **{"name": "new", **change})
    assert answer.error == (400, "body.value") and f'"{next(iter(change))}"' in answer.text
    assert "new" not in names(live, TOKEN)


def test_a_connection_is_visible_only_to_its_owner_and_shared_users(live: Live) -> None:
    ada, bob, eve = (live.add_user(name) for name in ("ada", "bob", "eve"))
    assert add(live, "mine", ada).status == add(live, "ours", ada, sharedWith=["bob"]).status == 200
    assert add(live, "all", ada, sharedWith="everybody").status == 200
    assert (names(live, ada), names(live, bob), names(live, eve)) == (["all", "mine", "ours"], ["all", "ours"], ["all"])
    assert {"mine", "ours"} <= set(names(live, TOKEN)), "an administrator must see all connections"
    find = live.services.connections.known.find
    assert find({"name": "ours"}, "bob", False).values["password"] == SECRET
    [row] = [row for row in live.services.connections.known.all() if row.name == "mine"]
    for reference in ({"name": "mine"}, {"id": row.id}, {"href": f"/v2/connections/{row.id}?project_id=p"}):
        assert find(reference, "ada", False).values["password"] == SECRET
        with pytest.raises(DataError) as forbidden:
            find(reference, "eve", False)
        missing = str(forbidden.value).replace(row.id, "mine").replace("'mine'", "'none'")
        with pytest.raises(DataError) as unknown:
            find({"name": "none"}, "eve", False)
        assert missing == str(unknown.value), "forbidden and unknown must have the same message"
    for method, path in (("DELETE", "/connections/mine"), ("POST", "/connections/mine/test")):
        hidden, none = (live.call(method, path.replace("mine", name), token=eve) for name in ("mine", "none"))
        assert hidden.error == none.error == (404, "connection.not_found")
        assert hidden.text == none.text.replace("none", "mine")
    refused = live.call("DELETE", "/connections/ours", token=bob)
    assert refused.error == (403, "connection.of_another_user") and "ada" in refused.text
    assert live.call("GET", "/connections", token=bob).json()[0]["secrets"] == {}
    assert live.call("DELETE", "/connections/ours", token=ada).status == 204 and names(live, bob) == ["all"]


def test_the_own_connection_has_priority_and_ambiguous_names_are_refused(live: Live) -> None:
    for user in ("gus", "han"):
        assert add(live, "same", live.add_user(user), sharedWith="everybody").status == 200
    connections = live.services.connections.known
    assert connections.row("same", "gus", False).owner == "gus"
    with pytest.raises(DataError, match=r"'same'.*gus/same.*han/same"):
        connections.row("same", "ida", False)
    for user in ("gus", "han"):
        assert connections.row(f"{user}/same", "ida", False).owner == user
    ida = live.add_user("ida")
    for path, answer in (("/connections/same/test", 404), ("/connections/gus/same/test", 200),
                         ("/connections/gus%2Fsame/test", 200), ("/connections/nob/same/test", 404)):
        assert live.call("POST", path, token=ida).status == answer, path
    assert live.call("DELETE", "/connections/gus/same", token=ida).error == (403, "connection.of_another_user")
    assert live.call("DELETE", "/connections/gus/same").status == 204, "an administrator may remove it"
    assert connections.row("same", "ida", False).owner == "han"


def test_a_name_or_id_of_another_user_cannot_take_the_place_of_a_connection(live: Live) -> None:
    """Neither at a submission nor while a job of the owner or of a user of a shared connection is pending."""
    kim, lee, mia = (live.add_user(name) for name in ("kim", "lee", "mia"))
    mine = add(live, "box", kim, sharedWith=["lee"]).json()
    args, files = "--exec-start PyTorch --model-main main.py", {"main.py": b"x"}
    data = json.dumps({"dataSource": source(name="box")})
    rows = [live.row(live.submit(args, files, data, token).json()["id"]) for token in (kim, lee)]
    other = {"folder": "/evil", "password": "evil"}
    assert add(live, "box", mia, sharedWith="everybody", values=other).status == 200
    assert add(live, mine["id"], mia, sharedWith="everybody", values=other).status == 200
    connections = live.services.connections.known
    for row in rows:
        assert connections.of_sources(row)[1]["folder"] == "/srv/box"
        assert connections.state(row)[0][0] == mine["id"]
    assert connections.row(mine["id"], "lee", False).owner == "kim"
    assert connections.row("box", "kim", False).owner == "kim"
    refused = live.submit(args, files, data, lee)
    assert refused.error == (400, "submission.data_source")
    assert "kim/box" in refused.text and "mia/box" in refused.text
    chosen = live.submit(args, files, json.dumps({"dataSource": source(name="kim/box")}), lee)
    assert chosen.status == 200, chosen.text
    live.call("DELETE", f"/connections/{mine['id']}", token=kim)
    for row in rows:
        with pytest.raises(DataError, match="kim/box"):
            connections.of_sources(row)


def test_only_an_administrator_may_use_secrets_of_the_server(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOX_PASSWORD", SECRET)
    values = {"folder": "/x", "password": {"env": "BOX_PASSWORD"}}
    refused = add(live, "taken", live.add_user("max"), values=values)
    assert refused.error == (403, "auth.admin_only")
    answer = add(live, "taken", values=values)
    assert answer.status == 200 and answer.json()["secrets"]["password"] == "env:BOX_PASSWORD"
    assert "BOX_PASSWORD" not in os.environ, "jobs must not inherit the variable"
    find = live.services.connections.known.find
    assert find({"name": "taken"}, "alice", True).values["password"] == SECRET
    add(live, "untaken", values={"folder": "/x", "password": {"env": "NOT_SET_ANYWHERE"}})
    with pytest.raises(DataError, match="NOT_SET_ANYWHERE"):
        find({"name": "untaken"}, "alice", True)


def test_a_secret_is_read_from_the_keyring(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    import keyring

    kept = {("a/b", "c"): SECRET}
    monkeypatch.setattr(keyring, "get_password", lambda service, user: kept.get((service, user)))
    find = live.services.connections.known.find
    add(live, "ring", values={"folder": "/x", "password": {"keyring": "a/b/c"}})
    assert find({"name": "ring"}, "alice", True).values["password"] == SECRET
    add(live, "ring", values={"folder": "/x", "password": {"keyring": "a/x"}}, replace=True)
    with pytest.raises(DataError, match="'a/x'"):
        find({"name": "ring"}, "alice", True)


def test_a_failed_connection_test_reports_the_reason_without_secrets(live: Live, tmp_path: Path) -> None:
    (tmp_path / ".password").write_text("right")

    def tested(password: str) -> dict[str, Any]:
        add(live, "box", values={"folder": str(tmp_path), "password": password}, replace=True)
        return live.call("POST", "/connections/box/test").json()

    assert tested("right") == {"ok": True}
    assert tested(SECRET) == {"ok": False, "message": "wrong password ***"}
    assert tested("crash") == {"ok": False, "message": "RuntimeError: login failed for user reader with ***"}


def test_a_connection_test_without_the_vault_key_says_so(live: Live) -> None:
    add(live, "sealed", replace=True)
    vault = live.settings.paths.vault
    key = vault.read_bytes()
    vault.unlink()
    try:
        answer = live.call("POST", "/connections/sealed/test").json()
        assert not answer["ok"] and "connection 'sealed'" in answer["message"] and "restore it" in answer["message"]
    finally:
        vault.write_bytes(key)


def source(**connection: Any) -> list[dict[str, Any]]:
    return [{"type": "connection", "connection": connection, "location": {"path": "x"}}]


def test_credentials_in_a_data_source_are_encrypted_until_the_exec_ends(live: Live) -> None:
    sources = source(type="lockbox", folder="/srv", username="reader", password=SECRET)
    args, data = "--exec-start PyTorch --model-main main.py", json.dumps({"dataSource": sources})
    answer = live.submit(args, {"main.py": b"x"}, data)
    assert answer.status == 200, answer.text
    shown = answer.json()
    assert "encrypted" in shown["warning"] and SECRET not in answer.text
    assert shown["dataSource"][0]["connection"] == {
        "type": "lockbox", "folder": "/srv", "username": "reader", "password": "***"}
    again = live.call("GET", f"/execs/{shown['id']}")
    assert "warning" not in again.json() and SECRET not in again.text
    assert SECRET not in everything(live.settings.home)
    connections, row = live.services.connections.known, live.row(shown["id"])
    assert connections.of_sources(row) == {1: {"folder": "/srv", "user": "reader", "password": SECRET}}
    live.move(shown["id"], KILLED)
    assert live.database.read(lambda c: exec_secrets.of(c, shown["id"])) is None


def test_a_data_source_uses_only_connections_that_its_user_may_use(live: Live) -> None:
    token = live.add_user("pam")
    add(live, "of pam", token)
    data = json.dumps({"dataSource": source(name="of pam")})
    args, files = "--exec-start PyTorch --model-main main.py", {"main.py": b"x"}
    answer = live.submit(args, files, data, token)
    assert answer.status == 200 and "warning" not in answer.json(), answer.text
    row = live.row(answer.json()["id"])
    connections = live.services.connections.known
    assert connections.of_sources(row)[1]["password"] == SECRET
    hidden = live.submit(args, files, data, live.add_user("pit"))
    unknown = live.submit(args, files, data.replace("of pam", "of nob"), live.add_user("pot"))
    assert hidden.error == unknown.error == (400, "submission.data_source")
    assert hidden.text == unknown.text.replace("of nob", "of pam")
    live.call("DELETE", "/connections/of%20pam", token=token)
    with pytest.raises(DataError, match="'pam/of pam'"):
        connections.of_sources(row)


FILE = """\
warehouse:
  type: lockbox
  folder: /srv/box
  password: env:WAREHOUSE_PASSWORD
  shared-with: everybody
own:
  type: lockbox
  folder: /srv/own
  password: {secret}
  shared-with: [ada, bob]
"""


def test_connections_of_the_file_are_read_only(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAREHOUSE_PASSWORD", "of the environment")
    file = tmp_path / "connections.yaml"
    file.write_text(FILE.replace("{secret}", SECRET))
    file.chmod(0o600)
    connections = Connections(replace(live.settings, connections=file), live.database)
    assert connections.find({"name": "warehouse"}, "eve", False).values["password"] == "of the environment"
    assert connections.find({"name": "own"}, "bob", False).values == {"folder": "/srv/own", "password": SECRET}
    with pytest.raises(DataError, match="'own'"):
        connections.find({"name": "own"}, "eve", False)
    with pytest.raises(DataError, match=r"connections\.yaml"):
        connections.remove(connections.row("own", "alice", True))
    for replaced in (False, True):
        with pytest.raises(ConnectionExists, match=r"'own'.*connections\.yaml"):
            connections.add(live.settings.user, "own", "lockbox", {"folder": "/x", "password": "y"}, [], replaced)
    connections.add("somebody", "own", "lockbox", {"folder": "/x", "password": "y"}, [], False)
    again = Connections(replace(live.settings, connections=file), live.database)
    assert again.row("own", "alice", True).id == connections.row("own", "alice", True).id, "the id must not change"


@pytest.mark.parametrize(("text", "said"), [
    ("- a\n", "line 1: .*'name: value'"),
    ("a b/c:\n  type: lockbox\n", "line 1: .*name 'a b/c'"),
    ("a:\n  folder: /x\n", "line 1: .*'a'.*'type'"),
    ("a:\n  type: lockbux\n", "line 1: .*'lockbux'.*'lockbox'"),
    ("a:\n  type: lockbox\n  folder: /x\n", "line 1: .*'lockbox'.*'password'"),
    ("a:\n  type: lockbox\n  folder: /x\n  password: p\n  colour: red\n", "'colour'"),
    ("a:\n  type: lockbox\n  folder: /x\n  password: [p]\n", "line 4: password"),
    ("a:\n  type: lockbox\n  folder: /x\n  password: planted\n", "chmod 600"),
])
def test_an_invalid_file_is_reported_with_its_line(live: Live, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "connections.yaml"
    file.write_text(text)
    file.chmod(0o644)
    with pytest.raises(DataError, match=said) as caught:
        Connections(replace(live.settings, connections=file), live.database)
    assert "planted" not in str(caught.value) and str(file) in str(caught.value)


def test_a_server_does_not_start_without_its_connections_file(live: Live, tmp_path: Path) -> None:
    settings = replace(settings_for(tmp_path / "home"), connections=tmp_path / "missing.yaml")
    with pytest.raises(ServingError, match=r"missing\.yaml"):
        serve(settings)
