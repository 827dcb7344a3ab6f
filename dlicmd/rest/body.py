"""Request bodies that are read from disk while they are sent."""

from __future__ import annotations

import io
import secrets
from collections.abc import Callable, Sequence
from typing import BinaryIO, NamedTuple


class FilePart(NamedTuple):
    """One file of a multipart body: `size` bytes of `file` from its current position."""

    name: str
    filename: str
    file: BinaryIO
    size: int


class Multipart:
    """A multipart/form-data body of known length that is never in memory as a whole.

    An HTTP library needs only `len()`, `read(size)` and `content_type`. `progress` is called with the number of bytes
    returned so far.
    """

    def __init__(
        self, files: Sequence[FilePart], fields: Sequence[tuple[str, str]] = (),
        progress: Callable[[int], None] | None = None,
    ) -> None:
        boundary = secrets.token_hex(16)
        self.content_type = f"multipart/form-data; boundary={boundary}"
        self._progress = progress
        #: Each source with the position of its first byte, and its number of bytes.
        self._sources: list[tuple[BinaryIO, int, int]] = []
        for name, value in fields:
            self._text(f'--{boundary}\r\nContent-Disposition: form-data; name="{_quoted(name)}"\r\n\r\n{value}\r\n')
        for part in files:
            self._text(
                f'--{boundary}\r\nContent-Disposition: form-data; name="{_quoted(part.name)}"; '
                f'filename="{_quoted(part.filename)}"\r\nContent-Type: application/octet-stream\r\n\r\n'
            )
            self._sources.append((part.file, part.file.tell(), part.size))
            self._text("\r\n")
        self._text(f"--{boundary}--\r\n")
        self._length = sum(size for _, _, size in self._sources)
        self._at = self._sent = 0
        self._left = self._sources[0][2]

    def rewind(self) -> None:
        """Start again: the next reads return the same bytes again."""
        for source, start, _ in self._sources:
            source.seek(start)
        self._at = self._sent = 0
        self._left = self._sources[0][2]

    def __len__(self) -> int:
        return self._length

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, at most `size`; empty at the end. Raises OSError when a file has become shorter."""
        if size < 0:
            size = self._length
        pieces = []
        while size > 0 and self._at < len(self._sources):
            piece = self._piece(size)
            pieces.append(piece)
            size -= len(piece)
        data = b"".join(pieces)
        self._sent += len(data)
        if self._progress is not None:
            self._progress(self._sent)
        return data

    def _piece(self, size: int) -> bytes:
        """Return at most `size` bytes of the current source. At its end, go on to the next source."""
        source = self._sources[self._at][0]
        piece = source.read(min(size, self._left))
        if not piece and self._left:
            raise OSError("a file became shorter while it was sent")
        self._left -= len(piece)
        if not self._left:
            self._at += 1
            self._left = self._sources[self._at][2] if self._at < len(self._sources) else 0
        return piece

    def _text(self, text: str) -> None:
        data = text.encode("utf-8", "surrogateescape")
        self._sources.append((io.BytesIO(data), 0, len(data)))


def _quoted(name: str) -> str:
    """Return a name as browsers write it into a Content-Disposition header."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
