"""The server's own log: lines of text or of JSON, in a file that starts anew when it is large. Every line tells which
request, user and exec it is about, where that is known, and no text that comes from outside can end a line or move a
terminal's cursor."""

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
#: Files that are kept besides the one that is written.
_KEPT = 3
#: What the lines of this thread or call are about. The mapping is shared with the threads that work for a call, so
#: that what one of them finds out is known to all.
_about: ContextVar[dict[str, str] | None] = ContextVar("about", default=None)


def begin(**fields: str) -> None:
    """Something of its own begins, such as a request: lines are about these fields from now on."""
    _about.set(fields)


def about(**fields: str) -> None:
    """What lines are about, as far as it is known by now; nothing where nothing has begun."""
    current = _about.get()
    if current is not None:
        current.update(fields)


def fields() -> dict[str, str]:
    """Return the fields that lines are about at present."""
    return dict(_about.get() or {})


@contextmanager
def concerning(**fields: str) -> Iterator[None]:
    """Lines in here are about these fields, too."""
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
    """One JSON object a line: time (UTC), level, logger, message, what it is about, numbers of a request, trace."""

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
    """Files that nobody else reads, the later ones included."""

    def _open(self) -> IO[str]:  # type: ignore[override]
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(self.baseFilename, flags, 0o600)
        os.fchmod(fd, 0o600)
        return open(fd, "a", encoding="utf-8", errors="backslashreplace")


@contextmanager
def written_to(path: Path, style: str, level: str, most: int) -> Iterator[None]:
    """Everything that is logged goes to `path`, in one of FORMATS, from one of LEVELS on; a file has at most some
    `most` bytes. Raises OSError when it cannot be written."""
    handler = _Private(path, maxBytes=most, backupCount=_KEPT)
    handler.setFormatter(Json() if style == "json" else Text())
    number: int = getattr(logging, level.upper())
    root, ours = logging.getLogger(), logging.getLogger("local_backend")
    root.addHandler(handler)
    root.setLevel(max(number, logging.INFO))  # what libraries say to their own developers is not for here
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
