"""Sends the metrics of one exec to one target, in a loop of its own: a slow receiver delays no other exec.

After every batch, the forwarder records what it has sent, so that the next server continues there. A server that is
killed between a batch and this record sends the batch again. So every line arrives at least once, with an identity.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path

from local_backend import logs
from local_backend.files import read_json, write_json
from local_backend.forward import source
from local_backend.forward.channel import MetricsChannel, RecordRefused, Trouble
from local_backend.forward.source import SourceLine
from local_backend.measures import FORWARD_FAILURES, FORWARDED
from local_backend.runtime import launcher_log
from local_backend.runtime.loop import Backoff, Loop, LoopEnd
from local_backend.runtime.paths import ExecPaths

_log = logging.getLogger(__name__)
#: Maximum lines per batch.
_MOST = 500
#: Reads without a new line after which a kept connection is closed: brokers expect traffic on an open connection.
_IDLE = 10


@dataclass(frozen=True)
class Pace:
    """Times in seconds.

    `look`: between two reads for new lines. `first` and `longest`: the first and the longest pause after a failure.
    `drain`: how long to keep trying after the exec is over.
    """

    look: float = 1.0
    first: float = 1.0
    longest: float = 60.0
    drain: float = 600.0


class Forwarder:
    """Reads, sends and records. Call `start` first. Ends when the exec is over and all is sent or given up."""

    def __init__(  # noqa: PLR0917
        self, paths: ExecPaths, kind: str, notes: Path, channel: MetricsChannel, pace: Pace, done: Callable[[], None]
    ) -> None:
        """`notes` is the file with the offsets up to which all lines are sent to the target of this kind. `done` is
        called once `finished` is true."""
        self._paths = paths
        self._kind = kind
        self._note_file: Path = notes
        self._channel = channel
        self._pace = pace
        self._done = done
        self._loop = Loop(
            f"forward-{kind}-{paths.exec_id}", self._turn, session=self._session,
            backoff=Backoff(pace.first, pace.longest),
        )
        #: The failures of the receiver; the loop counts all others.
        self._backoff = Backoff(pace.first, pace.longest)
        #: Time at which the exec was seen to be over (monotonic).
        self._over_at: float | None = None
        self._offsets: dict[str, int] = {}
        self._most = _MOST
        #: Reads in a row without a new line.
        self._idle = 0
        #: Whether all lines that will ever be sent are sent. If False after the thread has ended, it was stopped.
        self.finished = False

    def start(self) -> None:
        """Start the thread."""
        self._loop.start()

    def over(self) -> None:
        """Report that the exec has ended: send the rest, for a limited time."""
        if self._over_at is None:
            self._over_at = time.monotonic()
            self._loop.wake()

    def stop(self, wait: float = 0.0) -> None:
        """Stop sending; the next server continues. Wait up to `wait` seconds until the thread has ended."""
        self._loop.stop(wait)

    @contextlib.contextmanager
    def _session(self) -> Iterator[None]:
        """Begin with the recorded offsets, and close the connection at the end."""
        logs.begin(exec=self._paths.exec_id)
        self._offsets = self._remembered()
        try:
            yield
        finally:
            self._channel.close()

    def _turn(self, _ready: Set[int]) -> float:
        """Send a batch. Raises LoopEnd when all lines are sent, or when the time for them is over."""
        if self._is_late() and (self._backoff.failures or self._loop.failures):
            self._note(f"dropped the remaining metrics: {self._channel.name} did not accept them in time", "ERROR")
            self._finish()
        final = self._over_at is not None  # before the read: lines that are written later are read again
        batch = source.read(self._paths.logs, self._offsets, self._most, final)
        if batch.skipped:
            self._note(f"skipped {batch.skipped} bytes that are not metrics (one JSON object per line)")
        if batch.lines:
            self._idle = 0
            return self._due(self._send(batch.lines, batch.offsets))
        self._remember(batch.offsets)
        if final:
            self._finish()
        self._idle += 1
        if self._idle == _IDLE:
            self._channel.close()
        return self._due(self._pace.look)

    def _finish(self) -> None:
        self.finished = True
        self._done()
        raise LoopEnd

    def _send(self, lines: list[SourceLine], after: dict[str, int]) -> float:
        """Send a batch, or the part that the receiver accepts. Return the seconds to wait before the next batch."""
        try:
            self._channel.send(lines)
        except RecordRefused as problem:
            self._sent(lines[: problem.done])
            # Lines are then sent one by one, which shows which line the receiver refuses.
            self._most = 1
            if len(lines) == 1:
                self._note(f"dropped a line of {lines[0].source}: {self._channel.name} refuses it: {problem}")
                self._remember(after)
            return 0.0
        except Trouble as problem:
            self._sent(lines[: problem.done])
            return self._failed(problem)
        FORWARDED.labels(self._kind).inc(len(lines))
        if self._backoff.succeeded():
            self._note(f"{self._channel.name} accepts metrics again")
        self._most = min(_MOST, self._most * 2)
        self._remember(after)
        return 0.0

    def _failed(self, problem: Trouble) -> float:
        FORWARD_FAILURES.labels(self._kind).inc()
        if not self._backoff.failures:
            self._note(f"cannot send metrics to {self._channel.name} now, trying again: {problem}", "WARN")
        self._backoff.failed(problem)
        # Random, so that many forwarders do not retry at once.
        return max(problem.after, self._backoff.pause * random.uniform(0.75, 1.25))

    def _is_late(self) -> bool:
        return self._over_at is not None and time.monotonic() >= self._over_at + self._pace.drain

    def _due(self, seconds: float) -> float:
        """Return the moment after a pause, or the end of the time for the rest if that is earlier."""
        due = time.monotonic() + seconds
        return due if self._over_at is None else min(due, self._over_at + self._pace.drain)

    def _sent(self, lines: list[SourceLine]) -> None:
        if lines:
            FORWARDED.labels(self._kind).inc(len(lines))
            self._remember(self._offsets | {line.source: line.end for line in lines})

    def _remember(self, offsets: dict[str, int]) -> None:
        """Record the offsets up to which all lines are sent. If the disk fails, lines are only sent twice."""
        if offsets == self._offsets:
            return
        self._offsets = offsets
        try:
            write_json(self._note_file, offsets, durable=False)
        except OSError as problem:
            _log.warning("%s: %s", self._note_file, problem)

    def _remembered(self) -> dict[str, int]:
        found = read_json(self._note_file)
        if not isinstance(found, dict):
            return {}
        return {name: at for name, at in found.items() if isinstance(at, int) and at >= 0}

    def _note(self, text: str, level: str = "INFO") -> None:
        launcher_log.note(self._paths.launcher_log, "forwarding", text, level)
