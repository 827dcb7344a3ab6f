"""Reads the body of a submission as it arrives, in every form that clients send. Files are written directly to disk."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from dlicmd.contract import wire
from local_backend.errors import Invalid, StorageFailed, TooLarge

_MAX_TEXT = 4 << 20  # bytes of the data part
_MAX_PARTS = 64
#: The most files of a folder that a browser sends.
MOST_OF_FOLDER = 10_000
_MAX_HEADERS = 16 << 10
_WRITE = 1 << 20


@dataclass
class ReceivedUpload:
    """A received body. `files` are pairs: the name that the client gave (empty for none), and the present path. `data`
    is the `data` text. `staged` is a folder that the client has copied into the home."""

    files: list[tuple[str, Path]] = field(default_factory=list)
    data: str | None = None
    staged: Path | None = None
    #: Whether the names of the files are paths in a folder, as browsers send them; otherwise only their last parts
    #: count.
    is_folder: bool = False
    #: Files and folders of a browser's folder that are not part of the code; names of folders end with a slash.
    left_out: Sequence[str] = ()
    #: The other texts of a form, by name.
    texts: dict[str, str] = field(default_factory=dict)


async def receive(
    body: AsyncIterator[bytes], content_type: str, folder: Path, most: int, *, packed: bool = False,
    parts: int = _MAX_PARTS,
) -> ReceivedUpload:
    """Read a whole body. Write its files into `folder`, under names of the server.

    `most` limits the bytes of the body, and `parts` the parts of a form. With `packed`, a body without a form is one
    archive. Written files stay when this raises: the caller removes the folder.

    Raises:
        Invalid: the body is malformed.
        TooLarge: the body is larger than `most`, or a text in it is too large.
        StorageFailed: the disk is full or refuses writes.
    """
    kind, options = parse_options_header(content_type)
    if kind == b"multipart/form-data":
        return await _multipart(body, options.get(b"boundary"), _Parts(folder, parts), most)
    if packed:
        return await _archive(body, folder, most)
    text = await _text(body, most)
    if not text.strip():
        return ReceivedUpload()
    if kind in {b"application/x-www-form-urlencoded", b""}:
        return ReceivedUpload(data=await asyncio.to_thread(_form_field, text))
    if kind == b"application/json":
        return ReceivedUpload(data=text)
    raise Invalid("submission.body", "the body must be multipart/form-data or application/x-www-form-urlencoded")


async def _archive(body: AsyncIterator[bytes], folder: Path, most: int) -> ReceivedUpload:
    received, target = 0, folder / "archive"
    try:
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(fd, "wb", buffering=_WRITE) as file:
            async for chunk in body:
                received += len(chunk)
                if received > most:
                    raise TooLarge(
                        "submission.too_large", f"the upload is larger than {most} bytes, the limit of this server"
                    )
                await asyncio.to_thread(file.write, chunk)
    except OSError as problem:
        raise StorageFailed.from_os(problem) from None
    return ReceivedUpload([("", target)] if received else [])


async def _text(body: AsyncIterator[bytes], most: int) -> str:
    content, limit = bytearray(), min(_MAX_TEXT, most)
    async for chunk in body:
        content += chunk
        if len(content) > limit:
            raise TooLarge("submission.too_large", f"the text of the submission is larger than {limit} bytes")
    return _decode(bytes(content))


def _form_field(text: str) -> str | None:
    try:
        fields = parse_qs(text, keep_blank_values=True, max_num_fields=1000, errors="strict")
    except ValueError:
        raise Invalid("submission.body", "the form in the body is invalid") from None
    return fields.get(wire.PART_DATA, [None])[0]


def _decode(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Invalid("submission.body", "the text of the submission is not UTF-8") from None


async def _multipart(
    body: AsyncIterator[bytes], boundary: bytes | None, parts: _Parts, most: int
) -> ReceivedUpload:
    if not boundary:
        # Clients with fixed headers send this type also without a body.
        async for chunk in body:
            if chunk:
                raise Invalid("submission.body", "the multipart body has no boundary")
        return ReceivedUpload()
    received = 0
    try:
        parser = MultipartParser(boundary, parts.callbacks())  # type: ignore[arg-type]
        async for chunk in body:
            received += len(chunk)
            if received > most:
                raise TooLarge(
                    "submission.too_large", f"the upload is larger than {most} bytes, the limit of this server"
                )
            parser.write(chunk)
            if parts.waiting > _WRITE:
                await asyncio.to_thread(parts.flush)
        parser.finalize()
        if received and not parts.ended:
            raise Invalid("submission.body", "the multipart body is incomplete")
        await asyncio.to_thread(parts.flush)
    except FormParserError as problem:
        raise Invalid("submission.body", f"the multipart body is invalid: {problem}") from None
    except OSError as problem:
        raise StorageFailed.from_os(problem) from None
    finally:
        parts.close()
    return parts.upload


def _file_name(disposition: bytes, plain: bytes | None) -> str | None:
    """Return the file name of a part: `filename`, or `filename*`, in which older clients send non-ASCII names; None if
    there is none."""
    if plain is not None:
        return plain.decode("utf-8", "surrogateescape").replace("%22", '"')
    extended = re.search(rb"filename\*=utf-8''([^;\s]+)", disposition, re.IGNORECASE)
    return unquote(extended[1].decode("latin-1"), errors="surrogateescape") if extended else None


class _Parts:
    """Collects the parser's callbacks. Content stays in memory until `flush`, which may run in another thread."""

    def __init__(self, folder: Path, most: int) -> None:
        self.upload = ReceivedUpload()
        self._most = most
        self.ended = False
        self.waiting = 0
        self._folder = folder
        self._header = (bytearray(), bytearray())
        self._headers: dict[bytes, bytes] = {}
        self._count = self._texts = 0
        self._text: bytearray | None = None
        self._is_data = False
        self._name = ""
        self._writes: list[tuple[Path, bytes]] = []
        self._target: Path | None = None
        self._open: tuple[Path, int] | None = None

    def callbacks(self) -> dict[str, Any]:
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._header_bytes(0, data[start:end]),
            "on_header_value": lambda data, start, end: self._header_bytes(1, data[start:end]),
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._data,
            "on_part_end": self._part_end,
            "on_end": self._end,
        }

    def flush(self) -> None:
        """Write the content in memory to the files."""
        writes, self._writes, self.waiting = self._writes, [], 0
        for path, content in writes:
            if self._open is None or self._open[0] != path:
                self.close()
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
                self._open = path, os.open(path, flags, 0o600)
            left = content
            while left:
                left = left[os.write(self._open[1], left) :]

    def close(self) -> None:
        """Close the file that is open."""
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def _begin(self) -> None:
        self._count += 1
        if self._count > self._most:
            raise Invalid("submission.body", f"the multipart body has more than {self._most} parts")
        self._headers = {}
        self._text = self._target = None

    def _header_bytes(self, which: int, data: bytes) -> None:
        self._header[which].extend(data)
        if len(self._header[which]) > _MAX_HEADERS:
            raise Invalid("submission.body", "a header in the multipart body is too long")

    def _header_end(self) -> None:
        name, value = (bytes(part) for part in self._header)
        self._headers[name.lower()] = value
        self._header = (bytearray(), bytearray())

    def _headers_finished(self) -> None:
        disposition = self._headers.get(b"content-disposition", b"")
        _, options = parse_options_header(disposition)
        part, name = options.get(b"name", b"").decode("latin-1"), _file_name(disposition, options.get(b"filename"))
        self._name = part
        self._is_data = part == wire.PART_DATA and (name in (None, wire.PART_DATA) or str(name).endswith(".json"))
        if self._is_data or (name is None and part != wire.PART_FILE):
            self._text = bytearray()
            return
        self._target = self._folder / f"part-{self._count}"
        self._writes.append((self._target, b""))
        self.upload.files.append((name or "", self._target))

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._target is not None:
            self._writes.append((self._target, bytes(data[start:end])))
            self.waiting += end - start
        elif self._text is not None:
            self._text += data[start:end]
            if len(self._text) > _MAX_TEXT:
                raise TooLarge(
                    "submission.too_large", f"a text part of the submission is larger than {_MAX_TEXT} bytes"
                )

    def _part_end(self) -> None:
        if self._text is not None and self._is_data:
            self.upload.data = _decode(bytes(self._text))
        elif self._text is not None:
            self._texts += len(self._text)
            if self._texts > _MAX_TEXT:
                raise TooLarge("submission.too_large", f"the texts of the form are larger than {_MAX_TEXT} bytes")
            self.upload.texts.setdefault(self._name, _decode(bytes(self._text)))

    def _end(self) -> None:
        self.ended = True
