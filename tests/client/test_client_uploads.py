"""`dlicmd data FOLDER --to PLACE`: uploads of data."""

from __future__ import annotations

import json

import pytest
from client_desk import Desk
from fake_server import BASE, FakeServer, Reply

STORED = json.dumps({"path": "users/alice/images", "files": 1, "bytes": 9}).encode()


@pytest.fixture
def offering(local: FakeServer) -> FakeServer:
    """A server that stores uploads of data."""
    local.conf["DLICMD_EXTENSIONS"] += ",data-upload"
    local.replies["POST", f"{BASE}/data/files"] = Reply(200, STORED, {"Content-Type": "application/json"})
    return local


def test_a_folder_is_uploaded_and_its_place_printed(desk: Desk, offering: FakeServer) -> None:
    desk.model("images", a="print(1)\n")
    done = desk.run("data", "./images", "--to", "images", "--replace", "--volume", "lake")
    assert (done.code, done.out) == (0, "users/alice/images\n"), done.err
    [seen] = offering.requests("POST", "/data/files")
    assert seen.query == {"path": ["images"], "volume": ["lake"], "replace": ["true"]}
    assert b'filename="a.py"' in seen.body and b"print(1)\n" in seen.body
    done = desk.run("data", "./images", "--to", ".", "-o", "json")
    assert json.loads(done.out) == {"path": "users/alice/images", "files": 1, "bytes": 9}
    assert offering.requests("POST", "/data/files")[-1].query["path"] == ["."]


@pytest.mark.parametrize("words", [["./images", "--replace"], ["./images", "--volume", "x"], ["./none", "--to", "x"]])
def test_a_wrong_upload_sends_nothing(desk: Desk, offering: FakeServer, words: list[str]) -> None:
    desk.model("images", a="print(1)\n")
    done = desk.run("data", *words, "-o", "json")
    assert (done.code, done.error) == (2, "client.usage") and not offering.requests("POST")


def test_a_refusal_of_the_server_has_its_code(desk: Desk, offering: FakeServer) -> None:
    desk.model("images", a="print(1)\n")
    refused = Reply(409, b"Error 409: a.py already exists.\n", {"X-DLI-Error-Code": "data.exists"})
    offering.replies["POST", f"{BASE}/data/files"] = refused
    done = desk.run("data", "./images", "--to", "images", "-o", "json")
    assert done.code != 0 and done.error == "data.exists"


def test_a_server_without_uploads_gets_none(desk: Desk, local: FakeServer) -> None:
    desk.model("images", a="print(1)\n")
    assert desk.run("data", "./images", "--to", "images").code != 0
    assert not local.requests("POST")
