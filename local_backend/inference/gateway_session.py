"""The server's side of its talk with the gateway: connect, start it again, send states, keep loads.

Only the loop of the models changes this; other threads read loads, rates and the address.
"""

from __future__ import annotations

import logging
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dlicmd import __version__
from local_backend.inference.control import GatewayLoad, GatewayState, Model, RevisionLoad, Token, load_of
from local_backend.inference.gateway_process import GatewayHandle, GatewayLink, GatewayLost, GatewayReady
from local_backend.inference.serving_history import ServingHistory

_log = logging.getLogger(__name__)
#: Seconds between two attempts to connect to a gateway that starts, and before a failed start is repeated.
_AGAIN, _PAUSE, _LONGEST_PAUSE = 0.05, 0.5, 10.0
#: Seconds over which rates are measured.
_WINDOW = 10.0
#: Most tokens that the gateway knows.
_MOST_TOKENS = 10_000

Valid = Callable[[Set[str]], Mapping[str, Token]]


@dataclass
class _History:
    """The counts of a revision in the last seconds: (epoch seconds, answered requests, bytes)."""

    points: deque[tuple[float, int, int]] = field(default_factory=deque)

    def add(self, when: float, load: RevisionLoad) -> None:
        if self.points and load.finished < self.points[-1][1]:  # another gateway counts from 0
            self.points.clear()
        self.points.append((when, load.finished, load.transferred))
        while len(self.points) > 2 and self.points[1][0] < when - _WINDOW:
            self.points.popleft()

    def rates(self, now: float) -> tuple[float, float]:
        points = list(self.points)
        before = [one for one in points if one[0] <= now - _WINDOW]
        first = before[-1] if before else points[0] if points else None
        if first is None:
            return 0.0, 0.0
        seconds = max(1.0, min(_WINDOW, now - first[0]))
        return (points[-1][1] - first[1]) / seconds, (points[-1][2] - first[2]) / seconds


