"""Every change is in the audit log: who, when, from where, what, and how it ended; and nothing secret is."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from live_server import TOKEN, Live, basic, quoted, route_table

from dlicmd.contract import wire
from local_backend import audit
from local_backend.api import passwords
from local_backend.api.audited import Audit, about
from local_backend.api.caller import CALLER, Caller
from local_backend.api.guard import OPEN_PATHS
from local_backend.audit import AuditLog


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "SLOW", 0.0)


def entries(live: Live) -> list[dict[str, Any]]:
    path = live.settings.home / "audit.log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_the_life_of_an_exec(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    bob = live.add_user("bob")
    began = datetime.now(timezone.utc)
    one = live.submitted("--exec-start PyTorch --model-main main.py --msd-env API_KEY=hush -- hush", token=bob)
    live.call("GET", f"/execs/{one}", token=bob)
    assert live.call("POST", f"/execs/{one}/stop", token=live.add_user("carol")).status == 400
    live.call("POST", f"/execs/{one}/stop/", token=bob)
    two = live.submitted(token=bob)
    live.call("DELETE", "/execs", token=bob)
    shown = [(found["user"], found["method"], found["path"], found["about"], found["status"], found["outcome"])
             for found in entries(live)]
    assert shown == [
        ("bob", "POST", wire.EXECS, [one], 200, "done"),
        ("carol", "POST", f"{wire.EXECS}/{one}/stop", [one], 400, "refused"),
        ("bob", "POST", f"{wire.EXECS}/{one}/stop", [one], 204, "done"),
        ("bob", "POST", wire.EXECS, [two], 200, "done"),
        ("bob", "DELETE", wire.EXECS, [one, two], 204, "done"),
    ]
    times = [datetime.fromisoformat(found["time"].replace("Z", "+00:00")) for found in entries(live)]
    assert times == sorted(times) and (times[0] - began).total_seconds() > -1
    assert {found["from"] for found in entries(live)} == {"127.0.0.1"}
    text = (live.settings.home / "audit.log").read_text()
    assert "hush" not in text and bob not in text
    assert (live.settings.home / "audit.log").stat().st_mode & 0o777 == 0o600


def test_logons_and_wrong_passwords(live: Live) -> None:
    live.call("GET", wire.LOGON, headers=basic("alice", TOKEN), token=None, base="")
    live.call("GET", wire.LOGON, headers=basic("eve", "guess-1"), token=None, base="")
    live.call("GET", "/execs", headers=basic("mallory", "guess-2"), token=None)
    live.call("GET", "/execs", token=None)
    assert [(found["user"], found["path"], found["status"]) for found in entries(live)] == [
        ("alice", wire.LOGON, 200), ("eve", wire.LOGON, 401), ("mallory", wire.EXECS, 401),
    ]
    assert "guess" not in (live.settings.home / "audit.log").read_text()


def test_every_route_that_changes_something_is_recorded(live: Live) -> None:
    wanted = []
    for path, methods in sorted(route_table(live).items()):
        for method in sorted(methods - {"GET", "HEAD"}):
            name = path
            for part in ("{exec_id}", "{app_id}", "{name:path}", "{name}", "{number}", "{log}"):
                name = name.replace(part, "x")
            if path not in OPEN_PATHS:
                live.call(method, name, base="")
                wanted.append((method, name, "alice"))
    assert len(wanted) >= 12
    assert [(found["method"], found["path"], found["user"]) for found in entries(live)] == wanted


def test_a_call_whose_caller_is_gone_is_cut(tmp_path: Path) -> None:
    async def nobody(_: object) -> None:
        raise AssertionError("there is no answer")

    log = AuditLog(tmp_path / "audit.log")
    scope = {"type": "http", "method": "DELETE", "path": wire.EXECS, "headers": [], "client": None,
             CALLER: Caller("bob", False)}
    about(scope, "local-1")
    Audit(log, scope, frozenset(), nobody).finish()
    log.close()
    found = json.loads((tmp_path / "audit.log").read_text())
    assert (found["outcome"], found["status"], found["from"], found["about"]) == ("cut", None, "", ["local-1"])


def test_no_name_makes_a_line_of_its_own(live: Live) -> None:
    evil = "\n{\"user\": \"root\"}\x1b[2J\x7f\u2028\u202e\x00é"
    live.call("POST", f"/execs/{quoted(evil)}/stop")
    live.call("GET", wire.LOGON, headers=basic(evil, "x"), token=None, base="")
    live.call("DELETE", "/resplans/resplan/" + "x" * 5000)
    raw = (live.settings.home / "audit.log").read_bytes()
    assert len(raw.splitlines()) == 3 and all(32 <= byte < 127 for byte in raw.replace(b"\n", b""))
    stop, logon, plan = entries(live)
    assert stop["about"] == [evil] and len(plan["path"]) <= 500
    assert logon["user"] == evil.partition(":")[0]


def test_it_is_turned_over_by_size_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_BYTES", 1000)
    log = AuditLog(tmp_path / "audit.log")
    for number in range(300):
        log.write({"number": number, "text": "x" * 60})
    log.close()
    files = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert len(files) == 10 and all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    numbers = sorted(json.loads(line)["number"] for path in files for line in path.read_text().splitlines())
    assert numbers == list(range(numbers[0], 300)), "the newest, without a gap"


def test_a_link_in_its_place_is_not_followed_and_ends_no_call(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    victim = live.settings.home / "victim"
    victim.write_text("untouched")
    (live.settings.home / "audit.log").symlink_to(victim)
    assert live.submit("--exec-start PyTorch --model-main main.py", {"main.py": b""}).status == 200
    assert live.call("DELETE", "/execs").status == 204
    assert victim.read_text() == "untouched"
    assert [record.levelname for record in caplog.records if "audit.log" in record.getMessage()] == ["ERROR"]
    (live.settings.home / "audit.log").unlink()
    assert live.call("DELETE", "/execs").status == 204
    assert len(entries(live)) == 1 and "written again" in caplog.text


def test_a_full_disk_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                  caplog: pytest.LogCaptureFixture) -> None:
    log = AuditLog(tmp_path / "audit.log")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(audit.os, "open", full)
    for _ in range(3):
        log.write({"a": 1})
    assert len(caplog.records) == 1 and "cannot write" in caplog.text
