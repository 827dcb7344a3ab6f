"""Parts of a content: `Range: bytes=N-` with the `ETag` in `If-Range` gets 206 with the rest, or the whole content when
it has changed."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from dlicmd.contract import wire
from local_backend.api.errors import RangeUnsatisfied, refusal

#: Headers that a route with parts describes.
DESCRIBED = {
    "Range": "`bytes=N-`: the part from byte N to the end", "If-Range": "ETag of the copy that the client has",
}


@dataclass(frozen=True)
class Part:
    """The wanted part of a content of `length` bytes with the SHA-256 `digest`: from byte `start` on; None for the
    whole. A content that is changing has no digest."""

    digest: bytes | None
    length: int
    start: int | None

    @classmethod
    def of(cls, headers: Headers, digest: bytes | None, length: int) -> Part:
        """Return the part that a call wants.

        Ranges of other forms are ignored, as HTTP allows. A range for content that has changed since is ignored, too
        (If-Range).
        """
        asked, condition = headers.getlist("range"), headers.get("if-range")
        found = re.fullmatch(r"bytes=([0-9]{1,18})-", asked[0].strip(), re.IGNORECASE) if len(asked) == 1 else None
        if found is None or (condition is not None and (digest is None or condition.strip() != _etag(digest))):
            return cls(digest, length, None)
        return cls(digest, length, int(found[1]))

    @property
    def status(self) -> int:
        return 200 if self.start is None else 206

    @property
    def first(self) -> int:
        """Offset of the first wanted byte."""
        return self.start or 0

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer with this part."""
        told = {"Accept-Ranges": "bytes", "Content-Length": str(self.length - self.first)}
        if self.digest is not None:
            told |= {"ETag": _etag(self.digest),
                     wire.DIGEST_HEADER: f"sha-256=:{base64.b64encode(self.digest).decode()}:"}
        if self.start is not None:
            told["Content-Range"] = f"bytes {self.start}-{self.length - 1}/{self.length}"
        return told

    def refused(self, scope: Scope, what: str) -> Response | None:
        """Return the answer for a part that begins after the end of the content; `what` names the content. Return None
        for every other part."""
        if self.start is None or self.start < self.length:
            return None
        sentence = f"{what} has {self.length} bytes; the range starts after its end, at byte {self.start}"
        told = {"Accept-Ranges": "bytes", "Content-Range": f"bytes */{self.length}"}
        if self.digest is not None:
            told["ETag"] = _etag(self.digest)
        return refusal(scope, RangeUnsatisfied("exec.result_range", sentence), told)


def _etag(digest: bytes) -> str:
    return f'"{digest.hex()}"'
