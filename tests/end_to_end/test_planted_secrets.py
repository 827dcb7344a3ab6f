"""16 secrets are used as users use them; afterwards each is only in the files that must contain it."""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import psutil
import pytest
from support import eventually
from toy_kind import installed_in
from user import User

BASE = "/platform/rest/deeplearning/v1"
#: Files that contain secrets and only their user can read: the commands of the user need them.
MAY_HOLD = {"backend.json": {"token"}}


@pytest.fixture
def serving(user: User) -> Iterator[User]:
    user.environment |= {"DLI_PASSWORD": "planted-password-of-logon", "DLICMD_TOKEN": "planted-token-of-elsewhere",
                         "THEIR_API_KEY": "planted-key-of-the-shell",
                         "PYTHONPATH": installed_in(user.home.parent / "plugins")}
    process = user.start("serve", "--port", "0", program="local_backend.cli")
    eventually((user.home / "backend.json").exists, "the server serves")
    yield user
    user.backend("stop", "--jobs")
    process.communicate(timeout=60)


def ask(user: User, method: str, target: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    """Send a request with these headers."""
    port = int(json.loads((user.home / "backend.json").read_text())["url"].rpartition(":")[2])
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, target, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.read() + str(answer.getheaders()).encode()
    connection.close()
    return answer.status, found


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def source(folder: Path, **connection: str) -> list[dict[str, object]]:
    """Return a list of one data source: of the toy server of a folder, or of a named connection."""
    known = connection if "name" in connection else {"type": "toy", "folder": str(folder), **connection}
    return [{"type": "connection", "connection": known, "location": {"path": "x"}}]


def found_in(folder: Path, secrets: dict[str, str]) -> set[tuple[str, str]]:
    """Return (file name, name of a secret in it) for all files below a folder, and check the modes of these files."""
    found = set()
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            held = {(path.name, name) for name, secret in secrets.items() if secret.encode() in content}
            assert not held or stat.S_IMODE(path.stat().st_mode) == 0o600, path
            found |= held
    return found


@pytest.mark.slow
def test_secrets_are_only_in_files_that_must_contain_them(serving: User) -> None:
    token = json.loads((serving.home / "backend.json").read_text())["token"]
    name = os.environ.get("USER") or os.environ.get("LOGNAME") or "root"
    password = serving.environment["DLI_PASSWORD"]
    _, logged_on = ask(serving, "GET", "/auth/v1/logon", Authorization=basic(name, password))
    issued = json.JSONDecoder().raw_decode(logged_on.decode())[0]["accessToken"]
    secrets = {
        "token": token, "logon": password, "issued": issued, "elsewhere": serving.environment["DLICMD_TOKEN"],
        "job": "planted-variable-of-a-job", "job 2": "planted-key-of-s3", "bearer": "planted-bearer-of-metrics",
        "slipped token": "planted-slipped-jwt", "slipped password": "planted-slipped-password",
        "guess": "planted-wrong-guess", "query": "planted-token-in-a-query", "dsn": "planted-password-of-a-database",
        "shell": serving.environment["THEIR_API_KEY"], "inline": "planted-password-in-a-data-source",
        "connection": "planted-password-of-a-connection", "metrics": "planted-bearer-of-a-url",
    }
    away, closed = serving.folder / "away", serving.folder / "closed"
    for folder in (away, closed):
        folder.mkdir()
    (away / "down").touch()
    replies = [
        ask(serving, "GET", "/auth/v1/logon", Authorization=basic(name, secrets["guess"])),
        ask(serving, "GET", f"{BASE}/conf", Authorization=f"Bearer {secrets['guess']}"),
        ask(serving, "GET", f"{BASE}/conf?token={secrets['query']}", Authorization=f"Bearer {token}"),
        ask(serving, "GET", f"{BASE}/execs?token={secrets['query']}", X_Auth_Token=issued),
        ask(serving, "POST", f"{BASE}/execs?args=--exec-start%20PyTorch%20--password={secrets['slipped password']}"
            f"%20--jwt-token={secrets['slipped token']}%20--user-cmd%20--%20true", Authorization=f"Bearer {token}"),
        ask(serving, "POST", f"{BASE}/connections", json.dumps({
            "name": "lake", "type": "toy",
            "values": {"folder": str(away), "password": secrets["connection"]}}).encode(),
            Authorization=f"Bearer {token}", Content_Type="application/json"),
        ask(serving, "POST", f"{BASE}/connections/lake/test", Authorization=f"Bearer {token}"),
        ask(serving, "POST", f"{BASE}/execs?args=--exec-start%20PyTorch%20--user-cmd%20--%20true", json.dumps({
            "dataSource": [{"type": "database", "connection": {"dsn": f"sql://u:{secrets['dsn']}@h/d"}}]}).encode(),
            Authorization=f"Bearer {token}", Content_Type="application/json"),
    ]
    start = ["--exec-start", "PyTorch", "--user-cmd", "--debug-level", "debug"]
    commands = [
        serving.run(*start, "--wait", "--msd-env", f"MY_TOKEN={secrets['job']}", "--msd-env",
                    f"AWS_SECRET_ACCESS_KEY={secrets['job 2']}",
                    "--cs-url-bearer", secrets["bearer"], "--", "sh", "-c",
                    f"test ${{#MY_TOKEN}} = {len(secrets['job'])} && test -n \"$THEIR_API_KEY\""),
        serving.run(*start, "--wait", "--data-source", json.dumps(source(closed, password=secrets["inline"])),
                    "--", "x"),
        *(serving.run(*start, "--data-source", json.dumps(sources), "--", "x")
          for sources in (source(away, password=secrets["inline"]), source(away, name="lake"))),
        serving.run(*start, "--cs-url-meta", "https://127.0.0.1:1/in", "--cs-url-bearer", secrets["metrics"],
                    "--", "true"),
        *(serving.run(*words, "--debug-level", "debug") for words in (
            ["--exec-get-all", "-o", "json"], ["--exec-get", "last"], ["--exec-launcherlogs", "last"],
            ["--exec-outlogs", "last"], ["--app-history-get-all", "-o", "json"], ["--status"], ["--config-show"])),
    ]
    assert [done.code for done in commands[:5]] == [0, 3, 0, 0, 0], commands[:5]
    assert "the data source contains credentials" in commands[1].err and "***" in commands[1].err, commands[1]
    replies += [ask(serving, "GET", f"{BASE}{path}", Authorization=f"Bearer {token}") for path in (
        "/execs", "/scheduler/applications", "/scheduler/engine/applications", "/scheduler/kubernetesobjects?type=pod",
        "/scheduler/kubernetesobjects?type=paralleljob", "/scheduler/slots", "/status", "/conf", "/nothing")]
    said = [body for _, body in replies] + [(done.out + done.err).encode() for done in commands]
    told = {secret for secret, text in secrets.items() if any(text.encode() in one for one in said)}
    assert not told
    server = psutil.Process(serving.server_pid)
    shown = " ".join(word for process in (server, *server.children(recursive=True)) for word in process.cmdline())
    assert not [secret for secret, text in secrets.items() if text in shown]
    files = found_in(serving.home, secrets)
    allowed = {(file, secret) for file, held in MAY_HOLD.items() for secret in held}
    assert files == allowed, "a secret is in another file, or the search missed backend.json"
