"""Models of tests: their archives, and calls below /dlim/v1."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

from live_server import TOKEN, Answer, Live, multipart, tar

from dlicmd.contract import dlim

KERNEL = b"from redhareapi import Kernel\n"


def description(name: str = "ping", **changes: Any) -> dict[str, Any]:
    """Return a model.json."""
    value = {"name": name, "tag": "test", "weight_path": "N/A", "runtime": "dlipy3", "kernel_path": "kernel.py",
             "schema_version": "1"} | changes
    return {key: one for key, one in value.items() if one is not None}


def files(name: str = "ping", **changes: Any) -> dict[str, bytes]:
    """Return the files of a model."""
    return {"model.json": json.dumps(description(name, **changes)).encode(), "kernel.py": KERNEL,
            "README.md": f"# {name}\n".encode()}


def zipped(content: dict[str, bytes]) -> bytes:
    """Return a zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return buffer.getvalue()


class Modelling:
    """Calls about models."""

    def __init__(self, live: Live) -> None:
        self.live = live

    def call(self, method: str, path: str, body: Any = None, token: str | None = TOKEN, **headers: str) -> Answer:
        """Make a call below /dlim/v1; `body` is bytes, or becomes JSON."""
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} if body is not None else {}
        return self.live.call(method, path, content, sent | headers, token=token, base=dlim.BASE)

    def upload(
        self, content: dict[str, bytes] | bytes, path: str = "/deployment/model", *, form: bool = True,
        token: str = TOKEN,
    ) -> Answer:
        """Deploy files, as multipart or as the plain archive."""
        packed = content if isinstance(content, bytes) else tar(content)
        if not form:
            return self.call("POST", path, packed, token=token, **{"Content-Type": "application/octet-stream"})
        body, kind = multipart([("file", "m.tar.gz", packed)])
        return self.call("POST", path, body, token=token, **{"Content-Type": kind})

    def deploy(self, name: str = "ping", token: str = TOKEN, **changes: Any) -> dict[str, Any]:
        """Deploy a model that must be accepted."""
        answer = self.upload(files(name, **changes), token=token)
        assert answer.status == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def get(self, path: str, token: str = TOKEN) -> Any:
        answer = self.call("GET", path, token=token)
        assert answer.status == 200, answer.text
        return answer.json()
