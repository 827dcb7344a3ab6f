"""The audit log records every change: user, time, address, action and outcome; and no secret."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from live_server import TOKEN, Live, basic, quoted, route_table, settings_for
from support import PATIENCE, eventually

from dlicmd.contract import dlim, wire
from local_backend import audit
from local_backend.api.guard import OPEN_PATHS
from local_backend.audit import AuditLog, RefusedCounts
from local_backend.cli import main
from local_backend.services import throttle
from local_backend.services.access import Caller
from local_backend.services.base import Recorder


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "DELAY", 0.0)


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


def refused(live: Live) -> list[dict[str, Any]]:
    """End the interval of refused logons, and return all entries about them."""
    live.services.logons.close()
    path = live.settings.home / "refused-logons.log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_logons_and_wrong_passwords_are_recorded(live: Live) -> None:
    live.call("GET", wire.LOGON, headers=basic("alice", TOKEN), token=None, base="")
    live.call("GET", wire.LOGON, headers=basic("eve", "guess-1"), token=None, base="")
    live.call("GET", "/execs", headers=basic("mallory", "guess-2"), token=None)
    live.call("GET", "/execs", headers=basic("alice", TOKEN), token=None)
    live.call("GET", "/execs", token=None)
    assert [shown(found) for found in entries(live)] == [("alice", "auth.logon", [], "done", None)]
    assert [shown(found) for found in refused(live)] == [
        ("eve", "auth.logon", [], "refused", "auth.wrong_password"),
        ("mallory", "auth.password", [], "refused", "auth.wrong_password"),
    ]
    log = live.settings.home / "refused-logons.log"
    assert "guess" not in log.read_text() and log.stat().st_mode & 0o777 == 0o600


def test_refused_logons_are_counted_and_leave_the_audit_log_alone(live: Live) -> None:
    live.call("DELETE", "/execs")
    for number in range(throttle.FREE + 3):
        live.call("GET", wire.LOGON, headers=basic("eve" * 100, f"guess-{number}"), token=None, base="")
    assert [found["action"] for found in entries(live)] == ["exec.delete"]
    wrong, throttled = refused(live)
    assert wrong["user"] == throttled["user"] == ("eve" * 100)[:64] and wrong["from"] == "127.0.0.1"
    assert (wrong["count"], wrong["code"]) == (throttle.FREE, "auth.wrong_password")
    assert (throttled["count"], throttled["code"]) == (3, "auth.too_many_tries")
    assert wrong["first"] <= wrong["last"] == wrong["time"] <= throttled["first"]


def test_refused_calls_of_a_user_roll_no_records_of_others_away(
    start: Callable[..., Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_BYTES", 10_000)
    live = start(embedded=False)
    one, bob = live.submitted(), live.add_user("bob")
    for number in range(audit.MOST_REFUSED + 100):
        assert live.call("DELETE", f"/connections/{number}{'x' * 400}", token=bob).status == 404
    live.services.base.audit.close()
    records = [json.loads(line) for path in live.settings.home.glob("audit.log*")
               for line in path.read_text().splitlines()]
    assert [shown(found) for found in records if found["user"] == "alice"] == [
        ("alice", "exec.submit", [one], "done", None)
    ]
    his = [found for found in records if found["user"] == "bob"]
    assert len(his) == audit.MOST_REFUSED and all(len(found["about"][0]) == 100 for found in his)
    (counted,) = [json.loads(line) for line in (live.settings.home / "refused-calls.log").read_text().splitlines()]
    assert shown(counted) == ("bob", "connection.remove", [], "refused", his[0]["code"]) and counted["count"] == 100


def test_the_log_of_refused_logons_is_bounded_in_lines_and_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_REFUSED_BYTES", 100_000)
    log = RefusedCounts(tmp_path / "refused-logons.log", "auth.others")
    for interval in range(10):
        for number in range(5000):
            log.note(f"user {number}" * 50, f"10.{interval}.0.{number % 256}", "auth.logon", "auth.wrong_password")
        assert len(log._series) <= audit.MOST_LINES + 1
        log.flush()
    log.close()
    files = list(tmp_path.iterdir())
    assert len(files) == 5 and sum(path.stat().st_size for path in files) < 600_000
    last = json.loads((tmp_path / "refused-logons.log").read_text().splitlines()[-1])
    assert (last["action"], last["count"]) == ("auth.others", 5000 - audit.MOST_LINES)


def test_an_interval_ends_without_a_further_logon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "INTERVAL", 0.01)
    path = tmp_path / "refused-logons.log"
    log = RefusedCounts(path, "auth.others")
    for count in (1, 2):
        log.note("eve", "10.0.0.1", "auth.logon", "auth.wrong_password")
        eventually(lambda n=count: path.exists() and len(path.read_text().splitlines()) == n, "the interval ends")
    log.close()
    assert len(path.read_text().splitlines()) == 2


def test_the_end_waits_for_an_interval_that_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, begun, goes_on = tmp_path / "refused-logons.log", threading.Event(), threading.Event()
    log = RefusedCounts(path, "auth.others")
    write = log._log.write

    def slow(entry: audit.Entry) -> None:
        begun.set()
        assert goes_on.wait(PATIENCE)
        write(entry)

    monkeypatch.setattr(log._log, "write", slow)
    for number in range(3):
        log.note(f"user {number}", "10.0.0.1", "auth.logon", "auth.wrong_password")
    flushing, closing = threading.Thread(target=log.flush), threading.Thread(target=log.close)
    flushing.start()
    assert begun.wait(PATIENCE)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    goes_on.set()
    closing.join(PATIENCE)
    assert len(path.read_text().splitlines()) == 3
    flushing.join(PATIENCE)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """A socket of a log daemon, and a function that returns the next datagram."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(PATIENCE)
        sock.bind(str(tmp_path / "daemon"))
        yield lambda: sock.recv(65536).decode("ascii")


