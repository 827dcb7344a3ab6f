"""The records of what users do, one JSON object per line, in files that only their owner can read.

`audit.log` has what authenticated users did. Refused logons are in a file of their own, because anyone can cause them
without limit: `refused-logons.log` has one line per interval for each account and address. `refused-calls.log` has the
refused calls of a user beyond the first ones of an hour in the same form. All files rotate by size. A record can also
go to syslog and to journald.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler, SysLogHandler
from pathlib import Path

_log = logging.getLogger(__name__)
#: Maximum bytes of a file before the next one begins, and number of older files to keep (audit.log.1, ...).
_BYTES, _KEPT = 10 << 20, 9
_REFUSED_BYTES, _REFUSED_KEPT = 1 << 20, 4
#: Seconds that a line with a count covers, and the maximum number of such lines. All other refused logons or calls of
#: the interval are one line.
INTERVAL, MOST_LINES = 60.0, 500
#: Maximum characters of the name of an account in a line with a count.
_LONGEST_NAME = 64
#: Maximum bytes of a datagram. Longer records lose the end of their list of objects.
_DATAGRAM = 8000
#: Maximum number of records about refused calls of one user in `audit.log` within HOUR seconds, and limits of the
#: objects in such a record: their number, and the characters of each.
MOST_REFUSED, HOUR = 50, 3600.0
_MOST_ABOUT, _LONGEST_ABOUT = 10, 100
#: Maximum seconds that a call waits for the syslog daemon.
_PATIENCE = 0.2
_NAME = "dlicmd"

#: A record: key → value.
Entry = Mapping[str, object]
#: Sends the text of a record. Raises OSError.
Output = Callable[[str, Entry], None]


class AuditLog(RotatingFileHandler):
    """A log that writes entries to `path`, and sends them to `outputs`. The first entry opens the file."""

    def __init__(
        self, path: Path, outputs: Sequence[Output] = (), size: int | None = None, kept: int = _KEPT,
        counted: RefusedCounts | None = None,
    ) -> None:
        """`counted` counts the refused calls of a user beyond MOST_REFUSED."""
        super().__init__(path, maxBytes=size or _BYTES, backupCount=kept, encoding="ascii", delay=True)
        self._counted = counted
        #: User → the end of the present hour, and the number of refused calls in it.
        self._refused: dict[str, tuple[float, int]] = {}
        self._users = threading.Lock()
        self._outputs = outputs
        #: Descriptions of the targets to which the last write failed.
        self._troubled: set[str] = set()
        self._failed = False

    def write(self, entry: Entry) -> None:
        """Append an entry. Everything except printable ASCII is escaped: no name or path can begin a new line or send
        control characters to a terminal. A write that fails does not fail the call; the backend's log reports it
        once."""
        self.handle(logging.makeLogRecord({"msg": _text(entry)}))
        sent = _bounded(entry)
        for output in self._outputs:
            try:
                output(_text(sent), sent)
            except OSError:
                self._trouble(str(output))
            else:
                self._works(str(output))

    def refuse(self, user: str, entry: dict[str, object]) -> None:
        """Append an entry about a refused call of a user. Count the calls beyond the first ones of an hour instead:
        refused calls must not roll the records of other users away."""
        now = time.monotonic()
        with self._users:
            end, count = self._refused.get(user, (0.0, 0))
            end, count = (now + HOUR, 1) if now >= end else (end, count + 1)
            self._refused[user] = end, count
        if self._counted is not None and count > MOST_REFUSED:
            self._counted.note(user, str(entry["from"]), str(entry["action"]), str(entry["code"]))
            return
        about = entry["about"]
        assert isinstance(about, list)
        self.write({**entry, "about": [text[:_LONGEST_ABOUT] for text in about[:_MOST_ABOUT]]})

    def close(self) -> None:
        """Write the counts of the present interval, and close the files."""
        if self._counted is not None:
            self._counted.close()
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """See the base class."""
        self._failed = False
        super().emit(record)
        if not self._failed:
            self._works(self.baseFilename)

    def handleError(self, record: logging.LogRecord) -> None:
        """See the base class."""
        self._failed = True
        self._trouble(self.baseFilename)

    def _trouble(self, target: str) -> None:
        if target not in self._troubled:
            self._troubled.add(target)
            _log.error("cannot write to %s", target, exc_info=True)

    def _works(self, target: str) -> None:
        if target in self._troubled:
            self._troubled.discard(target)
            _log.warning("writing to %s works again; earlier entries are missing", target)

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self.baseFilename, flags, 0o600)
        os.fchmod(fd, 0o600)
        return open(fd, "a", encoding="ascii")


@dataclass
class _Series:
    """Refused logons of one account from one address, or refused calls of one user: their number, and the times of the
    first and the last one."""

    first: float
    last: float
    count: int = 0


class RefusedCounts:
    """Counts refused logons or calls, and writes one entry for each account, address, action and code at the end of
    each interval with any. Further series than MOST_LINES are one entry with the action `others`."""

    def __init__(self, path: Path, others: str, outputs: Sequence[Output] = ()) -> None:
        self._log = AuditLog(path, outputs, _REFUSED_BYTES, _REFUSED_KEPT)
        self._others = others
        self._lock = threading.Lock()
        #: Held while entries are written: the end of the process waits for a timer that writes.
        self._writing = threading.Lock()
        self._series: dict[tuple[str, str, str, str], _Series] = {}
        self._timer: threading.Timer | None = None

    def note(self, user: str, address: str, action: str, code: str) -> None:
        """Count a refused logon or call."""
        key, now = (user[:_LONGEST_NAME], address, action, code), time.time()
        with self._lock:
            if key not in self._series and len(self._series) >= MOST_LINES:
                key = ("", "", self._others, "")
            series = self._series.setdefault(key, _Series(now, now))
            series.count, series.last = series.count + 1, now
            if self._timer is None:
                self._timer = threading.Timer(INTERVAL, self.flush)
                self._timer.daemon = True
                self._timer.start()

    def flush(self) -> None:
        """Write the entries of the present interval, and end it."""
        with self._writing:
            with self._lock:
                if self._timer is not None:
                    self._timer.cancel()
                found, self._series, self._timer = self._series, {}, None
            for (user, address, action, code), series in found.items():
                self._log.write({
                    "time": stamp(series.last), "user": user, "from": address, "action": action, "about": [],
                    "outcome": "refused", "code": code, "count": series.count, "first": stamp(series.first),
                    "last": stamp(series.last),
                })

    def close(self) -> None:
        """Write the entries of the present interval, and close the file."""
        self.flush()
        self._log.close()


class Syslog:
    """Sends records to the syslog daemon at an address: the path of a socket, or HOST:PORT for UDP."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = address
        self._target: str | tuple[str, int] = (host.strip("[]"), int(port)) if not address.startswith("/") else address
        self._handler: _Raising | None = None
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return f"syslog at {self._address}"

    def __call__(self, text: str, _entry: Entry) -> None:
        """Send a record. Raises OSError."""
        with self._lock:
            if self._handler is None:
                self._handler = _Raising(self._target, SysLogHandler.LOG_AUTHPRIV)
                self._handler.ident = f"{_NAME}[{os.getpid()}]: "
            self._handler.limit_wait()
            self._handler.emit(logging.makeLogRecord({"msg": text, "levelno": logging.INFO, "levelname": "INFO"}))


