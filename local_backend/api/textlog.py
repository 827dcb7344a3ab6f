"""Readers of log files that may still grow: whole, the last lines, with a prefix, as text or as one JSON string."""

from __future__ import annotations

import codecs
import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from local_backend.runtime.paths import ExecPaths

_CHUNK = 1 << 16


def size(path: Path) -> int:
    """Return the size of a log in bytes, 0 if there is no such file."""
    try:
        found = path.lstat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def content(exec_paths: ExecPaths, files: Iterable[Path], last_lines: int | None = None) -> Iterator[bytes]:
    """Yield the bytes of files of an exec, one file after the other. With `last_lines`, yield only the last lines of
    each."""
    for path in files:
        file = exec_paths.opened(path)
        if file is None:
            continue
        with file:
            if last_lines is not None:
                file.seek(last_lines_start(file, last_lines))
            while chunk := file.read(_CHUNK):
                yield chunk


def last_lines_start(file: BinaryIO, lines: int) -> int:
    """Return the offset at which the last `lines` lines begin. Reads from the end, and only as far as needed. A last
    line without a newline counts."""
    end = file.seek(0, os.SEEK_END)
    if lines == 0:
        return end
    position, wanted = end, lines
    while position > 0:
        step = min(_CHUNK, position)
        position -= step
        file.seek(position)
        block = file.read(step)
        at = len(block)
        if position + at == end and block.endswith(b"\n"):
            at -= 1  # this newline ends the last line and does not begin another
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            wanted -= 1
            if wanted == 0:
                return position + at + 1
    return 0


def prefixed(chunks: Iterable[bytes], prefix: bytes) -> Iterator[bytes]:
    """Yield the chunks with `prefix` before every line."""
    fresh = True
    for chunk in chunks:
        ends = chunk.endswith(b"\n")
        body = chunk[:-1] if ends else chunk
        yield (prefix if fresh else b"") + body.replace(b"\n", b"\n" + prefix) + (b"\n" if ends else b"")
        fresh = ends


def json_string(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield one JSON string with the text of the chunks. Bytes that are not UTF-8 are replaced."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    yield b'"'
    for chunk in chunks:
        yield json.dumps(decoder.decode(chunk))[1:-1].encode()
    yield json.dumps(decoder.decode(b"", True))[1:-1].encode() + b'"'
