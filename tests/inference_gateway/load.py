"""Clients that send unique requests until they are told to stop, and compare each answer with its request."""

from __future__ import annotations

import http.client
import itertools
import threading
from collections import Counter
from types import TracebackType

from calls import ask
from gateway_host import GatewayHost
from support import eventually


class Load:
    """Use it as a context; then `counts` has the number of answers by status, or by the kind of failure."""

    def __init__(self, host: GatewayHost, clients: int = 8, *, keep: bool = True) -> None:
        """`keep`: whether a client uses its connection again, until the gateway closes it."""
        self.host = host
        self.keep = keep
        self.counts: Counter[object] = Counter()
        self.wrong: list[bytes] = []
        self._stop = threading.Event()
        self._numbers = itertools.count()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def answered(self) -> int:
        """How many requests have an answer."""
        return self.counts[200]

    def advance(self, count: int = 50) -> None:
        """Wait for further answers."""
        goal = self.answered + count
        eventually(lambda: self.answered >= goal or self.wrong, "further answers")

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.host.port, timeout=60)
        while not self._stop.is_set():
            body = b"request %d" % next(self._numbers)
            try:
                got = ask(connection, body)
                self.counts[got.status] += 1
                if got.status == 200 and got.body != body:
                    self.wrong.append(got.body)
            except (OSError, http.client.HTTPException) as error:
                self.counts[type(error).__name__] += 1
                connection.close()
            if not self.keep:
                connection.close()
        connection.close()
