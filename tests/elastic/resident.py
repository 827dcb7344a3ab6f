"""A runner whose driver is the testing process itself. Its workers are real processes."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from churn import Training
from fake_runner import Outcome

from local_backend.elastic import RUNNER_FD
from local_backend.elastic.driver import launcher


class Resident(Training):
    """Calls `train()` in a thread instead of running a script; the test resizes meanwhile."""

    def __init__(self, tmp: Path, slots: int, train: Callable[[], None]) -> None:
        super().__init__(tmp, slots)
        self._train = train

    def run(self, script: Path, *arguments: str, **extra: str) -> Outcome:
        """Train to the end and check that all workers end too. Raises the error of `train`."""
        ours, theirs = socket.socketpair()
        self._channel, self._extra = ours, extra
        os.environ[RUNNER_FD] = str(theirs.detach())
        serving = threading.Thread(target=self._serve)
        serving.start()
        try:
            self._train()
        finally:
            launcher._runner = None
            for worker in list(self.workers.values()):
                worker.kill()
            ours.shutdown(socket.SHUT_RDWR)
            serving.join()
            ours.close()
        return Outcome(0, "", "", self.messages)
