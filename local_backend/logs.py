"""The server's own log: lines of text or of JSON, in files that rotate by size. Every line names the request, user and
exec that it is about, if they are known. No text from outside can end a line or move the cursor of a terminal."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
#: Number of older files to keep besides the current one.
_KEPT = 3
#: Fields of the log lines of this thread or call. All threads that work for a call share the mapping: a field that one
#: of them adds is in the lines of all.
_about: ContextVar[dict[str, str] | None] = ContextVar("about", default=None)


def begin(**fields: str) -> None:
    """Begin a unit of work, such as a request: log lines have only these fields from now on."""
    _about.set(fields)


def about(**fields: str) -> None:
    """Add fields to the log lines of the current unit of work; do nothing outside of one."""
    current = _about.get()
    if current is not None:
        current.update(fields)


def fields() -> dict[str, str]:
    """Return the present fields of log lines."""
    return dict(_about.get() or {})


@contextmanager
def concerning(**fields: str) -> Iterator[None]:
    """Add these fields to the log lines in the block."""
    before = _about.set({**(_about.get() or {}), **fields})
    try:
        yield
    finally:
        _about.reset(before)


class Text(logging.Formatter):
    """`time LEVEL logger: message [request=... user=... exec=...]`; tracebacks follow, each line marked by a bar."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        fields = " ".join(f"{name}={value}" for name, value in (_about.get() or {}).items())
        line = f"{record.levelname} {record.name}: {record.getMessage()}" + (f" [{fields}]" if fields else "")
        trace = "".join(f"\n  | {_inert(part)}" for part in _trace(self, record).splitlines())
        return f"{self.formatTime(record)} {_inert(line)}{trace}"


class Json(logging.Formatter):
    """One JSON object per line: time (UTC), level, logger, message, fields, numbers of a request, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        found = {
            "time": f"{stamp}.{int(record.msecs):03d}Z", "level": record.levelname.lower(), "logger": record.name,
            "message": record.getMessage(), **(_about.get() or {}), **getattr(record, "numbers", {}),
        }
        trace = _trace(self, record)
        return json.dumps(found | ({"trace": trace} if trace else {}))


class _Private(RotatingFileHandler):
    """Log files that only their owner can read, including those that follow after a rotation."""

    def _open(self) -> IO[str]:  # type: ignore[override]
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(self.baseFilename, flags, 0o600)
        os.fchmod(fd, 0o600)
        return open(fd, "a", encoding="utf-8", errors="backslashreplace")


@contextmanager
def written_to(path: Path, style: str, level: str, most: int) -> Iterator[None]:
    """Write everything that is logged to `path` within the block, in one of FORMATS, from one of LEVELS on. A file has
    at most about `most` bytes. Raises OSError when the file cannot be written."""
    handler = _Private(path, maxBytes=most, backupCount=_KEPT)
    handler.setFormatter(Json() if style == "json" else Text())
    number: int = getattr(logging, level.upper())
    root, ours = logging.getLogger(), logging.getLogger("local_backend")
    root.addHandler(handler)
    root.setLevel(max(number, logging.INFO))  # debug messages of libraries stay out
    ours.setLevel(number)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.raiseExceptions = False  # a full disk must not turn every log line into a traceback
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""


def _inert(text: str) -> str:
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
