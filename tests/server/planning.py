"""Calls about model definitions, hardware specifications and experiments."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

from live_server import TOKEN, Answer, Live, multipart, tar

CODE = {"digits/train.py": b"print('trains')\n", "digits/lib/net.py": b"LAYERS = 3\n"}


def zipped(files: dict[str, bytes]) -> bytes:
    """Return files packed as a zip file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


class Planning:
    """The calls of one user, by default of the administrator whom the server runs as."""

    def __init__(self, live: Live, token: str = TOKEN) -> None:
        self.live, self.token = live, token

    def as_user(self, name: str) -> Planning:
        """Add a user, and return the user's calls."""
        return Planning(self.live, self.live.add_user(name))

    def get(self, path: str) -> Answer:
        return self.live.call("GET", path, token=self.token)

    def delete(self, path: str) -> Answer:
        return self.live.call("DELETE", path, token=self.token)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        content = b"" if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} if body is not None else {}
        return self.live.call("POST", path, content, sent | headers, token=self.token)

    def define(
        self, name: str = "digits", archive: bytes | None = None, file: str = "digits.tar.gz", **more: Any
    ) -> Answer:
        """Save a model definition with the code of a test, or with this archive; empty: without code."""
        content = tar(CODE) if archive is None else archive
        parts = [("data", None, json.dumps({"name": name, "command": "train.py --epochs 2", **more}).encode())]
        body, kind = multipart([*parts, *([("file", file, content)] if content else [])])
        return self.live.call("POST", "/definitions", body, {"Content-Type": kind}, token=self.token)

    def defined(self, name: str = "digits", **more: Any) -> dict[str, Any]:
        return accepted(self.define(name, **more))

    def plan(self, name: str = "first", definitions: list[dict[str, Any]] | None = None, **more: Any) -> Answer:
        """Save an experiment with the model definition `digits`, or with others."""
        parts = [{"definition": "digits"}] if definitions is None else definitions
        return self.post("/experiments", {"name": name, "definitions": parts, **more})

    def run(self, name: str = "first", **headers: str) -> dict[str, Any]:
        return accepted(self.post(f"/experiments/{name}/run", None, **headers))


def accepted(answer: Answer) -> dict[str, Any]:
    """Return the object of an answer without error."""
    assert answer.status == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found
