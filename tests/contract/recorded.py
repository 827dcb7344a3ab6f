"""Reader of recorded requests: `*.http` files, one request after each line that begins with `###`.

Lines `# name: value` give the expectations. Line ends become CRLF on the wire. `{{...}}` stands for content that a text
file cannot hold: `host`, `token`, `basic`, the ids of execs, `length` of the body, `tar` and `tar.gz` of files,
`chunks` for a body that is sent in chunks, `bare cr`.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from pathlib import Path

from contract_world import World
from raw_http import archive

FOLDER = Path(__file__).parent.parent / "data" / "recorded"


@dataclass
class Recorded:
    """One request. `expected` has the values of its comment lines."""

    title: str
    expected: dict[str, str]
    request: bytes

    def bytes_for(self, world: World) -> bytes:
        """Return the request as it is sent to a server."""
        pair = base64.b64encode(f"{world.user}:{world.password}".encode())
        known = {name.encode(): value.encode() for name, value in world.ids.items()} | {
            b"host": b"127.0.0.1:%d" % world.wire.port, b"token": world.wire.token.encode(), b"basic": pair,
            b"bare cr": b"\r", b"length": b"{{length}}", b"chunks": b"{{chunks}}",
        }
        whole = re.sub(rb"\{\{([^{}]+)\}\}", lambda found: known.get(found[1]) or _packed(found[1]), self.request)
        head, _, body = whole.partition(b"\r\n\r\n")
        if body.startswith(b"{{chunks}}"):
            body = _in_chunks(body.removeprefix(b"{{chunks}}"))
        return head.replace(b"{{length}}", b"%d" % len(body)) + b"\r\n\r\n" + body


def _packed(what: bytes) -> bytes:
    kind, *names = what.decode().split()
    assert kind in ("tar", "tar.gz"), what
    content = {name: b"" if name.endswith("/") else b"print(1)\n" for name in names}
    return archive(content, "w:gz" if kind == "tar.gz" else "w:")


def _in_chunks(body: bytes) -> bytes:
    pieces = [body[start:start + 17] for start in range(0, len(body), 17)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def recorded() -> list[Recorded]:
    """Return all recorded requests."""
    found = []
    for file in sorted(FOLDER.glob("*.http")):
        for text in re.split(r"^### ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            title, *lines = text.rstrip("\n").split("\n")
            notes = [line for line in lines if line.startswith("# ")]
            expected = {name: value.strip() for name, _, value in (note[2:].partition(":") for note in notes)}
            request = "\r\n".join(line for line in lines if not line.startswith("# "))
            head, blank, body = request.partition("\r\n\r\n")
            request = head + (blank or "\r\n\r\n") + body + ("\r\n" if body.endswith("--") else "")
            found.append(Recorded(f"{file.stem}: {title}", expected, request.encode()))
    return found