class GatewaySession:
    """The gateway of a home, while models run."""

    def __init__(self, handle: GatewayHandle, idle: float) -> None:
        """`idle`: seconds after which the gateway ends when no model runs."""
        self.handle = handle
        self._idle = idle
        self._link: GatewayLink | None = None
        self._sent: tuple[Any, ...] | None = None
        self._version = 0
        self._load: GatewayLoad | None = None
        self._history: dict[tuple[str, int], _History] = {}
        #: What the models did in the last minutes.
        self.history = ServingHistory()
        self._tokens: dict[str, Token] = {}
        self._failures = 0
        self._not_before = 0.0
        self._idle_since: float | None = None
        self._looked = False
        #: Process of a gateway of another version, until the gateway that replaces it is connected.
        self._replaced: int | None = None

    # --- for any thread

    @property
    def ready(self) -> GatewayReady | None:
        """What the gateway said first; None while none is connected that knows the models."""
        link = self._link
        return None if link is None or self._sent is None else link.ready

    @property
    def connected(self) -> bool:
        """Whether a gateway is connected."""
        return self._link is not None

    @property
    def reports(self) -> bool:
        """Whether the present gateway has reported its load."""
        return self._link is not None and self._load is not None

    def loads(self, model: str) -> Mapping[int, RevisionLoad]:
        """Return the last loads of the revisions of a model."""
        load = self._load
        return {} if load is None else load.loads.get(model, {})

    def rates(self, model: str, number: int) -> tuple[float, float]:
        """Return the requests and the bytes per second of a revision in the last seconds."""
        history = self._history.get((model, number))
        return (0.0, 0.0) if history is None else history.rates(time.time())

    # --- for the loop

    def descriptors(self) -> Iterable[int]:
        """Return the descriptor that becomes readable when the gateway says something."""
        return () if self._link is None else (self._link.fileno(),)

    def keep(self, needed: bool) -> float | None:
        """Connect to the gateway, and start one if it is needed and none runs. End it if it was not needed for long.
        Return when to look again (monotonic); None if no time matters."""
        if self._link is None and (needed or not self._looked):
            self._looked = True
            self._link = self.handle.connect()
            if self._link is not None:
                self._sent, self._load = None, None
        if self._replaced is not None:
            return self._replace()
        if needed:
            self._idle_since = None
            return None if self._link is not None else self._begin()
        return self._rest()

    def hear(self, valid: Valid) -> None:
        """Read what the gateway has sent, and answer its questions about tokens."""
        if self._link is None:
            return
        try:
            before = self._link.ready
            for message in self._link.messages():
                self._take(message, valid)
            if before is None and self._link.ready is not None:
                self._failures = 0
                self.handle.keep_ports(self._link.ready)
                self._link.send({"op": "share"})
                self._renew(self._link.ready)
        except GatewayLost as problem:
            self._lost(problem)

    def push(self, shown: Mapping[str, Model], valid: Valid) -> bool:
        """Send the models and the valid tokens to the gateway if they have changed. Return whether it has them."""
        if self._link is None:
            return False
        self._tokens = dict(valid(self._tokens.keys()))
        content = (dict(shown), dict(self._tokens))
        if content == self._sent:
            return True
        self._version = max(self._version + 1, int(time.time() * 1000))
        try:
            self._link.send(GatewayState(self._version, *content))
        except GatewayLost as problem:
            self._lost(problem)
            return False
        self._sent = content
        return True

    def leave(self, *, end: bool = False) -> None:
        """Close the connection for good. The gateway goes on if models run, and else ends; with `end`, it ends."""
        if self._link is not None and (end or self._idle_since is not None):
            self.handle.end(self._link)
            self._link = None
        self.handle.release()
        self.close()

    def close(self) -> None:
        """Close the connection. The gateway goes on."""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _take(self, message: dict[str, Any], valid: Valid) -> None:
        operation, digest = message.get("op"), message.get("digest")
        if operation == "sockets" and self._link is not None:
            self.handle.hold(self._link.take_sockets(message))
        elif operation == "load":
            with suppress(KeyError, TypeError, ValueError, AttributeError):  # of a gateway of another version
                self._load = load_of(message)
                self.history.add(self._load)
                for model, revisions in self._load.loads.items():
                    for number, load in revisions.items():
                        self._history.setdefault((model, number), _History()).add(self._load.when, load)
        elif operation == "token" and isinstance(digest, str):
            found = valid({digest})
            if len(self._tokens) >= _MOST_TOKENS:
                self._tokens.clear()
            self._tokens |= found
            if digest not in found and self._link is not None:
                self._link.send({"op": "no_token", "digest": digest})

    def _begin(self) -> float:
        now = time.monotonic()
        if self.handle.starting:
            return now + _AGAIN
        if now < self._not_before:
            return self._not_before
        self._failures += 1
        self._not_before = now + min(_LONGEST_PAUSE, _PAUSE * 2.0 ** min(self._failures - 1, 10))
        try:
            self.handle.start()
        except OSError as problem:
            _log.error("cannot start the gateway: %s", problem)
            return self._not_before
        return now + _AGAIN

    def _renew(self, ready: GatewayReady) -> None:
        """Start a gateway of this version if the running one has another version. It takes over sockets and requests
        of the running one."""
        if ready.version == __version__:
            return
        _log.info("the gateway has version %s; a gateway of version %s replaces it", ready.version, __version__)
        try:
            self.handle.start()
        except OSError as problem:
            _log.error("cannot start the gateway: %s", problem)
            return
        self._replaced = ready.pid

    def _replace(self) -> float:
        """Connect to the gateway that replaces the present one, as soon as it listens."""
        found = self.handle.connect()
        if found is not None and found.pid in (self._replaced, None):
            found.close()
            found = None
        if found is None and self.handle.starting and self._link is not None:
            return time.monotonic() + _AGAIN
        if found is not None:
            self.close()
            self._link, self._sent, self._load = found, None, None
        self._replaced = None
        return time.monotonic()

    def _rest(self) -> float | None:
        if self._link is None:
            self._idle_since = None
            self.handle.release()
            return None
        now = time.monotonic()
        if self._idle_since is None:
            self._idle_since = now
        if now < self._idle_since + self._idle:
            return self._idle_since + self._idle
        _log.info("the gateway ends, because no model is started")
        self.handle.end(self._link)
        self.handle.release()
        self._link, self._idle_since = None, None
        return None

    def _lost(self, problem: GatewayLost) -> None:
        _log.warning("%s; the server connects to it again, or starts another one", problem)
        if self._link is not None and self._link.ready is None:
            self.handle.end(self._link, signal.SIGKILL)
        self.close()
        self._sent, self._load = None, None
