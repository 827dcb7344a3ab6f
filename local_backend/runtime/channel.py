"""JSON objects, one per line, over a stream socket that never blocks.

A runner has two kinds of channels: one to the driver of an elastic job, and one to the server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

#: Maximum bytes of one line, and of one call of `receive`.
_LONGEST_LINE = 2**20
#: Maximum bytes that wait for a peer that does not read.
_MOST_UNSENT = 16 * 2**20


class Channel:
    """One end. Uses plain descriptors only: a forked child closes them by number, and no object closes them again."""

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
        """Return the received messages; drop lines that are not JSON objects. Set `open` to False at end of stream, and
        after a line that is too long. A later call returns the rest of very much data."""
        taken = 0
        while self.open and taken < _LONGEST_LINE:
            try:
                data = os.read(self.fd, 65536)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            taken += len(data)
            self._read += data
            if not data or (len(self._read) > _LONGEST_LINE and b"\n" not in self._read):
                self.close()
        *lines, self._read = self._read.split(b"\n")
        return [message for line in lines if isinstance(message := _parse(line), dict)]

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue a message and send as much as the socket accepts. Close the channel if too much data is unsent."""
        self._unsent += json.dumps(message).encode() + b"\n"
        self.flush()
        if len(self._unsent) > _MOST_UNSENT:
            self.close()

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
