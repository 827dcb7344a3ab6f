"""The process behind `forking.py`: an interpreter that has imported modules and forks on request."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

#: The function that a forked child runs, with its request and the descriptors sent with it.
Begin = Callable[[dict[str, Any], list[int]], None]
#: Process id → descriptor to which its exit status is written.
Living = dict[int, int]


def serve(begin: Begin) -> None:
    """Fork for every request, forward signals, and report every exit, until no `forking.Host` is connected.

    In a forked child, `begin` runs on the stack of this function, so `begin` may raise an exception to leave it.
    """
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then end this process
    listener = socket.socket(fileno=int(sys.argv[1]))
    _answer([listener, _accepted(listener)], reader, begin)
    listener.close()


def _accepted(listener: socket.socket) -> socket.socket:
    link, _ = listener.accept()
    with suppress(BrokenPipeError):
        link.send(b"!")
    return link


def _answer(sockets: list[socket.socket], ended: int, begin: Begin) -> None:
    """Answer requests from all `sockets` but the first, which listens for further connections."""
    living: Living = {}
    listener = sockets[0]
    while True:
        ready, _, _ = select.select([*sockets, ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _reap(living)
        if listener in ready:
            sockets.append(_accepted(listener))
        for link in set(ready) & set(sockets[1:]):
            data, descriptors, _, _ = socket.recv_fds(link, 1 << 20, 8)
            if data:
                _obey(json.loads(data), descriptors, living, sockets, begin)
            else:
                sockets.remove(link)
                link.close()
        if len(sockets) == 1 and not select.select(sockets, [], [], 0)[0]:
            return


def _obey(
    request: dict[str, Any], descriptors: list[int], living: Living, sockets: list[socket.socket], begin: Begin,
) -> None:
    """Fork a child, or send a signal to a running child."""
    if "signal" in request:
        if request["pid"] in living:
            os.kill(request["pid"], request["signal"])
        return
    status, *given = descriptors
    child = os.fork()
    if not child:
        os.close(status)
        for one in sockets:
            one.close()
        begin(request, given)
        raise AssertionError("a forked child returned to its host")
    for descriptor in given:
        os.close(descriptor)
    living[child] = status
    _tell(status, child)


def _reap(living: Living) -> None:
    """Report all children that have ended."""
    while living:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        pipe = living.pop(pid)
        _tell(pipe, os.waitstatus_to_exitcode(status))
        os.close(pipe)


def _tell(pipe: int, number: int) -> None:
    """Write a line, unless the test has dropped its end: it may start a server and never wait for it."""
    with suppress(BrokenPipeError):
        os.write(pipe, b"%d\n" % number)
