"""The process at the other end of a Unix socket: who it is, and its end, without a race about its id."""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys

_CREDENTIALS = struct.Struct("3i")
#: Linux 6.5: a pidfd of the peer. `socket` does not name it.
_SO_PEERPIDFD = 77
#: macOS: level and option for the pid of the peer.
_SOL_LOCAL, _LOCAL_PEERPID = 0, 2


class PeerProcess:
    """A process that connected to a Unix socket."""

    def __init__(self, connection: socket.socket) -> None:
        """Find the process. `pid` is 0 if the system does not say."""
        self.pid, self.uid = _credentials(connection)
        self._handle = _pidfd(connection, self.pid) if self.pid > 0 else -1

    @property
    def is_same_user(self) -> bool:
        """Whether the process belongs to the user of this process, or to root, or the system does not say."""
        return self.uid in (-1, 0, os.getuid())

    def kill(self) -> None:
        """Send SIGKILL. Does nothing if the process has ended or belongs to another user."""
        try:
            if self._handle >= 0:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)  # type: ignore[attr-defined,unused-ignore]
            elif self.pid > 0 and not hasattr(os, "pidfd_open"):
                os.kill(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass

    def close(self) -> None:
        """Release the handle."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _credentials(connection: socket.socket) -> tuple[int, int]:
    """Return the pid and the user id of the peer; 0 and -1 if unknown."""
    if hasattr(socket, "SO_PEERCRED"):
        pid, uid, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        return pid, uid
    if sys.platform == "darwin":
        return connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID), -1
    return 0, -1


def _pidfd(connection: socket.socket, pid: int) -> int:
    """Return a handle of the peer; -1 if the system has none, or the process has ended."""
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        pass
    try:
        return os.pidfd_open(pid)  # type: ignore[attr-defined,unused-ignore]
    except (AttributeError, OSError):
        return -1
