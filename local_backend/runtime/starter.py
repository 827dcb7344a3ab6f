"""Starts runners from the server: from the nursery if possible, otherwise with a fresh interpreter."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from local_backend import interpreter
from local_backend.measures import NURSERY
from local_backend.own_process import unchangeable
from local_backend.runtime import environment
from local_backend.runtime.loop import Backoff
from local_backend.runtime.nursery import FORKED, READY
from local_backend.runtime.paths import HomePaths
from local_backend.runtime.processes import PLACEHOLDERS

_log = logging.getLogger(__name__)
#: Seconds without another nursery after one has failed (it ended or did not answer), growing with every failure in a
#: row, and at most. Jobs then start without a nursery.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
#: Maximum seconds for a nursery to import everything.
READY_PATIENCE = 60.0
#: Maximum seconds for a ready nursery to fork. A late nursery is killed; requests that it did not fork start without
#: it.
FORK_PATIENCE = 5.0
_CLOSING_PATIENCE = 5.0


class Starter:
    """Starts runners, and keeps the nursery while it is in use. Owned by one thread."""

    def __init__(self, home: HomePaths, idle: float, isolated: bool) -> None:
        """`isolated`: the runners make a sandbox for each job."""
        self._home = home
        self._isolated = isolated
        self._idle = idle
        self._nursery: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._ready = False
        self._failing = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._not_before = 0.0
        self._used = self._began = time.monotonic()
        #: Unanswered requests: for each, since when the nursery can work on it (monotonic).
        self._asked: deque[float] = deque()
        self._cold: list[subprocess.Popen[bytes]] = []
        for name in ("off", "warming", "ready"):
            NURSERY.labels(name).set_function(partial(self._is, name))

    @property
    def fd(self) -> int | None:
        """Descriptor that is readable when the nursery has sent a message; None without a nursery."""
        return self._link.fileno() if self._link is not None else None

    @property
    def due(self) -> float | None:
        """When `tick` is due on the monotonic clock, to end an idle nursery or one that does not answer."""
        return min(self._idle_at, self._late_at) if self._link is not None else None

    @property
    def _idle_at(self) -> float:
        return self._used + self._idle if not self._asked else float("inf")

    @property
    def _late_at(self) -> float:
        """When the nursery has taken too long for its current task."""
        if not self._ready:
            return self._began + READY_PATIENCE
        return self._asked[0] + FORK_PATIENCE if self._asked else float("inf")

    @property
    def state(self) -> dict[str, object]:
        """Values for GET /status: `state` (off, warming, ready) and, unless off, `pid`."""
        if self._nursery is None or self._link is None:
            return {"state": "off"}
        return {"state": "ready" if self._ready else "warming", "pid": self._nursery.pid}

    def _is(self, name: str) -> float:
        return float(self.state["state"] == name)

    def warm_up(self) -> None:
        """Start the nursery, unless it is running, switched off (idle time 0), or has failed a moment ago."""
        if self._link is not None or self._idle <= 0 or time.monotonic() < self._not_before:
            return
        ours, theirs = socket.socketpair()
        env = environment.inherited(os.environ)
        # One thread only: a second one would not survive a fork. Every runner and worker overwrites the placeholders.
        env |= {"OPENBLAS_NUM_THREADS": "1", **PLACEHOLDERS, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        # Forked processes keep this interpreter's hash seed, independent of their environment.
        env[environment.HASH_SEED] = environment.FIXED_HASH_SEED
        with theirs:
            try:
                self._nursery = self._python("local_backend.runtime.nursery", theirs.fileno(), env=env)
            except OSError as problem:
                ours.close()
                self._fail(f"cannot start the nursery: {problem}; jobs start without it")
                return
        ours.setblocking(False)  # this thread must not wait for a nursery that does not read
        self._link, self._ready = ours, False
        self._used = self._began = time.monotonic()

    def start(self, spec: Path, attempt: int, *, warm: bool) -> int:
        """Start a runner for the launch in the file `spec`; return the server's end of the connection to it. With
        `warm`, the nursery forks the runner if possible.

        Raises OSError when no process can be created.
        """
        ours, theirs = socket.socketpair()
        with ours, theirs:
            if not (warm and self._ask(spec, attempt, theirs.fileno())):
                self._start_cold(spec, attempt, theirs.fileno())
            return ours.detach()

    def on_event(self) -> None:
        """Handle a message of the nursery (ready, forked) or its end."""
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
            self._failing.succeeded()
        if self._asked:
            self._asked[0] = now  # the nursery begins with this request only now

    def tick(self) -> None:
        """End an idle nursery, kill one that does not answer, and reap ended runners."""
        now = time.monotonic()
        if self._link is not None and now >= self._late_at:
            self._fail("killing the nursery because it does not answer; jobs that wait for it start without it")
            self.close()
        elif self._link is not None and now >= self._idle_at:
            self.close()
        self._cold = [process for process in self._cold if process.poll() is None]

    def close(self) -> None:
        """End the nursery; runners keep running."""
        if self._link is not None:
            self._link.close()
            self._link = None
        self._asked.clear()
        if self._nursery is not None:
            self._nursery.kill()  # nothing to save; SIGKILL also ends a suspended nursery
            try:
                self._nursery.wait(_CLOSING_PATIENCE)
            except subprocess.TimeoutExpired:
                _log.warning("the nursery (process %d) was killed but has not ended", self._nursery.pid)
            self._nursery = None

    def _fail(self, why: str) -> None:
        """Log why the nursery failed, and start no other one for a while."""
        self._failing.failed(RuntimeError(why))
        self._not_before = time.monotonic() + self._failing.pause
        _log.warning("%s", why)

    def _ask(self, spec: Path, attempt: int, server: int) -> bool:
        """Ask the nursery to fork. Return False if there is no nursery or its request queue is full."""
        self.warm_up()
        if self._link is None:
            return False
        self._used = time.monotonic()
        request = json.dumps({"job": str(spec), "attempt": attempt}).encode() + b"\n"
        try:
            sent = socket.send_fds(self._link, [request], [server])
        except ConnectionError:
            self.close()
            return False
        except OSError:  # the socket buffer is full of waiting requests
            return False
        if sent != len(request):
            self.close()
            return False
        self._asked.append(self._used)
        return True

    def _start_cold(self, spec: Path, attempt: int, server: int) -> None:
        env = environment.inherited(os.environ) | PLACEHOLDERS
        words = (str(spec), str(attempt), str(server))
        self._cold.append(self._python("local_backend.runtime.runner", server, *words, env=env))

    def _python(self, module: str, keep: int, *words: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start a module of this package in its own process and session, with empty stdin and the log as output."""
        python = sys.executable
        log = os.open(self._home.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Processes in a sandbox are forked from this one, and so they run its file.
            with unchangeable(python) if self._isolated else nullcontext((python, ())) as (file, needed):
                return subprocess.Popen(
                    interpreter.command(module, *(words or (str(keep),))), executable=file, env=env, cwd="/",
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[keep, *needed], start_new_session=True,
                )
        finally:
            os.close(log)
