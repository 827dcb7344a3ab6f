"""What of the calls is worth an entry of the audit log: every change, every logon, and every wrong password."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Message, Scope, Send

from dlicmd.contract import wire
from local_backend.api.caller import CALLER
from local_backend.api.errors import REFUSED
from local_backend.api.passwords import basic_credentials
from local_backend.audit import AuditLog

_READS = frozenset({"GET", "HEAD", "OPTIONS"})
#: Of a path or a name that somebody sends.
_LONGEST = 500
#: Where routes leave what a call was about, when the path does not name it.
_ABOUT = "dlicmd.about"


def about(scope: Scope, *names: str) -> None:
    """Say which execs, or which user, this call changes."""
    scope.setdefault(_ABOUT, []).extend(names)


class Audit:
    """Watches one call and writes its entry before the answer goes out: what was acknowledged is in the log."""

    def __init__(self, log: AuditLog, scope: Scope, logons: frozenset[str], send: Send) -> None:
        self._log = log
        self._scope = scope
        self._logons = logons
        self._send = send
        self._answered = False

    async def send(self, message: Message) -> None:
        """In the place of the call's own `send`."""
        if message["type"] == "http.response.start":
            self._answered = True
            self._note(int(message["status"]))
        await self._send(message)

    def finish(self) -> None:
        """The call is over, however it ended."""
        if not self._answered:
            self._note(None)

    def _note(self, status: int | None) -> None:
        scope = self._scope
        caller = scope.get(CALLER)
        claims = _claimed(Headers(scope=scope))
        changes = caller is not None and scope["method"] not in _READS
        logon = claims is not None and (scope["path"] in self._logons or status in (401, 429))
        if not (changes or logon):
            return
        name = caller.name if caller is not None else claims
        found = [*_of_path(scope.get("path_params") or {}), *scope.get(_ABOUT, [])]
        self._log.write({
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "user": name and name[:_LONGEST],
            "from": (scope.get("client") or [""])[0],
            "method": scope["method"],
            "path": scope["path"][:_LONGEST],
            "about": [text[:_LONGEST] for text in dict.fromkeys(found)],
            "status": status,
            "outcome": "refused" if scope.get(REFUSED) else _outcome(status),
        })


def _claimed(headers: Headers) -> str | None:
    """Who the call says that it comes from, with a password."""
    pair = basic_credentials(headers.get("authorization", ""))
    return None if pair is None else pair[0]


def _of_path(parameters: dict[str, Any]) -> list[str]:
    names = ("exec_id", "app_id", wire.NAME)
    return [str(parameters[name]) for name in names if name in parameters]


def _outcome(status: int | None) -> str:
    """`done`, `refused` (the caller's doing), `failed` (the server's), or `cut`: nobody waited for the answer."""
    if status is None:
        return "cut"
    return "done" if status < 400 else "refused" if status < 500 else "failed"
