"""Readers of log files that may still grow: whole, the last lines, with a prefix, as text or as one JSON string."""

from __future__ import annotations

import codecs
import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from local_backend.runtime.output import last_lines_start
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
                file.seek(last_lines_start(file, last_lines, file.seek(0, os.SEEK_END)))
            while chunk := file.read(_CHUNK):
                yield chunk


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
