"""One end of the runner channel: JSON objects, one per line, over a stream socket that never blocks the runner."""

from __future__ import annotations

import json
import os
from typing import Any

_LONGEST_LINE = 2**20


class Channel:
    """The runner's end. Uses plain descriptors only: a forked child closes them by number, and no object closes them
    again."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.open = True
        self._read = b""
        self._unsent = b""
        os.set_blocking(fd, False)

    @property
    def wants_to_write(self) -> bool:
        """Whether unsent data waits for space in the socket buffer."""
        return self.open and bool(self._unsent)

    def receive(self) -> list[dict[str, Any]]:
        """Return the received messages; drop lines that are not JSON objects. Set `open` to False at end of stream."""
        while self.open:
            try:
                data = os.read(self.fd, 65536)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self._read += data
            if not data or (len(self._read) > _LONGEST_LINE and b"\n" not in self._read):
                self.close()
        *lines, self._read = self._read.split(b"\n")
        return [message for line in lines if isinstance(message := _parse(line), dict)]

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message and send as much as the socket accepts."""
        self._unsent += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send as much as the socket accepts."""
        while self.wants_to_write:
            try:
                self._unsent = self._unsent[os.write(self.fd, self._unsent) :]
            except BlockingIOError:
                return
            except OSError:
                self.close()

    def close(self) -> None:
        """Close this end."""
        if self.open:
            self.open = False
            os.close(self.fd)


def _parse(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
