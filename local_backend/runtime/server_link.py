"""The runner's connection to the server: the first one, which the runner inherits, and a socket for later servers.

The runner never waits for a server. Of each kind of message, only the newest one is kept and sent.
"""

from __future__ import annotations

import os
import select
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from local_backend.runtime import tree, unix_socket
from local_backend.runtime.channel import Channel
from local_backend.runtime.launcher import Held
from local_backend.runtime.messages import (
    Begun,
    Exited,
    FromRunner,
    GpusMeasured,
    Hello,
    Progressed,
    SetAside,
    StartRefused,
    from_server,
    of_runner,
)
from local_backend.scheduler.model import Allocation

#: Seconds between two checks of the socket file while no server is connected.
_CHECK_EVERY = 1.0
#: Maximum number of connections without a valid proof.
_MOST_UNPROVED = 8
#: Kinds of messages in the order in which a new server gets them.
_KINDS = (Begun, Progressed, Held, Exited)

Source = tuple[int, Callable[[], None], int]


class ServerLink:
    """Sends messages to the server, and receives allocations."""

    def __init__(
        self, fd: int, path: Path, proves: Callable[[str], bool], mend: Callable[[], None] = lambda: None
    ) -> None:
        """`fd` is the connection to the server that started this runner, `path` the socket for later servers. `proves`
        returns whether the proof in a `Hello` is valid. `mend` is called while no server is connected: it makes the
        other files again by which a server finds this runner.

        Raises OSError when the socket cannot be created.
        """
        #: Receive the allocations of the server, and the sequences with which it asks to set the job aside.
        self.on_allocation: Callable[[Allocation], None] = lambda _: None
        self.on_set_aside: Callable[[int], None] = lambda _: None
        #: Receives how busy the GPUs are.
        self.on_gpus: Callable[[GpusMeasured], None] = lambda _: None
        self._channel = Channel(fd)
        self._path = path
        self._proves = proves
        self._mend = mend
        #: Connections without a valid proof, oldest first.
        self._unproved: list[Channel] = []
        self._newest: dict[type[FromRunner], FromRunner] = {}
        self._unsent: set[type[FromRunner]] = set()
        self._check_at = 0.0
        self._listening = -1
        self._file: tuple[int, int, int] | None = None
        self._listen()

    def ignore_server(self) -> None:
        """Take no further allocations, and no request to set the job aside."""
        self.on_allocation = lambda _: None
        self.on_set_aside = lambda _: None

    @property
    def sources(self) -> list[Source]:
        """Descriptors with their handlers and the events of poll(2) to wait for."""
        found: list[Source] = [(self._listening, self._accept, select.POLLIN)] if self._listening >= 0 else []
        if self._channel.open:
            writing = select.POLLOUT if self._channel.wants_to_write else 0
            found.append((self._channel.fd, self._on_ready, select.POLLIN | writing))
        return found + [(one.fd, partial(self._take_proof, one), select.POLLIN) for one in self._unproved]

    @property
    def due(self) -> float | None:
        """When `tick` is due (monotonic); None if it is not."""
        return None if self._channel.open else self._check_at

    def say(self, message: FromRunner) -> None:
        """Send a message, if it differs from the last one of its kind: now, or when the server can receive it."""
        kind = type(message)
        if self._newest.get(kind) != message:
            self._newest[kind] = message
            self._unsent.add(kind)
            self._send()

    def tick(self) -> None:
        """Create the socket file again if the program has removed or replaced it. While a server is connected, the file
        is not needed."""
        if self._channel.open or time.monotonic() < self._check_at:
            return
        self._check_at = time.monotonic() + _CHECK_EVERY
        self._mend()
        if self._file is None or self._file != _identity(self._path):
            try:
                self._listen()
            except OSError:
                return  # the folder of the exec is gone, or the disk is full

    def close(self) -> None:
        """Close all connections, and remove the socket file."""
        for channel in (self._channel, *self._unproved):
            channel.close()
        self._unproved.clear()
        if self._file is not None and self._file == _identity(self._path):
            self._path.unlink(missing_ok=True)
        self._stop_listening()

    def _listen(self) -> None:
        self._stop_listening()
        _clear(self._path)
        self._listening = unix_socket.listen(self._path)
        self._file = _identity(self._path)

    def _stop_listening(self) -> None:
        if self._listening >= 0:
            os.close(self._listening)
        self._listening, self._file = -1, None

    def _accept(self) -> None:
        """Accept a connection. If there are too many without a proof, the new one replaces the oldest."""
        try:
            fd, peer = unix_socket.accept(self._listening)
        except OSError:
            return  # the peer has gone
        if peer is not None and not _may_be_server(peer):
            os.close(fd)
            return
        self._unproved.append(Channel(fd))
        if len(self._unproved) > _MOST_UNPROVED:
            self._unproved.pop(0).close()
        self._take_proof(self._unproved[-1])

    def _take_proof(self, connection: Channel) -> None:
        """Replace the server by this connection if its proof is valid. Unread messages of the earlier server are
        dropped before the new server gets the state: otherwise 2 jobs could get a slot that the earlier server gave."""
        if connection not in self._unproved:
            return  # replaced since it became readable
        for message in connection.receive():
            hello = from_server(message)
            if not isinstance(hello, Hello) or not self._proves(hello.proof):
                connection.close()
                break
            self._unproved.remove(connection)
            self._channel.close()
            self._channel = connection
            self._unsent = set(self._newest)
            self._send()
            return
        if not connection.open:
            self._unproved.remove(connection)

    def _on_ready(self) -> None:
        for message in self._channel.receive():
            match from_server(message):
                case Allocation() as allocation:
                    self.on_allocation(allocation)
                case SetAside(sequence):
                    self.on_set_aside(sequence)
                case GpusMeasured() as measured:
                    self.on_gpus(measured)
        self._channel.flush()
        self._send()

    def _send(self) -> None:
        for kind in _KINDS:
            if kind in self._unsent and self._channel.open and not self._channel.wants_to_write:
                self._unsent.discard(kind)
                self._channel.send(of_runner(self._newest[kind]))


def refuse(fd: int, why: str) -> None:
    """Tell the server that the attempt cannot begin, and close the connection."""
    channel = Channel(fd)
    channel.send(of_runner(StartRefused(why)))
    channel.close()


def _may_be_server(peer: unix_socket.SocketPeer) -> bool:
    """Return whether a process may be a server: a process of the same user that is not part of this job."""
    return peer.uid == os.geteuid() and tree.is_stranger(peer.pid)


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Return values that differ for another file at the same path; None if there is none. Systems use the number of a
    removed file again."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


def _clear(path: Path) -> None:
    """Remove anything at a path. Raises OSError when it is not a folder and cannot be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    path.unlink(missing_ok=True)
