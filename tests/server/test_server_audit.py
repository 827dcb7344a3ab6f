"""The audit log records every change: user, time, address, action and outcome; and no secret."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from live_server import TOKEN, Live, basic, quoted, route_table, settings_for

from dlicmd.contract import wire
from local_backend import audit
from local_backend.api.guard import OPEN_PATHS
from local_backend.audit import AuditLog
from local_backend.cli import main
from local_backend.services import passwords
from local_backend.services.access import Caller
from local_backend.services.base import Recorder


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "SLOW", 0.0)


def entries(live: Live) -> list[dict[str, Any]]:
    path = live.settings.home / "audit.log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def shown(found: dict[str, Any]) -> tuple[Any, ...]:
    return found["user"], found["action"], found["about"], found["outcome"], found.get("code")


def test_submits_stops_and_deletes_of_an_exec_are_recorded(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    bob = live.add_user("bob")
    began = datetime.now(timezone.utc)
    one = live.submitted("--exec-start PyTorch --model-main main.py --msd-env API_KEY=hush -- hush", token=bob)
    live.call("GET", f"/execs/{one}", token=bob)
    assert live.call("POST", f"/execs/{one}/stop", token=live.add_user("carol")).status == 400
    stopped = live.call("POST", f"/execs/{one}/stop/", token=bob)
    two = live.submitted(token=bob)
    live.call("DELETE", "/execs", token=bob)
    assert [shown(found) for found in entries(live)] == [
        ("bob", "exec.submit", [one], "done", None),
        ("carol", "exec.stop", [one], "refused", "exec.not_found"),
        ("bob", "exec.stop", [one], "done", None),
        ("bob", "exec.submit", [two], "done", None),
        ("bob", "exec.delete", [one, two], "done", None),
    ]
    times = [datetime.fromisoformat(found["time"].replace("Z", "+00:00")) for found in entries(live)]
    assert times == sorted(times) and (times[0] - began).total_seconds() > -1
    assert {found["from"] for found in entries(live)} == {"127.0.0.1"}
    assert entries(live)[2]["request"] == stopped.headers["x-request-id"]
    text = (live.settings.home / "audit.log").read_text()
    assert "hush" not in text and bob not in text
    assert (live.settings.home / "audit.log").stat().st_mode & 0o777 == 0o600


def test_logons_and_wrong_passwords_are_recorded(live: Live) -> None:
    live.call("GET", wire.LOGON, headers=basic("alice", TOKEN), token=None, base="")
    live.call("GET", wire.LOGON, headers=basic("eve", "guess-1"), token=None, base="")
    live.call("GET", "/execs", headers=basic("mallory", "guess-2"), token=None)
    live.call("GET", "/execs", headers=basic("alice", TOKEN), token=None)
    live.call("GET", "/execs", token=None)
    assert [shown(found) for found in entries(live)] == [
        ("alice", "auth.logon", [], "done", None),
        ("eve", "auth.logon", [], "refused", "auth.wrong_password"),
        ("mallory", "auth.password", [], "refused", "auth.wrong_password"),
    ]
    assert "guess" not in (live.settings.home / "audit.log").read_text()


#: The record of every call that changes something. The body may be valid or not.
CHANGES: dict[tuple[str, str], tuple[Any, str]] = {
    ("POST", wire.LOGOFF): (None, "auth.logoff"),
    ("POST", wire.EXECS): (None, "exec.submit"),
    ("DELETE", wire.EXECS): (None, "exec.delete"),
    ("DELETE", wire.EXECS + "/{exec_id}"): (None, "exec.delete"),
    ("POST", wire.EXECS + "/{exec_id}/stop"): (None, "exec.stop"),
    ("POST", wire.EXECS + "/{exec_id}/deploy"): (None, "exec.deploy"),
    ("PUT", wire.EXECS + "/{exec_id}/slots"): ({"slots": 1}, "exec.resize"),
    ("POST", wire.EXECS + "/{exec_id}/verify"): (None, "exec.verify"),
    ("PUT", wire.APPLICATIONS + "/{app_id}/stop"): (None, "application.stop"),
    ("POST", wire.STOP_MANY): ({"ids": ["local-1"]}, "application.stop"),
    ("PUT", wire.PLAN_TREE): ({"plans": 3}, "plan.replace"),
    ("PUT", wire.PLAN + "/{name:path}"): ({}, "plan.put"),
    ("DELETE", wire.PLAN + "/{name:path}"): (None, "plan.remove"),
    ("POST", wire.USERS): (None, "user.add"),
    ("PUT", wire.USERS + "/{name}/password"): (None, "user.password"),
    ("DELETE", wire.USERS + "/{name}"): (None, "user.remove"),
    ("POST", wire.CONNECTIONS): ({"name": "c", "type": "none"}, "connection.add"),
    ("DELETE", wire.CONNECTIONS + "/{name}"): (None, "connection.remove"),
    ("POST", wire.CONNECTIONS + "/{name}/test"): (None, "connection.test"),
    ("POST", wire.CHECK): (None, "exec.check"),
    ("POST", wire.DATA_PREVIEW): ({"dataSource": []}, "data.preview"),
}


def test_every_call_that_changes_something_is_recorded(live: Live) -> None:
    found = {
        (method, path) for path, methods in route_table(live).items() for method in methods - {"GET", "HEAD"}
        if path not in OPEN_PATHS and not path.startswith(wire.SEARCHES)
    }
    assert found == CHANGES.keys(), "add each new call and its record to CHANGES"
    last = ("POST", wire.LOGOFF)  # logoff revokes the token
    for method, path in [*sorted(CHANGES.keys() - {last}), last]:
        body, action = CHANGES[method, path]
        name = path
        for part in ("{exec_id}", "{app_id}", "{name:path}", "{name}"):
            name = name.replace(part, "x")
        before = len(entries(live))
        content = b"" if body is None else json.dumps(body).encode()
        live.call(method, name, content, {"Content-Type": "application/json"} if content else None, base="")
        new = entries(live)[before:]
        assert [entry["action"] for entry in new] == [action], (method, path)
        assert new[0]["user"] == "alice" and new[0]["from"] == "127.0.0.1"


def test_a_submission_with_an_invalid_key_is_recorded(live: Live) -> None:
    assert live.call("POST", "/execs", headers={wire.KEY_HEADER: "two words"}).status == 400
    assert [shown(found)[1:] for found in entries(live)] == [("exec.submit", [], "refused", "submission.key")]


def test_a_command_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLICMD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DLI_USER_PASSWORD", "long enough 1")
    (tmp_path / "lake").mkdir()
    for words, code in ((["user", "add", "bob"], 0), (["user", "remove", "eve"], 6),
                        (["volume", "add", "lake", str(tmp_path / "lake")], 0)):
        assert CliRunner().invoke(main, words).exit_code == code
    lines = (tmp_path / "home" / "audit.log").read_text().splitlines()
    assert [shown(json.loads(line))[1:] for line in lines] == [
        ("user.add", ["bob"], "done", None), ("user.remove", ["eve"], "refused", "user.not_found"),
        ("volume.add", ["lake"], "done", None),
    ]


def test_an_interrupted_change_is_recorded_as_cut(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log")
    with pytest.raises(KeyboardInterrupt), Recorder(settings_for(tmp_path), log).recorded(
        Caller("bob", False), "exec.delete", "local-1"
    ):
        raise KeyboardInterrupt
    log.close()
    found = json.loads((tmp_path / "audit.log").read_text())
    assert shown(found) == ("bob", "exec.delete", ["local-1"], "cut", None)


def test_a_hostile_name_cannot_forge_a_line(live: Live) -> None:
    evil = "\n{\"user\": \"root\"}\x1b[2J\x7f\u2028\u202e\x00é"
    live.call("POST", f"/execs/{quoted(evil)}/stop")
    live.call("GET", wire.LOGON, headers=basic(evil, "x"), token=None, base="")
    live.call("DELETE", "/resplans/resplan/" + "x" * 5000)
    raw = (live.settings.home / "audit.log").read_bytes()
    assert len(raw.splitlines()) == 3 and all(32 <= byte < 127 for byte in raw.replace(b"\n", b""))
    stop, logon, plan = entries(live)
    assert stop["about"] == [evil] and len(plan["about"][0]) == 500
    assert logon["user"] == evil.partition(":")[0]


def test_the_log_is_rotated_by_size_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_BYTES", 1000)
    log = AuditLog(tmp_path / "audit.log")
    for number in range(300):
        log.write({"number": number, "text": "x" * 60})
    log.close()
    files = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert len(files) == 10 and all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    numbers = sorted(json.loads(line)["number"] for path in files for line in path.read_text().splitlines())
    assert numbers == list(range(numbers[0], 300)), "the newest entries must remain, without a gap"


def test_a_link_at_the_log_path_is_not_followed_and_calls_succeed(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    victim = live.settings.home / "victim"
    victim.write_text("untouched")
    (live.settings.home / "audit.log").symlink_to(victim)
    assert live.submit("--exec-start PyTorch --model-main main.py", {"main.py": b""}).status == 200
    assert live.call("DELETE", "/execs").status == 204
    assert victim.read_text() == "untouched"
    assert [record.levelname for record in caplog.records if "audit.log" in record.getMessage()] == ["ERROR"]
    (live.settings.home / "audit.log").unlink()
    assert live.call("DELETE", "/execs").status == 204
    assert len(entries(live)) == 1
    assert [record.levelname for record in caplog.records if "audit.log" in record.getMessage()] == ["ERROR", "WARNING"]


def test_a_full_disk_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                  caplog: pytest.LogCaptureFixture) -> None:
    log = AuditLog(tmp_path / "audit.log")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(audit.os, "open", full)
    for _ in range(3):
        log.write({"a": 1})
    assert [record.levelname for record in caplog.records] == ["ERROR"] and "audit.log" in caplog.text
