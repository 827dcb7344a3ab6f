"""HTTP as any client speaks it. Neither this module nor the requests of the tests use code of this project."""

from __future__ import annotations

import io
import json
import socket
import tarfile
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from described import Described

PATIENCE = 300.0
BASE = "/platform/rest/deeplearning/v1"


@dataclass
class Answer:
    """One response. Names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def is_plain_error(self) -> bool:
        """Contract, 1.3: 'plain text of the form `Error <code>: <sentence>.` + newline'."""
        kind, text = self.headers.get("content-type", ""), self.body
        return kind.startswith("text/plain") and text.startswith(b"Error %d: " % self.status) and \
            text.endswith(b".\n") and text.count(b"\n") == 1


@dataclass
class Wire:
    """A server, given by its port and a token. Every response must match `described`, once it is set."""

    port: int
    token: str
    described: Described | None = None

    def ask(
        self, method: str, target: str, headers: dict[str, str] | None = None, body: bytes | None = None,
        *, authorised: bool = True,
    ) -> Answer:
        """Send a request. `target` is below `BASE` unless it begins with /auth, /ui, /platform, /v1 or /openapi."""
        whole = target if target.startswith(("/auth", "/ui", "/platform", "/v1", "/openapi")) else BASE + target
        sent = ({"Authorization": f"Bearer {self.token}"} if authorised else {}) | (headers or {})
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, whole, body, sent)
            found = connection.getresponse()
            answer = Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())
        finally:
            connection.close()
        self._check(method, whole, answer)
        return answer

    def _check(self, method: str, target: str, answer: Answer) -> None:
        if self.described is not None:
            self.described.check(method, target, answer.status, answer.headers, answer.body)

    def upload(self, args: str, name: str = "main.py", content: bytes = b"print(1)\n") -> Answer:
        """Send POST /execs with one file. `args` is the value in the query, escaped by the caller."""
        body = (
            f'--b0und\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
            + content + b"\r\n--b0und--\r\n"
        )
        return self.ask("POST", f"/execs/?args={args}", {"Content-Type": "multipart/form-data; boundary=b0und"}, body)

    def exchange(self, raw: bytes) -> list[Answer]:
        """Send bytes, and read every response until the server closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as sock:
            sock.sendall(raw)
            received = b""
            while chunk := sock.recv(1 << 16):
                received += chunk
        found = answers(received)
        if len(found) == 1:
            method, target, _ = raw.decode("latin-1").split(" ", 2)
            self._check(method, target, found[0])
        return found


def answers(received: bytes) -> list[Answer]:
    """Return the responses that a connection carried, in order, without 1xx."""
    found = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(first.split()[1])
        if headers.get("transfer-encoding") == "chunked":
            body, received = _chunked(rest)
        else:
            length = int(headers.get("content-length", 0 if status < 200 or status == 204 else len(rest)))
            body, received = rest[:length], rest[length:]
        if status >= 200:
            found.append(Answer(status, headers, body))
    return found


def _chunked(rest: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        body, rest = body + rest[:length], rest[length + 2:]
        if length == 0:
            return body, rest


def archive(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    """Return a tar: `w:gz` as the original client packs it, `w:` as a shell does. A name with a final / is a folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as packed:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            if name.endswith("/"):
                member.type, member.mode = tarfile.DIRTYPE, 0o755
            packed.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
