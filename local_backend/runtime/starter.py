"""The server's side of starting runners: from the nursery when that is possible, else with a fresh interpreter."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections import deque

from local_backend.runtime import environment
from local_backend.runtime.launch import Launch
from local_backend.runtime.nursery import FORKED, READY
from local_backend.runtime.paths import HomePaths
from local_backend.runtime.processes import PLACEHOLDERS

_log = logging.getLogger(__name__)
#: After this many failures in a row (it ended, or did not answer), jobs start without a nursery.
_GIVE_UP = 2
#: Seconds that a nursery may take to import everything.
READY_PATIENCE = 60.0
#: Seconds that a ready nursery may take to fork. One that is late is killed; what it did not fork starts without it.
FORK_PATIENCE = 5.0
_CLOSING_PATIENCE = 5.0


class Starter:
    """Starts runners, and keeps the nursery while it is used. Owned by one thread."""

    def __init__(self, home: HomePaths, idle: float) -> None:
        self._home = home
        self._idle = idle
        self._nursery: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._ready = False
        self._failures = 0
        self._used = self._began = time.monotonic()
        #: Requests that the nursery has not answered yet: from when on each has been its turn to do.
        self._asked: deque[float] = deque()
        self._cold: list[subprocess.Popen[bytes]] = []

    @property
    def fd(self) -> int | None:
        """Readable when the nursery has news; None without a nursery."""
        return self._link.fileno() if self._link is not None else None

    @property
    def due(self) -> float | None:
        """When `tick` is due on the monotonic clock: an unused nursery is to go, or one that does not answer."""
        return min(self._idle_at, self._late_at) if self._link is not None else None

    @property
    def _idle_at(self) -> float:
        return self._used + self._idle if not self._asked else float("inf")

    @property
    def _late_at(self) -> float:
        """When the nursery has taken too long for what it does now."""
        if not self._ready:
            return self._began + READY_PATIENCE
        return self._asked[0] + FORK_PATIENCE if self._asked else float("inf")

    @property
    def state(self) -> dict[str, object]:
        """For GET /status: `state` (off, warming, ready) and, unless off, `pid`."""
        if self._nursery is None or self._link is None:
            return {"state": "off"}
        return {"state": "ready" if self._ready else "warming", "pid": self._nursery.pid}

    def warm_up(self) -> None:
        """Start the nursery, unless there is one, or it is switched off (an idle time of 0), or it never gets ready."""
        if self._link is not None or self._idle <= 0 or self._failures >= _GIVE_UP:
            return
        ours, theirs = socket.socketpair()
        env = environment.inherited(os.environ)
        # One thread: a second one would not survive a fork. Placeholders are overwritten by every runner and worker.
        env |= {"OPENBLAS_NUM_THREADS": "1", **PLACEHOLDERS, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        # Forked processes keep the hash seed of this interpreter, whatever their environment says.
        env[environment.HASH_SEED] = environment.FIXED_HASH_SEED
        with theirs:
            try:
                self._nursery = self._python("local_backend.runtime.nursery", theirs.fileno(), env=env)
            except OSError as problem:
                ours.close()
                self._failures += 1
                _log.warning("the nursery cannot be started (%s); jobs start without it", problem)
                return
        ours.setblocking(False)  # this thread must not wait for a nursery that does not read
        self._link, self._ready = ours, False
        self._used = self._began = time.monotonic()

    def start(self, launch: Launch, warm: bool = True) -> int:
        """Start a runner for a launch that has been written; the reading end of its ready pipe.

        Raises OSError when no process can be made.
        """
        reader, writer = os.pipe()
        try:
            if not (warm and not environment.needs_own_interpreter(launch.spec) and self._ask(launch, writer)):
                self._start_cold(launch, writer)
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        return reader

    def on_event(self) -> None:
        """The nursery says that it is ready or has forked, or it has ended."""
        if self._link is None:
            return
        try:
            said = self._link.recv(4096)
        except BlockingIOError:
            return
        except ConnectionError:
            said = b""
        if not said:
            if not self._ready:
                self._fail("the nursery ended before it was ready; see its output in the log of the backend")
            self.close()
            return
        now = time.monotonic()
        if READY in said:
            self._ready = True
            self._asked = deque(now for _ in self._asked)
        for _ in range(min(said.count(FORKED), len(self._asked))):
            self._asked.popleft()
            self._failures = 0
        if self._asked:
            self._asked[0] = now  # it works on this one only since it is done with the one before

    def tick(self) -> None:
        """Let an idle nursery go, kill one that does not answer, and reap runners that have ended."""
        now = time.monotonic()
        if self._link is not None and now >= self._late_at:
            self._fail("the nursery does not answer and is killed; jobs that wait for it start without it")
            self.close()
        elif self._link is not None and now >= self._idle_at:
            self.close()
        self._cold = [process for process in self._cold if process.poll() is None]

    def close(self) -> None:
        """End the nursery; runners go on."""
        if self._link is not None:
            self._link.close()
            self._link = None
        self._asked.clear()
        if self._nursery is not None:
            self._nursery.kill()  # it has nothing to put away, and one that is stopped hears nothing else
            try:
                self._nursery.wait(_CLOSING_PATIENCE)
            except subprocess.TimeoutExpired:
                _log.warning("the nursery, process %d, was killed and does not end", self._nursery.pid)
            self._nursery = None

    def _fail(self, why: str) -> None:
        self._failures += 1
        _log.warning("%s", why)

    def _ask(self, launch: Launch, writer: int) -> bool:
        """Ask the nursery to fork; False when there is none, or it has enough to do."""
        self.warm_up()
        if self._link is None:
            return False
        self._used = time.monotonic()
        request = json.dumps({"job": str(launch.paths.spec), "attempt": launch.attempt}).encode() + b"\n"
        try:
            sent = socket.send_fds(self._link, [request], [writer])
        except ConnectionError:
            self.close()
            return False
        except OSError:  # so many requests wait that there is no room for another
            return False
        if sent != len(request):
            self.close()
            return False
        self._asked.append(self._used)
        return True

    def _start_cold(self, launch: Launch, writer: int) -> None:
        env = environment.inherited(os.environ) | PLACEHOLDERS
        words = (str(launch.paths.spec), str(launch.attempt), str(writer))
        self._cold.append(self._python("local_backend.runtime.runner", writer, *words, env=env))

    def _python(self, module: str, keep: int, *words: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
        """A module of ours in a process and session of its own, with nothing to read and the log to write to.

        Started in the state directory: the first entry of its sys.path must not be where some user happened to be.
        """
        log = os.open(self._home.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            return subprocess.Popen(
                [sys.executable, "-m", module, *(words or (str(keep),))], env=env, cwd=self._home.home,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[keep], start_new_session=True,
            )
        finally:
            os.close(log)
