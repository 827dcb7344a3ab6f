"""Unix sockets at paths of any length, and the process at the other end. All descriptors are plain and do not block."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: Maximum connections that wait to be accepted.
_BACKLOG = 16
#: `struct ucred` of Linux: pid, uid, gid.
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class SocketPeer:
    """The process that connected, or that listens."""

    pid: int
    uid: int


def listen(path: Path) -> int:
    """Create a socket file (0600) and listen on it. The process must have one thread. Raises OSError, also when
    something is already at `path`."""
    with socket.socket(socket.AF_UNIX) as made, _address(path) as address:
        before = os.umask(0o177)
        try:
            made.bind(address)
        finally:
            os.umask(before)
        made.listen(_BACKLOG)
        made.setblocking(False)
        return made.detach()


def accept(fd: int) -> tuple[int, SocketPeer | None]:
    """Accept a connection. The peer is None on systems that do not name it. Raises OSError."""
    listening = socket.socket(fileno=fd)
    try:
        made, _ = listening.accept()
    finally:
        listening.detach()
    with made:
        made.setblocking(False)
        who = _peer(made)
        return made.detach(), who


def connect(path: Path) -> tuple[int, SocketPeer | None]:
    """Connect to the socket file at `path`, without waiting. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as made, _address(path) as address:
        made.setblocking(False)
        made.connect(address)
        who = _peer(made)
        return made.detach(), who


def _peer(connection: socket.socket) -> SocketPeer | None:
    if not hasattr(socket, "SO_PEERCRED"):
        return None  # the mode of the socket file and of its folder must suffice
    pid, uid, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return SocketPeer(pid, uid)


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """Yield a short name of a path: systems limit the address of a socket to about 100 bytes."""
    if not hasattr(os, "O_PATH"):
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
