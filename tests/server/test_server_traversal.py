"""Ids, names and numbers in paths reach only the object that they name, and callers cannot add headers to a response.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from live_server import TOKEN, Live, multipart, quoted, settings_for
from support import VOLUME
from test_server_guard import route_table

SECRET = b"the-content-of-a-file-that-nobody-may-read"
#: The way from a folder of the server to a file outside of it.
UP = "../" * 6
NAMES = [
    "..", ".", "...", "../..", f"{UP}canary", f"{UP}etc/passwd", "/etc/passwd", "//etc/passwd", "local-1/../canary",
    "local-1/../../backend.json", "..\\..\\canary", "C:\\canary", "~/canary", "~root", "canary\0",
    "local-1\0/../canary",
    "file:///etc/passwd", "local-1?x=1", "local-1#x", "local-1;x", "local-01", "LOCAL-1", "local-1 ", " local-1",
    "local-１", "local-1\n", "local-1\r\nX-Injected: 1", "local--1", "local-1e0", "%2e%2e%2fcanary", "%00", "*",
    "local-1'", "1' OR '1'='1", "{exec_id}", "$HOME", "`id`", "a" * 5000, "\x1b[2J", "\u202e", "stdout/../../../canary",
]
#: The values of `route_table` for parameters.
FILLED = ("local-1", "stdout", "1")


def encodings(name: str) -> list[str]:
    """Return spellings of a name in a path: fully escaped, and unescaped if the request stays valid."""
    whole = quoted(name)
    bare = [name] if name.isascii() and name.isprintable() and not set(name) & set(" ?#") else []
    overlong = [whole.replace("%2F", "%c0%af"), whole.replace("%2F", "%252F")] if "/" in name else []
    return [whole, *bare, *overlong]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    home = tmp_path_factory.mktemp("traversal")
    running = Live(settings_for(home / "a" / "home"))
    for folder in (home, home / "a", running.settings.home, running.settings.result_fs, running.settings.paths.jobs):
        (folder / "canary").write_bytes(SECRET)
    running.submitted()
    yield running
    running.close()


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.name.startswith("backend.db")}


def targets(live: Live) -> list[str]:
    """Return every route with one of its parameters replaced by every name."""
    found = []
    for path in route_table(live):
        parts = path.split("/")
        for number, part in enumerate(parts):
            if part in FILLED or part.startswith("{"):
                for name in NAMES:
                    found += ["/".join([*parts[:number], text, *parts[number + 1:]]) for text in encodings(name)]
    return found


def test_every_error_is_one_line_without_control_characters(live: Live) -> None:
    """An error may quote its request, and `dlicmd` prints it to a terminal."""
    for path, methods in route_table(live).items():
        if "{" not in path:
            continue
        filled = "/".join("%1B%5B2J%0AError" if part.startswith("{") else part for part in path.split("/"))
        for method in methods - {"HEAD"}:
            answer = live.call(method, filled, base="")
            lines = answer.text.removesuffix("\n")
            assert answer.status < 400 or lines.isprintable(), (method, path, answer.text)


@pytest.mark.integration
def test_a_hostile_name_in_a_path_reaches_no_other_object(live: Live) -> None:
    before, rows = files(live.settings.home.parent), live.call("GET", "/execs").json()
    # A parameter has 92 values. 5 does not divide 92, so that each value is sent to a fifth of the routes.
    asked = targets(live)[::5 if VOLUME < 10 else 1]
    assert len(asked) > 500
    connection = HTTPConnection("127.0.0.1", live.port, timeout=60)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Length": "0"}
    for target, method in zip(asked, itertools.cycle(("GET", "POST", "GET", "DELETE", "PUT")), strict=False):
        connection.putrequest(method, "/", skip_accept_encoding=True)
        # Send the target as it is. http.client would refuse some of them.
        connection._buffer[0] = f"{method} {target} HTTP/1.1".encode("latin-1", "replace")  # type: ignore[attr-defined]
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        body = answer.read()
        assert SECRET not in body and b"root:" not in body and b"Traceback" not in body, (method, target, body)
        assert answer.status < 500 or answer.status == 501, (method, target, answer.status, body)
        assert answer.getheader("X-Injected") is None and b"\x1b" not in body, (method, target)
    connection.close()
    assert files(live.settings.home.parent) == before
    assert live.call("GET", "/execs").json() == rows, "a foreign name has changed an exec"


@pytest.mark.parametrize("part", ["appName", "sigName", "file", "data_path", "volume", "conda"])
def test_a_hostile_name_in_a_submission_reaches_no_other_file(live: Live, part: str) -> None:
    before = files(live.settings.home.parent)
    for name in NAMES[:24]:
        argv = ["--exec-start", "PyTorch", "--user-cmd"]
        argv += {"appName": ["--appName", name], "data_path": ["--cs-datastore-meta", f"type=fs,data_path={name}"],
                 "conda": ["--conda-env-name", name]}.get(part, [])
        data: dict[str, object] = {"argv": [*argv, "--", "true"]}
        if part == "volume":
            data["dataSource"] = [{"type": "fs", "location": {"volume": name}}]
        file = name if part == "file" else "x.bin"
        body, kind = multipart([("file", file.replace("\r", "").replace("\n", ""), SECRET[:4]),
                                ("data", None, json.dumps(data).encode())])
        query = f"?sigName={quoted(name)[:300]}" if part == "sigName" else ""
        answer = live.call("POST", f"/execs{query}", body, {"Content-Type": kind})
        assert answer.status in (200, 400), (name, answer)
        assert SECRET not in answer.body and "x-injected" not in answer.headers
        if answer.status == 200:
            live.forget(answer.json()["id"])
    new = {name for name in files(live.settings.home.parent) - before if "incoming" not in name}
    if part == "data_path":
        new -= {name for name in new if name.startswith("home/data/")}  # the folders that the paths name
    assert new <= {"home/results/alice", "home/results/alice/batchworkdir"}
