"""`local-backend connection` works on the database, without a server."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from lockbox_kind import put_lockbox

from local_backend.cli import main
from local_backend.data import registry

SECRET = "planted-password-of-a-lockbox"
Command = Callable[..., Result]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs `local-backend` with a separate home and the lockbox kind."""
    monkeypatch.setenv("DLICMD_HOME", str(tmp_path / "home"))
    monkeypatch.syspath_prepend(put_lockbox(tmp_path / "packages"))
    registry.clear()
    yield lambda *words, **more: CliRunner().invoke(main, words, **more)
    registry.clear()


def test_a_connection_is_added_listed_and_removed(command: Command, tmp_path: Path) -> None:
    added = command("connection", "add", "box", "--type", "lockbox", "--set", "folder=/x", "--set", "username=u",
                    "--secret", "token", "--secret", "password", "--shared-with", "bob", input=f"t0ken\n{SECRET}\n")
    assert added.exit_code == 0 and added.stdout.startswith("added box (lockbox), id "), added.output
    [shown] = json.loads(command("connection", "list", "-o", "json").stdout)
    assert shown["values"] == {"folder": "/x", "user": "u"} and shown["sharedWith"] == ["bob"]
    assert shown["secrets"] == {"password": "sealed", "token": "sealed"} and shown["id"] in added.stdout
    again = command("connection", "add", "box", "--type", "lockbox", "--set", "folder=/x", "--secret", "password=env:X")
    assert again.exit_code == 1 and "'box'" in again.stderr
    assert SECRET not in "".join(path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file())
    assert "box" in command("connection", "list").stdout
    assert command("connection", "remove", shown["id"]).stdout == f"removed {shown['id']}\n"
    assert json.loads(command("connection", "list", "-o", "json").stdout) == []


def test_a_secret_can_refer_to_an_environment_variable(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_SUCH_PLACE", "x")
    added = command("connection", "add", "box", "--type", "lockbox", "--set", "folder=/x",
                    "--secret", "password=env:NO_SUCH_PLACE", "--shared-with", "everybody")
    assert added.exit_code == 0, added.output
    [shown] = json.loads(command("connection", "list", "-o", "json").stdout)
    assert shown["secrets"] == {"password": "env:NO_SUCH_PLACE"} and shown["sharedWith"] == "everybody"
    assert "NO_SUCH_PLACE" not in os.environ


@pytest.mark.parametrize("words", [
    ["--set", "folder=/x", "--set", "folder=/y"], ["--set", "folder=/x", "--set", "user=a", "--set", "username=b"],
    ["--set", "folder=/x", "--secret", "password", "--secret", "password=env:X"],
    ["--set", "folder=/x", "--secret", "password=env:X", "--secret", "password=env:Y"],
])
def test_a_field_given_twice_is_refused(command: Command, words: list[str]) -> None:
    refused = command("connection", "add", "box", "--type", "lockbox", *words, input=SECRET)
    assert refused.exit_code == 2 and "twice" in refused.stderr and "env:" not in refused.stderr
    assert json.loads(command("connection", "list", "-o", "json").stdout) == []


def test_the_list_shows_only_the_secrets_that_are_set(command: Command) -> None:
    assert command("connection", "add", "box", "--type", "lockbox", "--set", "folder=/x", "--secret", "password",
                   input=f"{SECRET}\n").exit_code == 0
    [shown] = json.loads(command("connection", "list", "-o", "json").stdout)
    assert shown["secrets"] == {"password": "sealed"}


def test_an_invalid_address_is_refused_before_it_is_stored(command: Command) -> None:
    refused = command("connection", "add", "web", "--type", "http", "--set", "url=example.com/sets")
    assert refused.exit_code == 1 and "http://HOST or https://HOST" in refused.stderr
    assert json.loads(command("connection", "list", "-o", "json").stdout) == []


def test_the_test_of_a_missing_volume_fails(command: Command, tmp_path: Path) -> None:
    for name in ("here", "gone"):
        assert command("connection", "add", name, "--type", "nfs", "--set", f"volume={name}").exit_code == 0
    (tmp_path / "home" / "volumes" / "here").mkdir()
    assert command("connection", "test", "here").stdout == "here: ok\n"
    gone = command("connection", "test", "gone")
    assert gone.exit_code == 1 and "'gone'" in gone.stderr


def test_kinds_and_their_fields_are_shown(command: Command) -> None:
    assert "lockbox           Lockbox of the tests\n" in command("connection", "kinds").stdout
    there = command("connection", "kinds", "lockbox")
    assert "what opens it (required, secret)" in there.stdout and there.stderr == ""


def test_a_kind_names_the_package_to_install(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("local_backend.data.kind._is_there", lambda name: False)
    shown = command("connection", "kinds", "s3")
    assert shown.exit_code == 0 and shown.stdout.startswith("endpoint_url ")
    assert shown.stderr.endswith("are not installed on the server: pip install 'dlicmd[s3]'\n"), shown.stderr


@pytest.mark.parametrize(("words", "code", "said"), [
    (["add", "x", "--type", "lockbux"], 2, "did you mean 'lockbox'"),
    (["add", "x", "--type", "lockbox", "--set", "colour=red"], 2,
     "with a field of lockbox, not 'colour'. Fields: folder"),
    (["add", "x", "--type", "lockbox", "--set", "planted"], 2,
     "takes FIELD=VALUE with a field of lockbox. Fields: folder"),
    (["add", "x", "--type", "lockbox", "--set", "pwd=planted"], 2, "all users can read a command line"),
    (["add", "x", "--type", "lockbox", "--secret", "password=planted"], 2, "all users can read a command line"),
    (["add", "x", "--type", "lockbox", "--secret", "folder"], 2, "--secret takes a secret field of lockbox"),
    (["add", "x", "--type", "lockbox"], 2, "password is missing: pipe in"),
    (["add", "x", "--type", "lockbox", "--secret", "password=env:X"], 1, "needs 'folder'"),
    (["add", "a/b", "--type", "lockbox", "--set", "folder=/x", "--secret", "pwd=env:X"], 1, "invalid connection name"),
    (["test", "none"], 6, "connection 'none' does not exist"),
    (["remove", "none"], 6, "connection 'none' does not exist"),
    (["kinds", "none"], 1, "unknown kind of connection 'none'"),
])
def test_an_invalid_command_prints_one_line(command: Command, words: list[str], code: int, said: str) -> None:
    done = command("connection", *words)
    assert done.exit_code == code and said in done.stderr and len(done.stderr.splitlines()) == 1, done.output
    assert "planted" not in done.stderr
