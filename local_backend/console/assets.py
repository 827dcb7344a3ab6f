"""The files that pages load: scripts, styles, the icon. Their URLs contain a digest of their content, so a browser may
keep them for ever. They are compressed once. Pages are never compressed: they contain both secrets and texts of the
caller, and the length of a compressed page would tell about the secrets (the attack BREACH)."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "static"
_LEAST = 500


@dataclass(frozen=True)
class Asset:
    """A file, and its compressed form; None if that is not shorter."""

    content: bytes
    packed: bytes | None
    type: str
    digest: str


@cache
def assets() -> dict[str, Asset]:
    """Return the files by name."""
    return {path.name: _asset(path) for path in sorted(FOLDER.iterdir()) if path.suffix in _SHOWN}


#: The other files of the folder are licenses and the list of versions.
_SHOWN = frozenset({".js", ".css", ".svg"})


def _asset(path: Path) -> Asset:
    content = path.read_bytes()
    packed = gzip.compress(content, 9, mtime=0)
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Asset(content, packed if len(packed) + _LEAST < len(content) else None,
                 f"{kind}; charset=utf-8", hashlib.sha256(content).hexdigest()[:12])


def asset_url(name: str) -> str:
    """Return the path of a file with its digest: `/console/static/0123456789ab/console.css`."""
    return f"/console/static/{assets()[name].digest}/{name}"