def test_records_go_to_syslog(start: Callable[..., Live], tmp_path: Path, daemon: Callable[[], str]) -> None:
    live = start(audit_syslog=str(tmp_path / "daemon"))
    live.call("DELETE", "/execs")
    said = daemon()
    assert said.startswith(f"<86>dlicmd[{os.getpid()}]: ") and said.endswith("\0")  # authpriv.info
    (entry,) = entries(live)
    assert json.loads(said[said.index("{"):-1]) == entry
    live.call("GET", wire.LOGON, headers=basic("eve", "guess"), token=None, base="")
    live.services.logons.close()
    assert '"count": 1' in daemon()


def test_records_go_to_a_syslog_daemon_over_udp(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(PATIENCE)
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        log = AuditLog(tmp_path / "audit.log", audit.outputs_of(address, None))
        log.write({"user": "bob", "about": [f"local-{number}" for number in range(10_000)]})
        log.close()
        said = sock.recv(65536).decode()
    assert json.loads(said[said.index("{"):-1])["about"][0] == "local-0" and len(said) < 8192


def test_records_go_to_journald(start: Callable[..., Live], tmp_path: Path, daemon: Callable[[], str]) -> None:
    live = start(audit_journal=tmp_path / "daemon")
    evil = "x\nPRIORITY=0\n\u2028"
    live.call("POST", f"/execs/{quoted(evil)}/stop")
    lines = daemon().splitlines()
    fields = dict(line.split("=", 1) for line in lines)
    assert len(lines) == len(fields)
    (entry,) = entries(live)
    assert json.loads(fields["MESSAGE"]) == entry and entry["about"] == [evil]
    assert {"PRIORITY": "6", "SYSLOG_IDENTIFIER": "dlicmd", "DLICMD_USER": "alice", "DLICMD_ACTION": "exec.stop",
            "DLICMD_OUTCOME": "refused", "DLICMD_CODE": "exec.not_found"}.items() <= fields.items()


def test_a_missing_log_daemon_is_reported_once_and_used_once_it_runs(
    start: Callable[..., Live], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    live = start(audit_syslog=str(tmp_path / "s"), audit_journal=tmp_path / "j")
    for _ in range(3):
        assert live.call("DELETE", "/execs").status == 204
    assert [record.levelname for record in caplog.records if "cannot write" in record.getMessage()] == ["ERROR"] * 2
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as syslog, \
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        syslog.bind(str(tmp_path / "s"))
        journal.bind(str(tmp_path / "j"))
        live.call("DELETE", "/execs")
        assert syslog.recv(65536) and journal.recv(65536)
    assert len(entries(live)) == 4
    assert sum("works again" in record.getMessage() for record in caplog.records) == 2


#: The record of every call that changes something. The body may be valid or not.
CHANGES: dict[tuple[str, str], tuple[Any, str]] = {
    ("POST", wire.LOGOFF): (None, "auth.logoff"),
    ("POST", wire.LABELS): ({"ids": ["local-1"]}, "exec.label"),
    ("POST", wire.VIEWS): ({"name": "best"}, "view.save"),
    ("DELETE", wire.VIEWS + "/{name:path}"): (None, "view.delete"),
    ("POST", wire.LINK): (None, "auth.link"),
    ("POST", wire.EXECS): (None, "exec.submit"),
    ("DELETE", wire.EXECS): (None, "exec.delete"),
    ("DELETE", wire.EXECS + "/{exec_id}"): (None, "exec.delete"),
    ("POST", wire.EXECS + "/{exec_id}/stop"): (None, "exec.stop"),
    ("POST", wire.EXECS + "/{exec_id}/deploy"): (None, "exec.deploy"),
    ("PUT", wire.EXECS + "/{exec_id}/slots"): ({"slots": 1}, "exec.resize"),
    ("POST", wire.EXECS + "/{exec_id}/verify"): (None, "exec.verify"),
    ("POST", wire.EXECS + "/{exec_id}/again"): (None, "exec.again"),
    ("PUT", wire.APPLICATIONS + "/{app_id}/stop"): (None, "application.stop"),
    ("POST", wire.STOP_MANY): ({"ids": ["local-1"]}, "application.stop"),
    ("PUT", wire.PLAN_TREE): ({"plans": 3}, "plan.replace"),
    ("POST", wire.PLAN_PREVIEW): ({"plans": 3}, "plan.preview"),
    ("PUT", wire.PLAN + "/{name:path}"): ({}, "plan.put"),
    ("DELETE", wire.PLAN + "/{name:path}"): (None, "plan.remove"),
    ("POST", wire.USERS): (None, "user.add"),
    ("PUT", wire.USERS + "/{name}/password"): (None, "user.password"),
    ("DELETE", wire.USERS + "/{name}"): (None, "user.remove"),
    ("PUT", wire.USERS + "/{name}/subject"): ({"subject": "x"}, "user.link"),
    ("PUT", wire.USERS + "/{name}/role"): ({"role": "admin"}, "user.role"),
    ("POST", wire.TOKENS): ({"name": "ci", "scope": "read", "expiresIn": 1}, "token.create"),
    ("DELETE", wire.TOKENS + "/{name}"): (None, "token.revoke"),
    ("POST", wire.CONNECTIONS): ({"name": "c", "type": "none"}, "connection.add"),
    ("PUT", wire.CONNECTIONS + "/{name:path}"): ({}, "connection.change"),
    ("DELETE", wire.CONNECTIONS + "/{name:path}"): (None, "connection.remove"),
    ("POST", wire.CONNECTIONS + "/{name:path}/test"): (None, "connection.test"),
    ("POST", wire.CHECK): (None, "exec.check"),
    ("POST", wire.DATA_PREVIEW): ({"dataSource": []}, "data.preview"),
    ("POST", wire.DATA_FILES): (None, "data.upload"),
    ("POST", wire.ALGORITHM_INSTALL): (None, "algorithm.install"),
    ("DELETE", wire.ALGORITHMS + "/{name}"): (None, "algorithm.delete"),
    ("POST", wire.SEARCHES): (None, "hpo.create"),
    ("DELETE", wire.SEARCHES): (None, "hpo.delete"),
    ("PUT", wire.SEARCHES + "/{n}"): (None, "hpo.stop"),
    ("PUT", wire.SEARCHES + "/{n}/force"): (None, "hpo.stop"),
    ("PUT", wire.SEARCHES + "/{n}/restart"): (None, "hpo.restart"),
    ("DELETE", wire.SEARCHES + "/{n}"): (None, "hpo.delete"),
    ("POST", wire.MODELS + "/{m}/hypersearch"): (None, "hpo.create"),
    ("PUT", wire.MODELS + "/{m}/hypersearch/{t}/stop"): (None, "hpo.stop"),
    ("PUT", wire.MODELS + "/{m}/hypersearch/{t}/force"): (None, "hpo.stop"),
    ("PUT", wire.MODELS + "/{m}/hypersearch/{t}/restart"): (None, "hpo.restart"),
    ("DELETE", wire.MODELS + "/{m}/hypersearch/{t}"): (None, "hpo.delete"),
    ("PUT", wire.MODELS + "/{m}/hypersearch/{t}/update"): (None, "hpo.update"),
    ("POST", wire.MODELS + "/{m}/hypersearch/{t}/create/{new}"): (None, "hpo.update"),
    ("POST", dlim.DEPLOYMENT): (None, "model.deploy"),
    ("POST", dlim.MODELS): (None, "model.deploy"),
    ("POST", dlim.DEPLOYMENT + "/{m}"): (None, "model.redeploy"),
    ("PUT", dlim.MODELS + "/{m}"): (None, "model.change"),
    ("DELETE", dlim.MODELS + "/{m}"): (None, "model.undeploy"),
    ("PUT", dlim.MODELS + "/{m}/operation/start"): (None, "model.start"),
    ("PUT", dlim.MODELS + "/{m}/operation/stop"): (None, "model.stop"),
    ("PUT", dlim.MODELS + "/{m}/operation/promote"): (None, "model.promote"),
    ("PUT", dlim.MODELS + "/{m}/operation/rollback"): (None, "model.rollback"),
    ("PUT", dlim.MODELS + "/{m}/readme"): (None, "model.change"),
    ("PUT", dlim.MODELS + "/{m}/appprofile"): (None, "model.profile"),
    ("PUT", dlim.MODELS + "/{m}/traffic"): (None, "model.traffic"),
    ("PUT", dlim.MODELS + "/{m}/shared"): (None, "model.share"),
    ("POST", dlim.RUNTIMES): (None, "runtime.create"),
    ("PUT", dlim.RUNTIMES + "/{r}"): (None, "runtime.change"),
    ("DELETE", dlim.RUNTIMES + "/{r}"): (None, "runtime.delete"),
    ("POST", dlim.STORE): ({"name": "x", "exec": "x"}, "model.save"),
    ("DELETE", dlim.STORE + "/{name}"): (None, "model.unsave"),
    ("PUT", dlim.STORE + "/{name}/promote"): (None, "model.to_space"),
    ("POST", dlim.STORE + "/{name}/deploy"): (None, "model.deploy"),
    ("POST", wire.DEFINITIONS): ({"name": "x"}, "definition.save"),
    ("DELETE", wire.DEFINITIONS + "/{name:path}"): (None, "definition.delete"),
    ("POST", wire.HARDWARE): ({"name": "x", "hardwareSpec": {}}, "hardware.save"),
    ("DELETE", wire.HARDWARE + "/{name:path}"): (None, "hardware.delete"),
    ("POST", wire.PLANS_OF_EXPERIMENTS): ({"name": "x"}, "experiment.save"),
    ("DELETE", wire.PLANS_OF_EXPERIMENTS + "/{name:path}"): (None, "experiment.delete"),
    ("POST", wire.PLANS_OF_EXPERIMENTS + "/{name:path}/run"): (None, "experiment.run"),
    ("POST", wire.PLANS_OF_EXPERIMENTS + "/{name:path}/runs/{run}"): (None, "experiment.run"),
    ("POST", wire.EDI_MODELS + "/new"): (None, "model.deploy"),
    ("POST", wire.EDI_MODELS + "/{m}"): (None, "model.redeploy"),
    ("PUT", wire.EDI_MODELS + "/{m}"): (None, "model.change"),
    ("DELETE", wire.EDI_MODELS + "/{m}"): (None, "model.undeploy"),
    ("PUT", wire.EDI_MODELS + "/{m}/operation/start"): (None, "model.start"),
    ("PUT", wire.EDI_MODELS + "/{m}/operation/stop"): (None, "model.stop"),
    ("PUT", wire.EDI_MODELS + "/{m}/appprofile"): (None, "model.profile"),
}


def test_the_page_names_the_object_of_each_action() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| `action` | the object and the verb"))
    objects = {action.partition(".")[0] for _, action in CHANGES.values()} | {"volume"}  # a command changes volumes
    assert objects == set(re.findall(r"`([a-z]+)`", row)) - {"action"}


def test_every_call_that_changes_something_is_recorded(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_REFUSED", 1000)  # each refused call has a record of its own
    found = {
        (method, path) for path, methods in route_table(live).items() for method in methods - {"GET", "HEAD"}
        # These change nothing.
        if path not in OPEN_PATHS and not path.endswith(("/inference/{m}", "/inference", "/experiments/check"))
    }
    assert found == CHANGES.keys(), "add each new call and its record to CHANGES"
    last = ("POST", wire.LOGOFF)  # logoff revokes the token
    for method, path in [*sorted(CHANGES.keys() - {last}), last]:
        body, action = CHANGES[method, path]
        name = path.replace("{run}", "1")
        for part in ("{exec_id}", "{app_id}", "{name:path}", "{name}", "{n}", "{m}", "{t}", "{r}", "{new}"):
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
    (logon,) = refused(live)
    raw = b"".join((live.settings.home / name).read_bytes() for name in ("audit.log", "refused-logons.log"))
    assert len(raw.splitlines()) == 3 and all(32 <= byte < 127 for byte in raw.replace(b"\n", b""))
    stop, plan = entries(live)
    assert stop["about"] == [evil] and len(plan["about"][0]) == 100
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
