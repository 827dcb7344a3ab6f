"""The server's own log: each line of a request names the request, input cannot forge lines, and secrets are left out.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_server import TOKEN, Live, basic, settings_for
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError
from support import PATIENCE, eventually

from dlicmd.contract import wire
from local_backend import logs
from local_backend.store.schema import sequences

ID = wire.REQUEST_ID


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    running = Live(settings_for(tmp_path_factory.mktemp("log") / "home"))
    yield running
    running.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """The file that all messages are logged to, as JSON, while the test runs."""
    with logs.written_to(tmp_path / "server.log", "json", "debug", 1 << 20):
        yield tmp_path / "server.log"


def entries(log: Path, **wanted: object) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in log.read_text().splitlines()]
    return [entry for entry in found if entry.items() >= wanted.items()]


def request_entry(log: Path, request: str) -> dict[str, Any]:
    """Return the line at the end of a request. The response may arrive before the line is written."""
    return eventually(lambda: entries(log, request=request, logger="local_backend.api.observe"), "request is logged")[0]


def test_a_request_is_logged_with_its_id_user_and_exec(home: Live, log: Path) -> None:
    exec_id = home.submitted()
    answer = home.call("GET", f"/execs/{exec_id}?x=hidden", headers={ID: "build-7:step.2"})
    assert answer.headers[ID.lower()] == "build-7:step.2"
    found = request_entry(log, "build-7:step.2")
    assert found["user"] == "alice" and found["exec"] == exec_id and found["level"] == "debug"
    assert found["method"] == "GET" and found["status"] == 200 and found["seconds"] >= 0
    assert found["path"] == f"{wire.EXECS}/{exec_id}" and "hidden" not in log.read_text()


@pytest.mark.parametrize("given", ["", "a" * 65, "two words", "x\x1b[2J", "é", "a\"b", "a,b"])
def test_an_invalid_request_id_is_replaced(home: Live, log: Path, given: str) -> None:
    answers = [home.call("GET", "/conf", headers={ID: given}) for _ in range(2)]
    first, second = (answer.headers[ID.lower()] for answer in answers)
    assert first != second and len(first) == len(second) == 16
    assert request_entry(log, first)["status"] == 200


@pytest.mark.parametrize(("path", "headers", "status"), [
    ("/execs", {"Authorization": "Bearer wrong-t0ken"}, 401), ("/execs", {"Host": "evil.example"}, 403),
    ("/nothing", {}, 404),
])
def test_a_refused_request_has_an_id(
    home: Live, log: Path, path: str, headers: dict[str, str], status: int
) -> None:
    answer = home.call("GET", path, headers=headers)
    found = request_entry(log, answer.headers[ID.lower()])
    assert answer.status == found["status"] == status and "wrong-t0ken" not in log.read_text()
    assert found["level"] == ("debug" if status == 404 else "info")


def test_no_secret_of_a_call_is_logged(home: Live, log: Path) -> None:
    args = "--exec-start PyTorch --model-main main.py --msd-env API_KEY=s3cret-one --cs-url-meta https://h.example/ " \
           "--cs-url-bearer s3cret-two"
    answer = home.submit(args, {"main.py": b""})
    found = request_entry(log, answer.headers[ID.lower()])
    assert found["exec"] == answer.json()["id"] and found["level"] == "info"
    logon = home.call("GET", wire.LOGON, base="", token=None, headers=basic("alice", TOKEN))
    request_entry(log, logon.headers[ID.lower()])
    with pytest.raises(IntegrityError) as caught:
        home.database.write(lambda c: [c.execute(insert(sequences).values(name="s3cret-three", last=1)) for _ in "ab"])
    logging.getLogger("local_backend.test").error("the database failed: %s", caught.value)
    text = log.read_text()
    assert not any(secret in text for secret in (
        "s3cret-one", "s3cret-two", "s3cret-three", TOKEN, logon.json()["accessToken"]))


def test_an_internal_error_is_logged_with_its_request(home: Live, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("boom\n\x1b[31mred")

    monkeypatch.setattr(home.supervisor, "places", fail)
    answer = home.call("GET", wire.SLOTS_VIEW, base="")
    assert answer.status == 500
    name = answer.headers[ID.lower()]
    found = eventually(lambda: [one for one in entries(log, request=name) if "trace" in one], "the traceback is logged")
    assert "RuntimeError: boom" in found[0]["trace"] and found[0]["user"] == "alice"
    assert request_entry(log, name)["level"] == "error" and "\x1b" not in log.read_text()


def test_input_cannot_end_a_line_or_move_the_cursor(home: Live, tmp_path: Path) -> None:
    path = tmp_path / "text.log"
    with logs.written_to(path, "text", "debug", 1 << 20):
        answer = home.call("GET", "/execs/%1b%5b2J%0d%0a2026-01-01%20ERROR%20fake:%20line%e2%80%ae")
        name = answer.headers[ID.lower()]
        eventually(lambda: name in path.read_text(), "the name is logged")
        try:
            raise ValueError("first\nsecond\x07")
        except ValueError:
            logging.getLogger("local_backend.test").exception("with\na trace")
    content = path.read_text()
    assert all(character.isprintable() or character == "\n" for character in content)
    assert all(line.startswith(("20", "  | ")) for line in content.splitlines())
    assert "\n2026-01-01 ERROR fake" not in content and "\\x1b[2J\\r\\n2026-01-01 ERROR fake" in content
    assert "  | second\\x07\n" in content and "with\\na trace" in content


def test_a_line_names_the_exec_that_it_concerns(tmp_path: Path) -> None:
    path = tmp_path / "text.log"
    log = logging.getLogger("local_backend.test")
    with logs.written_to(path, "text", "info", 1 << 20):
        with logs.concerning(exec="local-7"):
            log.info("one")
        log.info("two")
        log.debug("never")
        logging.getLogger("elsewhere").debug("never")
    first, second = path.read_text().splitlines()
    assert first.endswith("INFO local_backend.test: one [exec=local-7]") and second.endswith("test: two")


def test_large_log_files_are_rotated_and_private(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    mask = os.umask(0o022)
    try:
        with logs.written_to(path, "json", "info", 4096):
            for number in range(1000):
                logging.getLogger("local_backend.test").info("line %d", number)
    finally:
        os.umask(mask)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["server.log", "server.log.1", "server.log.2", "server.log.3"]
    assert all(file.stat().st_size <= 4096 and stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    assert entries(path)[-1]["message"] == "line 999"


def test_an_invalid_log_format_is_refused_before_the_start(tmp_path: Path) -> None:
    environment = {**os.environ, "DLICMD_HOME": str(tmp_path / "home"), "DLI_LOG_FORMAT": "xml"}
    done = subprocess.run([sys.executable, "-m", "local_backend.cli", "serve"], env=environment, text=True,
                          capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1 and not (tmp_path / "home").exists()
    assert done.stderr == "local-backend: DLI_LOG_FORMAT must be one of text, json, not 'xml'\n"
