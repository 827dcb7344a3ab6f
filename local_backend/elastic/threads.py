"""Threads of the engine beside the code of the user."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class EngineThread(threading.Thread):
    """A daemon thread that runs no code of the user, so that a process may end while the thread waits."""

    def __init__(self, target: Callable[..., None], name: str, *arguments: Any) -> None:
        super().__init__(target=target, name=name, args=arguments, daemon=True)
