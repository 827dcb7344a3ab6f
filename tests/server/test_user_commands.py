"""`local-backend user` with a running server and without a server: the results are the same."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from live_server import TOKEN, Live, settings_for

from local_backend import password_hash
from local_backend.cli import main
from local_backend.files import write_json
from local_backend.serving import server
from local_backend.store import users
from local_backend.store.database import Database

SECRET = "correct horse battery"


@pytest.fixture(autouse=True)
def _no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DLI_USER_PASSWORD", raising=False)


class Desk:
    """A user of the command line on the machine of the server."""

    def __init__(self, home: Path, live: Live | None) -> None:
        self.home = home
        self.live = live

    def user(self, *words: str, typed: str = "", **environment: str) -> Result:
        return CliRunner().invoke(main, ["user", *words], typed, env={"DLICMD_HOME": str(self.home), **environment})

    def add(self, name: str, *more: str) -> Result:
        return self.user("add", name, *more, "--password-stdin", typed=SECRET + "\n")

    def known(self, name: str) -> users.UserRow | None:
        if self.live is not None:
            return self.live.database.read(lambda c: users.get(c, name))
        database = Database(self.home / "backend.db")
        database.open()
        try:
            return database.read(lambda c: users.get(c, name))
        finally:
            database.close()


@pytest.fixture(params=["running", "stopped"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    home = tmp_path / "home"
    if request.param == "stopped":
        yield Desk(home, None)
        return
    live = Live(settings_for(home, embedded=False))
    with server.locked(live.settings):
        found = {"url": f"http://127.0.0.1:{live.port}", "pid": os.getpid(), "token": TOKEN}
        write_json(home / "backend.json", found)
        yield Desk(home, live)
    live.close()


def test_a_user_is_added_listed_changed_and_removed(desk: Desk) -> None:
    assert desk.add("bob").output == "added bob (user)\n"
    assert desk.add("ada", "--role", "admin").exit_code == 0
    assert stat.S_IMODE((desk.home / "backend.db").stat().st_mode) == 0o600
    listed = json.loads(desk.user("list", "-o", "json").stdout)
    assert [(found["name"], found["role"], sorted(found)) for found in listed] == [
        ("ada", "admin", ["created", "name", "role"]), ("bob", "user", ["created", "name", "role"]),
    ]
    lines = desk.user("list").stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["name", "role"], ["ada", "admin"], ["bob", "user"]]
    before = desk.known("bob")
    assert before is not None and password_hash.matches(before.password, SECRET)
    assert desk.user("passwd", "bob", DLI_USER_PASSWORD="another secret").exit_code == 0
    after = desk.known("bob")
    assert after is not None and password_hash.matches(after.password, "another secret")
    assert desk.user("role", "bob", "admin").output == "bob is admin now\n"
    changed = desk.known("bob")
    assert changed is not None and changed.role == "admin"
    assert desk.user("remove", "bob", "--yes").output == "removed bob\n"
    assert desk.known("bob") is None and desk.known("ada") is not None


@pytest.mark.parametrize(("words", "typed", "code", "said"), [
    (["add", "ada", "--password-stdin"], SECRET, 1, "'ada'"),
    (["add", "a/b", "--password-stdin"], SECRET, 1, "name"),
    (["add", "x", "--password-stdin"], "short", 1, "8 to 1000"),
    (["add", "x", "--password-stdin"], "", 1, "8 to 1000"),
    (["add", "x"], "", 2, "DLI_USER_PASSWORD"),
    (["add", "x", "--role", "king"], "", 2, "king"),
    (["passwd", "nobody", "--password-stdin"], SECRET, 6, "'nobody'"),
    (["remove", "nobody"], "", 6, "'nobody'"),
    (["role", "nobody", "user"], "", 6, "'nobody'"),
    (["remove", "../x"], "", 6, "'../x'"),
])
def test_an_invalid_command_is_refused(desk: Desk, words: list[str], typed: str, code: int, said: str) -> None:
    assert desk.add("ada").exit_code == 0
    done = desk.user(*words, typed=typed)
    assert done.exit_code == code and said in done.stderr and not done.stdout and SECRET not in done.stderr
    assert desk.known("x") is None and desk.known("ada") is not None


def test_removing_an_administrator_needs_confirmation(desk: Desk) -> None:
    for name in ("ada", "eve"):
        assert desk.add(name, "--role", "admin").exit_code == 0
    asked = desk.user("remove", "ada")
    assert asked.exit_code == 2 and "--yes" in asked.stderr and desk.known("ada") is not None
    assert desk.user("remove", "ada", "--yes").output == "removed ada\n" and desk.known("ada") is None
    last = desk.user("remove", "eve", "-y")
    assert last.exit_code == 1 and "eve" in last.stderr and desk.known("eve") is not None


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1)])
def test_a_terminal_asks_for_confirmation(desk: Desk, monkeypatch: pytest.MonkeyPatch, typed: str, code: int) -> None:
    for name in ("ada", "eve"):
        desk.add(name, "--role", "admin")
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True)
    done = desk.user("remove", "ada", typed=typed)
    assert done.exit_code == code and "ada" in done.stderr
    assert (desk.known("ada") is None) == (code == 0)


def test_adding_a_user_to_an_embedded_server_warns(tmp_path: Path) -> None:
    live = Live(settings_for(tmp_path / "home"))
    with server.locked(live.settings):
        found = {"url": f"http://127.0.0.1:{live.port}", "pid": os.getpid(), "token": TOKEN}
        write_json(live.settings.home / "backend.json", found)
        done = Desk(live.settings.home, live).add("bob")
    live.close()
    assert done.exit_code == 0 and done.stdout == "added bob (user)\n" and done.stderr


def test_an_unusable_database_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "backend.db").write_text("this is no database" * 100)
    done = Desk(tmp_path / "home", None).add("bob")
    assert done.exit_code == 1 and "backend.db" in done.stderr and done.stderr.count("\n") == 1


def test_the_audit_log_is_shown_newest_first(desk: Desk) -> None:
    desk.add("ada", "--role", "admin")
    desk.user("role", "ada", "user")  # refused: the last administrator

    def shown(*words: str) -> Result:
        return CliRunner().invoke(main, ["audit", *words], env={"DLICMD_HOME": str(desk.home)})

    records = json.loads(shown("--action", "user.", "-o", "json").stdout)
    assert [(one["action"], one["about"], one["outcome"]) for one in records] == [
        ("user.role", ["ada"], "refused"), ("user.add", ["ada"], "done"),
    ]
    [line] = shown("--action", "user.", "-n", "1").stdout.splitlines()
    assert line.endswith("user.role ada: refused (user.last_admin)")
    assert shown("--outcome", "refused", "--user", "nobody").stdout == ""
    assert shown("--from", "yesterday").exit_code == 1
