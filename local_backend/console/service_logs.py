"""The end of the log of a kernel, as the page of a model shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from local_backend.console.queries import query_of
from local_backend.services.access import Caller
from local_backend.services.model_logs import STREAMS
from local_backend.services.model_views import ModelView
from local_backend.services.services import Services

#: Most bytes of a log that a page shows.
_MOST = 128 << 10


@dataclass(frozen=True)
class LogQuery:
    """Which log a page shows, as its address says. `seen` is the end of the part that the page has."""

    stream: str = ""
    kernel: str = ""
    revision: str = ""
    seen: str = ""


def log_of(services: Services, caller: Caller, view: ModelView, wanted: LogQuery) -> dict[str, Any]:
    """Return the end of a log, and what the form that chooses it has. Raises the errors of `ModelLogs.read`."""
    stream = wanted.stream if wanted.stream in STREAMS else "stderr"
    kernel, revision = _number(wanted.kernel), _number(wanted.revision)
    piece = services.model_logs.tail(caller, view.row.name, stream, kernel, revision, _MOST)
    text = piece.content.decode("utf-8", "replace")
    return {
        "log_text": text, "log_end": str(piece.end), "log_kernel": piece.kernel, "streams": STREAMS, "stream": stream,
        "kernel": kernel or "", "revision": revision or "", "log_cut": len(piece.content) >= _MOST,
        "log_query": query_of(stream=stream, kernel=kernel or "", revision=revision or "", seen=piece.end),
    }


def _number(text: str) -> int | None:
    """Return a number from 1; None for anything else."""
    return int(text) if text.isdecimal() and 0 < len(text) < 7 and int(text) else None