class _Raising(SysLogHandler):
    """Raises the errors of writing."""

    def limit_wait(self) -> None:
        """Let the next write wait for at most _PATIENCE seconds."""
        used: socket.socket | None = getattr(self, "socket", None)
        if used is not None and used.fileno() >= 0:
            used.settimeout(_PATIENCE)

    def handleError(self, record: logging.LogRecord) -> None:
        """Raise the error of `emit`. See the base class."""
        raise  # noqa: PLE0704


class Journald:
    """Sends records to journald through its socket, in its native protocol: https://systemd.io/JOURNAL_NATIVE_PROTOCOL.
    Values are text without line breaks, so each field is one line."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __str__(self) -> str:
        return f"journald at {self._path}"

    def __call__(self, text: str, entry: Entry) -> None:
        """Send a record. Raises OSError."""
        fields = {"MESSAGE": text, "PRIORITY": "6", "SYSLOG_IDENTIFIER": _NAME, "SYSLOG_FACILITY": "10"}
        fields |= {f"DLICMD_{key.upper()}": _text(value).strip('"') for key, value in entry.items()}
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto("".join(f"{name}={value}\n" for name, value in fields.items()).encode("ascii"), self._path)


def outputs_of(syslog: str | None, journal: Path | None) -> list[Output]:
    """Return the outputs that the settings name."""
    return [*([Syslog(syslog)] if syslog else []), *([Journald(journal)] if journal else [])]


def stamp(seconds: float) -> str:
    """Return a time in epoch seconds as records have it."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=True).replace("\x7f", "\\u007f")


def _bounded(entry: Entry) -> Entry:
    """Return an entry that fits into a datagram."""
    about = entry.get("about")
    if len(_text(entry)) <= _DATAGRAM or not isinstance(about, list):
        return entry
    kept = list(about)
    while kept and len(_text(kept)) > _DATAGRAM // 2:
        kept = kept[: len(kept) // 2]
    return {**entry, "about": [*kept, f"and {len(about) - len(kept)} more"]}
